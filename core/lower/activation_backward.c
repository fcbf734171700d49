/* Gradients of activation functions: operand 0 is the gradient of the output. */
#include <math.h>
#include <string.h>

#include "lower/complex.h"
#include "lower/op_lowering.h"
#include "lower/pointwise.h"

static tpui_hlo_t one_minus(tpui_builder_t* b, tpui_hlo_t x) {
  return tpui_binary(b, "subtract", tpui_like(b, x, 1.0), x);
}

/* threshold_backward(grad, self, threshold) */
void tpui_lower_threshold_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t g = tpui_math_operand(op, 0), x = tpui_math_operand(op, 1);
  tpui_hlo_t below = tpui_compare(b, "LE", x, tpui_math_operand(op, 2));
  tpui_set_pointwise(op, 0, tpui_select(b, below, tpui_like(b, g, 0.0), g));
}

static tpui_hlo_t gelu_slope_tanh(tpui_builder_t* b, tpui_hlo_t x) {
  const double scale = sqrt(2.0 / M_PI), cubic = 0.044715;
  tpui_hlo_t square = tpui_mul(b, x, x);
  tpui_hlo_t inner =
      tpui_binary(b, "add", x, tpui_binary_constant(b, "multiply", tpui_mul(b, square, x), cubic));
  tpui_hlo_t t = tpui_unary(b, "tanh", tpui_binary_constant(b, "multiply", inner, scale));
  tpui_hlo_t left = tpui_binary_constant(b, "add", t, 1.0);
  left = tpui_binary_constant(b, "multiply", left, 0.5);
  tpui_hlo_t steep =
      tpui_binary_constant(b, "add", tpui_binary_constant(b, "multiply", square, 3.0 * cubic), 1.0);
  tpui_hlo_t right = tpui_mul(b,
                              tpui_mul(b, tpui_binary_constant(b, "multiply", x, 0.5 * scale),
                                       one_minus(b, tpui_mul(b, t, t))),
                              steep);
  return tpui_binary(b, "add", left, right);
}

static tpui_hlo_t gelu_slope_erf(tpui_builder_t* b, tpui_hlo_t x) {
  tpui_hlo_t e = tpui_chlo(b, "erf", tpui_binary_constant(b, "multiply", x, sqrt(0.5)));
  tpui_hlo_t cdf = tpui_binary_constant(b, "multiply", tpui_binary_constant(b, "add", e, 1.0), 0.5);
  tpui_hlo_t pdf =
      tpui_unary(b, "exponential", tpui_binary_constant(b, "multiply", tpui_mul(b, x, x), -0.5));
  pdf = tpui_binary_constant(b, "multiply", pdf, sqrt(0.5 / M_PI));
  return tpui_binary(b, "add", cdf, tpui_mul(b, x, pdf));
}

/* gelu_backward(grad, self); attribute 0: "none" or "tanh". */
void tpui_lower_gelu_backward(const tpui_lowering_t* op) {
  tpui_hlo_t g = tpui_math_operand(op, 0), x = tpui_math_operand(op, 1);
  bool is_tanh = strcmp(tpu_attr_text(op->record->attrs, 0), "tanh") == 0;
  tpui_set_pointwise(
      op, 0, tpui_mul(op->b, g, is_tanh ? gelu_slope_tanh(op->b, x) : gelu_slope_erf(op->b, x)));
}

void tpui_lower_silu_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t g = tpui_math_operand(op, 0), x = tpui_math_operand(op, 1);
  tpui_hlo_t s = tpui_sigmoid(b, x);
  tpui_hlo_t bend = tpui_binary_constant(b, "add", tpui_mul(b, x, one_minus(b, s)), 1.0);
  tpui_set_pointwise(op, 0, tpui_mul(b, tpui_mul(b, g, s), bend));
}

/* elu_backward(grad, alpha, scale, input_scale, self_or_result); attribute 0: it is the result. */
void tpui_lower_elu_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t g = tpui_math_operand(op, 0), x = tpui_math_operand(op, 4), bent;
  if (tpu_attr_int(op->record->attrs, 0, 0) != 0) {
    tpui_hlo_t offset = tpui_scaled(op, tpui_math_operand(op, 1), 2);
    bent = tpui_scaled(op, tpui_mul(b, g, tpui_binary(b, "add", x, offset)), 3);
  } else {
    tpui_hlo_t e = tpui_unary(b, "exponential", tpui_scaled(op, x, 3));
    bent = tpui_mul(b, tpui_scaled(op, tpui_scaled(op, tpui_scaled(op, g, 3), 1), 2), e);
  }
  tpui_hlo_t inside = tpui_compare(b, "LE", x, tpui_like(b, x, 0.0));
  tpui_set_pointwise(op, 0, tpui_select(b, inside, bent, tpui_scaled(op, g, 2)));
}

/* leaky_relu_backward(grad, self, slope) */
void tpui_lower_leaky_relu_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t g = tpui_math_operand(op, 0), x = tpui_math_operand(op, 1);
  tpui_hlo_t bent = tpui_mul(b, g, tpui_math_operand(op, 2));
  tpui_set_pointwise(op, 0, tpui_select(b, tpui_compare_constant(b, "GT", x, 0.0), g, bent));
}

/* _prelu_kernel_backward(grad, self, weight): gradients of self and of weight, before the sum. */
void tpui_lower_prelu_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t g = tpui_math_operand(op, 0), x = tpui_math_operand(op, 1);
  tpui_hlo_t positive = tpui_compare_constant(b, "GT", x, 0.0);
  tpui_set_pointwise(op, 0, tpui_select(b, positive, g, tpui_mul(b, g, tpui_math_operand(op, 2))));
  tpui_set_pointwise(op, 1, tpui_select(b, positive, tpui_like(b, g, 0.0), tpui_mul(b, g, x)));
}

/* hardtanh_backward(grad, self, min, max) */
void tpui_lower_hardtanh_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t g = tpui_math_operand(op, 0), x = tpui_math_operand(op, 1);
  tpui_hlo_t inside = tpui_binary(b, "and", tpui_compare(b, "GT", x, tpui_math_operand(op, 2)),
                                  tpui_compare(b, "LT", x, tpui_math_operand(op, 3)));
  tpui_set_pointwise(op, 0, tpui_select(b, inside, g, tpui_like(b, g, 0.0)));
}

void tpui_lower_hardsigmoid_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t g = tpui_math_operand(op, 0), x = tpui_math_operand(op, 1);
  tpui_hlo_t inside = tpui_binary(b, "and", tpui_compare_constant(b, "GT", x, -3.0),
                                  tpui_compare_constant(b, "LT", x, 3.0));
  tpui_set_pointwise(
      op, 0,
      tpui_select(b, inside, tpui_binary_constant(b, "divide", g, 6.0), tpui_like(b, g, 0.0)));
}

void tpui_lower_hardswish_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t g = tpui_math_operand(op, 0), x = tpui_math_operand(op, 1);
  tpui_hlo_t slope = tpui_binary_constant(b, "add", tpui_binary_constant(b, "divide", x, 3.0), 0.5);
  tpui_hlo_t middle =
      tpui_select(b, tpui_compare_constant(b, "LT", x, 3.0), tpui_mul(b, g, slope), g);
  tpui_set_pointwise(
      op, 0, tpui_select(b, tpui_compare_constant(b, "LE", x, -3.0), tpui_like(b, g, 0.0), middle));
}

/* softplus_backward(grad, self, beta, threshold) */
void tpui_lower_softplus_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t g = tpui_math_operand(op, 0), x = tpui_scaled(op, tpui_math_operand(op, 1), 2);
  tpui_hlo_t linear = tpui_compare(b, "GT", x, tpui_math_operand(op, 3));
  tpui_set_pointwise(op, 0, tpui_select(b, linear, g, tpui_mul(b, g, tpui_sigmoid(b, x))));
}

void tpui_lower_mish_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t g = tpui_math_operand(op, 0), x = tpui_math_operand(op, 1);
  tpui_hlo_t t = tpui_unary(b, "tanh", tpui_softplus(b, x));
  tpui_hlo_t bend =
      tpui_mul(b, tpui_mul(b, x, tpui_sigmoid(b, x)), one_minus(b, tpui_mul(b, t, t)));
  tpui_set_pointwise(op, 0, tpui_mul(b, g, tpui_binary(b, "add", t, bend)));
}

/* log_sigmoid_backward(grad, self, buffer): sigmoid(-x); the buffer is not needed. */
void tpui_lower_log_sigmoid_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t g = tpui_math_operand(op, 0), x = tpui_math_operand(op, 1);
  tpui_set_pointwise(op, 0, tpui_mul(b, g, tpui_sigmoid(b, tpui_unary(b, "negate", x))));
}

static tpui_hlo_t conjugate_of(tpui_builder_t* b, tpui_hlo_t x) {
  if (!tpui_is_complex(x)) return x;
  tpui_hlo_t imag = tpui_unary(b, "negate", tpui_unary(b, "imag", x));
  return tpui_binary(b, "complex", tpui_unary(b, "real", x), imag);
}

void tpui_lower_tanh_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t g = tpui_math_operand(op, 0), y = tpui_math_operand(op, 1);
  tpui_set_pointwise(op, 0, tpui_mul(b, g, conjugate_of(b, one_minus(b, tpui_mul(b, y, y)))));
}

void tpui_lower_sigmoid_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t g = tpui_math_operand(op, 0), y = tpui_math_operand(op, 1);
  tpui_set_pointwise(op, 0, tpui_mul(b, g, conjugate_of(b, tpui_mul(b, one_minus(b, y), y))));
}

/* logit_backward(grad, self, eps?) */
void tpui_lower_logit_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t g = tpui_math_operand(op, 0), x = tpui_math_operand(op, 1);
  bool has_eps = tpui_has_operand(op, 2);
  tpui_hlo_t low = has_eps ? tpui_operand_as(op, 2, x.dtype) : tpui_like(b, x, 0.0);
  tpui_hlo_t high = one_minus(b, low);
  tpui_hlo_t outside =
      tpui_binary(b, "or", tpui_compare(b, "LT", x, low), tpui_compare(b, "GT", x, high));
  tpui_hlo_t inside = tpui_binary(b, "divide", g, tpui_mul(b, x, one_minus(b, x)));
  tpui_hlo_t edge = tpui_like(b, x, has_eps ? 0.0 : NAN);
  tpui_set_pointwise(op, 0, tpui_select(b, outside, edge, inside));
}
