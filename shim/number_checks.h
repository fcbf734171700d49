// Checks of the numbers that operations get: the rules of core/ops/op_rules.def. Numbers are no
// part of a signature, so PyTorch's own checks see only a signature's first call.
#ifndef TPU_SHIM_NUMBER_CHECKS_H_
#define TPU_SHIM_NUMBER_CHECKS_H_

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <vector>

#include "tpu_core.h"

namespace tpu_shim {

// The rules for one overload of a row.
class NumberRules {
 public:
  NumberRules(tpu_op_t row, const c10::FunctionSchema& schema);
  // RuntimeError with the text of PyTorch for a number that breaks one.
  void check(const c10::FunctionSchema& schema, const c10::IValue* args) const;

 private:
  struct Rule {
    const tpu_number_rule_t* of;
    size_t argument;
    int bound_argument;  // -1: the bound is the number below
    bool is_size;        // the argument is a dimension, and the bound the first tensor's size there
    int64_t bound;
  };
  struct Range {
    const tpu_range_rule_t* of;
    size_t argument;
  };
  static c10::IValue bound_of(const Rule& rule, const c10::IValue* args);
  static void check_norm(const at::Tensor& self, const c10::IValue& order, const c10::IValue& dims);
  std::vector<Rule> rules_;
  std::vector<Range> ranges_;
  int order_ = -1;  // argument of a norm (tpu_op_no_identity)
  int dims_ = -1;
};

// RuntimeError "value cannot be converted to type uint8_t without overflow" for a number that this
// dtype cannot hold, as for the conversion in a kernel. None and tensors pass.
void check_fits(const c10::IValue& number, c10::ScalarType type);

}  // namespace tpu_shim

#endif  // TPU_SHIM_NUMBER_CHECKS_H_
