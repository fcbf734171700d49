// One group of ranks: its connection, and the threads that its collectives run on.
#ifndef TPU_SHIM_DIST_TRANSPORT_H_
#define TPU_SHIM_DIST_TRANSPORT_H_

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "dist_collective.h"
#include "runtime.h"

namespace tpu_shim {

constexpr int64_t kInlineBytes = 128;

// What each rank says of a collective before it: fixed in size, so that it fits whatever they call.
// Small content travels in it.
struct CollectiveBlock {
  uint64_t agreement;  // a hash of all that must be the same
  uint64_t sequence;
  uint64_t bytes;   // of `data`, or of the message that follows
  uint32_t failed;  // it cannot take part; `data` says why
  char text[100];
  char data[kInlineBytes];
};
static_assert(sizeof(CollectiveBlock) == 256, "a block has no padding");

// Calls from Python's threads come in through dist_group.cpp; run() and fail() are called on the
// channels' threads, where PyTorch's CPU tensors are all they touch.
class Transport {
 public:
  // `gloo` connects ranks 0 .. size-1.
  Transport(c10::intrusive_ptr<c10d::Backend> gloo, int rank, int size);
  ~Transport();
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  // Takes part in a collective. `inputs` are the caller's own. Gives one tensor per output. Throws
  // DistBackendError, which names the group and the call.
  std::vector<at::Tensor> run(Collective& call, std::vector<at::Tensor> inputs);
  // Tells the others that this rank cannot take part, since what it was to send does not exist.
  void fail(Collective& call, const std::string& why);

  // The thread for such calls: one for all collectives, one each for what is sent to and received
  // from a peer, since a rank may wait for a message while it sends another.
  tpu_channel_t* channel(const Collective& call);
  uint64_t next_sequence() { return sequence_.fetch_add(1) + 1; }
  uint64_t sequence() const { return sequence_.load(); }

  // Calls begin and end; wait_idle() waits until all have ended.
  void begin();
  void end();
  bool idle() const;
  void wait_idle();
  // Calls that wait for others give up.
  void close() { closed_ = true; }

  void set_name(std::string name) { name_ = std::move(name); }
  const std::string& name() const { return name_; }
  // Throws if the connection was lost.
  void check_alive() const;
  const c10::intrusive_ptr<c10d::Backend>& gloo() const { return gloo_; }

 private:
  std::string prefix(const Collective& call) const;
  [[noreturn]] void throw_failure(const Collective& call, const std::string& why, bool lost);
  // The same words on all ranks.
  [[noreturn]] void throw_disagreement(const std::string& what);
  void await(const c10::intrusive_ptr<c10d::Work>& work, const Collective& call);
  CollectiveBlock block_of(const Collective& call) const;
  // The blocks of all ranks.
  std::vector<CollectiveBlock> exchange(const CollectiveBlock& mine, const Collective& call);
  void check_agreement(const Collective& call, const std::vector<CollectiveBlock>& blocks);
  std::vector<at::Tensor> run_collective(Collective& call, std::vector<at::Tensor> inputs);
  std::vector<at::Tensor> run_small(const Collective& call, const at::Tensor& input,
                                    const std::vector<CollectiveBlock>& blocks);
  std::vector<at::Tensor> run_large(const Collective& call, std::vector<at::Tensor> inputs);
  std::vector<at::Tensor> move(const Collective& call, const std::vector<at::Tensor>& inputs);
  at::Tensor all_reduced(at::Tensor tensor, const Collective& call);
  at::Tensor reduced(at::Tensor tensor, const Collective& call);
  // [size, bytes] from [bytes] of each.
  at::Tensor gathered(const at::Tensor& bytes, const Collective& call);
  // Bytes by rank.
  at::Tensor exchanged(const at::Tensor& bytes, std::vector<int64_t> in_splits,
                       std::vector<int64_t> out_splits, const Collective& call);
  std::vector<at::Tensor> send(Collective& call, const at::Tensor& input);
  std::vector<at::Tensor> receive(Collective& call);
  void pass(at::Tensor bytes, int peer, bool sends, Collective& call);
  void check_splits(const Collective& call);

  const c10::intrusive_ptr<c10d::Backend> gloo_;
  const int rank_, size_;
  std::string name_ = "default";
  std::atomic<uint64_t> sequence_{0};
  std::atomic<bool> closed_{false};
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  int64_t under_way_ = 0;
  std::string lost_;  // why the connection is of no more use
  std::map<int64_t, tpu_channel_t*> channels_;
};

// Tickets: the number that a record carries, and the call behind it.
struct Ticket {
  std::shared_ptr<Collective> call;
  Transport* transport;
  std::function<void(const std::string* error, uint64_t job)> landed;
};
int64_t add_ticket(Ticket ticket);
Ticket get_ticket(int64_t number);
void drop_ticket(int64_t number);

}  // namespace tpu_shim

#endif  // TPU_SHIM_DIST_TRANSPORT_H_
