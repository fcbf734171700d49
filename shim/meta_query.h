// Asking PyTorch for output metadata: the same overload, called on meta tensors.
//
// Slow (100 us: many meta kernels are Python), so only done once per signature.
#ifndef TPU_SHIM_META_QUERY_H_
#define TPU_SHIM_META_QUERY_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <functional>

namespace tpu_shim {

// A meta tensor with this tpu tensor's sizes, strides and dtype; others are returned as they are.
at::Tensor to_meta(const at::Tensor& tensor);
// The same for every tensor inside; a tpu device becomes the meta device, a generator none.
c10::IValue to_meta(const c10::IValue& value);
// The same, and a 0-dim CPU tensor becomes a meta tensor too: some meta kernels want all tensors on
// one device, where the device's kernels take such a tensor as a number.
c10::IValue to_meta_only(const c10::IValue& value);

// For when the question itself failed: meta kernels in Python have texts of their own, so the call
// is made on zeros on the CPU, and its error is the one that users know. Returns if that does not
// fail (or if the tensors are large).
void throw_as_on_cpu(const c10::OperatorHandle& op, const c10::IValue* args, size_t count);

// Meta kernels accept dtypes that no kernel has: complex remainder, subtraction of bool; and empty
// tensors where there must be an element. Where a tensor or a number is not of a floating dtype, or
// a tensor is empty, the call is made on the CPU too, and its error thrown. (A kernel that the CPU
// lacks for a floating dtype is no error.) Stand-ins hold values that no operation refuses: ones in
// elementwise operations, which
// may divide, and zeros in others, which may take them as indices. Tensors above 1 MiB are stood in
// for by fewer elements in elementwise operations; others are not asked about then.
// With `always` floating dtypes are asked about, too.
void refuse_as_on_cpu(const c10::OperatorHandle& op, const c10::IValue* args, size_t count,
                      bool elementwise, bool always);

// Calls `op` on what is on the stack (already converted) below autograd, autocast, modes and
// torch-function; leaves the results. Errors are PyTorch's own.
void call_below_modes(const c10::OperatorHandle& op, torch::jit::Stack* stack);
// Runs `body` with all of these off.
void run_below_modes(const std::function<void()>& body);

}  // namespace tpu_shim

#endif  // TPU_SHIM_META_QUERY_H_
