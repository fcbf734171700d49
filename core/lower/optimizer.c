/* Fused optimizer steps for one parameter, and the gradient scaler's two ops.
 *
 * The shim splits torch._fused_*_ lists into these rows. Math is float32 (float64 for float64
 * parameters); scalars are combined in float64. With found_inf set nothing changes. With grad_scale
 * the gradient is divided by it first and is the last result.
 *
 * ADAM_STEP operands: param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq?, step, lr, beta1, beta2,
 *     weight_decay, eps, grad_scale?, found_inf?   (step, lr: numbers or one-element tensors)
 *   attributes: amsgrad, maximize, adamw
 *   results: param, exp_avg, exp_avg_sq, [max_exp_avg_sq if amsgrad], [grad if grad_scale]
 * SGD_STEP operands: param, grad, momentum_buffer?, weight_decay, momentum, lr, dampening,
 *     grad_scale?, found_inf?
 *   attributes: nesterov, maximize, is_first_step
 *   results: param, [momentum_buffer if given], [grad if grad_scale]
 * ADAGRAD_STEP operands: param, grad, state_sum, step, lr, lr_decay, weight_decay, eps,
 *     grad_scale?, found_inf?
 *   attributes: maximize
 *   results: param, state_sum, [grad if grad_scale]
 * AMP_UNSCALE operands: grad, found_inf, inv_scale
 *   results: grad, found_inf
 * AMP_UPDATE operands: scale, growth_tracker, found_inf, growth_factor, backoff_factor
 *   attributes: growth_interval
 *   results: scale, growth_tracker
 */
#include "lower/gather.h"
#include "lower/op_lowering.h"

typedef struct step_t {
  const tpui_lowering_t* op;
  tpui_builder_t* b;
  tpu_dtype_t dtype;
  tpui_hlo_t param, grad;  // grad after scale and sign
  tpui_hlo_t scaled_grad;  // grad after scale, for the last result
  int scale_at;            // operand of grad_scale?; found_inf? follows
} step_t;

/* Operand k as one F64 number. */
static tpui_hlo_t step_number(const step_t* s, int k) {
  tpui_hlo_t x = tpui_operand_as(s->op, k, TPU_F64);
  return x.rank > 0 ? tpui_reshape(s->b, x, 0, NULL) : x;
}

/* A number in the math dtype. */
static tpui_hlo_t narrow_number(const step_t* s, tpui_hlo_t x) {
  return tpui_convert(s->b, x, s->dtype);
}

static tpui_hlo_t one_minus(const step_t* s, tpui_hlo_t x) {
  return tpui_sub(s->b, tpui_constant(s->b, x.dtype, 1), x);
}

static step_t begin_step(const tpui_lowering_t* op, int scale_at, bool maximize) {
  step_t s = {.op = op, .b = op->b, .scale_at = scale_at};
  tpui_hlo_t param = tpui_operand(op, 0);
  s.dtype = tpui_math_dtype(param.dtype);
  s.param = tpui_convert(s.b, param, s.dtype);
  s.grad = tpui_operand_as(op, 1, s.dtype);
  if (tpui_has_operand(op, scale_at))
    s.grad = tpui_div(s.b, s.grad, narrow_number(&s, step_number(&s, scale_at)));
  s.scaled_grad = s.grad;
  if (maximize) s.grad = tpui_unary(s.b, "negate", s.grad);
  return s;
}

/* Result k: the new value, or operand `old` when found_inf is set. */
static void finish_state(const step_t* s, int k, tpui_hlo_t value, int old) {
  if (tpui_has_operand(s->op, s->scale_at + 1)) {
    tpui_hlo_t found = tpui_compare_constant(s->b, "EQ", step_number(s, s->scale_at + 1), 1);
    value = tpui_select(s->b, found, tpui_operand_as(s->op, old, value.dtype), value);
  }
  tpui_set_result(s->op, k, value);
}

static void finish_grad(const step_t* s, int k) {
  if (!tpui_has_operand(s->op, s->scale_at) || s->op->record->result_count <= k) return;
  tpui_set_result(s->op, k, s->scaled_grad);
}

/* param * weight_decay added to the gradient. */
static void decay_grad(step_t* s, int k) {
  double fixed = 1;
  if (tpui_operand_constant(s->op, k, &fixed) && fixed == 0) return;
  s->grad = tpui_add(s->b, s->grad, tpui_mul(s->b, s->param, narrow_number(s, step_number(s, k))));
}

void tpui_lower_adam_step(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpu_attrs_id_t attrs = op->record->attrs;
  bool amsgrad = tpu_attr_int(attrs, 0, 0) != 0, adamw = tpu_attr_int(attrs, 2, 0) != 0;
  step_t s = begin_step(op, 11, tpu_attr_int(attrs, 1, 0) != 0);
  tpui_hlo_t step = step_number(&s, 5), lr = step_number(&s, 6), beta1 = step_number(&s, 7);
  tpui_hlo_t beta2 = step_number(&s, 8), decay = step_number(&s, 9),
             eps = narrow_number(&s, step_number(&s, 10));
  if (adamw) {
    s.param = tpui_mul(s.b, s.param, narrow_number(&s, one_minus(&s, tpui_mul(s.b, lr, decay))));
  } else {
    decay_grad(&s, 9);
  }
  tpui_hlo_t average = tpui_operand_as(op, 2, s.dtype), square = tpui_operand_as(op, 3, s.dtype);
  average = tpui_add(
      s.b, average,
      tpui_mul(s.b, tpui_sub(s.b, s.grad, average), narrow_number(&s, one_minus(&s, beta1))));
  square = tpui_add(
      s.b, tpui_mul(s.b, square, narrow_number(&s, beta2)),
      tpui_mul(s.b, tpui_mul(s.b, s.grad, s.grad), narrow_number(&s, one_minus(&s, beta2))));
  tpui_hlo_t correction1 = one_minus(&s, tpui_binary(b, "power", beta1, step));
  tpui_hlo_t correction2 = one_minus(&s, tpui_binary(b, "power", beta2, step));
  tpui_hlo_t used = square;
  if (amsgrad) used = tpui_binary(b, "maximum", tpui_operand_as(op, 4, s.dtype), square);
  tpui_hlo_t root = narrow_number(&s, tpui_unary(b, "sqrt", correction2));
  tpui_hlo_t below = tpui_add(s.b, tpui_div(s.b, tpui_unary(b, "sqrt", used), root), eps);
  tpui_hlo_t rate = narrow_number(&s, tpui_div(s.b, lr, correction1));
  tpui_hlo_t param = tpui_sub(s.b, s.param, tpui_div(s.b, tpui_mul(s.b, average, rate), below));
  finish_state(&s, 0, param, 0);
  finish_state(&s, 1, average, 2);
  finish_state(&s, 2, square, 3);
  if (amsgrad) finish_state(&s, 3, used, 4);
  finish_grad(&s, amsgrad ? 4 : 3);
}

void tpui_lower_sgd_step(const tpui_lowering_t* op) {
  tpu_attrs_id_t attrs = op->record->attrs;
  bool nesterov = tpu_attr_int(attrs, 0, 0) != 0, first = tpu_attr_int(attrs, 2, 0) != 0;
  step_t s = begin_step(op, 7, tpu_attr_int(attrs, 1, 0) != 0);
  decay_grad(&s, 3);
  bool has_buffer = tpui_has_operand(op, 2);
  tpui_hlo_t direction = s.grad;
  if (has_buffer) {
    tpui_hlo_t momentum = narrow_number(&s, step_number(&s, 4));
    tpui_hlo_t buffer = s.grad;
    if (!first) {
      buffer = tpui_mul(s.b, tpui_operand_as(op, 2, s.dtype), momentum);
      buffer = tpui_add(
          s.b, buffer, tpui_mul(s.b, s.grad, narrow_number(&s, one_minus(&s, step_number(&s, 6)))));
    }
    direction = nesterov ? tpui_add(s.b, s.grad, tpui_mul(s.b, buffer, momentum)) : buffer;
    finish_state(&s, 1, buffer, 2);
  }
  finish_state(
      &s, 0,
      tpui_sub(s.b, s.param, tpui_mul(s.b, direction, narrow_number(&s, step_number(&s, 5)))), 0);
  finish_grad(&s, has_buffer ? 2 : 1);
}

void tpui_lower_adagrad_step(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  step_t s = begin_step(op, 8, tpu_attr_int(op->record->attrs, 0, 0) != 0);
  decay_grad(&s, 6);
  tpui_hlo_t past = tpui_binary_constant(b, "subtract", step_number(&s, 3), 1);
  tpui_hlo_t slowed = tpui_binary_constant(b, "add", tpui_mul(s.b, past, step_number(&s, 5)), 1);
  tpui_hlo_t rate = narrow_number(&s, tpui_div(s.b, step_number(&s, 4), slowed));
  tpui_hlo_t sum = tpui_add(s.b, tpui_operand_as(op, 2, s.dtype), tpui_mul(s.b, s.grad, s.grad));
  tpui_hlo_t below =
      tpui_add(s.b, tpui_unary(b, "sqrt", sum), narrow_number(&s, step_number(&s, 7)));
  finish_state(&s, 0, tpui_sub(s.b, s.param, tpui_div(s.b, tpui_mul(s.b, s.grad, rate), below)), 0);
  finish_state(&s, 1, sum, 2);
  finish_grad(&s, 2);
}

/* --- gradient scaler --- */

void tpui_lower_amp_unscale(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t grad = tpui_operand(op, 0);
  tpu_dtype_t dtype = tpui_math_dtype(grad.dtype);
  grad = tpui_convert(b, grad, dtype);
  tpui_hlo_t scale = tpui_reshape(b, tpui_operand_as(op, 2, dtype), 0, NULL);
  tpui_hlo_t found = tpui_operand(op, 1);
  int dims[TPU_MAX_RANK];
  for (int i = 0; i < grad.rank; ++i) dims[i] = i;
  tpui_hlo_t bad = tpui_unary(b, "not", tpui_unary(b, "is_finite", grad));
  if (grad.rank > 0) bad = tpui_reduce(b, "or", bad, grad.rank, dims);
  tpui_set_result(op, 0, tpui_binary(b, "multiply", grad, scale));
  tpui_set_result(op, 1, tpui_select(b, bad, tpui_constant(b, found.dtype, 1), found));
}

void tpui_lower_amp_update(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t scale = tpui_operand(op, 0), tracker = tpui_operand(op, 1);
  tpui_hlo_t found = tpui_reshape(b, tpui_operand(op, 2), 0, NULL);
  tpui_hlo_t infinite = tpui_compare_constant(b, "NE", found, 0);
  tpui_hlo_t next = tpui_binary(b, "add", tracker, tpui_constant(b, tracker.dtype, 1));
  tpui_hlo_t interval = tpui_operand_as(op, 5, tracker.dtype);
  tpui_hlo_t due = tpui_compare(b, "EQ", next, interval), none = tpui_constant(b, tracker.dtype, 0);
  tpui_hlo_t grown = tpui_binary(b, "multiply", scale, tpui_operand_as(op, 3, scale.dtype));
  // A scale that would become infinite stays.
  grown = tpui_select(b, tpui_unary(b, "is_finite", grown), grown, scale);
  tpui_hlo_t backed = tpui_binary(b, "multiply", scale, tpui_operand_as(op, 4, scale.dtype));
  tpui_set_result(op, 0, tpui_select(b, infinite, backed, tpui_select(b, due, grown, scale)));
  tpui_set_result(op, 1, tpui_select(b, infinite, none, tpui_select(b, due, none, next)));
}
