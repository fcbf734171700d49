// What Debug mode verifies around each op: indices before it, non-finite values after it.
#ifndef TPU_SHIM_DEBUG_CHECKS_H_
#define TPU_SHIM_DEBUG_CHECKS_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "runtime.h"

namespace tpu_shim {

inline bool debug_mode() { return tpu_engine_mode(engine()) == TPU_MODE_DEBUG; }

// IndexError "index X is out of bounds for dimension D with size N" unless all of `index` lies in
// [0, size) (or [-size, size) with `negative`). Reads the index tensor.
void check_index(const at::Tensor& index, int64_t dim, int64_t size, bool negative);

// Checks an op with flag CHECK_INDEX by its argument names (index, indices, target and dim).
void check_index_arguments(const c10::FunctionSchema& schema, const c10::IValue* args);

// With TORCH_TPU_CHECK_NONFINITE: true when every floating tensor among the arguments is finite.
bool check_nonfinite_enabled();
bool arguments_finite(const c10::IValue* args, size_t count);
// RuntimeError that names the op if the result holds NaN or infinity.
void check_finite_result(const at::Tensor& result, const std::string& op_name);

}  // namespace tpu_shim

#endif  // TPU_SHIM_DEBUG_CHECKS_H_
