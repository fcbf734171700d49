// What a random operation takes from the generator.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/view_as_real.h>

#include <cmath>

#include "generator.h"
#include "overload.h"

namespace tpu_shim {

// Elements of the result, which is what a random op takes from the generator (lower/random.h).
int64_t Overload::random_numel(const c10::IValue* args) const {
  const auto& names = op_.schema().arguments();
  std::vector<int64_t> shape;
  int64_t factor = 1;
  for (size_t i = 0; i < kinds_.size(); ++i) {
    if (kinds_[i] == ArgumentKind::kInt &&
        (names[i].name() == "n" || names[i].name() == "num_samples")) {
      factor = args[i].toSymInt().guard_int(__FILE__, __LINE__);
      if (!shape.empty()) shape.pop_back();  // multinomial: rows of weights, samples from each
    } else if (kinds_[i] == ArgumentKind::kTensor && args[i].isTensor() &&
               args[i].toTensor().defined()) {
      shape = at::infer_size(shape, args[i].toTensor().sizes());
    }
    if (variant_ == TPU_CALL_IN_PLACE) break;
  }
  return c10::multiply_integers(shape) * factor;
}

void Overload::append_random(Call* call, const c10::IValue* args,
                             const std::optional<at::Generator>& generator) const {
  const PhiloxState state = reserve_random(generator, random_numel(args));
  call->integer(static_cast<int64_t>(state.seed)).integer(static_cast<int64_t>(state.offset));
}

// Complex numbers are drawn part by part; the variance of a normal one is shared by its parts.
void Overload::draw_parts(const at::Tensor& self, torch::jit::Stack* stack) {
  c10::IValue* args = stack->data() + stack->size() - kinds_.size();
  const std::string& name = op_.operator_name().name;
  TORCH_CHECK_NOT_IMPLEMENTED(name == "aten::uniform_" || name == "aten::normal_", "\"", name,
                              "\" not implemented for '", self.scalar_type(), "'");
  args[0] = at::view_as_real(self);
  if (name == "aten::normal_") args[2] = args[2].toDouble() / std::sqrt(2.0);
  run_in_place(stack);
  stack->back() = self;
}

}  // namespace tpu_shim
