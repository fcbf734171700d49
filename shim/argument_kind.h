// What an argument of an ATen schema becomes in a call, after the rule of core/ops/op_table.def.
#ifndef TPU_SHIM_ARGUMENT_KIND_H_
#define TPU_SHIM_ARGUMENT_KIND_H_

#include <ATen/core/function_schema.h>

#include "ops/ops.h"

namespace tpu_shim {

enum class ArgumentKind : uint8_t {
  kTensor,       // operand; Tensor? too
  kTensorList,   // operands and their number as attribute; Tensor?[] too
  kScalar,       // operand
  kFloat,        // operand
  kData,         // operand: an int of which op_rules.def says so
  kDataList,     // operands and their number as attribute: such an int[]
  kInt,          // attribute: int, bool, enums
  kDtype,        // attribute
  kInts,         // attribute
  kText,         // attribute
  kGenerator,    // feeds the appended seed and offset
  kOut,          // destination
  kSkip,         // layout, device, pin_memory
  kUnsupported,  // no place in the table's rule
};

// T of an optional T.
c10::TypePtr strip_optional(c10::TypePtr type);

// Of an argument of an overload that the row serves.
ArgumentKind argument_kind(tpu_op_t row, const c10::Argument& arg);

// True for self of in-place forms and for out= arguments.
bool is_written(const c10::Argument& arg);

}  // namespace tpu_shim

#endif  // TPU_SHIM_ARGUMENT_KIND_H_
