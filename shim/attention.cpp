// Scaled dot product attention as one record, and the choice to use it.
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <vector>

#include "generator.h"
#include "record.h"

namespace tpu_shim {

namespace {

using OptT = const std::optional<at::Tensor>&;

// vmap has rules for the operations that attention is made of, and none for it as a whole.
bool is_batched(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->key_set().has(c10::DispatchKey::FuncTorchBatched);
}

// PyTorch's encoder asks this before it packs a padded batch into a nested tensor. The device has
// no nested tensors, so the answer is no, and the batch stays padded.
bool nested_from_mask(const at::Tensor&, const at::Tensor&) { return false; }

int64_t choose_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         OptT mask, double, bool, std::optional<double>, bool) {
  const bool plain = query.dim() == 4 && key.dim() == 4 && value.dim() == 4 && !query.is_nested() &&
                     !key.is_nested() && !value.is_nested() && query.numel() > 0 &&
                     key.numel() > 0 && query.scalar_type() == key.scalar_type() &&
                     query.scalar_type() == value.scalar_type() && !is_batched(query) &&
                     !is_batched(key) && !is_batched(value);
  const bool use_ours = plain && at::globalContext().userEnabledOverrideableSDP();
  if (use_ours) return static_cast<int64_t>(at::SDPBackend::overrideable);
  TORCH_CHECK(at::globalContext().userEnabledMathSDP(),
              "No available attention kernel on the tpu device "
              "for these inputs: torch.nn.attention.sdpa_kernel excludes MATH and OVERRIDEABLE");
  return static_cast<int64_t>(at::SDPBackend::math);
}

using Forward = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt,
                           at::Tensor, at::Tensor, at::Tensor>;

// The result lies in memory as the query does, also when its last dimension has another size.
tpu_meta_id_t layout_of_query(const at::Tensor& query, const std::vector<int64_t>& sizes) {
  if (query.sizes() == c10::IntArrayRef(sizes)) return result_meta_of(query);
  std::array<size_t, 4> order = {0, 1, 2, 3};
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return query.stride(static_cast<int64_t>(a)) > query.stride(static_cast<int64_t>(b));
  });
  std::vector<int64_t> strides(order.size());
  int64_t stride = 1;
  for (size_t k = order.size(); k-- > 0;) {
    strides[order[k]] = stride;
    stride *= sizes[order[k]];
  }
  return strided_meta(sizes, strides, query.scalar_type());
}

void add_dropout(Call* call, double dropout_p, std::optional<double> scale) {
  call->number(dropout_p);
  scale.has_value() ? call->number(*scale) : call->none();
}

Forward attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                  OptT bias, double dropout_p, bool is_causal, bool, std::optional<double> scale) {
  std::vector<int64_t> out_sizes = query.sizes().vec();
  out_sizes.back() = value.size(-1);
  const std::vector<int64_t> lse_sizes(out_sizes.begin(), out_sizes.end() - 1);
  static const tpu_op_t row = op_row("sdpa_forward");
  Call call(row);
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
  call.result(layout_of_query(query, out_sizes));
  const bool wide = query.scalar_type() == at::kDouble;
  call.result(contiguous_meta(lse_sizes, wide ? at::kDouble : at::kFloat));
  call.result(number).result(number).record();
  return Forward(call.take(0), call.take(1), at::Tensor(), at::Tensor(), query.size(-2),
                 key.size(-2), call.take(2), call.take(3), at::Tensor());
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> attention_backward(
    const at::Tensor& grad, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& bias, std::array<bool, 4> mask, const at::Tensor& out,
    const at::Tensor& logsumexp, const at::Tensor&, const at::Tensor&, c10::SymInt, c10::SymInt,
    double dropout_p, bool is_causal, const at::Tensor& seed, const at::Tensor& offset,
    std::optional<double> scale) {
  const int64_t flags[4] = {mask[0], mask[1], mask[2], mask[3]};
  static const tpu_op_t row = op_row("sdpa_backward");
  Call call(row);
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

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_nested_tensor_from_mask_left_aligned", TORCH_FN(nested_from_mask));
  m.impl("_fused_sdp_choice", TORCH_FN(choose_attention));
  m.impl("_scaled_dot_product_fused_attention_overrideable", TORCH_FN(attention));
  m.impl("_scaled_dot_product_fused_attention_overrideable_backward", TORCH_FN(attention_backward));
}

}  // namespace tpu_shim

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &tpu_shim::choose_attention)
}  // namespace at::native
