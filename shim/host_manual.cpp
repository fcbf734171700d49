// Forms of rows that are the engine's own, or whose kernels put their operands in an order of their
// own; core/lower says which.
#include <ATen/MemoryOverlap.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/_fused_adagrad.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <cstring>

#include "host_forms.h"

namespace tpu_shim {

namespace {

std::array<bool, 3> three_flags(c10::IntArrayRef flags) {
  return {flags[0] != 0, flags[1] != 0, flags[2] != 0};
}

// --- recorded by the engine ---

void view_read(R r, Results results) { results->push_back(r.tensor(0)); }

void convert(R r, Results results) {
  at::Tensor out = r.empty_result(0);
  results->push_back(out.copy_(r.tensor(0)));
}

void storage_zero(R r, Results results) { results->push_back(r.empty_result(0).zero_()); }

void storage_resize(R r, Results results) {
  at::Tensor out = r.empty_result(0);
  const at::Tensor old = r.tensor(0);
  const int64_t kept = std::min(out.numel(), old.numel());
  out.narrow(0, 0, kept).copy_(old.narrow(0, 0, kept));
  if (kept < out.numel()) out.narrow(0, kept, out.numel() - kept).zero_();
  results->push_back(out);
}

// Operands: base, value, and the view that is written, with its offset as a number.
void view_write(R r, Results results) {
  const tpu_meta_t& base = r.value_meta(0);
  const tpu_meta_t& view = *tpu_meta_get(tpu_record_view(&r.record(), 2));
  const bool plain = base.contiguous;
  at::Tensor flat = plain ? r.writable(0, r.result_id(0)).view({base.numel})
                          : in_storage_order(r.value(0), base).clone();
  const at::Tensor value = r.tensor(1).view(sizes_of(view));
  const auto seen_by_view = [&](const at::Tensor& base_in_order) {
    return at::as_strided(base_in_order, sizes_of(view), strides_of(view), r.scalar(2).toLong());
  };
  const at::Tensor target = seen_by_view(flat);
  if (at::has_internal_overlap(target) == at::MemOverlap::No) {
    target.copy_(value);
  } else {
    // One number for all elements may be written to one place several times.
    const at::Tensor places = at::arange(base.numel, at::TensorOptions(at::kLong));
    const c10::List<std::optional<at::Tensor>> indices(
        {std::optional<at::Tensor>(seen_by_view(places).reshape({-1}))});
    flat.index_put_(indices, value.reshape({-1}));
  }
  results->push_back(plain ? flat : from_storage_order(flat, base));
}

// --- creation ---

void arange(R r, Results results) {
  const int64_t count = r.result(0).numel;
  const at::TensorOptions options(scalar_type_from(r.result(0).dtype));
  const at::Scalar start = r.scalar(0), step = r.scalar(1);
  if (start.isIntegral(true) && step.isIntegral(true)) {
    const int64_t from = start.toLong(), by = step.toLong();
    results->push_back(at::arange(from, from + by * count, by, options));
  } else {
    // Half a step short of the end: rounding must not add an element.
    const double from = start.toDouble(), by = step.toDouble();
    const double end = from + by * (static_cast<double>(count) - 0.5);
    results->push_back(at::arange(from, end, by, options));
  }
}

// --- normalisation and convolution ---

void batch_norm(R r, Results results) {
  const bool training = r.attr_int(0) != 0;
  const bool updates = r.record().result_count > 3;
  const auto mean = updates ? r.writable(3, r.result_id(3)) : r.tensor(3);
  const auto variance = updates ? r.writable(4, r.result_id(4)) : r.tensor(4);
  auto [out, saved_mean, saved_invstd] =
      at::native_batch_norm(r.tensor(0), r.optional(1), r.optional(2), mean, variance, training,
                            r.scalar(5).toDouble(), r.scalar(6).toDouble());
  results->push_back(out);
  results->push_back(training ? saved_mean : r.empty_result(1));
  results->push_back(training ? saved_invstd : r.empty_result(2));
  if (!updates) return;
  results->push_back(mean);
  results->push_back(variance);
}

void batch_norm_backward(R r, Results results) {
  auto [input, weight, bias] = at::native_batch_norm_backward(
      r.tensor(0), r.tensor(1), r.optional(2), r.optional(3), r.optional(4), r.optional(5),
      r.optional(6), r.attr_int(0) != 0, r.scalar(7).toDouble(), three_flags(r.attr_ints(1)));
  results->append({input, weight, bias});
}

void convolution_backward(R r, Results results) {
  const at::Tensor grad = r.tensor(0), weight = r.tensor(2);
  const bool transposed = r.attr_int(3) != 0;
  const int64_t groups = r.attr_int(5);
  const int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  const std::array<bool, 3> mask = three_flags(r.attr_ints(6));
  auto [d_input, d_weight, d_bias] = at::convolution_backward(
      grad, r.tensor(1), weight, at::OptionalIntArrayRef(c10::IntArrayRef(channels)),
      r.attr_ints(0), r.attr_ints(1), r.attr_ints(2), transposed, r.attr_ints(4), groups, mask);
  results->append({d_input, d_weight, d_bias});
}

// --- optimizers ---

double number(R r, int k) { return r.number(k).toDouble(); }

// Operand k, a state, as it becomes result `result`.
at::Tensor state(R r, int k, int result) { return r.writable(k, r.result_id(result)); }

// The gradient, laid out as the states: the kernels go through all in parallel. With a scale it is
// a result too.
at::Tensor gradient(R r, int k, int scale_at) {
  return r.has(scale_at) ? state(r, k, r.record().result_count - 1) : r.tensor(k).contiguous();
}

void adam_step(R r, Results results) {
  constexpr int kScale = 11;
  const bool amsgrad = r.attr_int(0) != 0, maximize = r.attr_int(1) != 0;
  const at::Tensor param = state(r, 0, 0), average = state(r, 2, 1), square = state(r, 3, 2);
  const at::Tensor grad = gradient(r, 1, kScale);
  std::vector<at::Tensor> maxima;
  if (amsgrad) maxima.push_back(state(r, 4, 3));
  const at::Tensor step = at::scalar_tensor(number(r, 5), at::TensorOptions(at::kFloat));
  const double lr = number(r, 6), beta1 = number(r, 7), beta2 = number(r, 8);
  const double decay = number(r, 9), eps = number(r, 10);
  const auto scale = r.optional(kScale), found_inf = r.optional(kScale + 1);
  if (r.attr_int(2) != 0) {
    at::_fused_adamw_({param}, {grad}, {average}, {square}, maxima, {step}, lr, beta1, beta2, decay,
                      eps, amsgrad, maximize, scale, found_inf);
  } else {
    at::_fused_adam_({param}, {grad}, {average}, {square}, maxima, {step}, lr, beta1, beta2, decay,
                     eps, amsgrad, maximize, scale, found_inf);
  }
  results->append({param, average, square});
  if (amsgrad) results->push_back(maxima[0]);
  if (r.has(kScale)) results->push_back(grad);
}

void sgd_step(R r, Results results) {
  constexpr int kScale = 7;
  const at::Tensor param = state(r, 0, 0), grad = gradient(r, 1, kScale);
  std::vector<at::Tensor> buffers;
  if (r.has(2)) buffers.push_back(state(r, 2, 1));
  at::_fused_sgd_({param}, {grad}, buffers, number(r, 3), number(r, 4), number(r, 5), number(r, 6),
                  r.attr_int(0) != 0, r.attr_int(1) != 0, r.attr_int(2) != 0, r.optional(kScale),
                  r.optional(kScale + 1));
  results->push_back(param);
  if (r.has(2)) results->push_back(buffers[0]);
  if (r.has(kScale)) results->push_back(grad);
}

void adagrad_step(R r, Results results) {
  constexpr int kScale = 8;
  const at::Tensor param = state(r, 0, 0), sum = state(r, 2, 1), grad = gradient(r, 1, kScale);
  const at::Tensor step = at::scalar_tensor(number(r, 3), at::TensorOptions(at::kFloat));
  at::_fused_adagrad_({param}, {grad}, {sum}, {step}, number(r, 4), number(r, 5), number(r, 6),
                      number(r, 7), r.attr_int(0) != 0, r.optional(kScale), r.optional(kScale + 1));
  results->append({param, sum});
  if (r.has(kScale)) results->push_back(grad);
}

// --- gradient scaler ---

void amp_unscale(R r, Results results) {
  const at::Tensor grad = state(r, 0, 0);
  at::Tensor found_inf = state(r, 1, 1);
  at::_amp_foreach_non_finite_check_and_unscale_({grad}, found_inf, r.tensor(2));
  results->append({grad, found_inf});
}

void amp_update(R r, Results results) {
  at::Tensor scale = state(r, 0, 0), tracker = state(r, 1, 1);
  at::_amp_update_scale_(scale, tracker, r.tensor(2), number(r, 3), number(r, 4),
                         static_cast<int64_t>(number(r, 5)));
  results->append({scale, tracker});
}

// --- the table ---

using Run = void (*)(R, Results);

class ManualForm final : public HostForm {
 public:
  explicit ManualForm(Run run) : run_(run) {}
  void run(const HostRecord& record, HostResults* results) const override { run_(record, results); }

 private:
  Run run_;
};

struct Entry {
  const char* row;
  Run run;
};

constexpr Entry kEntries[] = {
    {"view_read", view_read},
    {"view_write", view_write},
    {"convert", convert},
    {"storage_zero", storage_zero},
    {"storage_resize", storage_resize},
    {"arange", arange},
    {"batch_norm", batch_norm},
    {"batch_norm_backward", batch_norm_backward},
    {"convolution_backward", convolution_backward},
    {"lstm_cell", lstm_cell},
    {"lstm_cell_backward", lstm_cell_backward},
    {"gru_cell", gru_cell},
    {"gru_cell_backward", gru_cell_backward},
    {"sdpa_forward", sdpa_forward},
    {"sdpa_backward", sdpa_backward},
    {"adam_step", adam_step},
    {"sgd_step", sgd_step},
    {"adagrad_step", adagrad_step},
    {"amp_unscale", amp_unscale},
    {"amp_update", amp_update},
};

// Kernels of their own, but calls by the rule.
constexpr const char* kByRule[] = {"index", "index_put"};

}  // namespace

std::unique_ptr<HostForm> make_manual_form(const tpu_record_t& record) {
  const char* name = tpu_op_info(record.op)->name;
  for (const Entry& entry : kEntries) {
    if (std::strcmp(name, entry.row) != 0) continue;
    return std::make_unique<ManualForm>(entry.run);
  }
  return nullptr;
}

bool has_rule_form(const tpu_record_t& record) {
  const tpu_op_info_t* info = tpu_op_info(record.op);
  // Random numbers are ours, not those of PyTorch's generators.
  if ((info->flags & (TPU_OP_RANDOM | TPU_OP_INTERNAL)) != 0) return false;
  if ((info->flags & TPU_OP_MANUAL) == 0) return true;
  for (const char* row : kByRule) {
    if (std::strcmp(info->name, row) == 0) return true;
  }
  return false;
}

}  // namespace tpu_shim
