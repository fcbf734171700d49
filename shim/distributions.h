// Checks of the numbers that random operations get, with PyTorch's texts.
#ifndef TPU_SHIM_DISTRIBUTIONS_H_
#define TPU_SHIM_DISTRIBUTIONS_H_

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

namespace tpu_shim {

using DistributionCheck = void (*)(const c10::IValue* args);

// The check for an operation, or nullptr. Numbers are no part of a signature, so PyTorch's own
// checks see only a signature's first call.
DistributionCheck distribution_check(const c10::OperatorName& name);

}  // namespace tpu_shim

#endif  // TPU_SHIM_DISTRIBUTIONS_H_
