/* Elementwise operations of one operand. */
#include <math.h>
#include <string.h>

#include "lower/complex.h"
#include "lower/op_lowering.h"
#include "lower/pointwise.h"

#define POLYGAMMA_MAX_ORDER 16

/* Any one-operand operation; argument: a StableHLO name, or "chlo." and a CHLO name. Integers that
 * the operation leaves as they are (floor, abs of unsigned) pass through. */
void tpui_lower_unary(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_math_operand(op, 0);
  if (tpui_is_complex(x)) {
    tpui_set_pointwise(op, 0, tpui_complex_unary(b, op->argument, x));
    return;
  }
  bool is_chlo = strncmp(op->argument, "chlo.", 5) == 0;
  tpui_set_pointwise(op, 0,
                     is_chlo ? tpui_chlo(b, op->argument + 5, x) : tpui_unary(b, op->argument, x));
}

/* The same for operations that do nothing to integers. */
void tpui_lower_rounding(const tpui_lowering_t* op) {
  tpui_hlo_t x = tpui_math_operand(op, 0);
  if (!tpu_dtype_is_integral(x.dtype)) {
    x = op->argument[0] == '\0' ? tpui_trunc(op->b, x) : tpui_unary(op->b, op->argument, x);
  }
  tpui_set_pointwise(op, 0, x);
}

void tpui_lower_abs(const tpui_lowering_t* op) {
  tpui_hlo_t x = tpui_operand(op, 0);
  if (tpui_is_complex(x)) {
    x = tpui_complex_abs(op->b, x);
  } else if (tpu_dtype_kind(x.dtype) >= TPU_KIND_SIGNED) {
    x = tpui_unary(op->b, "abs", x);
  }
  tpui_set_pointwise(op, 0, x);
}

/* Signs of numbers; NaN has sign 0 as in PyTorch, and a complex number's sign is x / |x|. */
void tpui_lower_sign(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_operand(op, 0);
  if (tpu_dtype_kind(x.dtype) == TPU_KIND_COMPLEX) {
    x = tpui_unary(b, "sign", x);
  } else if (x.dtype != TPU_BOOL) {
    tpui_hlo_t zero = tpui_like(b, x, 0.0);
    tpui_hlo_t up = tpui_convert(b, tpui_compare(b, "GT", x, zero), x.dtype);
    tpui_hlo_t down = tpui_convert(b, tpui_compare(b, "LT", x, zero), x.dtype);
    x = tpui_binary(b, "subtract", up, down);
  }
  tpui_set_pointwise(op, 0, x);
}

void tpui_lower_exp2(const tpui_lowering_t* op) {
  tpui_hlo_t x = tpui_math_operand(op, 0);
  if (tpui_is_complex(x)) {
    x = tpui_complex_scale(op->b, x, log(2.0));
    tpui_set_pointwise(op, 0, tpui_complex_unary(op->b, "exponential", x));
    return;
  }
  tpui_set_pointwise(op, 0, tpui_binary(op->b, "power", tpui_like(op->b, x, 2.0), x));
}

/* log2, log10; argument: the base. */
void tpui_lower_log_base(const tpui_lowering_t* op) {
  tpui_hlo_t x = tpui_math_operand(op, 0);
  double base = op->argument[0] == '2' ? 2.0 : 10.0;
  if (tpui_is_complex(x)) {
    x = tpui_complex_unary(op->b, "log", x);
    tpui_set_pointwise(op, 0, tpui_complex_scale(op->b, x, 1.0 / log(base)));
    return;
  }
  x = tpui_unary(op->b, "log", x);
  tpui_hlo_t scale = tpui_convert(op->b, tpui_like(op->b, x, log(base)), x.dtype);
  tpui_set_pointwise(op, 0, tpui_binary(op->b, "divide", x, scale));
}

void tpui_lower_reciprocal(const tpui_lowering_t* op) {
  tpui_hlo_t x = tpui_math_operand(op, 0);
  tpui_hlo_t one = tpui_convert(op->b, tpui_constant(op->b, TPU_F64, 1.0), x.dtype);
  tpui_set_pointwise(op, 0, tpui_binary(op->b, "divide", one, x));
}

/* 10 to the power of a count that varies (below 512, beyond is infinite) as F64; exact as long as
 * doubles are. */
static tpui_hlo_t power_of_ten(tpui_builder_t* b, tpui_hlo_t count) {
  tpui_hlo_t power = tpui_constant(b, TPU_F64, 1);
  for (int bit = 0; bit < 9; ++bit) {
    int64_t weight = (int64_t)1 << bit;
    tpui_hlo_t mask = tpui_constant_int(b, TPU_I64, weight);
    tpui_hlo_t set = tpui_compare_constant(b, "NE", tpui_binary(b, "and", count, mask), 0);
    tpui_hlo_t factor = tpui_constant(b, TPU_F64, pow(10.0, (double)weight));
    power = tpui_select(b, set, tpui_mul(b, power, factor), power);
  }
  return power;
}

/* round.decimals: operands self, decimals. */
void tpui_lower_round_decimals(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_math_operand(op, 0);
  double decimals;
  if (!tpui_ok(b)) return;
  if (tpu_dtype_is_integral(x.dtype)) {
    tpui_set_pointwise(op, 0, x);
  } else if (tpui_operand_constant(op, 1, &decimals)) {
    double scale = pow(10.0, decimals < 0 ? -decimals : decimals);
    const char* in = decimals < 0 ? "divide" : "multiply";
    const char* out = decimals < 0 ? "multiply" : "divide";
    x = tpui_unary(b, "round_nearest_even", tpui_binary_constant(b, in, x, scale));
    tpui_set_pointwise(op, 0, tpui_binary_constant(b, out, x, scale));
  } else {
    tpui_hlo_t number = tpui_operand_as(op, 1, TPU_I64);
    tpui_hlo_t count = tpui_unary(b, "abs", number);
    tpui_hlo_t scale = tpui_convert(b, power_of_ten(b, count), x.dtype);
    tpui_hlo_t fewer = tpui_compare_constant(b, "LT", number, 0);
    x = tpui_select(b, fewer, tpui_div(b, x, scale), tpui_mul(b, x, scale));
    x = tpui_unary(b, "round_nearest_even", x);
    x = tpui_select(b, fewer, tpui_mul(b, x, scale), tpui_div(b, x, scale));
    tpui_set_pointwise(op, 0, x);
  }
}

void tpui_lower_frac(const tpui_lowering_t* op) {
  tpui_hlo_t x = tpui_math_operand(op, 0);
  tpui_set_pointwise(op, 0, tpui_binary(op->b, "subtract", x, tpui_trunc(op->b, x)));
}

/* --- questions about a number: results are BOOL --- */

void tpui_lower_isnan(const tpui_lowering_t* op) {
  tpui_hlo_t x = tpui_operand(op, 0);
  if (tpu_dtype_kind(x.dtype) == TPU_KIND_COMPLEX) {
    x = tpui_compare(op->b, "NE", x, x);
  } else {
    x = tpui_is_nan(op->b, x);
  }
  tpui_set_pointwise(op, 0, x);
}

/* isinf (argument ""), isposinf ("+"), isneginf ("-") */
void tpui_lower_isinf(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_operand(op, 0), result;
  if (tpu_dtype_is_integral(x.dtype)) {
    result = tpui_full(b, TPU_BOOL, 0.0, x.rank, x.sizes);
  } else {
    x = tpui_convert(b, x, tpui_math_dtype(x.dtype));
    if (op->argument[0] == '\0')
      x = tpui_is_complex(x) ? tpui_complex_abs(b, x) : tpui_unary(b, "abs", x);
    result = tpui_compare_constant(b, "EQ", x, op->argument[0] == '-' ? -INFINITY : INFINITY);
  }
  tpui_set_pointwise(op, 0, result);
}

void tpui_lower_signbit(const tpui_lowering_t* op) {
  tpui_set_pointwise(op, 0, tpui_signbit(op->b, tpui_operand(op, 0)));
}

void tpui_lower_logical_not(const tpui_lowering_t* op) {
  tpui_set_pointwise(op, 0, tpui_unary(op->b, "not", tpui_operand_as(op, 0, TPU_BOOL)));
}

/* --- composed functions --- */

static double largest_finite(tpu_dtype_t dtype) {
  switch (dtype) {
    case TPU_F64: return 1.7976931348623157e308;
    case TPU_F16: return 65504.0;
    case TPU_BF16: return 3.3895313892515355e38;
    default: return 3.4028234663852886e38;
  }
}

/* Operand k as x's dtype, or `fallback` when it was not given. */
static tpui_hlo_t operand_or(const tpui_lowering_t* op, int k, tpui_hlo_t x, double fallback) {
  if (!tpui_has_operand(op, k)) return tpui_like(op->b, x, fallback);
  return tpui_operand_as(op, k, x.dtype);
}

static tpui_hlo_t nan_replaced(const tpui_lowering_t* op, tpui_hlo_t x) {
  tpui_builder_t* b = op->b;
  double top = largest_finite(x.dtype);
  tpui_hlo_t up = tpui_compare(b, "EQ", x, tpui_like(b, x, INFINITY));
  tpui_hlo_t down = tpui_compare(b, "EQ", x, tpui_like(b, x, -INFINITY));
  tpui_hlo_t nan = tpui_is_nan(b, x);
  x = tpui_select(b, nan, operand_or(op, 1, x, 0.0), x);
  x = tpui_select(b, up, operand_or(op, 2, x, top), x);
  return tpui_select(b, down, operand_or(op, 3, x, -top), x);
}

/* nan_to_num(self, nan?, posinf?, neginf?): part by part. */
void tpui_lower_nan_to_num(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_operand(op, 0);
  if (tpui_is_complex(x)) {
    x = tpui_binary(b, "complex", nan_replaced(op, tpui_unary(b, "real", x)),
                    nan_replaced(op, tpui_unary(b, "imag", x)));
  } else if (tpu_dtype_is_float(x.dtype)) {
    x = nan_replaced(op, x);
  }
  tpui_set_pointwise(op, 0, x);
}

void tpui_lower_sinc(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_math_operand(op, 0);
  tpui_hlo_t angle = tpui_binary_constant(b, "multiply", x, M_PI);
  tpui_hlo_t ratio = tpui_binary(b, "divide", tpui_unary(b, "sine", angle), angle);
  tpui_set_pointwise(
      op, 0, tpui_select(b, tpui_compare_constant(b, "EQ", x, 0.0), tpui_like(b, x, 1.0), ratio));
}

/* -x log x; 0 at 0, -inf below. */
void tpui_lower_entr(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_math_operand(op, 0);
  tpui_hlo_t inside =
      tpui_unary(b, "negate", tpui_binary(b, "multiply", x, tpui_unary(b, "log", x)));
  tpui_hlo_t edge = tpui_select(b, tpui_compare_constant(b, "EQ", x, 0.0), tpui_like(b, x, 0.0),
                                tpui_like(b, x, -INFINITY));
  tpui_hlo_t use_inside =
      tpui_binary(b, "or", tpui_compare_constant(b, "GT", x, 0.0), tpui_is_nan(b, x));
  tpui_set_pointwise(op, 0, tpui_select(b, use_inside, inside, edge));
}

/* Coefficients of P with d^n/dx^n cot(pi x) = pi^n P(cot(pi x)); degree n + 1. */
static void cot_derivative(int n, double* out_coefficients) {
  double next[POLYGAMMA_MAX_ORDER + 3];
  for (int i = 0; i <= n + 1; ++i) out_coefficients[i] = i == 1 ? 1.0 : 0.0;
  for (int k = 0; k < n; ++k) {  // P' times -(1 + c^2)
    for (int i = 0; i <= n + 1; ++i) {
      double low = i + 1 <= n + 1 ? (i + 1) * out_coefficients[i + 1] : 0.0;
      double high = i >= 1 ? (i - 1) * out_coefficients[i - 1] : 0.0;
      next[i] = -(low + high);
    }
    memcpy(out_coefficients, next, sizeof(double) * (size_t)(n + 2));
  }
}

/* Poles at zero: minus infinity from the right, plus infinity at -0. */
static tpui_hlo_t digamma_of(tpui_builder_t* b, tpui_hlo_t x) {
  tpui_hlo_t pole =
      tpui_select(b, tpui_signbit(b, x), tpui_like(b, x, INFINITY), tpui_like(b, x, -INFINITY));
  tpui_hlo_t zero = tpui_compare_constant(b, "EQ", x, 0.0);
  return tpui_select(b, zero, pole, tpui_chlo(b, "digamma", x));
}

void tpui_lower_digamma(const tpui_lowering_t* op) {
  tpui_set_pointwise(op, 0, digamma_of(op->b, tpui_math_operand(op, 0)));
}

/* polygamma of order n >= 1 for positive x. */
static tpui_hlo_t polygamma_positive(tpui_builder_t* b, int n, tpui_hlo_t x) {
  tpui_hlo_t operands[2] = {tpui_full(b, x.dtype, n, x.rank, x.sizes), x};
  return tpui_raw(b, "chlo.polygamma", 2, operands, "", "", x.dtype, x.rank, x.sizes);
}

/* Negative x by reflection: psi_n(x) = (-1)^n psi_n(1 - x) - pi (d/dx)^n cot(pi x); poles are
 * infinite. */
static tpui_hlo_t polygamma_of(tpui_builder_t* b, int n, tpui_hlo_t x) {
  double coefficients[POLYGAMMA_MAX_ORDER + 2];
  double sign = n % 2 == 0 ? 1.0 : -1.0, scale = pow(M_PI, n + 1);
  tpui_hlo_t negative = tpui_compare_constant(b, "LT", x, 0.0);
  tpui_hlo_t mirrored = tpui_binary(b, "subtract", tpui_like(b, x, 1.0), x);
  tpui_hlo_t value = polygamma_positive(b, n, tpui_select(b, negative, mirrored, x));
  // The fraction of x alone decides the cotangent, and keeps its argument small.
  tpui_hlo_t part = tpui_binary(b, "subtract", x, tpui_unary(b, "floor", x));
  tpui_hlo_t angle = tpui_binary_constant(b, "multiply", part, M_PI);
  tpui_hlo_t c =
      tpui_binary(b, "divide", tpui_unary(b, "cosine", angle), tpui_unary(b, "sine", angle));
  cot_derivative(n, coefficients);
  tpui_hlo_t p = tpui_full(b, x.dtype, coefficients[n + 1], x.rank, x.sizes);
  for (int i = n; i >= 0; --i) {
    p = tpui_binary_constant(b, "add", tpui_binary(b, "multiply", p, c), coefficients[i]);
  }
  tpui_hlo_t mirror = tpui_binary_constant(b, "multiply", value, sign);
  tpui_hlo_t slope = tpui_binary_constant(b, "multiply", p, scale);
  tpui_hlo_t reflected = tpui_binary(b, "subtract", mirror, slope);
  value = tpui_select(b, negative, reflected, value);
  tpui_hlo_t pole = tpui_binary(b, "and", tpui_compare_constant(b, "LE", x, 0.0),
                                tpui_compare_constant(b, "EQ", part, 0.0));
  return tpui_select(b, pole, tpui_like(b, x, -sign * INFINITY), value);
}

/* polygamma_of(n, self): the order is attribute 0. */
void tpui_lower_polygamma(const tpui_lowering_t* op) {
  tpui_hlo_t x = tpui_math_operand(op, 0);
  int64_t order = tpu_attr_int(op->record->attrs, 0, 0);
  if (order > POLYGAMMA_MAX_ORDER) {
    tpui_fail(op->b, TPU_UNIMPLEMENTED, "orders above %d; use .cpu() for this operation",
              POLYGAMMA_MAX_ORDER);
    return;
  }
  tpui_set_pointwise(op, 0, order == 0 ? digamma_of(op->b, x) : polygamma_of(op->b, (int)order, x));
}

/* 0 for positive reals, pi for negative ones, NaN stays. */
void tpui_lower_angle(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_operand(op, 0);
  if (tpu_dtype_kind(x.dtype) == TPU_KIND_COMPLEX) {
    x = tpui_binary(b, "atan2", tpui_unary(b, "imag", x), tpui_unary(b, "real", x));
  } else {
    x = tpui_convert(b, x, tpui_math_dtype(tpui_result_meta(op, 0)->dtype));
    tpui_hlo_t side = tpui_select(b, tpui_compare_constant(b, "LT", x, 0.0), tpui_like(b, x, M_PI),
                                  tpui_like(b, x, 0.0));
    x = tpui_select(b, tpui_is_nan(b, x), x, side);
  }
  tpui_set_pointwise(op, 0, x);
}

void tpui_lower_conj(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_operand(op, 0);
  if (tpu_dtype_kind(x.dtype) == TPU_KIND_COMPLEX) {
    tpui_hlo_t imag = tpui_unary(b, "negate", tpui_unary(b, "imag", x));
    x = tpui_binary(b, "complex", tpui_unary(b, "real", x), imag);
  }
  tpui_set_pointwise(op, 0, x);
}
