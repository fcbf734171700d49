// What a random operation takes from the generator.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/view_as_real.h>

#include <algorithm>
#include <cmath>

#include "generator.h"
#include "overload.h"

namespace tpu_shim {

// How many numbers a random op takes from the generator (lower/random.h).
int64_t Overload::random_numel(const c10::IValue* args) const {
  std::vector<int64_t> shape;
  for (size_t i = 0; i < kinds_.size(); ++i) {
    if (kinds_[i] == ArgumentKind::kTensor && args[i].isTensor() && args[i].toTensor().defined())
      shape = at::infer_size(shape, args[i].toTensor().sizes());
    if (variant_ == TPU_CALL_IN_PLACE) break;
  }
  if (!has(TPU_OP_COUNTED)) return c10::multiply_integers(shape);
  if (!shape.empty()) shape.pop_back();
  const auto first_int = std::find(kinds_.begin(), kinds_.end(), ArgumentKind::kInt);
  const c10::IValue& count = args[first_int - kinds_.begin()];
  return c10::multiply_integers(shape) * count.toSymInt().guard_int(__FILE__, __LINE__);
}

void Overload::append_random(Call* call, const c10::IValue* args,
                             const std::optional<at::Generator>& generator) const {
  const PhiloxState state = reserve_random(generator, random_numel(args));
  call->integer(static_cast<int64_t>(state.seed)).integer(static_cast<int64_t>(state.offset));
}

// Complex numbers are drawn part by part; their variance is shared by the parts.
void Overload::draw_parts(const at::Tensor& self, torch::jit::Stack* stack) {
  TORCH_CHECK_NOT_IMPLEMENTED(has(TPU_OP_PARTS), "\"", op_.operator_name().name,
                              "\" not implemented for '", self.scalar_type(), "'");
  c10::IValue* args = stack->data() + stack->size() - kinds_.size();
  args[0] = at::view_as_real(self);
  if (const auto shared = op_.schema().argumentIndexWithName("std"))
    args[*shared] = args[*shared].toDouble() / std::sqrt(2.0);
  run_in_place(stack);
  stack->back() = self;
}

}  // namespace tpu_shim
