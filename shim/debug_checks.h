// What Debug mode verifies around each op: indices before it, non-finite values after it.
#ifndef TPU_SHIM_DEBUG_CHECKS_H_
#define TPU_SHIM_DEBUG_CHECKS_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "runtime.h"

namespace tpu_shim {

inline bool debug_mode() { return tpu_engine_mode(engine()) == TPU_MODE_DEBUG; }

// IndexError "index X is out of bounds for dimension D with size N" unless all of `index` lies in
// [0, size) (or [-size, size) with `negative`). Reads the index tensor.
void check_index(const at::Tensor& index, int64_t dim, int64_t size, bool negative);

// Checks an op with flag CHECK_INDEX by its argument names (index, indices, target and dim).
void check_index_arguments(const c10::FunctionSchema& schema, const c10::IValue* args);

// The engine looks for NaN and infinity in what it launches (TORCH_TPU_CHECK_NONFINITE); these do so
// around an op that runs on the host.
bool looks_for_nonfinite();
// True when every floating tensor among the `count` values at the end of the stack is finite.
bool all_finite(const torch::jit::Stack& stack, size_t count);

}  // namespace tpu_shim

#endif  // TPU_SHIM_DEBUG_CHECKS_H_
