// What one call of torch.distributed asks for, and how tensors travel.
//
// dist_group.cpp      c10d's interface: calls become records of the row COLLECTIVE
// dist_collective.cpp the description of a call, and reductions
// dist_transport.cpp  what a record does: agree with the other ranks, then move bytes through Gloo
// dist_python.cpp     the binding
#ifndef TPU_SHIM_DIST_COLLECTIVE_H_
#define TPU_SHIM_DIST_COLLECTIVE_H_

#include <ATen/core/Tensor.h>

#include <chrono>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

namespace tpu_shim {

enum class CollectiveKind : uint8_t {
  kAllReduce,
  kBroadcast,
  kReduce,
  kAllGather,
  kReduceScatter,
  kAllToAll,
  kGather,
  kScatter,
  kBarrier,
  kSend,
  kRecv,
};

// A result, as the caller's tensor has it.
struct CollectiveOutput {
  std::vector<int64_t> sizes;
  c10::ScalarType dtype;
};

struct Collective {
  CollectiveKind kind;
  // Such as "all_reduce(SUM) of Float[4]": what errors call it by. All ranks must have the same.
  std::string text;
  uint64_t sequence = 0;  // within its group
  c10d::ReduceOp op = c10d::ReduceOp::SUM;
  double factor = 1;  // PREMUL_SUM
  int root = -1;      // BROADCAST and so on; the peer of SEND and RECV, -1: any
  int tag = 0;
  std::chrono::milliseconds timeout{0};
  std::vector<int64_t> in_splits, out_splits;  // elements for and from each rank: ALL_TO_ALL
  std::vector<CollectiveOutput> outputs;
  // Of what a rank gives, where all ranks give as much: what is small travels with the agreement.
  int64_t small_bytes = INT64_MAX;

  bool started = false;  // it reached the other ranks
  int source = -1;       // of RECV, once it is known
};

// --- reductions ---

// RuntimeError for what has no meaning: bits of floats, the order of complex numbers.
void check_reduction(const c10d::ReduceOp& op, c10::ScalarType dtype);

// Numbers of a dtype as Gloo can reduce them, and the operation that does it there.
struct Wire {
  at::Tensor numbers;
  c10d::ReduceOp::RedOpType op;
};
// May share memory with `tensor`, and may change it: it is the caller's own.
Wire to_wire(at::Tensor tensor, const Collective& call);
// What was reduced over `size` ranks, back in the tensor's dtype and sizes.
at::Tensor from_wire(at::Tensor numbers, const Collective& call, int size, c10::ScalarType dtype,
                     c10::IntArrayRef sizes);
// The reduction of one tensor per rank, in the order of the ranks.
at::Tensor reduce_here(const std::vector<at::Tensor>& tensors, const Collective& call);

// Memory as bytes, and back.
at::Tensor as_bytes(const at::Tensor& tensor);
at::Tensor from_bytes(const at::Tensor& bytes, c10::ScalarType dtype, c10::IntArrayRef sizes);

const char* reduction_name(c10d::ReduceOp::RedOpType op);
// "Float[2, 3]"
std::string describe_tensor(const at::Tensor& tensor);

}  // namespace tpu_shim

#endif  // TPU_SHIM_DIST_COLLECTIVE_H_
