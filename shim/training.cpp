// Kernels with a shape of their own: batch norm (updates statistics), convolution's backward, fused
// optimizer steps (lists of tensors) and the gradient scaler. core/lower says each row's operand
// order.
#include <ATen/EmptyTensor.h>
#include <ATen/OpMathType.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "record.h"

namespace tpu_shim {

namespace {

using OptT = const std::optional<at::Tensor>&;
using T3 = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
using T4 = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

bool given(OptT tensor) { return tensor.has_value() && tensor->defined(); }

// --- batch norm ---

T3 batch_norm(const at::Tensor& input, OptT weight, OptT bias, OptT running_mean, OptT running_var,
              bool training, double momentum, double eps) {
  TORCH_CHECK(input.dim() >= 2, "batch_norm: expected at least 2 dimensions, got ", input.dim());
  TORCH_CHECK(input.numel() > 0 || input.size(1) == 0,
              "batch_norm: input tensor must have at least one element, but got input_sizes = ",
              input.sizes());
  TORCH_CHECK(training || (given(running_mean) && given(running_var)),
              "batch_norm: running_mean and running_var must be given when not training");
  const c10::ScalarType stat_type = at::toOpMathType(input.scalar_type());
  const tpu_meta_id_t saved = contiguous_meta({training ? input.size(1) : 0}, stat_type);
  static const tpu_op_t row = op_row("batch_norm");
  Call call(row, TPU_CALL_OUT);
  call.tensor(input).optional(weight).optional(bias).optional(running_mean).optional(running_var);
  call.number(momentum).number(eps).attr(training);
  call.result(result_meta_of(input)).result(saved).result(saved);
  if (training && given(running_mean) && given(running_var))
    call.written(*running_mean).written(*running_var);
  call.record();
  return T3(call.take(0), call.take(1), call.take(2));
}

T3 batch_norm_legit(const at::Tensor& input, OptT weight, OptT bias, at::Tensor& running_mean,
                    at::Tensor& running_var, bool training, double momentum, double eps) {
  return batch_norm(input, weight, bias, running_mean, running_var, training, momentum, eps);
}

T3 batch_norm_no_stats(const at::Tensor& input, OptT weight, OptT bias, bool training,
                       double momentum, double eps) {
  return batch_norm(input, weight, bias, {}, {}, training, momentum, eps);
}

T4 batch_norm_with_update(const at::Tensor& input, OptT weight, OptT bias, at::Tensor& running_mean,
                          at::Tensor& running_var, double momentum, double eps) {
  T3 r =
      batch_norm(input, weight, bias, running_mean, running_var, /*training=*/true, momentum, eps);
  return T4(std::get<0>(r), std::get<1>(r), std::get<2>(r),
            at::empty({0}, input.options().dtype(at::kByte)));
}

T3 batch_norm_backward(const at::Tensor& grad, const at::Tensor& input, OptT weight,
                       OptT running_mean, OptT running_var, OptT save_mean, OptT save_invstd,
                       bool train, double eps, std::array<bool, 3> mask) {
  const c10::ScalarType type = given(weight) ? weight->scalar_type() : input.scalar_type();
  const tpu_meta_id_t channels = contiguous_meta({input.size(1)}, type);
  const int64_t flags[3] = {mask[0], mask[1], mask[2]};
  static const tpu_op_t row = op_row("batch_norm_backward");
  Call call(row);
  call.tensor(grad).tensor(input).optional(weight).optional(running_mean).optional(running_var);
  call.optional(save_mean).optional(save_invstd).number(eps).attr(train).attr_ints(flags);
  call.result(mask[0] ? result_meta_of(input) : absent_meta());
  call.result(mask[1] ? channels : absent_meta()).result(mask[2] ? channels : absent_meta());
  call.record();
  return T3(call.take(0), call.take(1), call.take(2));
}

T3 batch_norm_backward_reserved(const at::Tensor& grad, const at::Tensor& input,
                                const at::Tensor& weight, OptT running_mean, OptT running_var,
                                OptT save_mean, OptT save_var, bool update, double eps,
                                std::array<bool, 3> mask, const at::Tensor&) {
  return batch_norm_backward(grad, input, weight, running_mean, running_var, save_mean, save_var,
                             update, eps, mask);
}

// --- convolution ---

// Gradients lie as the convolution's result does (op_rules.def).
at::MemoryFormat image_format(const at::Tensor& input, const at::Tensor& weight) {
  const at::MemoryFormat format = input.suggest_memory_format();
  return format != at::MemoryFormat::Contiguous ? format : weight.suggest_memory_format();
}

tpu_meta_id_t image_meta(const at::Tensor& like, at::MemoryFormat format) {
  return result_meta_of(at::detail::empty_meta(like.sizes(), like.scalar_type(), format));
}

T3 convolution_backward(const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight,
                        at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation,
                        bool transposed, at::IntArrayRef output_padding, int64_t groups,
                        std::array<bool, 3> mask) {
  const int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  const int64_t flags[3] = {mask[0], mask[1], mask[2]};
  static const tpu_op_t row = op_row("convolution_backward");
  Call call(row);
  call.tensor(grad).tensor(input).tensor(weight);
  call.attr_ints(stride)
      .attr_ints(padding)
      .attr_ints(dilation)
      .attr(transposed)
      .attr_ints(output_padding);
  call.attr(groups).attr_ints(flags);
  const at::MemoryFormat format = image_format(input, weight);
  call.result(mask[0] ? image_meta(input, format) : absent_meta());
  call.result(mask[1] ? image_meta(weight, format) : absent_meta());
  call.result(mask[2] ? contiguous_meta({channels}, grad.scalar_type()) : absent_meta());
  call.record();
  return T3(call.take(0), call.take(1), call.take(2));
}

// --- optimizers: one record per parameter ---

// A learning rate: a number or a one-element tensor.
struct Rate {
  double number = 0;
  const at::Tensor* tensor = nullptr;
  void add_to(Call* call) const {
    tensor != nullptr ? call->tensor(*tensor) : call->number(number);
  }
};

struct Scaler {
  OptT grad_scale;
  OptT found_inf;
  void add_operands(Call* call) const { call->optional(grad_scale).optional(found_inf); }
  void add_result(Call* call, const at::Tensor& grad) const {
    if (given(grad_scale)) call->written(grad);
  }
};

struct Adam {
  double beta1, beta2, weight_decay, eps;
  bool amsgrad, maximize, decoupled;
};

void adam(at::TensorList params, at::TensorList grads, at::TensorList averages,
          at::TensorList squares, at::TensorList maxima, at::TensorList steps, const Rate& rate,
          const Adam& a, const Scaler& scaler) {
  for (size_t i = 0; i < params.size(); ++i) {
    static const tpu_op_t row = op_row("adam_step");
    Call call(row, TPU_CALL_OUT);
    call.tensor(params[i]).tensor(grads[i]).tensor(averages[i]).tensor(squares[i]);
    a.amsgrad ? call.tensor(maxima[i]) : call.none();
    call.tensor(steps[i]);
    rate.add_to(&call);
    call.number(a.beta1).number(a.beta2).number(a.weight_decay).number(a.eps);
    scaler.add_operands(&call);
    call.attr(a.amsgrad).attr(a.maximize).attr(a.decoupled);
    call.written(params[i]).written(averages[i]).written(squares[i]);
    if (a.amsgrad) call.written(maxima[i]);
    scaler.add_result(&call, grads[i]);
    call.record();
  }
}

template <bool decoupled>
void fused_adam(at::TensorList params, at::TensorList grads, at::TensorList averages,
                at::TensorList squares, at::TensorList maxima, at::TensorList steps, double lr,
                double beta1, double beta2, double weight_decay, double eps, bool amsgrad,
                bool maximize, OptT grad_scale, OptT found_inf) {
  adam(params, grads, averages, squares, maxima, steps, Rate{lr, nullptr},
       Adam{beta1, beta2, weight_decay, eps, amsgrad, maximize, decoupled},
       Scaler{grad_scale, found_inf});
}

template <bool decoupled>
void fused_adam_tensor(at::TensorList params, at::TensorList grads, at::TensorList averages,
                       at::TensorList squares, at::TensorList maxima, at::TensorList steps,
                       const at::Tensor& lr, double beta1, double beta2, double weight_decay,
                       double eps, bool amsgrad, bool maximize, OptT grad_scale, OptT found_inf) {
  adam(params, grads, averages, squares, maxima, steps, Rate{0, &lr},
       Adam{beta1, beta2, weight_decay, eps, amsgrad, maximize, decoupled},
       Scaler{grad_scale, found_inf});
}

struct Sgd {
  double weight_decay, momentum, dampening;
  bool nesterov, maximize, is_first_step;
};

void sgd(at::TensorList params, at::TensorList grads, at::TensorList buffers, const Rate& rate,
         const Sgd& s, const Scaler& scaler) {
  const bool momentum = !buffers.empty();
  for (size_t i = 0; i < params.size(); ++i) {
    static const tpu_op_t row = op_row("sgd_step");
    Call call(row, TPU_CALL_OUT);
    call.tensor(params[i]).tensor(grads[i]);
    momentum ? call.tensor(buffers[i]) : call.none();
    call.number(s.weight_decay).number(s.momentum);
    rate.add_to(&call);
    call.number(s.dampening);
    scaler.add_operands(&call);
    call.attr(s.nesterov).attr(s.maximize).attr(s.is_first_step);
    call.written(params[i]);
    if (momentum) call.written(buffers[i]);
    scaler.add_result(&call, grads[i]);
    call.record();
  }
}

void fused_sgd(at::TensorList params, at::TensorList grads, at::TensorList buffers,
               double weight_decay, double momentum, double lr, double dampening, bool nesterov,
               bool maximize, bool is_first_step, OptT grad_scale, OptT found_inf) {
  sgd(params, grads, buffers, Rate{lr, nullptr},
      Sgd{weight_decay, momentum, dampening, nesterov, maximize, is_first_step},
      Scaler{grad_scale, found_inf});
}

void fused_sgd_tensor(at::TensorList params, at::TensorList grads, at::TensorList buffers,
                      double weight_decay, double momentum, const at::Tensor& lr, double dampening,
                      bool nesterov, bool maximize, bool is_first_step, OptT grad_scale,
                      OptT found_inf) {
  sgd(params, grads, buffers, Rate{0, &lr},
      Sgd{weight_decay, momentum, dampening, nesterov, maximize, is_first_step},
      Scaler{grad_scale, found_inf});
}

void adagrad(at::TensorList params, at::TensorList grads, at::TensorList sums, at::TensorList steps,
             const Rate& rate, double lr_decay, double weight_decay, double eps, bool maximize,
             const Scaler& scaler) {
  for (size_t i = 0; i < params.size(); ++i) {
    static const tpu_op_t row = op_row("adagrad_step");
    Call call(row, TPU_CALL_OUT);
    call.tensor(params[i]).tensor(grads[i]).tensor(sums[i]).tensor(steps[i]);
    rate.add_to(&call);
    call.number(lr_decay).number(weight_decay).number(eps);
    scaler.add_operands(&call);
    call.attr(maximize).written(params[i]).written(sums[i]);
    scaler.add_result(&call, grads[i]);
    call.record();
  }
}

void fused_adagrad(at::TensorList params, at::TensorList grads, at::TensorList sums,
                   at::TensorList steps, double lr, double lr_decay, double weight_decay,
                   double eps, bool maximize, OptT grad_scale, OptT found_inf) {
  adagrad(params, grads, sums, steps, Rate{lr, nullptr}, lr_decay, weight_decay, eps, maximize,
          Scaler{grad_scale, found_inf});
}

void fused_adagrad_tensor(at::TensorList params, at::TensorList grads, at::TensorList sums,
                          at::TensorList steps, const at::Tensor& lr, double lr_decay,
                          double weight_decay, double eps, bool maximize, OptT grad_scale,
                          OptT found_inf) {
  adagrad(params, grads, sums, steps, Rate{0, &lr}, lr_decay, weight_decay, eps, maximize,
          Scaler{grad_scale, found_inf});
}

// --- gradient scaler ---

void amp_unscale(at::TensorList grads, at::Tensor& found_inf, const at::Tensor& inv_scale) {
  for (const at::Tensor& grad : grads) {
    static const tpu_op_t row = op_row("amp_unscale");
    Call call(row, TPU_CALL_OUT);
    call.tensor(grad).tensor(found_inf).tensor(inv_scale).written(grad).written(found_inf).record();
  }
}

at::Tensor& amp_update(at::Tensor& scale, at::Tensor& growth_tracker, const at::Tensor& found_inf,
                       double growth_factor, double backoff_factor, int64_t growth_interval) {
  static const tpu_op_t row = op_row("amp_update");
  Call call(row, TPU_CALL_OUT);
  call.tensor(scale)
      .tensor(growth_tracker)
      .tensor(found_inf)
      .number(growth_factor)
      .number(backoff_factor)
      .scalar(growth_interval);
  call.written(scale).written(growth_tracker).record();
  return scale;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("native_batch_norm", TORCH_FN(batch_norm));
  m.impl("_native_batch_norm_legit", TORCH_FN(batch_norm_legit));
  m.impl("_native_batch_norm_legit.no_stats", TORCH_FN(batch_norm_no_stats));
  m.impl("_batch_norm_with_update", TORCH_FN(batch_norm_with_update));
  m.impl("native_batch_norm_backward", TORCH_FN(batch_norm_backward));
  m.impl("batch_norm_backward", TORCH_FN(batch_norm_backward_reserved));
  m.impl("convolution_backward_overrideable", TORCH_FN(convolution_backward));
  m.impl("_fused_adam_", TORCH_FN(fused_adam<false>));
  m.impl("_fused_adam_.tensor_lr", TORCH_FN(fused_adam_tensor<false>));
  m.impl("_fused_adamw_", TORCH_FN(fused_adam<true>));
  m.impl("_fused_adamw_.tensor_lr", TORCH_FN(fused_adam_tensor<true>));
  m.impl("_fused_sgd_", TORCH_FN(fused_sgd));
  m.impl("_fused_sgd_.tensor_lr", TORCH_FN(fused_sgd_tensor));
  m.impl("_fused_adagrad_", TORCH_FN(fused_adagrad));
  m.impl("_fused_adagrad_.tensor_lr", TORCH_FN(fused_adagrad_tensor));
  m.impl("_amp_foreach_non_finite_check_and_unscale_", TORCH_FN(amp_unscale));
  m.impl("_amp_update_scale_", TORCH_FN(amp_update));
}

}  // namespace tpu_shim
