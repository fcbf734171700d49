// Ops without a row that PyTorch knows how to compute from others: the Python decomposition runs
// once per signature and what it records becomes a template (engine.h); later calls replay that
// without Python. What cannot be had this way stays with the host (fallback.h).
#ifndef TPU_SHIM_DECOMPOSE_H_
#define TPU_SHIM_DECOMPOSE_H_

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <map>
#include <string>

namespace tpu_shim {

// Runs the op on the device if it has a decomposition: the stack then holds its results. False,
// with the stack untouched, if the host must run it.
bool run_decomposed(const c10::OperatorHandle& op, torch::jit::Stack* stack);

struct DecompositionCounts {
  int64_t traced = 0;    // calls that ran in Python
  int64_t replayed = 0;  // calls that did not
};
std::map<std::string, DecompositionCounts> decomposition_counts();
void reset_decomposition_counts();

}  // namespace tpu_shim

#endif  // TPU_SHIM_DECOMPOSE_H_
