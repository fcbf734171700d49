// One overload served by one row: the plan made from its schema, and how a call runs by it. For the
// overload_*.cpp files, one for each concept; others use adapter.h.
#ifndef TPU_SHIM_OVERLOAD_H_
#define TPU_SHIM_OVERLOAD_H_

#include <ATen/core/Generator.h>

#include <optional>
#include <string>
#include <vector>

#include "adapter.h"
#include "argument_kind.h"
#include "number_checks.h"
#include "record.h"

namespace tpu_shim {

class Overload {
 public:
  Overload(tpu_op_t row, const c10::OperatorHandle& op);

  // "" if the adapter can serve this schema.
  const std::string& obstacle() const { return obstacle_; }
  void run(torch::jit::Stack* stack);

 private:
  bool add_arguments(Call* call, const c10::IValue* args, bool skip_self,
                     std::optional<at::Generator>* generator) const;
  bool add_argument(Call* call, size_t i, const c10::IValue& value,
                    std::optional<at::Generator>* generator) const;
  int64_t random_numel(const c10::IValue* args) const;
  void append_random(Call* call, const c10::IValue* args,
                     const std::optional<at::Generator>& generator) const;
  c10::ScalarType promoted_type(const c10::IValue* args) const;
  tpu_dtype_t compute_dtype(const c10::IValue* args) const;
  void check_numbers(const c10::IValue* args) const;
  bool ask_pytorch(const c10::IValue* args, Call* call, bool set_metas) const;
  at::MemoryFormat image_format(const c10::IValue* args, const at::Tensor& result) const;
  void question(const c10::IValue* args, c10::IValue (*convert)(const c10::IValue&),
                torch::jit::Stack* stack) const;
  void question_with_number(const c10::IValue* args, torch::jit::Stack* stack) const;
  bool has_cpu_number(const c10::IValue* args) const;
  void refuse(const c10::IValue* args, bool always) const;
  void check_overlap(const c10::IValue* args, const at::Tensor& written, bool in_place) const;
  void run_functional(torch::jit::Stack* stack);
  void run_in_place(torch::jit::Stack* stack);
  void draw_parts(const at::Tensor& self, torch::jit::Stack* stack);
  void run_out(torch::jit::Stack* stack);
  void run_overwrite_functional(torch::jit::Stack* stack);
  void check_out(const c10::IValue* args) const;
  void find_functional();
  bool has(uint32_t flag) const { return (flags_ & flag) != 0; }
  const c10::IValue* arguments(const torch::jit::Stack& stack) const {
    return stack.data() + stack.size() - kinds_.size();
  }

  c10::OperatorHandle op_;
  c10::OperatorHandle question_;  // what to ask on meta tensors
  tpu_op_t row_;
  uint32_t flags_;
  tpu_call_variant_t variant_ = TPU_CALL_FUNCTIONAL;
  std::vector<ArgumentKind> kinds_;
  size_t last_operand_ = 0;  // its argument
  size_t out_count_ = 0;
  size_t return_count_ = 0;
  std::optional<c10::OperatorHandle> functional_;  // of an out= overload
  NumberRules number_rules_;
  std::vector<size_t> images_;  // arguments whose memory format results have
  bool fits_ = false;           // there are numbers that must fit a dtype
  tpu_overlap_t overlap_;
  bool writes_self_ = false;  // out= has the meaning of in place where it is the first argument
  std::string obstacle_;
};

}  // namespace tpu_shim

#endif  // TPU_SHIM_OVERLOAD_H_
