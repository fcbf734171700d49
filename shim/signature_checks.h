// What kernels refuse and PyTorch's meta kernels do not, where the CPU cannot be asked either: it
// would draw random numbers, or do all the work. Only what is part of a signature is looked at.
#ifndef TPU_SHIM_SIGNATURE_CHECKS_H_
#define TPU_SHIM_SIGNATURE_CHECKS_H_

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include "tpu_core.h"

namespace tpu_shim {

// RuntimeError for arguments of an overload of the row that no kernel takes.
void check_signature(tpu_op_t row, const c10::FunctionSchema& schema, const c10::IValue* args);

}  // namespace tpu_shim

#endif  // TPU_SHIM_SIGNATURE_CHECKS_H_
