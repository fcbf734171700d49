// The form of attention: PyTorch's blocked kernel where it fits, else plain products.
#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "host_forms.h"

namespace tpu_shim {

namespace {

struct Attention {
  at::Tensor q, k, v, scores;  // heads repeated, in the dtype of sums
  double scale;
  int64_t key_heads;
  at::Tensor factor;  // of weights: 0 where one is dropped; undefined without dropout
};

bool has_dropout(R r) { return r.attr_int(1) != 0; }

// 1 / (1 - p) where kept. p? comes before scale?, seed and offset behind it.
at::Tensor dropout_factor(R r, int scale_at, const at::Tensor& scores) {
  const double p = r.scalar(scale_at - 1).toDouble();
  const at::Tensor keep = drawn_mask(r, scale_at + 1, p, /*wide=*/true, scores.sizes());
  return keep.to(scores.scalar_type()).mul_(1 / (1 - static_cast<float>(p)));
}

at::Tensor repeat_heads(const at::Tensor& x, int64_t heads) {
  const int64_t repeats = heads / x.size(-3);
  return repeats == 1 ? x : x.repeat_interleave(repeats, -3);
}

// Operands q, k, v, bias? from `first` on; scale? at `scale_at`.
Attention read_attention(R r, int first, int scale_at) {
  Attention a;
  a.q = r.tensor(first);
  const at::ScalarType type = at::toOpMathType(a.q.scalar_type());
  const int64_t heads = a.q.size(-3);
  a.key_heads = r.tensor(first + 1).size(-3);
  a.q = a.q.to(type);
  a.k = repeat_heads(r.tensor(first + 1).to(type), heads);
  a.v = repeat_heads(r.tensor(first + 2).to(type), heads);
  a.scale = r.has(scale_at) ? r.scalar(scale_at).toDouble()
                            : 1.0 / std::sqrt(static_cast<double>(a.q.size(-1)));
  a.scores = at::matmul(a.q, a.k.transpose(-2, -1)) * a.scale;
  const at::Scalar nothing = -std::numeric_limits<double>::infinity();
  if (r.has(first + 3)) {
    const at::Tensor bias = r.tensor(first + 3);
    a.scores = bias.scalar_type() == at::kBool ? a.scores.masked_fill(bias.logical_not(), nothing)
                                               : a.scores + bias.to(type);
  }
  if (r.attr_int(0) != 0) {
    const auto seen = at::ones({a.q.size(-2), a.k.size(-2)}, at::TensorOptions(at::kBool)).tril();
    a.scores = a.scores.masked_fill(seen.logical_not(), nothing);
  }
  if (has_dropout(r)) a.factor = dropout_factor(r, scale_at, a.scores);
  return a;
}

at::Tensor dropped(const Attention& a, const at::Tensor& weights) {
  return a.factor.defined() ? weights * a.factor : weights;
}

// A row that sees nothing has no weights.
at::Tensor weights_of(const Attention& a, const at::Tensor& logsumexp) {
  const at::Tensor sums = logsumexp.unsqueeze(-1);
  return at::exp(a.scores - sums).masked_fill(sums.isneginf(), 0);
}

// PyTorch's blocked kernel never holds all scores. It knows plain heads, and no row that sees
// nothing, which a bias may make. Operands q, k, v, bias? from `first` on.
bool fits_blocked(R r, int first) {
  if (r.has(first + 3) || has_dropout(r)) return false;
  const at::Tensor q = r.tensor(first), k = r.tensor(first + 1), v = r.tensor(first + 2);
  return q.dim() == 4 && k.sizes() == v.sizes() && q.size(1) == k.size(1) &&
         q.size(3) == k.size(3) && q.size(2) > 0 && k.size(2) > 0 && q.size(3) > 0;
}

// PyTorch's own choice of kernels, which is not asked here, keeps other layouts from this one: it
// reads a head's numbers one after the other.
at::Tensor head_by_head(const at::Tensor& x) { return x.stride(3) == 1 ? x : x.contiguous(); }

std::optional<double> scale_of(R r, int k) {
  return r.has(k) ? std::optional<double>(r.scalar(k).toDouble()) : std::nullopt;
}

at::Tensor sum_heads(const at::Tensor& x, int64_t key_heads) {
  if (x.size(-3) == key_heads) return x;
  return x.unflatten(-3, {key_heads, x.size(-3) / key_heads}).sum(-3);
}

// Seed and offset, for the backward pass; zero without dropout.
at::Tensor state_of(R r, int k) {
  const at::TensorOptions options(at::kLong);
  return has_dropout(r) ? at::scalar_tensor(r.number(k).toLong(), options) : at::zeros({}, options);
}

}  // namespace

void sdpa_forward(R r, Results results) {
  if (fits_blocked(r, 0)) {
    auto [out, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
        head_by_head(r.tensor(0)), head_by_head(r.tensor(1)), head_by_head(r.tensor(2)),
        /*dropout_p=*/0.0, r.attr_int(0) != 0, {}, scale_of(r, 5));
    results->append({out, sums, state_of(r, 6), state_of(r, 7)});
    return;
  }
  const Attention a = read_attention(r, 0, 5);
  const at::Tensor sums = at::logsumexp(a.scores, -1);
  const at::Tensor out = at::matmul(dropped(a, weights_of(a, sums)), a.v);
  results->append({out, sums, state_of(r, 6), state_of(r, 7)});
}

// Operands: grad, q, k, v, bias?, out, logsumexp, dropout_p, scale?, seed?, offset?.
void sdpa_backward(R r, Results results) {
  if (fits_blocked(r, 1)) {
    auto [d_q, d_k, d_v] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        head_by_head(r.tensor(0)), head_by_head(r.tensor(1)), head_by_head(r.tensor(2)),
        head_by_head(r.tensor(3)), head_by_head(r.tensor(5)), r.tensor(6), /*dropout_p=*/0.0,
        r.attr_int(0) != 0, {}, scale_of(r, 8));
    results->append({d_q, d_k, d_v});
    if (r.record().result_count > 3) results->emplace_back();  // no bias, so no gradient of it
    return;
  }
  const Attention a = read_attention(r, 1, 8);
  const at::Tensor grad = r.tensor(0).to(a.q.scalar_type());
  const at::Tensor weights = weights_of(a, r.tensor(6).to(a.q.scalar_type()));
  const at::Tensor delta = (grad * r.tensor(5)).sum(-1, /*keepdim=*/true);
  const at::Tensor d_weights = dropped(a, at::matmul(grad, a.v.transpose(-2, -1)));
  const at::Tensor d_scores = weights * (d_weights - delta);
  results->push_back(at::matmul(d_scores, a.k) * a.scale);
  results->push_back(sum_heads(at::matmul(d_scores.transpose(-2, -1), a.q) * a.scale, a.key_heads));
  results->push_back(
      sum_heads(at::matmul(dropped(a, weights).transpose(-2, -1), grad), a.key_heads));
  if (r.record().result_count < 4) return;
  results->push_back(r.is_absent(3) ? at::Tensor() : d_scores.sum_to_size(r.tensor(4).sizes()));
}

}  // namespace tpu_shim
