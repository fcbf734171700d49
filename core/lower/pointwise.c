/* Elementwise operations of two and three operands. */
#include "lower/pointwise.h"

#include <math.h>
#include <string.h>

#include "lower/complex.h"
#include "lower/op_lowering.h"

/* --- shared helpers --- */

tpu_dtype_t tpui_compute_dtype(const tpui_lowering_t* op) {
  if (op->record->compute_dtype != TPU_DTYPE_INVALID) return op->record->compute_dtype;
  const tpu_meta_t* meta = tpui_result_meta(op, 0);
  return meta != NULL ? meta->dtype : TPU_F32;
}

tpu_dtype_t tpui_record_math_dtype(const tpui_lowering_t* op) {
  return tpui_math_dtype(tpui_compute_dtype(op));
}

tpui_hlo_t tpui_math_operand(const tpui_lowering_t* op, int k) {
  tpu_dtype_t dtype = tpui_record_math_dtype(op);
  if (tpui_operand_meta(op, k) == NULL) return tpui_operand_as(op, k, dtype);
  return tpui_convert(op->b, tpui_operand_as(op, k, tpui_compute_dtype(op)), dtype);
}

void tpui_set_pointwise(const tpui_lowering_t* op, int k, tpui_hlo_t value) {
  const tpu_meta_t* meta = tpui_result_meta(op, k);
  if (meta == NULL || !tpui_ok(op->b)) return;
  value = tpui_convert(op->b, value, meta->dtype);
  tpui_set_result(op, k, tpui_broadcast_to(op->b, value, meta->rank, meta->sizes));
}

tpui_hlo_t tpui_like(tpui_builder_t* b, tpui_hlo_t x, double value) {
  return tpui_constant(b, x.dtype, value);
}

tpui_hlo_t tpui_trunc(tpui_builder_t* b, tpui_hlo_t x) {
  if (tpu_dtype_is_integral(x.dtype)) return x;
  tpui_hlo_t negative = tpui_compare_constant(b, "LT", x, 0.0);
  return tpui_select(b, negative, tpui_unary(b, "ceil", x), tpui_unary(b, "floor", x));
}

static tpu_dtype_t same_size_int(tpu_dtype_t dtype) {
  switch (tpu_dtype_bytes(dtype)) {
    case 8: return TPU_I64;
    case 4: return TPU_I32;
    case 2: return TPU_I16;
    default: return TPU_I8;
  }
}

tpui_hlo_t tpui_signbit(tpui_builder_t* b, tpui_hlo_t x) {
  switch (tpu_dtype_kind(x.dtype)) {
    case TPU_KIND_BOOL:
    case TPU_KIND_UNSIGNED: return tpui_full(b, TPU_BOOL, 0.0, x.rank, x.sizes);
    case TPU_KIND_SIGNED: return tpui_compare_constant(b, "LT", x, 0.0);
    default: break;
  }
  return tpui_compare_constant(b, "LT", tpui_bitcast(b, x, same_size_int(x.dtype)), 0.0);
}

tpui_hlo_t tpui_scaled(const tpui_lowering_t* op, tpui_hlo_t x, int scalar_operand) {
  double value;
  if (!tpui_has_operand(op, scalar_operand)) return x;
  if (tpui_operand_constant(op, scalar_operand, &value) && value == 1.0) return x;
  return tpui_binary(op->b, "multiply", x, tpui_operand_as(op, scalar_operand, x.dtype));
}

tpui_hlo_t tpui_sigmoid(tpui_builder_t* b, tpui_hlo_t x) { return tpui_unary(b, "logistic", x); }

tpui_hlo_t tpui_softplus(tpui_builder_t* b, tpui_hlo_t x) {
  tpui_hlo_t tail =
      tpui_unary(b, "log_plus_one",
                 tpui_unary(b, "exponential", tpui_unary(b, "negate", tpui_unary(b, "abs", x))));
  return tpui_binary(b, "add", tpui_binary_constant(b, "maximum", x, 0.0), tail);
}

tpui_hlo_t tpui_hidden_zero(tpui_builder_t* b, tpu_dtype_t dtype, bool negative) {
  if (!tpu_dtype_is_float(dtype)) return tpui_constant_int(b, dtype, 0);
  tpu_dtype_t bits = same_size_int(dtype);
  return tpui_bitcast(b, negative ? tpui_lowest(b, bits) : tpui_constant_int(b, bits, 0), dtype);
}

bool tpui_refuse_complex(const tpui_lowering_t* op, tpui_hlo_t x) {
  if (!tpui_ok(op->b) || tpu_dtype_kind(x.dtype) != TPU_KIND_COMPLEX) return false;
  tpui_fail(op->b, TPU_UNIMPLEMENTED, "no complex numbers here yet; use .cpu() for this operation");
  return true;
}

/* --- arithmetic --- */

/* x + alpha * y; booleans: or, and. */
static tpui_hlo_t add_scaled(const tpui_lowering_t* op, const char* name, tpui_hlo_t x,
                             tpui_hlo_t y) {
  tpui_builder_t* b = op->b;
  double alpha;
  bool plain = !tpui_has_operand(op, 2) || (tpui_operand_constant(op, 2, &alpha) && alpha == 1.0);
  if (x.dtype == TPU_BOOL) {
    if (!plain) y = tpui_binary(b, "and", y, tpui_operand_as(op, 2, TPU_BOOL));
    return tpui_binary(b, "or", x, y);
  }
  return tpui_binary(b, name, x, plain ? y : tpui_scaled(op, y, 2));
}

/* Operand k of a sum. */
static tpui_hlo_t scaled_summand(const tpui_lowering_t* op, int k) {
  double value;
  if (!tpui_operand_constant(op, k, &value) || value != 0.0) return tpui_math_operand(op, k);
  return tpui_hidden_zero(op->b, tpui_record_math_dtype(op), signbit(value));
}

void tpui_lower_add(const tpui_lowering_t* op) {
  tpui_set_pointwise(op, 0,
                     add_scaled(op, op->argument, scaled_summand(op, 0), scaled_summand(op, 1)));
}

/* rsub: other - alpha * self. */
void tpui_lower_rsub(const tpui_lowering_t* op) {
  tpui_set_pointwise(op, 0,
                     add_scaled(op, "subtract", scaled_summand(op, 1), scaled_summand(op, 0)));
}

/* Integers have no quotient by zero, floats have one. `y` is operand 1. */
static void check_divisor(const tpui_lowering_t* op, tpui_hlo_t y) {
  double value;
  const tpu_meta_t* result = tpui_result_meta(op, 0);
  if (!tpui_checks_data(op->b) || !tpui_ok(op->b) || y.dtype == TPU_BOOL) return;
  if (!tpu_dtype_is_integral(y.dtype) || result->numel == 0) return;
  if (tpui_operand_constant(op, 1, &value) && value != 0) return;
  tpui_check_none(op, tpui_compare_constant(op->b, "EQ", y, 0), TPU_INVALID_ARGUMENT,
                  "ZeroDivisionError");
}

/* Any two-operand StableHLO op; booleans use the logical op where one means the same. */
void tpui_lower_binary(const tpui_lowering_t* op) {
  tpui_hlo_t x = tpui_math_operand(op, 0), y = tpui_math_operand(op, 1);
  const char* name = op->argument;
  if (x.dtype == TPU_BOOL && strcmp(name, "multiply") == 0) name = "and";
  if (strcmp(name, "remainder") == 0) check_divisor(op, y);
  tpui_set_pointwise(op, 0, tpui_binary(op->b, name, x, y));
}

/* BOOL: the signs of two values differ. */
static tpui_hlo_t signs_differ(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t y) {
  return tpui_compare(b, "NE", tpui_compare_constant(b, "LT", x, 0.0),
                      tpui_compare_constant(b, "LT", y, 0.0));
}

/* Remainder with the divisor's sign. */
static tpui_hlo_t floor_remainder(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t y) {
  tpui_hlo_t r = tpui_binary(b, "remainder", x, y);
  if (tpu_dtype_kind(r.dtype) < TPU_KIND_SIGNED) return r;
  tpui_hlo_t wrong =
      tpui_binary(b, "and", tpui_compare_constant(b, "NE", r, 0.0), signs_differ(b, r, y));
  return tpui_select(b, wrong, tpui_binary(b, "add", r, y), r);
}

static tpui_hlo_t floor_divide_int(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t y) {
  tpui_hlo_t q = tpui_binary(b, "divide", x, y);
  if (tpu_dtype_kind(q.dtype) < TPU_KIND_SIGNED) return q;
  tpui_hlo_t r = tpui_binary(b, "remainder", x, y);
  tpui_hlo_t inexact =
      tpui_binary(b, "and", tpui_compare_constant(b, "NE", r, 0.0), signs_differ(b, r, y));
  return tpui_select(b, inexact, tpui_binary_constant(b, "subtract", q, 1.0), q);
}

/* The quotient is taken from the exact remainder, so that it agrees with it (Python's divmod). */
static tpui_hlo_t floor_divide_float(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t y) {
  tpui_hlo_t quotient = tpui_binary(b, "divide", x, y);
  tpui_hlo_t r = tpui_binary(b, "remainder", x, y);
  tpui_hlo_t d = tpui_binary(b, "divide", tpui_binary(b, "subtract", x, r), y);
  tpui_hlo_t adjust =
      tpui_binary(b, "and", tpui_compare_constant(b, "NE", r, 0.0), signs_differ(b, y, r));
  d = tpui_select(b, adjust, tpui_binary_constant(b, "subtract", d, 1.0), d);
  tpui_hlo_t f = tpui_unary(b, "floor", d);
  tpui_hlo_t far = tpui_compare_constant(b, "GT", tpui_binary(b, "subtract", d, f), 0.5);
  f = tpui_select(b, far, tpui_binary_constant(b, "add", f, 1.0), f);
  tpui_hlo_t zero = tpui_binary_constant(b, "multiply", tpui_unary(b, "sign", quotient), 0.0);
  f = tpui_select(b, tpui_compare_constant(b, "EQ", d, 0.0), zero, f);
  return tpui_select(b, tpui_compare_constant(b, "EQ", y, 0.0), quotient, f);
}

static tpui_hlo_t floor_divide(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t y) {
  if (x.dtype == TPU_BOOL) {
    return tpui_convert(
        b, floor_divide_int(b, tpui_convert(b, x, TPU_U8), tpui_convert(b, y, TPU_U8)), TPU_BOOL);
  }
  return tpu_dtype_is_integral(x.dtype) ? floor_divide_int(b, x, y) : floor_divide_float(b, x, y);
}

void tpui_lower_floor_divide(const tpui_lowering_t* op) {
  tpui_hlo_t x = tpui_math_operand(op, 0), y = tpui_math_operand(op, 1);
  check_divisor(op, y);
  tpui_set_pointwise(op, 0, floor_divide(op->b, x, y));
}

/* div.Tensor_mode; attribute 0: rounding mode. */
void tpui_lower_div_mode(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  const char* mode = "";
  if (tpu_attr_kind(op->record->attrs, 0) == TPU_ATTR_TEXT) {
    mode = tpu_attr_text(op->record->attrs, 0);
  }
  tpui_hlo_t x = tpui_math_operand(op, 0), y = tpui_math_operand(op, 1);
  if (mode[0] != '\0') check_divisor(op, y);
  if (strcmp(mode, "floor") == 0) {
    tpui_set_pointwise(op, 0, floor_divide(b, x, y));
  } else if (strcmp(mode, "trunc") == 0) {
    // PyTorch rounds the quotient to the operands' dtype before it truncates.
    tpui_hlo_t quotient = tpui_convert(b, tpui_binary(b, "divide", x, y), tpui_compute_dtype(op));
    tpui_set_pointwise(op, 0, tpui_trunc(b, quotient));
  } else {
    const tpu_meta_t* meta = tpui_result_meta(op, 0);
    tpu_dtype_t dtype = tpu_dtype_is_integral(x.dtype) ? tpui_math_dtype(meta->dtype) : x.dtype;
    tpui_set_pointwise(
        op, 0, tpui_binary(b, "divide", tpui_convert(b, x, dtype), tpui_convert(b, y, dtype)));
  }
}

void tpui_lower_remainder(const tpui_lowering_t* op) {
  tpui_hlo_t x = tpui_math_operand(op, 0), y = tpui_math_operand(op, 1);
  check_divisor(op, y);
  tpui_set_pointwise(op, 0, floor_remainder(op->b, x, y));
}

/* --- powers --- */

/* Powers with non-negative exponents by squaring, wrapping around on overflow. (XLA's own integer
 * power reads only the exponent's low bits.) `exponent` is what is known of it now, or -1. */
static tpui_hlo_t power_whole(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t y, int64_t exponent) {
  tpui_hlo_t one = tpui_like(b, x, 1.0), zero = tpui_like(b, x, 0.0), result = one;
  int bits = 8 * (int)tpu_dtype_bytes(x.dtype) - (tpu_dtype_kind(x.dtype) == TPU_KIND_SIGNED);
  for (int i = 0; i < bits && (exponent < 0 || exponent >> i != 0); ++i) {
    if (i > 0) x = tpui_binary(b, "multiply", x, x);
    if (exponent >= 0) {
      if ((exponent >> i & 1) != 0) result = tpui_binary(b, "multiply", result, x);
      continue;
    }
    tpui_hlo_t bit = tpui_binary(b, "and", y, tpui_constant_int(b, y.dtype, (int64_t)1 << i));
    tpui_hlo_t factor = tpui_select(b, tpui_compare(b, "NE", bit, zero), x, one);
    result = tpui_binary(b, "multiply", result, factor);
  }
  return result;
}

/* Negative exponents: only 1 and -1 have integer powers. */
static tpui_hlo_t power_int(const tpui_lowering_t* op, tpui_hlo_t x, tpui_hlo_t y) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t one = tpui_like(b, x, 1.0), zero = tpui_like(b, x, 0.0);
  double known;
  if (tpui_operand_constant(op, 1, &known) && known >= 0.0 && known < 64.0) {
    return power_whole(b, x, y, (int64_t)known);
  }
  if (tpu_dtype_kind(x.dtype) < TPU_KIND_SIGNED) return power_whole(b, x, y, -1);
  tpui_hlo_t minus = tpui_like(b, x, -1.0);
  tpui_hlo_t whole = power_whole(b, x, tpui_binary(b, "maximum", y, zero), -1);
  tpui_hlo_t odd = tpui_compare(b, "EQ", tpui_binary(b, "and", y, one), one);
  tpui_hlo_t fraction =
      tpui_select(b, tpui_compare(b, "EQ", x, minus), tpui_select(b, odd, minus, one), zero);
  fraction = tpui_select(b, tpui_compare(b, "EQ", x, one), one, fraction);
  return tpui_select(b, tpui_compare(b, "LT", y, zero), fraction, whole);
}

static tpui_hlo_t power_of(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t y) {
  return tpui_is_complex(x) ? tpui_complex_power(b, x, y) : tpui_binary(b, "power", x, y);
}

/* Exponents for which a cheaper form is also the more exact one; returns false for others. */
static bool power_shortcut(tpui_builder_t* b, tpui_hlo_t x, double y, tpui_hlo_t* out) {
  tpui_hlo_t one = tpui_like(b, x, 1.0);
  if (y == 1.0)
    *out = x;
  else if (y == 2.0)
    *out = tpui_binary(b, "multiply", x, x);
  else if (y == 3.0)
    *out = tpui_binary(b, "multiply", tpui_binary(b, "multiply", x, x), x);
  else if (y == -1.0)
    *out = tpui_binary(b, "divide", one, x);
  else if (y == -2.0)
    *out = tpui_binary(b, "divide", one, tpui_binary(b, "multiply", x, x));
  else if (y == 0.5 && tpu_dtype_is_float(x.dtype))
    *out = tpui_unary(b, "sqrt", x);
  else if (y == -0.5 && tpu_dtype_is_float(x.dtype))
    *out = tpui_binary(b, "divide", one, tpui_unary(b, "sqrt", x));
  else
    return false;
  return true;
}

/* Powers of floats by one number that is known only when the program runs. As in PyTorch, 0.5 and
 * -0.5 mean roots, which differ from powers at -0 and minus infinity. */
static tpui_hlo_t power_by_number(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t y) {
  tpui_hlo_t root = tpui_unary(b, "sqrt", x);
  tpui_hlo_t inverse = tpui_binary(b, "divide", tpui_like(b, x, 1.0), root);
  tpui_hlo_t result = tpui_binary(b, "power", x, y);
  result = tpui_select(b, tpui_compare_constant(b, "EQ", y, 0.5), root, result);
  return tpui_select(b, tpui_compare_constant(b, "EQ", y, -0.5), inverse, result);
}

static bool is_number(const tpui_lowering_t* op, int k) {
  return tpui_has_operand(op, k) && tpui_operand_meta(op, k) == NULL;
}

void tpui_lower_pow(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_math_operand(op, 0), y = tpui_math_operand(op, 1), result;
  double exponent;
  if (x.dtype == TPU_BOOL) {
    result = tpui_binary(b, "or", x, tpui_unary(b, "not", y));
  } else if (tpu_dtype_is_integral(x.dtype)) {
    result = power_int(op, x, y);
  } else if (is_number(op, 1) && tpui_is_complex(x)) {
    result = tpui_complex_power_by_number(b, x, y);
  } else if (tpui_operand_constant(op, 1, &exponent)) {
    if (!power_shortcut(b, x, exponent, &result)) result = power_of(b, x, y);
  } else if (is_number(op, 1) && tpu_dtype_is_float(x.dtype)) {
    result = power_by_number(b, x, y);
  } else {
    result = power_of(b, x, y);
  }
  tpui_set_pointwise(op, 0, result);
}

/* --- extremes --- */

/* fmax, fmin: a NaN loses. Argument: maximum or minimum. */
void tpui_lower_fmax(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_math_operand(op, 0), y = tpui_math_operand(op, 1);
  tpui_hlo_t result = tpui_binary(b, op->argument, x, y);
  if (tpu_dtype_is_float(x.dtype)) {
    result = tpui_select(b, tpui_is_nan(b, y), x, result);
    result = tpui_select(b, tpui_is_nan(b, x), y, result);
  }
  tpui_set_pointwise(op, 0, result);
}

/* x, or operand k where x is less ("maximum") or greater. A zero stays as it is where the bound is
 * a number and a zero of the other sign, as in the CPU's kernels. */
static tpui_hlo_t keep_within(const tpui_lowering_t* op, const char* kind, tpui_hlo_t x, int k) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t bound = tpui_math_operand(op, k);
  if (tpui_operand_meta(op, k) != NULL || !tpu_dtype_is_float(x.dtype)) {
    return tpui_binary(b, kind, x, bound);
  }
  double number = NAN;
  tpui_hlo_t beyond = tpui_compare(b, strcmp(kind, "maximum") == 0 ? "LT" : "GT", x, bound);
  if (!tpui_operand_constant(op, k, &number) || isnan(number)) {
    beyond = tpui_binary(b, "or", beyond, tpui_is_nan(b, bound));
  }
  return tpui_select(b, beyond, bound, x);
}

void tpui_lower_clamp(const tpui_lowering_t* op) {
  tpui_hlo_t x = tpui_math_operand(op, 0);
  if (tpui_has_operand(op, 1)) x = keep_within(op, "maximum", x, 1);
  if (tpui_has_operand(op, 2)) x = keep_within(op, "minimum", x, 2);
  tpui_set_pointwise(op, 0, x);
}

/* clamp_min, clamp_max; argument: maximum or minimum. */
void tpui_lower_bound(const tpui_lowering_t* op) {
  tpui_set_pointwise(op, 0, keep_within(op, op->argument, tpui_math_operand(op, 0), 1));
}

/* --- comparisons and logic --- */

void tpui_lower_compare(const tpui_lowering_t* op) {
  tpui_set_pointwise(
      op, 0, tpui_compare(op->b, op->argument, tpui_math_operand(op, 0), tpui_math_operand(op, 1)));
}

/* logical_and and others: each operand is asked by itself whether it is zero. */
void tpui_lower_logical(const tpui_lowering_t* op) {
  tpui_set_pointwise(op, 0,
                     tpui_binary(op->b, op->argument, tpui_operand_as(op, 0, TPU_BOOL),
                                 tpui_operand_as(op, 1, TPU_BOOL)));
}

void tpui_lower_shift_left(const tpui_lowering_t* op) {
  tpui_set_pointwise(
      op, 0, tpui_binary(op->b, "shift_left", tpui_math_operand(op, 0), tpui_math_operand(op, 1)));
}

void tpui_lower_shift_right(const tpui_lowering_t* op) {
  tpui_hlo_t x = tpui_math_operand(op, 0);
  bool is_signed = tpu_dtype_kind(x.dtype) == TPU_KIND_SIGNED;
  tpui_set_pointwise(
      op, 0,
      tpui_binary(op->b, is_signed ? "shift_right_arithmetic" : "shift_right_logical", x,
                  tpui_math_operand(op, 1)));
}

void tpui_lower_where(const tpui_lowering_t* op) {
  tpu_dtype_t dtype = tpui_result_meta(op, 0)->dtype;
  tpui_set_pointwise(op, 0,
                     tpui_select(op->b, tpui_operand_as(op, 0, TPU_BOOL),
                                 tpui_operand_as(op, 1, dtype), tpui_operand_as(op, 2, dtype)));
}

/* masked_fill(self, mask, value) */
void tpui_lower_masked_fill(const tpui_lowering_t* op) {
  tpui_hlo_t self = tpui_operand(op, 0);
  tpui_set_pointwise(op, 0,
                     tpui_select(op->b, tpui_operand_as(op, 1, TPU_BOOL),
                                 tpui_operand_as(op, 2, self.dtype), self));
}

/* --- functions of two numbers --- */

void tpui_lower_hypot(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_unary(b, "abs", tpui_math_operand(op, 0));
  tpui_hlo_t y = tpui_unary(b, "abs", tpui_math_operand(op, 1));
  tpui_hlo_t large = tpui_binary(b, "maximum", x, y), small = tpui_binary(b, "minimum", x, y);
  tpui_hlo_t ratio = tpui_binary(b, "divide", small, large);
  tpui_hlo_t root = tpui_unary(
      b, "sqrt", tpui_binary_constant(b, "add", tpui_binary(b, "multiply", ratio, ratio), 1.0));
  tpui_hlo_t result = tpui_binary(b, "multiply", large, root);
  result = tpui_select(b, tpui_compare_constant(b, "EQ", large, 0.0), large, result);
  tpui_hlo_t infinite = tpui_binary(b, "or", tpui_compare_constant(b, "EQ", x, INFINITY),
                                    tpui_compare_constant(b, "EQ", y, INFINITY));
  tpui_set_pointwise(op, 0, tpui_select(b, infinite, tpui_like(b, x, INFINITY), result));
}

/* logaddexp, and logaddexp2 with argument "2". */
void tpui_lower_logaddexp(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  bool base2 = op->argument[0] == '2';
  tpui_hlo_t x = tpui_math_operand(op, 0), y = tpui_math_operand(op, 1);
  if (tpui_is_complex(x) && !base2) {
    tpui_set_pointwise(op, 0, tpui_complex_log_add(b, x, y));
    return;
  }
  if (tpui_refuse_complex(op, x)) return;
  tpui_hlo_t gap = tpui_unary(b, "abs", tpui_binary(b, "subtract", x, y));
  if (base2) gap = tpui_binary_constant(b, "multiply", gap, log(2.0));
  tpui_hlo_t tail =
      tpui_unary(b, "log_plus_one", tpui_unary(b, "exponential", tpui_unary(b, "negate", gap)));
  if (base2) tail = tpui_binary_constant(b, "divide", tail, log(2.0));
  tpui_hlo_t result = tpui_binary(b, "add", tpui_binary(b, "maximum", x, y), tail);
  tpui_hlo_t same_infinity =
      tpui_binary(b, "and", tpui_compare(b, "EQ", x, y),
                  tpui_compare_constant(b, "EQ", tpui_unary(b, "abs", x), INFINITY));
  tpui_set_pointwise(op, 0, tpui_select(b, same_infinity, x, result));
}

/* x * f(y), 0 where x is 0 and y is no NaN. Argument: f. */
void tpui_lower_xlogy(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_math_operand(op, 0), y = tpui_math_operand(op, 1);
  tpui_hlo_t result = tpui_binary(b, "multiply", x, tpui_unary(b, op->argument, y));
  result = tpui_select(b, tpui_compare_constant(b, "EQ", x, 0.0), tpui_like(b, x, 0.0), result);
  tpui_set_pointwise(op, 0, tpui_select(b, tpui_is_nan(b, y), y, result));
}

void tpui_lower_copysign(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t magnitude = tpui_unary(b, "abs", tpui_math_operand(op, 0));
  tpui_hlo_t sign = tpui_signbit(b, tpui_math_operand(op, 1));
  tpui_set_pointwise(op, 0, tpui_select(b, sign, tpui_unary(b, "negate", magnitude), magnitude));
}

void tpui_lower_heaviside(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_math_operand(op, 0);
  tpui_hlo_t step = tpui_convert(b, tpui_compare(b, "GT", x, tpui_like(b, x, 0.0)), x.dtype);
  tpui_set_pointwise(
      op, 0,
      tpui_select(b, tpui_compare_constant(b, "EQ", x, 0.0), tpui_math_operand(op, 1), step));
}

/* Two-operand CHLO op. Not computed in float32: nextafter is about the dtype's own neighbours. */
void tpui_lower_chlo_binary(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t operands[2] = {tpui_operand_as(op, 0, tpui_compute_dtype(op)),
                            tpui_operand_as(op, 1, tpui_compute_dtype(op))};
  tpui_broadcast_pair(b, &operands[0], &operands[1]);
  tpui_set_pointwise(op, 0,
                     tpui_raw(b, tpui_text(b, "chlo.%s", op->argument), 2, operands, "", "",
                              operands[0].dtype, operands[0].rank, operands[0].sizes));
}

/* complex(real, imag) */
void tpui_lower_complex(const tpui_lowering_t* op) {
  tpu_dtype_t part = tpui_result_meta(op, 0)->dtype == TPU_C128 ? TPU_F64 : TPU_F32;
  tpui_set_pointwise(
      op, 0,
      tpui_binary(op->b, "complex", tpui_operand_as(op, 0, part), tpui_operand_as(op, 1, part)));
}

/* polar(abs, angle) */
void tpui_lower_polar(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpu_dtype_t part = tpui_result_meta(op, 0)->dtype == TPU_C128 ? TPU_F64 : TPU_F32;
  tpui_hlo_t size = tpui_operand_as(op, 0, part), angle = tpui_operand_as(op, 1, part);
  tpui_hlo_t real = tpui_binary(b, "multiply", size, tpui_unary(b, "cosine", angle));
  tpui_hlo_t imag = tpui_binary(b, "multiply", size, tpui_unary(b, "sine", angle));
  tpui_set_pointwise(op, 0, tpui_binary(b, "complex", real, imag));
}

/* --- three operands --- */

/* The form is chosen so that weight 1 gives `end` exactly. */
void tpui_lower_lerp(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t self = tpui_math_operand(op, 0), end = tpui_math_operand(op, 1);
  tpui_hlo_t weight = tpui_math_operand(op, 2);
  tpui_hlo_t gap = tpui_binary(b, "subtract", end, self);
  tpui_hlo_t rest = tpui_binary(b, "subtract", tpui_like(b, weight, 1.0), weight);
  tpui_hlo_t near = tpui_binary(b, "add", self, tpui_binary(b, "multiply", weight, gap));
  tpui_hlo_t far = tpui_binary(b, "subtract", end, tpui_binary(b, "multiply", gap, rest));
  tpui_hlo_t small = tpui_compare_constant(b, "LT", tpui_unary(b, "abs", weight), 0.5);
  tpui_set_pointwise(op, 0, tpui_select(b, small, near, far));
}

/* addcmul, addcdiv: self + value * tensor1 (multiply | divide) tensor2 */
void tpui_lower_addcmul(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t product = tpui_scaled(op, tpui_math_operand(op, 1), 3);
  product = tpui_binary(b, op->argument, product, tpui_math_operand(op, 2));
  tpui_set_pointwise(op, 0, tpui_binary(b, "add", tpui_math_operand(op, 0), product));
}
