// Ops without a row of their own run on the host: arguments are copied there, PyTorch's CPU kernel
// runs, results come back. Counted per op; TORCH_TPU_FALLBACK=error makes it NotImplementedError.
#ifndef TPU_SHIM_FALLBACK_H_
#define TPU_SHIM_FALLBACK_H_

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <map>
#include <string>

namespace tpu_shim {

void run_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Counts a host run that a kernel does by itself and applies TORCH_TPU_FALLBACK.
void note_host_run(const std::string& op_name);

std::map<std::string, int64_t> fallback_counts();
void reset_fallback_counts();

}  // namespace tpu_shim

#endif  // TPU_SHIM_FALLBACK_H_
