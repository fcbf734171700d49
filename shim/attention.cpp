// Scaled dot product attention as one record, and the choice to use it; and arange, whose size depends
// on numbers.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <cmath>

#include "generator.h"
#include "record.h"

namespace tpu_shim {

namespace {

using OptT = const std::optional<at::Tensor>&;

int64_t choose_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, OptT mask,
                         double, bool, std::optional<double>, bool) {
  const bool plain = query.dim() == 4 && key.dim() == 4 && value.dim() == 4 && !query.is_nested() &&
                     !key.is_nested() && !value.is_nested() && query.numel() > 0 && key.numel() > 0 &&
                     query.scalar_type() == key.scalar_type() && query.scalar_type() == value.scalar_type();
  const bool use_ours = plain && at::globalContext().userEnabledOverrideableSDP();
  if (use_ours) return static_cast<int64_t>(at::SDPBackend::overrideable);
  TORCH_CHECK(at::globalContext().userEnabledMathSDP(), "No available attention kernel on the tpu device "
              "for these inputs: torch.nn.attention.sdpa_kernel excludes MATH and OVERRIDEABLE");
  return static_cast<int64_t>(at::SDPBackend::math);
}

using Forward = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt,
                           at::Tensor, at::Tensor, at::Tensor>;

void add_dropout(Call* call, double dropout_p, std::optional<double> scale) {
  call->number(dropout_p);
  scale.has_value() ? call->number(*scale) : call->none();
}

Forward attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, OptT bias,
                  double dropout_p, bool is_causal, bool, std::optional<double> scale) {
  std::vector<int64_t> out_sizes = query.sizes().vec();
  out_sizes.back() = value.size(-1);
  const std::vector<int64_t> lse_sizes(out_sizes.begin(), out_sizes.end() - 1);
  Call call(TPU_OP_SDPA_FORWARD);
  call.tensor(query).tensor(key).tensor(value).optional(bias);
  add_dropout(&call, dropout_p, scale);
  const bool dropout = dropout_p > 0;
  if (dropout) {
    // One counter per call: the wide form of lower/random.h.
    const PhiloxState state = reserve_random(std::nullopt, 1);
    call.integer(static_cast<int64_t>(state.seed)).integer(static_cast<int64_t>(state.offset));
  } else {
    call.none().none();
  }
  call.attr(is_causal).attr(dropout);
  const tpu_meta_id_t number = contiguous_meta({}, at::kLong);
  call.result(contiguous_meta(out_sizes, query.scalar_type()));
  const bool wide = query.scalar_type() == at::kDouble;
  call.result(contiguous_meta(lse_sizes, wide ? at::kDouble : at::kFloat));
  call.result(number).result(number).record();
  return Forward(call.take(0), call.take(1), at::Tensor(), at::Tensor(), query.size(-2), key.size(-2),
                 call.take(2), call.take(3), at::Tensor());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> attention_backward(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& bias, std::array<bool, 4> mask, const at::Tensor& out, const at::Tensor& logsumexp,
    const at::Tensor&, const at::Tensor&, c10::SymInt, c10::SymInt, double dropout_p, bool is_causal,
    const at::Tensor& seed, const at::Tensor& offset, std::optional<double> scale) {
  const int64_t flags[4] = {mask[0], mask[1], mask[2], mask[3]};
  Call call(TPU_OP_SDPA_BACKWARD);
  call.tensor(grad).tensor(query).tensor(key).tensor(value);
  bias.defined() ? call.tensor(bias) : call.none();
  call.tensor(out).tensor(logsumexp);
  add_dropout(&call, dropout_p, scale);
  const bool dropout = dropout_p > 0;
  dropout ? call.tensor(seed).tensor(offset) : call.none().none();
  call.attr(is_causal).attr(dropout).attr_ints(flags);
  const at::Tensor* inputs[4] = {&query, &key, &value, &bias};
  for (int k = 0; k < 4; ++k) {
    call.result(mask[k] && inputs[k]->defined() ? result_meta_of(*inputs[k]) : absent_meta());
  }
  call.record();
  return {call.take(0), call.take(1), call.take(2), call.take(3)};
}

// --- arange ---

bool add_number(Call* call, const at::Scalar& value, bool integral) {
  if (integral) {
    call->integer(value.toLong());
  } else {
    call->number(value.toDouble());
  }
  return true;
}

at::Tensor& arange_out(const at::Scalar& start, const at::Scalar& end, const at::Scalar& step,
                       at::Tensor& out) {
  const bool integral = c10::isIntegralType(out.scalar_type(), /*includeBool=*/false);
  const double from = start.toDouble(), to = end.toDouble(), by = step.toDouble();
  TORCH_CHECK(by > 0 || by < 0, "step must be nonzero");
  TORCH_CHECK(std::isfinite(from) && std::isfinite(to), "unsupported range: ", from, " -> ", to);
  TORCH_CHECK((by > 0 && to >= from) || (by < 0 && to <= from),
              "upper bound and lower bound inconsistent with step sign");
  // Integers are counted exactly; beyond 2^53 the double formula is not.
  double count = std::ceil((to - from) / by);
  if (integral && start.isIntegral(false) && end.isIntegral(false) && step.isIntegral(false)) {
    const int64_t sign = step.toLong() > 0 ? 1 : -1;
    count = static_cast<double>((end.toLong() - start.toLong() + step.toLong() - sign) / step.toLong());
  }
  TORCH_CHECK(count >= 0 && count <= 9.2e18, "invalid size, possible overflow?");
  const int64_t size = static_cast<int64_t>(count);
  if (out.numel() != size) {
    if (out.numel() > 0) {
      TORCH_WARN("The number of elements in the out tensor of shape ", out.sizes(), " is ", out.numel(),
                 " which does not match the computed number of elements ", size,
                 ". Note that this may occur as a result of rounding error. The out tensor will be resized "
                 "to a tensor of shape (", size, ",).");
    }
    out.resize_({size});
  }
  if (size == 0) return out;
  const bool flat = out.dim() == 1;
  const at::Tensor target = flat ? out : at::empty({size}, out.options());
  Call call(TPU_OP_ARANGE, TPU_CALL_OUT);
  add_number(&call, start, integral);
  add_number(&call, step, integral);
  call.written(target).record();
  if (!flat) copy_on_device(target.view(out.sizes()), out);
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_fused_sdp_choice", TORCH_FN(choose_attention));
  m.impl("_scaled_dot_product_fused_attention_overrideable", TORCH_FN(attention));
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", TORCH_FN(attention_backward));
  m.impl("arange.start_out", TORCH_FN(arange_out));
}

}  // namespace tpu_shim

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &tpu_shim::choose_attention)
}  // namespace at::native
