// What Debug mode verifies in the shim: the numbers that go through the host. What is launched the
// engine verifies itself (engine/finite.h).
#ifndef TPU_SHIM_DEBUG_CHECKS_H_
#define TPU_SHIM_DEBUG_CHECKS_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "runtime.h"

namespace tpu_shim {

inline bool debug_mode() { return tpu_engine_mode(engine()) == TPU_MODE_DEBUG; }

// True when ops that run on the host are to be searched for NaN and infinity
// (TORCH_TPU_CHECK_NONFINITE).
bool looks_for_nonfinite();
// True when every floating tensor among the `count` values at the end of the stack is finite.
bool all_finite(const torch::jit::Stack& stack, size_t count);

}  // namespace tpu_shim

#endif  // TPU_SHIM_DEBUG_CHECKS_H_
