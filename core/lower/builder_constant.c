/* Constants: printed so that they read back to the same bits, remembered within a program. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lower/builder_internal.h"

/* --- rounding a double to the bits of a narrower float --- */

typedef struct float_format_t {
  int exponent_bits, mantissa_bits;
  bool finite_only;  // no infinities; the all-ones pattern is NaN (f8E4M3FN)
} float_format_t;

static float_format_t float_format(tpu_dtype_t dtype) {
  switch (dtype) {
    case TPU_F16: return (float_format_t){5, 10, false};
    case TPU_BF16: return (float_format_t){8, 7, false};
    case TPU_F8E5M2: return (float_format_t){5, 2, false};
    case TPU_F8E4M3FN: return (float_format_t){4, 3, true};
    default: return (float_format_t){8, 23, false};
  }
}

/* A dtype without infinities has its largest number instead, as in PyTorch. */
static double saturated_number(tpu_dtype_t dtype, double value) {
  if (dtype != TPU_F8E4M3FN || isnan(value)) return value;
  return fmin(fmax(value, -TPUI_F8E4M3FN_MAX), TPUI_F8E4M3FN_MAX);
}

/* Rounds to nearest even. Values beyond the largest finite one become infinity. */
static uint64_t float_bits(tpu_dtype_t dtype, double value) {
  uint64_t bits;
  if (dtype == TPU_F64) {
    memcpy(&bits, &value, sizeof bits);
    return bits;
  }
  float_format_t f = float_format(dtype);
  int bias = (1 << (f.exponent_bits - 1)) - 1;
  uint64_t sign = (uint64_t)(signbit(value) != 0) << (f.exponent_bits + f.mantissa_bits);
  uint64_t exponent_ones = (((uint64_t)1 << f.exponent_bits) - 1) << f.mantissa_bits;
  uint64_t quiet = (uint64_t)1 << (f.mantissa_bits - 1);
  uint64_t nan_bits = f.finite_only ? exponent_ones | (quiet * 2 - 1) : exponent_ones | quiet;
  uint64_t overflow = f.finite_only ? nan_bits : exponent_ones;
  if (isnan(value)) return nan_bits;
  if (isinf(value)) return sign | overflow;
  if (value == 0.0) return sign;
  int exponent;
  frexp(value, &exponent);
  --exponent;  // |value| = 1.x * 2^exponent
  if (exponent < 1 - bias) exponent = 1 - bias;
  double scaled = nearbyint(ldexp(fabs(value), f.mantissa_bits - exponent));
  uint64_t mantissa = (uint64_t)scaled;  // with the implicit bit when normal
  // A carry into the exponent comes out right because the fields are adjacent.
  uint64_t magnitude = ((uint64_t)(exponent + bias - 1) << f.mantissa_bits) + mantissa;
  return sign | (magnitude >= overflow ? overflow : magnitude);
}

static void append_float(tpu_strbuf_t* out, tpu_dtype_t dtype, double value) {
  value = saturated_number(dtype, value);
  uint64_t bits = float_bits(dtype, value);
  char text[64];
  // Short decimals are easier to read; they must be the exact value.
  if (isfinite(value) && fabs(value) < 1e4) {
    snprintf(text, sizeof text, "%.3f", value);
    if (strtod(text, NULL) == value) {
      size_t length = strlen(text);
      while (length > 1 && text[length - 1] == '0' && text[length - 2] != '.') text[--length] = 0;
      tpu_strbuf_append(out, text);
      return;
    }
  }
  snprintf(text, sizeof text, "0x%0*llX", (int)(2 * tpu_dtype_bytes(dtype)),
           (unsigned long long)bits);
  tpu_strbuf_append(out, text);
}

static void append_int(tpu_strbuf_t* out, tpu_dtype_t dtype, int64_t value) {
  char text[32];
  switch (dtype) {
    case TPU_BOOL: tpu_strbuf_append(out, value != 0 ? "true" : "false"); return;
    case TPU_U8: value = (uint8_t)value; break;
    case TPU_I8: value = (int8_t)value; break;
    case TPU_I16: value = (int16_t)value; break;
    case TPU_U16: value = (uint16_t)value; break;
    case TPU_I32: value = (int32_t)value; break;
    case TPU_U32: value = (uint32_t)value; break;
    case TPU_U64:
      snprintf(text, sizeof text, "%llu", (unsigned long long)value);
      tpu_strbuf_append(out, text);
      return;
    default: break;
  }
  tpu_strbuf_append_int(out, value);
}

/* One number in a dense<> literal; integers come in `as_int`, others in `as_double`. */
static void append_number(tpu_strbuf_t* out, tpu_dtype_t dtype, double as_double, int64_t as_int) {
  switch (tpu_dtype_kind(dtype)) {
    case TPU_KIND_FLOAT: append_float(out, dtype, as_double); break;
    case TPU_KIND_COMPLEX: {
      tpu_dtype_t part = dtype == TPU_C64 ? TPU_F32 : TPU_F64;
      tpu_strbuf_append(out, "(");
      append_float(out, part, as_double);
      tpu_strbuf_append(out, ", 0.0)");
      break;
    }
    default: append_int(out, dtype, as_int); break;
  }
}

/* Doubles beyond int64 have no defined conversion in C. */
static int64_t saturate_int(double value) {
  if (isnan(value)) return 0;
  if (value >= 9223372036854775807.0) return INT64_MAX;
  if (value <= -9223372036854775808.0) return INT64_MIN;
  return (int64_t)value;
}

static tpui_hlo_t emit_constant(tpui_builder_t* b, tpu_dtype_t dtype, double as_double,
                                int64_t as_int) {
  bool integral = tpu_dtype_is_integral(dtype);
  uint64_t key[4] = {TPUI_MEMO_CONSTANT, (uint64_t)dtype, (uint64_t)as_int, 0};
  if (!integral) memcpy(&key[2], &as_double, sizeof as_double);
  tpui_hlo_t result;
  if (!tpui_ok(b)) return tpui_harmless();
  if (tpui_memo_get(b, key, &result)) return result;
  tpu_strbuf_t text = {0};
  tpu_strbuf_append(&text, "value = dense<");
  append_number(&text, dtype, as_double, as_int);
  tpu_strbuf_append(&text, "> : ");
  tpui_append_type(&text, dtype, 0, NULL);
  tpui_latch_status(b, tpu_strbuf_status(&text));
  result = tpui_raw(b, "stablehlo.constant", 0, NULL, tpu_strbuf_text(&text), "", dtype, 0, NULL);
  tpu_strbuf_free(&text);
  tpui_memo_put(b, key, result);
  return result;
}

tpui_hlo_t tpui_constant(tpui_builder_t* b, tpu_dtype_t dtype, double value) {
  int64_t integer = dtype == TPU_BOOL ? value != 0.0 : saturate_int(value);
  return emit_constant(b, dtype, value, integer);
}

tpui_hlo_t tpui_constant_int(tpui_builder_t* b, tpu_dtype_t dtype, int64_t value) {
  return emit_constant(b, dtype, (double)value, value);
}

tpui_hlo_t tpui_full(tpui_builder_t* b, tpu_dtype_t dtype, double value, int rank,
                     const int64_t* sizes) {
  return tpui_broadcast_to(b, tpui_constant(b, dtype, value), rank, sizes);
}

tpu_dtype_t tpui_index_dtype(int64_t count) { return count < INT32_MAX ? TPU_I32 : TPU_I64; }

tpui_hlo_t tpui_lowest(tpui_builder_t* b, tpu_dtype_t dtype) {
  switch (dtype) {
    case TPU_BOOL:
    case TPU_U8:
    case TPU_U16:
    case TPU_U32:
    case TPU_U64: return tpui_constant_int(b, dtype, 0);
    case TPU_I8: return tpui_constant_int(b, dtype, INT8_MIN);
    case TPU_I16: return tpui_constant_int(b, dtype, INT16_MIN);
    case TPU_I32: return tpui_constant_int(b, dtype, INT32_MIN);
    case TPU_I64: return tpui_constant_int(b, dtype, INT64_MIN);
    case TPU_F8E4M3FN: return tpui_constant(b, dtype, -TPUI_F8E4M3FN_MAX);
    default: return tpui_constant(b, dtype, -INFINITY);
  }
}

tpui_hlo_t tpui_highest(tpui_builder_t* b, tpu_dtype_t dtype) {
  switch (dtype) {
    case TPU_BOOL: return tpui_constant_int(b, dtype, 1);
    case TPU_U8:
    case TPU_U16:
    case TPU_U32:
    case TPU_U64: return tpui_constant_int(b, dtype, -1);
    case TPU_I8: return tpui_constant_int(b, dtype, INT8_MAX);
    case TPU_I16: return tpui_constant_int(b, dtype, INT16_MAX);
    case TPU_I32: return tpui_constant_int(b, dtype, INT32_MAX);
    case TPU_I64: return tpui_constant_int(b, dtype, INT64_MAX);
    case TPU_F8E4M3FN: return tpui_constant(b, dtype, TPUI_F8E4M3FN_MAX);
    default: return tpui_constant(b, dtype, INFINITY);
  }
}

tpui_hlo_t tpui_constant_ints(tpui_builder_t* b, tpu_dtype_t dtype, int count,
                              const int64_t* values) {
  int64_t sizes[1] = {count};
  tpu_strbuf_t text = {0};
  tpu_strbuf_append(&text, count > 0 ? "value = dense<[" : "value = dense<");
  for (int i = 0; i < count; ++i) {
    if (i > 0) tpu_strbuf_append(&text, ", ");
    append_number(&text, dtype, (double)values[i], values[i]);
  }
  tpu_strbuf_append(&text, count > 0 ? "]> : " : "> : ");
  tpui_append_type(&text, dtype, 1, sizes);
  tpui_latch_status(b, tpu_strbuf_status(&text));
  tpui_hlo_t result =
      tpui_raw(b, "stablehlo.constant", 0, NULL, tpu_strbuf_text(&text), "", dtype, 1, sizes);
  tpu_strbuf_free(&text);
  return result;
}

tpui_hlo_t tpui_iota(tpui_builder_t* b, tpu_dtype_t dtype, int rank, const int64_t* sizes,
                     int dim) {
  if (dim < 0 || dim >= rank) {
    tpui_fail(b, TPU_INTERNAL, "iota: dimension %d of %d", dim, rank);
    return tpui_harmless();
  }
  return tpui_raw(b, "stablehlo.iota", 0, NULL, tpui_text(b, "iota_dimension = %d : i64", dim), "",
                  dtype, rank, sizes);
}
