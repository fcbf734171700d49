// Checks of the numbers that operations get, with PyTorch's texts.
#ifndef TPU_SHIM_NUMBER_CHECKS_H_
#define TPU_SHIM_NUMBER_CHECKS_H_

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

namespace tpu_shim {

using NumberCheck = void (*)(const c10::IValue* args);

// The check for an operation, or nullptr. Numbers are no part of a signature, so PyTorch's own
// checks see only a signature's first call.
NumberCheck number_check(const c10::OperatorName& name);

}  // namespace tpu_shim

#endif  // TPU_SHIM_NUMBER_CHECKS_H_
