/* Dtypes, shapes and moving data. */
#include <string.h>

#include "lower/builder_internal.h"

static bool equal_sizes(int rank, const int64_t* a, const int64_t* b) {
  return rank == 0 || memcmp(a, b, (size_t)rank * sizeof(int64_t)) == 0;
}

/* Of sizes that may be anything; -1 when it is not the element count of a tensor. A size of 0 makes
 * it 0, however large the others are. */
static int64_t size_product(int rank, const int64_t* sizes) {
  int64_t result = 1;
  bool empty = false, overflow = false;
  for (int i = 0; i < rank; ++i) {
    if (sizes[i] < 0) return -1;
    empty = empty || sizes[i] == 0;
    overflow = overflow || __builtin_mul_overflow(result, sizes[i], &result);
  }
  return empty ? 0 : overflow ? -1 : result;
}

static bool dim_ok(tpui_builder_t* b, const char* what, int dim, int rank) {
  if (tpui_ok(b) && (dim < 0 || dim >= rank)) {
    tpui_fail(b, TPU_INTERNAL, "%s: dimension %d of %d", what, dim, rank);
  }
  return tpui_ok(b);
}

/* --- dtypes --- */

static tpui_hlo_t raw_convert(tpui_builder_t* b, tpui_hlo_t x, tpu_dtype_t dtype) {
  uint64_t key[4] = {TPUI_MEMO_CONVERT, (uint64_t)(int64_t)x.id, (uint64_t)dtype, 0};
  tpui_hlo_t result;
  if (!tpui_ok(b)) return tpui_harmless();
  if (tpui_memo_get(b, key, &result)) return result;
  result = tpui_raw(b, "stablehlo.convert", 1, &x, "", "", dtype, x.rank, x.sizes);
  tpui_memo_put(b, key, result);
  return result;
}

static tpui_hlo_t to_complex(tpui_builder_t* b, tpui_hlo_t x, tpu_dtype_t dtype) {
  tpu_dtype_t part = dtype == TPU_C64 ? TPU_F32 : TPU_F64;
  tpui_hlo_t parts[2] = {tpui_convert(b, x, part), tpui_full(b, part, 0.0, x.rank, x.sizes)};
  return tpui_raw(b, "stablehlo.complex", 2, parts, "", "", dtype, x.rank, x.sizes);
}

/* XLA saturates, C++ on x86 converts to int32 and drops bits: narrow integers go the same way, so
 * that 300.0 becomes 44 in uint8 as in PyTorch. */
static tpui_hlo_t float_to_int(tpui_builder_t* b, tpui_hlo_t x, tpu_dtype_t dtype) {
  if (tpu_dtype_bytes(dtype) >= 4) return raw_convert(b, x, dtype);
  return raw_convert(b, raw_convert(b, x, TPU_I32), dtype);
}

/* PyTorch rounds to float32 first. What lies beyond the largest number of float8_e4m3fn becomes
 * that number there, and NaN in XLA. */
static tpui_hlo_t to_float8(tpui_builder_t* b, tpui_hlo_t x, tpu_dtype_t dtype) {
  x = tpui_convert(b, x, TPU_F32);
  if (dtype == TPU_F8E4M3FN) {
    x = tpui_binary_constant(b, "minimum", x, TPUI_F8E4M3FN_MAX);
    x = tpui_binary_constant(b, "maximum", x, -TPUI_F8E4M3FN_MAX);
  }
  return raw_convert(b, x, dtype);
}

/* Not as a conversion: XLA makes a choice between y and 0 of convert(x) * y, also for NaN in y. */
static tpui_hlo_t bool_to_float(tpui_builder_t* b, tpui_hlo_t x, tpu_dtype_t dtype) {
  return tpui_select(b, x, tpui_constant(b, dtype, 1.0), tpui_constant(b, dtype, 0.0));
}

tpui_hlo_t tpui_convert(tpui_builder_t* b, tpui_hlo_t x, tpu_dtype_t dtype) {
  if (!tpui_ok(b) || x.dtype == dtype) return x;
  tpu_dtype_kind_t from = tpu_dtype_kind(x.dtype), to = tpu_dtype_kind(dtype);
  if (dtype == TPU_BOOL) {
    if (from == TPU_KIND_COMPLEX) {
      tpui_hlo_t zero = to_complex(b, tpui_constant(b, TPU_F64, 0.0), x.dtype);
      return tpui_compare(b, "NE", x, zero);
    }
    return tpui_compare_constant(b, "NE", x, 0.0);
  }
  if (to == TPU_KIND_COMPLEX && from != TPU_KIND_COMPLEX) return to_complex(b, x, dtype);
  if (from == TPU_KIND_COMPLEX && to != TPU_KIND_COMPLEX) {
    return tpui_convert(b, tpui_unary(b, "real", x), dtype);
  }
  if (to == TPU_KIND_FLOAT && tpu_dtype_bytes(dtype) == 1) return to_float8(b, x, dtype);
  if (from == TPU_KIND_FLOAT && to < TPU_KIND_FLOAT) return float_to_int(b, x, dtype);
  if (from == TPU_KIND_BOOL && to == TPU_KIND_FLOAT) return bool_to_float(b, x, dtype);
  return raw_convert(b, x, dtype);
}

tpui_hlo_t tpui_bitcast(tpui_builder_t* b, tpui_hlo_t x, tpu_dtype_t dtype) {
  if (!tpui_ok(b) || x.dtype == dtype) return x;
  if (tpu_dtype_bytes(x.dtype) != tpu_dtype_bytes(dtype)) {
    tpui_fail(b, TPU_INTERNAL, "bitcast from %s to %s", tpu_dtype_name(x.dtype),
              tpu_dtype_name(dtype));
    return tpui_harmless();
  }
  // XLA has no bitcast of booleans; their bytes are 0 and 1.
  if (x.dtype == TPU_BOOL) return tpui_bitcast(b, raw_convert(b, x, TPU_U8), dtype);
  if (dtype == TPU_BOOL) return tpui_convert(b, tpui_bitcast(b, x, TPU_U8), TPU_BOOL);
  return tpui_raw(b, "stablehlo.bitcast_convert", 1, &x, "", "", dtype, x.rank, x.sizes);
}

/* --- shapes --- */

tpui_hlo_t tpui_reshape(tpui_builder_t* b, tpui_hlo_t x, int rank, const int64_t* sizes) {
  if (!tpui_ok(b)) return tpui_harmless();
  if (x.rank == rank && equal_sizes(rank, x.sizes, sizes)) return x;
  if (size_product(rank, sizes) != size_product(x.rank, x.sizes)) {
    tpui_fail(b, TPU_INTERNAL, "reshape of [%s] to [%s]", tpui_text_ints(b, x.rank, x.sizes),
              tpui_text_ints(b, rank, sizes));
    return tpui_harmless();
  }
  return tpui_raw(b, "stablehlo.reshape", 1, &x, "", "", x.dtype, rank, sizes);
}

tpui_hlo_t tpui_transpose(tpui_builder_t* b, tpui_hlo_t x, const int* permutation) {
  int64_t order[TPUI_MAX_HLO_RANK], sizes[TPUI_MAX_HLO_RANK];
  uint64_t seen = 0;
  bool same = true;
  for (int i = 0; i < x.rank; ++i) {
    if (!dim_ok(b, "transpose", permutation[i], x.rank)) return tpui_harmless();
    order[i] = permutation[i];
    sizes[i] = x.sizes[permutation[i]];
    seen |= (uint64_t)1 << permutation[i];
    same = same && permutation[i] == i;
  }
  if (!tpui_ok(b) || same) return x;
  if (seen != ((uint64_t)1 << x.rank) - 1) {
    tpui_fail(b, TPU_INTERNAL, "transpose: [%s] is no permutation",
              tpui_text_ints(b, x.rank, order));
    return tpui_harmless();
  }
  return tpui_raw(b, "stablehlo.transpose", 1, &x,
                  tpui_text(b, "permutation = %s", tpui_text_array(b, x.rank, order)), "", x.dtype,
                  x.rank, sizes);
}

static tpui_hlo_t broadcast_ascending(tpui_builder_t* b, tpui_hlo_t x, int rank,
                                      const int64_t* sizes, const int* dims) {
  int64_t out_dims[TPUI_MAX_HLO_RANK];
  for (int i = 0; i < x.rank; ++i) {
    if (!dim_ok(b, "broadcast", dims[i], rank)) return tpui_harmless();
    out_dims[i] = dims[i];
    bool twice = i > 0 && dims[i] == dims[i - 1];
    if (twice || (x.sizes[i] != 1 && x.sizes[i] != sizes[dims[i]])) {
      tpui_fail(b, TPU_INTERNAL, "broadcast of [%s] to [%s]", tpui_text_ints(b, x.rank, x.sizes),
                tpui_text_ints(b, rank, sizes));
      return tpui_harmless();
    }
  }
  const char* attribute =
      tpui_text(b, "broadcast_dimensions = %s", tpui_text_array(b, x.rank, out_dims));
  return tpui_raw(b, "stablehlo.broadcast_in_dim", 1, &x, attribute, "", x.dtype, rank, sizes);
}

/* x without the dimensions of size 1 that are to grow, and `dims` without theirs. XLA makes of such
 * a one a broadcast of x to its own sizes, and its CPU plugin reads a bad address where it fuses
 * that into a sum. */
static tpui_hlo_t drop_growing(tpui_builder_t* b, tpui_hlo_t x, int rank, const int64_t* sizes,
                               int* dims) {
  int64_t left[TPUI_MAX_HLO_RANK];
  int count = 0;
  // What is wrong with dimensions is the broadcast's to say.
  if (x.rank > rank) return x;
  for (int i = 0; i < x.rank; ++i) {
    if (dims[i] < 0 || dims[i] >= rank) return x;
  }
  for (int i = 0; i < x.rank; ++i) {
    if (x.sizes[i] == 1 && sizes[dims[i]] != 1) continue;
    dims[count] = dims[i];
    left[count++] = x.sizes[i];
  }
  return count == x.rank ? x : tpui_reshape(b, x, count, left);
}

tpui_hlo_t tpui_broadcast_in_dim(tpui_builder_t* b, tpui_hlo_t x, int rank, const int64_t* sizes,
                                 const int* dims) {
  int order[TPUI_MAX_HLO_RANK], sorted[TPUI_MAX_HLO_RANK];
  bool whole = x.rank == rank;
  for (int i = 0; i < x.rank; ++i) order[i] = i;
  // XLA wants ascending dimensions: put the operand's in that order first.
  for (int i = 1; i < x.rank; ++i) {
    for (int j = i; j > 0 && dims[order[j - 1]] > dims[order[j]]; --j) {
      int swap = order[j];
      order[j] = order[j - 1];
      order[j - 1] = swap;
    }
  }
  for (int i = 0; i < x.rank; ++i) sorted[i] = dims[order[i]];
  x = tpui_transpose(b, x, order);
  if (!tpui_ok(b)) return tpui_harmless();
  if (whole && equal_sizes(rank, x.sizes, sizes)) return x;
  x = drop_growing(b, x, rank, sizes, sorted);
  return tpui_ok(b) ? broadcast_ascending(b, x, rank, sizes, sorted) : x;
}

tpui_hlo_t tpui_broadcast_to(tpui_builder_t* b, tpui_hlo_t x, int rank, const int64_t* sizes) {
  int dims[TPUI_MAX_HLO_RANK];
  if (!tpui_ok(b)) return tpui_harmless();
  if (x.rank > rank) {
    tpui_fail(b, TPU_INTERNAL, "broadcast of [%s] to [%s]", tpui_text_ints(b, x.rank, x.sizes),
              tpui_text_ints(b, rank, sizes));
    return tpui_harmless();
  }
  for (int i = 0; i < x.rank; ++i) dims[i] = rank - x.rank + i;
  return tpui_broadcast_in_dim(b, x, rank, sizes, dims);
}

/* Common shape of two values; false (and an error) when there is none. */
static bool common_shape(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t y, int* out_rank,
                         int64_t* out_sizes) {
  int rank = x.rank > y.rank ? x.rank : y.rank;
  for (int i = 0; i < rank; ++i) {
    int64_t m = i < rank - x.rank ? 1 : x.sizes[i - (rank - x.rank)];
    int64_t n = i < rank - y.rank ? 1 : y.sizes[i - (rank - y.rank)];
    if (m != n && m != 1 && n != 1) {
      tpui_fail(b, TPU_INTERNAL, "sizes [%s] and [%s] do not broadcast",
                tpui_text_ints(b, x.rank, x.sizes), tpui_text_ints(b, y.rank, y.sizes));
      return false;
    }
    out_sizes[i] = m == 1 ? n : m;
  }
  *out_rank = rank;
  return tpui_ok(b);
}

void tpui_broadcast_pair(tpui_builder_t* b, tpui_hlo_t* x, tpui_hlo_t* y) {
  int64_t sizes[TPUI_MAX_HLO_RANK];
  int rank = 0;
  if (!tpui_ok(b) || !common_shape(b, *x, *y, &rank, sizes)) return;
  *x = tpui_broadcast_to(b, *x, rank, sizes);
  *y = tpui_broadcast_to(b, *y, rank, sizes);
}

tpui_hlo_t tpui_unsqueeze(tpui_builder_t* b, tpui_hlo_t x, int dim) {
  int64_t sizes[TPUI_MAX_HLO_RANK + 1];
  if (!dim_ok(b, "unsqueeze", dim, x.rank + 1)) return tpui_harmless();
  for (int i = 0; i <= x.rank; ++i) sizes[i] = i == dim ? 1 : x.sizes[i - (i > dim)];
  return tpui_reshape(b, x, x.rank + 1, sizes);
}

tpui_hlo_t tpui_squeeze(tpui_builder_t* b, tpui_hlo_t x, int dim) {
  int64_t sizes[TPUI_MAX_HLO_RANK];
  if (!dim_ok(b, "squeeze", dim, x.rank)) return tpui_harmless();
  for (int i = 0; i + 1 < x.rank; ++i) sizes[i] = x.sizes[i + (i >= dim)];
  return tpui_reshape(b, x, x.rank - 1, sizes);
}

/* --- moving data --- */

tpui_hlo_t tpui_slice(tpui_builder_t* b, tpui_hlo_t x, const int64_t* starts, const int64_t* limits,
                      const int64_t* steps) {
  int64_t sizes[TPUI_MAX_HLO_RANK], ones[TPUI_MAX_HLO_RANK];
  bool whole = true;
  for (int i = 0; i < x.rank; ++i) {
    ones[i] = steps != NULL ? steps[i] : 1;
    if (starts[i] < 0 || limits[i] < starts[i] || limits[i] > x.sizes[i] || ones[i] < 1) {
      tpui_fail(b, TPU_INTERNAL, "slice %lld:%lld:%lld of dimension %d with size %lld",
                (long long)starts[i], (long long)limits[i], (long long)ones[i], i,
                (long long)x.sizes[i]);
      return tpui_harmless();
    }
    sizes[i] = limits[i] > starts[i] ? (limits[i] - starts[i] - 1) / ones[i] + 1 : 0;
    whole = whole && sizes[i] == x.sizes[i];
  }
  if (!tpui_ok(b) || whole) return x;
  const char* attributes = tpui_text(
      b, "start_indices = %s, limit_indices = %s, strides = %s", tpui_text_array(b, x.rank, starts),
      tpui_text_array(b, x.rank, limits), tpui_text_array(b, x.rank, ones));
  return tpui_raw(b, "stablehlo.slice", 1, &x, attributes, "", x.dtype, x.rank, sizes);
}

tpui_hlo_t tpui_slice_dim(tpui_builder_t* b, tpui_hlo_t x, int dim, int64_t start, int64_t limit) {
  int64_t starts[TPUI_MAX_HLO_RANK], limits[TPUI_MAX_HLO_RANK];
  if (!dim_ok(b, "slice", dim, x.rank)) return tpui_harmless();
  for (int i = 0; i < x.rank; ++i) {
    starts[i] = i == dim ? start : 0;
    limits[i] = i == dim ? limit : x.sizes[i];
  }
  return tpui_slice(b, x, starts, limits, NULL);
}

/* Starts are integers of rank 0 and of one dtype; the slice fits into x. */
static bool starts_ok(tpui_builder_t* b, const char* what, tpui_hlo_t x, const tpui_hlo_t* starts,
                      const int64_t* slice) {
  for (int i = 0; i < x.rank && tpui_ok(b); ++i) {
    if (starts[i].rank != 0 || starts[i].dtype != starts[0].dtype || starts[i].dtype == TPU_BOOL ||
        !tpu_dtype_is_integral(starts[i].dtype)) {
      tpui_fail(b, TPU_INTERNAL, "%s: start %d is no integer", what, i);
    } else if (slice[i] < 0 || slice[i] > x.sizes[i]) {
      tpui_fail(b, TPU_INTERNAL, "%s of [%s] in [%s]", what, tpui_text_ints(b, x.rank, slice),
                tpui_text_ints(b, x.rank, x.sizes));
    }
  }
  return tpui_ok(b);
}

tpui_hlo_t tpui_dynamic_slice(tpui_builder_t* b, tpui_hlo_t x, const tpui_hlo_t* starts,
                              const int64_t* sizes) {
  tpui_hlo_t operands[TPUI_MAX_HLO_RANK + 1];
  if (!starts_ok(b, "dynamic_slice", x, starts, sizes)) return tpui_harmless();
  operands[0] = x;
  for (int i = 0; i < x.rank; ++i) operands[1 + i] = starts[i];
  return tpui_raw(b, "stablehlo.dynamic_slice", 1 + x.rank, operands,
                  tpui_text(b, "slice_sizes = %s", tpui_text_array(b, x.rank, sizes)), "", x.dtype,
                  x.rank, sizes);
}

tpui_hlo_t tpui_dynamic_update_slice(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t update,
                                     const tpui_hlo_t* starts) {
  tpui_hlo_t operands[TPUI_MAX_HLO_RANK + 2];
  if (tpui_ok(b) && (update.rank != x.rank || update.dtype != x.dtype)) {
    tpui_fail(b, TPU_INTERNAL, "update of %s[%s] by %s[%s]", tpu_dtype_name(x.dtype),
              tpui_text_ints(b, x.rank, x.sizes), tpu_dtype_name(update.dtype),
              tpui_text_ints(b, update.rank, update.sizes));
  }
  if (!tpui_ok(b) || !starts_ok(b, "dynamic_update_slice", x, starts, update.sizes)) {
    return tpui_harmless();
  }
  operands[0] = x;
  operands[1] = update;
  for (int i = 0; i < x.rank; ++i) operands[2 + i] = starts[i];
  return tpui_raw(b, "stablehlo.dynamic_update_slice", 2 + x.rank, operands, "", "", x.dtype,
                  x.rank, x.sizes);
}

/* A padded size; -1 when it is none. */
static int64_t padded_size(int64_t size, int64_t low, int64_t high, int64_t inner) {
  int64_t gaps = 0, result = 0;
  if (inner < 0 || (size > 1 && __builtin_mul_overflow(size - 1, inner, &gaps)) ||
      __builtin_add_overflow(size, gaps, &result) || __builtin_add_overflow(result, low, &result) ||
      __builtin_add_overflow(result, high, &result)) {
    return -1;
  }
  return result;
}

static bool pad_ok(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t value, const int64_t* low,
                   const int64_t* high, const int64_t* inner) {
  for (int i = 0; i < x.rank && tpui_ok(b); ++i) {
    if (padded_size(x.sizes[i], low[i], high[i], inner[i]) >= 0 && value.rank == 0) continue;
    tpui_fail(b, TPU_INTERNAL, "pad of size %lld by %lld, %lld and %lld in between",
              (long long)x.sizes[i], (long long)low[i], (long long)high[i], (long long)inner[i]);
  }
  return tpui_ok(b);
}

/* Nothing here is negative. */
static tpui_hlo_t raw_pad(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t value, const int64_t* low,
                          const int64_t* high, const int64_t* inner) {
  int64_t sizes[TPUI_MAX_HLO_RANK];
  bool nothing = true;
  for (int i = 0; i < x.rank; ++i) {
    sizes[i] = padded_size(x.sizes[i], low[i], high[i], inner[i]);
    nothing = nothing && low[i] == 0 && high[i] == 0 && (inner[i] == 0 || x.sizes[i] <= 1);
  }
  if (!tpui_ok(b)) return tpui_harmless();
  if (nothing) return x;
  tpui_hlo_t operands[2] = {x, tpui_convert(b, value, x.dtype)};
  const char* attributes =
      tpui_text(b, "edge_padding_low = %s, edge_padding_high = %s, interior_padding = %s",
                tpui_text_array(b, x.rank, low), tpui_text_array(b, x.rank, high),
                tpui_text_array(b, x.rank, inner));
  return tpui_raw(b, "stablehlo.pad", 2, operands, attributes, "", x.dtype, x.rank, sizes);
}

static int64_t smaller_of(int64_t a, int64_t b) { return a < b ? a : b; }

/* Takes `low` and `high` off the ends where they are negative, as far as there is something, and
 * sets them to what is left of them. Dimensions with `keep` are left alone. */
static tpui_hlo_t crop_negative(tpui_builder_t* b, tpui_hlo_t x, const int64_t* keep, int64_t* low,
                                int64_t* high) {
  int64_t starts[TPUI_MAX_HLO_RANK], limits[TPUI_MAX_HLO_RANK];
  for (int i = 0; i < x.rank; ++i) {
    int64_t front = low[i] < 0 && keep[i] == 0 ? smaller_of(-low[i], x.sizes[i]) : 0;
    int64_t back = high[i] < 0 && keep[i] == 0 ? smaller_of(-high[i], x.sizes[i] - front) : 0;
    starts[i] = front;
    limits[i] = x.sizes[i] - back;
    low[i] += front;
    high[i] += back;
  }
  return tpui_slice(b, x, starts, limits, NULL);
}

/* Negative padding is written as slices: XLA:CPU asks for each element whether it is inside.
 * Without interior padding they come first, so that there is less to pad. */
tpui_hlo_t tpui_pad(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t value, const int64_t* low,
                    const int64_t* high, const int64_t* interior) {
  static const int64_t none[TPUI_MAX_HLO_RANK] = {0};
  const int64_t* inner = interior != NULL ? interior : none;
  int64_t lows[TPUI_MAX_HLO_RANK], highs[TPUI_MAX_HLO_RANK];
  int64_t front[TPUI_MAX_HLO_RANK], back[TPUI_MAX_HLO_RANK];
  if (!pad_ok(b, x, value, low, high, inner)) return tpui_harmless();
  memcpy(lows, low, (size_t)x.rank * sizeof(int64_t));
  memcpy(highs, high, (size_t)x.rank * sizeof(int64_t));
  x = crop_negative(b, x, inner, lows, highs);
  for (int i = 0; i < x.rank; ++i) {
    front[i] = lows[i] > 0 ? lows[i] : 0;
    back[i] = highs[i] > 0 ? highs[i] : 0;
    lows[i] -= front[i];
    highs[i] -= back[i];
  }
  return crop_negative(b, raw_pad(b, x, value, front, back, inner), none, lows, highs);
}

/* A part has the sizes of the first one, except along `dim`. */
static bool part_ok(tpui_builder_t* b, tpui_hlo_t first, tpui_hlo_t part, int dim) {
  bool same = part.rank == first.rank && part.dtype == first.dtype;
  for (int i = 0; i < first.rank && same; ++i) {
    same = i == dim || part.sizes[i] == first.sizes[i];
  }
  if (!same) {
    tpui_fail(b, TPU_INTERNAL, "concatenate of %s[%s] and %s[%s] along %d",
              tpu_dtype_name(first.dtype), tpui_text_ints(b, first.rank, first.sizes),
              tpu_dtype_name(part.dtype), tpui_text_ints(b, part.rank, part.sizes), dim);
  }
  return same;
}

/* One statement; the sizes along `dim` add up. */
static tpui_hlo_t concatenate_parts(tpui_builder_t* b, int count, const tpui_hlo_t* parts,
                                    int dim) {
  int64_t sizes[TPUI_MAX_HLO_RANK];
  if (!tpui_ok(b) || count == 1) return parts[0];
  memcpy(sizes, parts[0].sizes, (size_t)parts[0].rank * sizeof(int64_t));
  for (int i = 1; i < count; ++i) {
    if (!part_ok(b, parts[0], parts[i], dim)) return tpui_harmless();
    if (__builtin_add_overflow(sizes[dim], parts[i].sizes[dim], &sizes[dim])) sizes[dim] = -1;
  }
  return tpui_raw(b, "stablehlo.concatenate", count, parts,
                  tpui_text(b, "dimension = %d : i64", dim), "", parts[0].dtype, parts[0].rank,
                  sizes);
}

/* XLA fuses a concatenation into each consumer, with a branch for each part, and takes a time that
 * grows with the square of the parts: 2,000 take 3.5 CPU seconds to compile, in groups 0.8. */
enum { FUSIBLE_PARTS = 16, MOST_PARTS = 256 };

tpui_hlo_t tpui_concatenate(tpui_builder_t* b, int count, const tpui_hlo_t* parts, int dim) {
  if (!tpui_ok(b)) return tpui_harmless();
  if (count < 1) {
    tpui_fail(b, TPU_INTERNAL, "concatenate of nothing");
    return tpui_harmless();
  }
  if (!dim_ok(b, "concatenate", dim, parts[0].rank)) return tpui_harmless();
  if (count <= FUSIBLE_PARTS) return concatenate_parts(b, count, parts, dim);
  if (count <= MOST_PARTS) return tpui_barrier(b, concatenate_parts(b, count, parts, dim));
  int groups = (count + MOST_PARTS - 1) / MOST_PARTS;
  tpui_hlo_t* joined = tpui_arena(b, (size_t)groups * sizeof(*joined));
  for (int g = 0, first = 0; g < groups && joined != NULL; ++g, first += MOST_PARTS) {
    int size = count - first < MOST_PARTS ? count - first : MOST_PARTS;
    if (!part_ok(b, parts[0], parts[first], dim)) return tpui_harmless();
    joined[g] = tpui_barrier(b, concatenate_parts(b, size, parts + first, dim));
  }
  return joined == NULL ? tpui_harmless()
                        : tpui_barrier(b, tpui_concatenate(b, groups, joined, dim));
}

tpui_hlo_t tpui_barrier(tpui_builder_t* b, tpui_hlo_t x) {
  return tpui_raw(b, "stablehlo.optimization_barrier", 1, &x, "", "", x.dtype, x.rank, x.sizes);
}

tpui_hlo_t tpui_reverse(tpui_builder_t* b, tpui_hlo_t x, int count, const int* dims) {
  int64_t order[TPUI_MAX_HLO_RANK];
  uint64_t seen = 0;
  for (int i = 0; i < count; ++i) {
    if (!dim_ok(b, "reverse", dims[i], x.rank)) return tpui_harmless();
    if (seen >> dims[i] & 1) {
      tpui_fail(b, TPU_INTERNAL, "reverse: dimension %d twice", dims[i]);
      return tpui_harmless();
    }
    seen |= (uint64_t)1 << dims[i];
    order[i] = dims[i];
  }
  if (count == 0) return x;
  return tpui_raw(b, "stablehlo.reverse", 1, &x,
                  tpui_text(b, "dimensions = %s", tpui_text_array(b, count, order)), "", x.dtype,
                  x.rank, x.sizes);
}
