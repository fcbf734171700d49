/* Activation functions. Their gradients are in activation_backward.c. */
#include <math.h>
#include <string.h>

#include "lower/op_lowering.h"
#include "lower/pointwise.h"

void tpui_lower_relu(const tpui_lowering_t* op) {
  tpui_hlo_t x = tpui_math_operand(op, 0);
  tpui_hlo_t below = tpui_compare_constant(op->b, "LT", x, 0.0);  // so -0 stays, as on the CPU
  tpui_set_pointwise(op, 0, tpui_select(op->b, below, tpui_like(op->b, x, 0.0), x));
}

/* threshold(self, threshold, value) */
void tpui_lower_threshold(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_math_operand(op, 0);
  tpui_hlo_t below = tpui_compare(b, "LE", x, tpui_math_operand(op, 1));
  tpui_set_pointwise(op, 0, tpui_select(b, below, tpui_math_operand(op, 2), x));
}

/* Attribute 0: "none" or "tanh". */
void tpui_lower_gelu(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_math_operand(op, 0), inner;
  if (strcmp(tpu_attr_text(op->record->attrs, 0), "tanh") == 0) {
    tpui_hlo_t cube = tpui_binary(b, "multiply", tpui_binary(b, "multiply", x, x), x);
    cube = tpui_binary(b, "add", x, tpui_binary_constant(b, "multiply", cube, 0.044715));
    inner = tpui_unary(b, "tanh", tpui_binary_constant(b, "multiply", cube, sqrt(2.0 / M_PI)));
  } else {
    inner = tpui_chlo(b, "erf", tpui_binary_constant(b, "multiply", x, sqrt(0.5)));
  }
  tpui_hlo_t cdf =
      tpui_binary_constant(b, "multiply", tpui_binary_constant(b, "add", inner, 1.0), 0.5);
  tpui_set_pointwise(op, 0, tpui_binary(b, "multiply", x, cdf));
}

void tpui_lower_silu(const tpui_lowering_t* op) {
  tpui_hlo_t x = tpui_math_operand(op, 0);
  tpui_set_pointwise(op, 0, tpui_binary(op->b, "multiply", x, tpui_sigmoid(op->b, x)));
}

/* elu(self, alpha, scale, input_scale) */
void tpui_lower_elu(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_math_operand(op, 0);
  tpui_hlo_t bent = tpui_scaled(
      op, tpui_scaled(op, tpui_unary(b, "exponential_minus_one", tpui_scaled(op, x, 3)), 1), 2);
  tpui_hlo_t inside = tpui_compare(b, "LE", x, tpui_like(b, x, 0.0));
  tpui_set_pointwise(op, 0, tpui_select(b, inside, bent, tpui_scaled(op, x, 2)));
}

/* leaky_relu(self, slope) and _prelu_kernel(self, weight) */
void tpui_lower_leaky_relu(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_math_operand(op, 0);
  tpui_hlo_t bent = tpui_binary(b, "multiply", x, tpui_math_operand(op, 1));
  tpui_set_pointwise(op, 0, tpui_select(b, tpui_compare_constant(b, "GT", x, 0.0), x, bent));
}

/* min(max(x + 3, 0), 6) / 6 */
static tpui_hlo_t hard_sigmoid(tpui_builder_t* b, tpui_hlo_t x) {
  x = tpui_binary_constant(b, "add", x, 3.0);
  x = tpui_binary_constant(b, "maximum", x, 0.0);
  return tpui_binary_constant(b, "divide", tpui_binary_constant(b, "minimum", x, 6.0), 6.0);
}

void tpui_lower_hardsigmoid(const tpui_lowering_t* op) {
  tpui_set_pointwise(op, 0, hard_sigmoid(op->b, tpui_math_operand(op, 0)));
}

void tpui_lower_hardswish(const tpui_lowering_t* op) {
  tpui_hlo_t x = tpui_math_operand(op, 0);
  tpui_set_pointwise(op, 0, tpui_binary(op->b, "multiply", x, hard_sigmoid(op->b, x)));
}

/* softplus(self, beta, threshold): linear above the threshold. */
void tpui_lower_softplus(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_math_operand(op, 0), scaled = tpui_scaled(op, x, 1);
  tpui_hlo_t bent = tpui_unary(b, "log_plus_one", tpui_unary(b, "exponential", scaled));
  double beta;
  if (!tpui_operand_constant(op, 1, &beta) || beta != 1.0) {
    bent = tpui_binary(b, "divide", bent, tpui_math_operand(op, 1));
  }
  tpui_hlo_t linear = tpui_compare(b, "GT", scaled, tpui_math_operand(op, 2));
  tpui_set_pointwise(op, 0, tpui_select(b, linear, x, bent));
}

void tpui_lower_mish(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_math_operand(op, 0);
  tpui_set_pointwise(op, 0,
                     tpui_binary(b, "multiply", x, tpui_unary(b, "tanh", tpui_softplus(b, x))));
}

/* Results: log(sigmoid(x)) and the buffer exp(-|x|), which PyTorch leaves empty on some devices. */
void tpui_lower_log_sigmoid(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_math_operand(op, 0);
  tpui_hlo_t tail = tpui_unary(b, "exponential", tpui_unary(b, "negate", tpui_unary(b, "abs", x)));
  tpui_set_pointwise(op, 0,
                     tpui_binary(b, "subtract", tpui_binary_constant(b, "minimum", x, 0.0),
                                 tpui_unary(b, "log_plus_one", tail)));
  const tpu_meta_t* buffer = tpui_result_meta(op, 1);
  if (buffer == NULL) return;
  if (buffer->numel == 0) tail = tpui_full(b, tail.dtype, 0.0, buffer->rank, buffer->sizes);
  tpui_set_pointwise(op, 1, tail);
}

/* logit(self, eps?) */
void tpui_lower_logit(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_math_operand(op, 0), one = tpui_like(b, x, 1.0);
  if (tpui_has_operand(op, 1)) {
    tpui_hlo_t eps = tpui_operand_as(op, 1, x.dtype);
    tpui_hlo_t top = tpui_binary(b, "subtract", one, eps);
    x = tpui_select(b, tpui_compare(b, "LT", x, eps), eps, x);
    x = tpui_select(b, tpui_compare(b, "GT", x, top), top, x);
  }
  tpui_hlo_t odds = tpui_binary(b, "divide", x, tpui_binary(b, "subtract", one, x));
  tpui_set_pointwise(op, 0, tpui_unary(b, "log", odds));
}

/* softshrink(self, lambda): NaN stays. */
void tpui_lower_softshrink(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_math_operand(op, 0), l = tpui_operand_as(op, 1, x.dtype);
  tpui_hlo_t low = tpui_unary(b, "negate", l);
  tpui_hlo_t rest = tpui_select(b, tpui_compare(b, "LT", x, low), tpui_binary(b, "add", x, l),
                                tpui_binary_constant(b, "multiply", x, 0.0));
  tpui_set_pointwise(
      op, 0, tpui_select(b, tpui_compare(b, "GT", x, l), tpui_binary(b, "subtract", x, l), rest));
}

/* BOOL: -l <= x <= l */
static tpui_hlo_t within_lambda(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t l) {
  return tpui_binary(b, "and", tpui_compare(b, "GE", x, tpui_unary(b, "negate", l)),
                     tpui_compare(b, "LE", x, l));
}

/* hardshrink(self, lambda) */
void tpui_lower_hardshrink(const tpui_lowering_t* op) {
  tpui_hlo_t x = tpui_math_operand(op, 0), l = tpui_operand_as(op, 1, x.dtype);
  tpui_set_pointwise(op, 0,
                     tpui_select(op->b, within_lambda(op->b, x, l), tpui_like(op->b, x, 0.0), x));
}

/* softshrink_backward and hardshrink_backward(grad, self, lambda) */
void tpui_lower_shrink_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t g = tpui_math_operand(op, 0), x = tpui_math_operand(op, 1);
  tpui_hlo_t limit = tpui_operand_as(op, 2, x.dtype);
  tpui_hlo_t outside = tpui_compare(b, "GT", tpui_unary(b, "abs", x), limit);
  tpui_set_pointwise(op, 0, tpui_select(b, outside, g, tpui_like(b, g, 0.0)));
}

/* --- gated linear unit: halves of one dimension, attribute 0 --- */

static int glu_dim(const tpui_lowering_t* op, int position, int rank) {
  int64_t dim = tpu_attr_int(op->record->attrs, position, -1);
  return (int)(dim < 0 ? dim + rank : dim);
}

void tpui_lower_glu(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_math_operand(op, 0);
  int dim = glu_dim(op, 0, x.rank);
  if (!tpui_ok(b)) return;
  int64_t size = x.sizes[dim];
  tpui_hlo_t value = tpui_slice_dim(b, x, dim, 0, size / 2);
  tpui_hlo_t gate = tpui_sigmoid(b, tpui_slice_dim(b, x, dim, size / 2, size));
  tpui_set_result(op, 0, tpui_binary(b, "multiply", value, gate));
}

/* glu_backward(grad, self, dim) */
void tpui_lower_glu_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t g = tpui_math_operand(op, 0), x = tpui_math_operand(op, 1);
  int dim = glu_dim(op, 0, x.rank);
  if (!tpui_ok(b)) return;
  int64_t size = x.sizes[dim];
  tpui_hlo_t value = tpui_slice_dim(b, x, dim, 0, size / 2);
  tpui_hlo_t gate = tpui_sigmoid(b, tpui_slice_dim(b, x, dim, size / 2, size));
  tpui_hlo_t slope =
      tpui_binary(b, "multiply", gate, tpui_binary(b, "subtract", tpui_like(b, gate, 1.0), gate));
  tpui_hlo_t parts[2] = {tpui_binary(b, "multiply", g, gate),
                         tpui_binary(b, "multiply", g, tpui_binary(b, "multiply", value, slope))};
  tpui_set_result(op, 0, tpui_concatenate(b, 2, parts, dim));
}
