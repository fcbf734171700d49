// torch.distributed's backend "tpu_dist": each call is a record of the row COLLECTIVE, on a channel
// of its group, and is under way when the call returns.
#ifndef TPU_SHIM_DIST_GROUP_H_
#define TPU_SHIM_DIST_GROUP_H_

#include <torch/csrc/python_headers.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "dist_transport.h"

namespace tpu_shim {

using c10d::Work;

// How a call ends. Channels' threads hold this and nothing of Python's: who waits for them may hold
// the GIL, so that they must never need it, not even to let go of a tensor.
struct CallEnd {
  std::mutex mutex;
  std::condition_variable landed;
  bool completed = false;
  std::exception_ptr exception;
  int source = -1;   // of a message
  uint64_t job = 0;  // the engine's

  void land(const std::string* error, int source_rank, uint64_t its_job);
};

// One call under way. Results are ordered by value: whoever reads them waits for them, so that
// wait() without a timeout only tells of an error that is known already. What is for the host to
// wait for (a barrier) is waited for.
class WorkTpu final : public Work {
 public:
  WorkTpu(int rank, c10d::OpType type, std::vector<at::Tensor> outputs, bool for_host)
      : Work(rank, type), outputs_(std::move(outputs)), for_host_(for_host) {}

  const std::shared_ptr<CallEnd>& end() const { return end_; }
  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override {}
  void blockCurrentStream() override {}
  void abort() override {}
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  int sourceRank() const override;

 private:
  const std::vector<at::Tensor> outputs_;
  const bool for_host_;
  const std::shared_ptr<CallEnd> end_ = std::make_shared<CallEnd>();
};

class ProcessGroupTpu final : public c10d::Backend {
 public:
  ProcessGroupTpu(c10::intrusive_ptr<Backend> gloo, int rank, int size,
                  std::chrono::milliseconds timeout);
  ~ProcessGroupTpu() override;

  const std::string getBackendName() const override { return "tpu_dist"; }
  c10::intrusive_ptr<Options> getBackendOptions() override { return options_; }
  void setTimeout(std::chrono::milliseconds timeout) override { options_->timeout = timeout; }
  void setGroupUid(const std::string& uid) override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return transport_->sequence(); }
  void startCoalescing() override;
  c10::intrusive_ptr<Work> endCoalescing() override;
  c10d::ErrorType getError() override;
  // Waits for what is under way.
  void shutdown() override;
  // Does not.
  void abort() override { transport_->close(); }

  c10::intrusive_ptr<Work> broadcast(std::vector<at::Tensor>& tensors,
                                     const c10d::BroadcastOptions& options) override;
  c10::intrusive_ptr<Work> allreduce(std::vector<at::Tensor>& tensors,
                                     const c10d::AllreduceOptions& options) override;
  c10::intrusive_ptr<Work> allreduce_coalesced(
      std::vector<at::Tensor>& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  c10::intrusive_ptr<Work> reduce(std::vector<at::Tensor>& tensors,
                                  const c10d::ReduceOptions& options) override;
  c10::intrusive_ptr<Work> allgather(std::vector<std::vector<at::Tensor>>& outputs,
                                     std::vector<at::Tensor>& inputs,
                                     const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<Work> _allgather_base(at::Tensor& output, at::Tensor& input,
                                           const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<Work> allgather_coalesced(std::vector<std::vector<at::Tensor>>& outputs,
                                               std::vector<at::Tensor>& inputs,
                                               const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<Work> allgather_into_tensor_coalesced(
      std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::AllgatherOptions& options) override;
  c10::intrusive_ptr<Work> gather(std::vector<std::vector<at::Tensor>>& outputs,
                                  std::vector<at::Tensor>& inputs,
                                  const c10d::GatherOptions& options) override;
  c10::intrusive_ptr<Work> scatter(std::vector<at::Tensor>& outputs,
                                   std::vector<std::vector<at::Tensor>>& inputs,
                                   const c10d::ScatterOptions& options) override;
  c10::intrusive_ptr<Work> reduce_scatter(std::vector<at::Tensor>& outputs,
                                          std::vector<std::vector<at::Tensor>>& inputs,
                                          const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<Work> _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<Work> reduce_scatter_tensor_coalesced(
      std::vector<at::Tensor>& outputs, std::vector<at::Tensor>& inputs,
      const c10d::ReduceScatterOptions& options) override;
  c10::intrusive_ptr<Work> alltoall_base(at::Tensor& output, at::Tensor& input,
                                         std::vector<int64_t>& output_splits,
                                         std::vector<int64_t>& input_splits,
                                         const c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<Work> alltoall(std::vector<at::Tensor>& outputs,
                                    std::vector<at::Tensor>& inputs,
                                    const c10d::AllToAllOptions& options) override;
  c10::intrusive_ptr<Work> send(std::vector<at::Tensor>& tensors, int peer, int tag) override;
  c10::intrusive_ptr<Work> recv(std::vector<at::Tensor>& tensors, int peer, int tag) override;
  c10::intrusive_ptr<Work> recvAnysource(std::vector<at::Tensor>& tensors, int tag) override;
  c10::intrusive_ptr<Work> barrier(const c10d::BarrierOptions& options) override;

 private:
  // A call of `name` about tensors like these: "name of Float[2], Float[3]".
  std::shared_ptr<Collective> describe(CollectiveKind kind, std::string name,
                                       const std::vector<at::Tensor>& tensors,
                                       std::chrono::milliseconds timeout);
  // Records it: reads `inputs`, writes `outputs`.
  c10::intrusive_ptr<Work> launch(std::shared_ptr<Collective> call, c10d::OpType type,
                                  const std::vector<at::Tensor>& inputs,
                                  const std::vector<at::Tensor>& outputs,
                                  std::vector<at::Tensor> results);
  c10::intrusive_ptr<Work> reduce_scatters(std::string name, c10d::OpType type,
                                           const std::vector<at::Tensor>& outputs,
                                           const std::vector<at::Tensor>& inputs,
                                           std::vector<int64_t> splits,
                                           const c10d::ReduceScatterOptions& options);
  c10::intrusive_ptr<Work> receive(std::vector<at::Tensor>& tensors, int peer, int tag);

  c10::intrusive_ptr<Options> options_;
  Transport* transport_;  // owned; see the destructor
  bool coalesces_ = false;
  std::vector<c10::intrusive_ptr<Work>> coalesced_;
};

// py: (gloo backend, rank, size, timeout in ms) -> the group.
PyObject* make_process_group(PyObject* gloo, int rank, int size, int64_t timeout_ms);

}  // namespace tpu_shim

#endif  // TPU_SHIM_DIST_GROUP_H_
