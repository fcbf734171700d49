/* sort, topk, kthvalue, median, searchsorted.
 *
 * Where a sort of pairs is slow, keys and positions are packed into one 64-bit number if they fit.
 * Our own C kernels are faster still and compile in no time: they are used where a program may call
 * them.
 */
#include "lower/sort.h"

#include <math.h>
#include <string.h>

#include "lower/gather.h"
#include "lower/host_call.h"
#include "lower/op_lowering.h"

/* --- primitives --- */

/* Region comparing the first two arguments of 2 * count. */
static const char* less_than(tpui_builder_t* b, int count, const tpu_dtype_t* dtypes) {
  const char* arguments = "";
  for (int i = 0; i < count; ++i) {
    const char* type = tpui_text_type(b, (tpui_type_t){dtypes[i], 0, NULL});
    arguments =
        tpui_text(b, "%s%s%%l%d: %s, %%r%d: %s", arguments, i > 0 ? ", " : "", i, type, i, type);
  }
  const char* key = tpui_text_type(b, (tpui_type_t){dtypes[0], 0, NULL});
  return tpui_text(
      b,
      "({\n^bb0(%s):\n%%c = \"stablehlo.compare\"(%%l0, %%r0) <{comparison_direction = "
      "#stablehlo<comparison_direction LT>}> : (%s, %s) -> tensor<i1>\n"
      "\"stablehlo.return\"(%%c) : (tensor<i1>) -> ()\n})",
      arguments, key, key);
}

tpui_hlo_t tpui_sort_integers(tpui_builder_t* b, tpui_hlo_t x, int dim) {
  if (!tpui_ok(b) || x.sizes[dim] <= 1) return x;
  const char* attributes = tpui_text(b, "<{dimension = %d : i64, is_stable = false}>", dim);
  return tpui_raw(b, "stablehlo.sort", 1, &x, attributes, less_than(b, 1, &x.dtype), x.dtype,
                  x.rank, x.sizes);
}

/* Signed integers (I32 or I64) that order like x: NaN last, -0 equal to 0. */
static tpui_hlo_t sortable_key(tpui_builder_t* b, tpui_hlo_t x) {
  if (!tpu_dtype_is_float(x.dtype)) {
    if (x.dtype == TPU_U64) {
      tpui_hlo_t flip = tpui_constant_int(b, TPU_I64, INT64_MIN);
      return tpui_binary(b, "xor", tpui_bitcast(b, x, TPU_I64), flip);
    }
    bool narrow = tpu_dtype_bytes(x.dtype) < 4 || x.dtype == TPU_I32;
    return tpui_convert(b, x, narrow ? TPU_I32 : TPU_I64);
  }
  x = tpui_convert(b, x, tpui_math_dtype(x.dtype));
  bool wide = x.dtype == TPU_F64;
  tpui_hlo_t zero = tpui_constant(b, x.dtype, 0);
  tpui_hlo_t is_nan = tpui_is_nan(b, x);
  x = tpui_select(b, tpui_compare(b, "EQ", x, zero), zero, x);
  tpui_hlo_t bits = tpui_bitcast(b, x, wide ? TPU_I64 : TPU_I32);
  int64_t greatest = wide ? INT64_MAX : INT32_MAX;
  tpui_hlo_t flipped = tpui_binary(b, "xor", bits, tpui_constant_int(b, bits.dtype, greatest));
  bits = tpui_select(b, tpui_compare_constant(b, "LT", bits, 0), flipped, bits);
  return tpui_select(b, is_nan, tpui_constant_int(b, bits.dtype, greatest), bits);
}

/* Key in the high 32 bits, position in the low 32: distinct numbers, so a plain sort is stable. */
static tpui_hlo_t order_packed(tpui_builder_t* b, tpui_hlo_t key, int dim) {
  tpui_hlo_t high = tpui_convert(b, key, TPU_I64);
  high = tpui_binary(b, "shift_left", high, tpui_constant_int(b, TPU_I64, 32));
  tpui_hlo_t place = tpui_iota(b, TPU_I64, key.rank, key.sizes, dim);
  tpui_hlo_t sorted = tpui_sort_integers(b, tpui_binary(b, "or", high, place), dim);
  return tpui_binary(b, "and", sorted, tpui_constant_int(b, TPU_I64, 0xffffffffll));
}

/* Sorts keys with their positions and, unless `x` is NULL, with what belongs to them. Positions are
 * of dtype `place`. */
static tpui_hlo_t order_pairs(tpui_builder_t* b, tpui_hlo_t key, int dim, tpu_dtype_t place,
                              const tpui_hlo_t* x, tpui_hlo_t* out_sorted) {
  int count = x == NULL ? 2 : 3;
  tpui_hlo_t operands[3] = {key, tpui_iota(b, place, key.rank, key.sizes, dim)}, results[3];
  if (x != NULL) operands[2] = *x;
  tpu_dtype_t dtypes[3];
  tpui_type_t types[3];
  for (int i = 0; i < count; ++i) {
    dtypes[i] = operands[i].dtype;
    types[i] = (tpui_type_t){dtypes[i], key.rank, key.sizes};
  }
  tpui_raw_multi(b, "stablehlo.sort", count, operands,
                 tpui_text(b, "<{dimension = %d : i64, is_stable = true}>", dim),
                 less_than(b, count, dtypes), count, types, results);
  if (x != NULL) *out_sorted = results[2];
  return tpui_convert(b, results[1], TPU_I64);
}

/* --- C kernels --- */

static bool has_kernel(const tpui_builder_t* b, tpui_hlo_t x) {
  if (!tpui_ok(b) || !tpui_host_calls(b)) return false;
  return tpu_dtype_is_integral(x.dtype) ||
         (tpu_dtype_is_float(x.dtype) && tpu_dtype_bytes(x.dtype) > 1);
}

static tpui_hlo_t kernel_argsort(tpui_builder_t* b, tpui_hlo_t x, int dim, bool descending) {
  const tpui_call_attr_t attrs[] = {{"descending", descending}, {"dim", dim}};
  const tpui_type_t type = {TPU_I64, x.rank, x.sizes};
  tpui_hlo_t result;
  tpui_host_call(b, "argsort", 1, &x, 2, attrs, 1, &type, &result);
  return result;
}

/* Values and indices of a kernel whose results have `size` elements along dim. */
static void kernel_pick(tpui_builder_t* b, const char* kernel, int operand_count,
                        const tpui_hlo_t* operands, int attr_count, const tpui_call_attr_t* attrs,
                        int dim, int64_t size, tpui_hlo_t out[2]) {
  tpui_hlo_t x = operands[0];
  int64_t sizes[TPU_MAX_RANK];
  out[0] = out[1] = x;
  if (!tpui_ok(b)) return;
  memcpy(sizes, x.sizes, (size_t)x.rank * sizeof(int64_t));
  sizes[dim] = size;
  const tpui_type_t types[] = {{x.dtype, x.rank, sizes}, {TPU_I64, x.rank, sizes}};
  tpui_host_call(b, kernel, operand_count, operands, attr_count, attrs, 2, types, out);
}

/* --- orders --- */

static tpui_hlo_t directed_key(tpui_builder_t* b, tpui_hlo_t x, bool descending) {
  tpui_hlo_t key = sortable_key(b, x);
  return descending ? tpui_unary(b, "not", key) : key;
}

static tpu_dtype_t place_dtype(const tpui_builder_t* b, tpui_hlo_t x, int dim) {
  return x.sizes[dim] <= INT32_MAX && !tpui_target(b)->slow_pair_sort ? TPU_I32 : TPU_I64;
}

tpui_hlo_t tpui_sort_order(tpui_builder_t* b, tpui_hlo_t x, int dim, bool descending) {
  if (!tpui_ok(b) || x.sizes[dim] <= 1) return tpui_full_like(b, x, TPU_I64, 0);
  if (has_kernel(b, x)) return kernel_argsort(b, x, dim, descending);
  tpui_hlo_t key = directed_key(b, x, descending);
  bool packs = key.dtype == TPU_I32 && x.sizes[dim] <= INT32_MAX;
  if (packs && tpui_target(b)->slow_pair_sort) return order_packed(b, key, dim);
  return order_pairs(b, key, dim, place_dtype(b, x, dim), NULL, NULL);
}

/* x in that order; the order is known to be valid. */
static tpui_hlo_t apply_order(tpui_builder_t* b, tpui_hlo_t x, int dim, tpui_hlo_t order) {
  return tpui_take_along(b, x, dim, order);
}

/* x sorted, and its order. Where pairs sort well, x goes through the sort with them. */
static void sort_values(tpui_builder_t* b, tpui_hlo_t x, int dim, bool descending,
                        tpui_hlo_t* out_sorted, tpui_hlo_t* out_order) {
  if (tpui_ok(b) && x.sizes[dim] > 1 && !tpui_target(b)->slow_pair_sort) {
    *out_order =
        order_pairs(b, directed_key(b, x, descending), dim, place_dtype(b, x, dim), &x, out_sorted);
    return;
  }
  *out_order = tpui_sort_order(b, x, dim, descending);
  *out_sorted = apply_order(b, x, dim, *out_order);
}

/* --- sort, topk --- */

/* Attributes: stable?, dim, descending. */
void tpui_lower_sort(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpu_attrs_id_t attrs = op->record->attrs;
  tpui_hlo_t x = tpui_at_least_1d(b, tpui_operand(op, 0));
  int dim = tpui_wrap_dim(tpu_attr_int(attrs, 1, -1), x.rank);
  bool descending = tpu_attr_int(attrs, 2, 0) != 0;
  if (has_kernel(b, x) && tpui_result_needed(op, 0)) {
    const tpui_call_attr_t call_attrs[] = {{"descending", descending}, {"dim", dim}};
    tpui_hlo_t results[2];
    kernel_pick(b, "sort", 1, &x, 2, call_attrs, dim, x.sizes[dim], results);
    tpui_set_result_reshaped(op, 0, results[0]);
    tpui_set_result_reshaped(op, 1, results[1]);
    return;
  }
  tpui_hlo_t sorted, order;
  if (tpui_result_needed(op, 0)) {
    sort_values(b, x, dim, descending, &sorted, &order);
    tpui_set_result_reshaped(op, 0, sorted);
  } else {
    order = tpui_sort_order(b, x, dim, descending);
  }
  tpui_set_result_reshaped(op, 1, order);
}

/* Positions of the k largest (or smallest) elements in order, x with `dim` last and float.
 * chlo.top_k compares numbers only, so NaN takes infinity's place and infinity that of the greatest
 * number; the positions are all that is used of it. */
static tpui_hlo_t top_positions(tpui_builder_t* b, tpui_hlo_t x, int64_t k, bool largest) {
  tpui_hlo_t nan = tpui_is_nan(b, x);
  x = tpui_convert(b, x, TPU_F32);
  const double greatest = 3.4028234663852886e38;
  x = tpui_binary_constant(b, "minimum", tpui_binary_constant(b, "maximum", x, -greatest),
                           greatest);
  if (!largest) x = tpui_unary(b, "negate", x);
  x = tpui_select(b, nan, tpui_constant(b, TPU_F32, largest ? INFINITY : -INFINITY), x);
  int64_t sizes[TPU_MAX_RANK];
  for (int i = 0; i < x.rank; ++i) sizes[i] = i == x.rank - 1 ? k : x.sizes[i];
  const tpui_type_t types[] = {{TPU_F32, x.rank, sizes}, {TPU_I32, x.rank, sizes}};
  tpui_hlo_t results[2];
  tpui_raw_multi(b, "chlo.top_k", 1, &x, tpui_text(b, "<{k = %lld : i64}>", (long long)k), "", 2,
                 types, results);
  return results[1];
}

/* x with dimension `dim` last, or back again. */
static tpui_hlo_t swap_last(tpui_builder_t* b, tpui_hlo_t x, int dim) {
  int permutation[TPU_MAX_RANK];
  if (!tpui_ok(b)) return x;
  for (int i = 0; i < x.rank; ++i) permutation[i] = i;
  if (dim == x.rank - 1) return x;
  permutation[dim] = x.rank - 1;
  permutation[x.rank - 1] = dim;
  return tpui_transpose(b, x, permutation);
}

/* Attributes: k, dim, largest, sorted. */
void tpui_lower_topk(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpu_attrs_id_t attrs = op->record->attrs;
  tpui_hlo_t x = tpui_at_least_1d(b, tpui_operand(op, 0));
  int64_t k = tpu_attr_int(attrs, 0, 0);
  int dim = tpui_wrap_dim(tpu_attr_int(attrs, 1, -1), x.rank);
  bool largest = tpu_attr_int(attrs, 2, 1) != 0;
  if (!tpui_ok(b)) return;
  if (k == 1 && largest && x.sizes[dim] > 0) {
    tpui_hlo_t value, index;
    tpui_arg_reduce(b, "GT", x, dim, &value, &index);
    tpui_set_result_reshaped(op, 0, value);
    tpui_set_result_reshaped(op, 1, index);
    return;
  }
  if (has_kernel(b, x)) {
    const tpui_call_attr_t call_attrs[] = {{"dim", dim}, {"largest", largest}};
    tpui_hlo_t results[2];
    kernel_pick(b, "topk", 1, &x, 2, call_attrs, dim, k, results);
    tpui_set_result_reshaped(op, 0, results[0]);
    tpui_set_result_reshaped(op, 1, results[1]);
    return;
  }
  tpui_hlo_t order;
  // On CPU 90 times faster than sorting for 50 of 50,000; for many of few a sort is as good.
  if (tpu_dtype_is_float(x.dtype) && x.dtype != TPU_F64 && k > 0 && 4 * k <= x.sizes[dim] &&
      x.sizes[dim] <= INT32_MAX) {
    order = swap_last(b, top_positions(b, swap_last(b, x, dim), k, largest), dim);
  } else {
    order = tpui_slice_dim(b, tpui_sort_order(b, x, dim, largest), dim, 0, k);
  }
  if (tpui_result_needed(op, 0)) tpui_set_result_reshaped(op, 0, apply_order(b, x, dim, order));
  tpui_set_result_reshaped(op, 1, order);
}

/* --- one order statistic --- */

/* Sets values (result 0) and indices (result 1, if the op has it): the element of rank `rank`, an
 * INT64 tensor of x's sizes with 1 along dim. */
static void set_ranked(const tpui_lowering_t* op, tpui_hlo_t x, int dim, tpui_hlo_t rank) {
  tpui_builder_t* b = op->b;
  if (has_kernel(b, x)) {
    const tpui_hlo_t operands[] = {x, rank};
    const tpui_call_attr_t attr = {"dim", dim};
    tpui_hlo_t results[2];
    kernel_pick(b, "kth", 2, operands, 1, &attr, dim, 1, results);
    tpui_set_result_reshaped(op, 0, results[0]);
    if (op->record->result_count > 1) tpui_set_result_reshaped(op, 1, results[1]);
    return;
  }
  tpui_hlo_t order = tpui_sort_order(b, x, dim, false);
  tpui_hlo_t index = tpui_take_along(b, order, dim, rank);
  tpui_set_result_reshaped(op, 0, tpui_take_along(b, x, dim, index));
  if (op->record->result_count > 1) tpui_set_result_reshaped(op, 1, index);
}

static void set_empty_results(const tpui_lowering_t* op, int count) {
  for (int k = 0; k < count; ++k) {
    const tpu_meta_t* meta = tpui_result_meta(op, k);
    if (meta == NULL) continue;
    tpui_set_result(op, k, tpui_full(op->b, meta->dtype, 0.0, meta->rank, meta->sizes));
  }
}

/* Operands: self, k; attributes: dim, keepdim. */
void tpui_lower_kthvalue(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_at_least_1d(b, tpui_operand(op, 0));
  int dim = tpui_wrap_dim(tpu_attr_int(op->record->attrs, 0, -1), x.rank);
  tpui_hlo_t k = tpui_operand_as(op, 1, TPU_I64);
  if (!tpui_ok(b)) return;
  if (tpui_count(x, 0, x.rank) == 0) return set_empty_results(op, 2);
  int64_t sizes[TPU_MAX_RANK];
  memcpy(sizes, x.sizes, (size_t)x.rank * sizeof(int64_t));
  sizes[dim] = 1;
  k = tpui_binary(b, "subtract", k, tpui_constant_int(b, TPU_I64, 1));
  set_ranked(op, x, dim, tpui_broadcast_to(b, k, x.rank, sizes));
}

/* argument "all" (no attributes) or "dim" (dim, keepdim); with "nan" in front NaN is left out. */
void tpui_lower_median(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  bool skip_nan = strncmp(op->argument, "nan", 3) == 0;
  bool all = strstr(op->argument, "all") != NULL;
  tpui_hlo_t x = tpui_at_least_1d(b, tpui_operand(op, 0));
  if (all) x = tpui_flatten(b, x);
  int dim = all ? 0 : tpui_wrap_dim(tpu_attr_int(op->record->attrs, 0, 0), x.rank);
  if (!tpui_ok(b)) return;
  int64_t count = x.sizes[dim];
  if (tpui_count(x, 0, x.rank) == 0) {  // PyTorch: NaN for the whole tensor
    bool is_float = tpu_dtype_is_float(x.dtype);
    tpui_set_result(op, 0, tpui_constant(b, is_float ? x.dtype : TPU_F32, is_float ? NAN : 0));
    return;
  }
  // NaN sorts last: the first of them stands at count - nans.
  tpui_hlo_t nans = tpui_convert(b, tpui_is_nan(b, x), TPU_I64);
  nans = tpui_reduce_keep(b, "add", nans, 1, &dim);
  tpui_hlo_t total = tpui_constant_int(b, TPU_I64, count);
  tpui_hlo_t numbers = tpui_binary(b, "subtract", total, nans);
  tpui_hlo_t middle;
  if (skip_nan) {
    middle = tpui_binary(b, "subtract", numbers, tpui_constant_int(b, TPU_I64, 1));
    middle = tpui_binary(b, "maximum", middle, tpui_constant_int(b, TPU_I64, 0));
    middle = tpui_binary(b, "divide", middle, tpui_constant_int(b, TPU_I64, 2));
  } else {
    tpui_hlo_t plain = tpui_constant_int(b, TPU_I64, (count - 1) / 2);
    middle = tpui_select(b, tpui_compare_constant(b, "GT", nans, 0), numbers, plain);
  }
  set_ranked(op, x, dim, middle);
}

/* --- cummax, cummin: a scan over (value, index) pairs --- */

void tpui_lower_cummax(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_at_least_1d(b, tpui_operand(op, 0));
  int dim = tpui_wrap_dim(tpu_attr_int(op->record->attrs, 0, 0), x.rank);
  if (!tpui_ok(b)) return;
  if (has_kernel(b, x)) {
    const tpui_call_attr_t attr = {"dim", dim};
    tpui_hlo_t results[2];
    bool greatest = op->argument[0] == 'G';
    kernel_pick(b, greatest ? "cummax" : "cummin", 1, &x, 1, &attr, dim, x.sizes[dim], results);
    tpui_set_result_reshaped(op, 0, results[0]);
    tpui_set_result_reshaped(op, 1, results[1]);
    return;
  }
  tpui_hlo_t place = tpui_iota(b, TPU_I64, x.rank, x.sizes, dim), index = place;
  tpui_hlo_t zero = tpui_constant(b, x.dtype, 0), none = tpui_constant(b, TPU_I64, 0);
  for (int64_t step = 1; tpui_ok(b) && step < x.sizes[dim]; step *= 2) {
    int64_t low[TPU_MAX_RANK] = {0}, high[TPU_MAX_RANK] = {0};
    low[dim] = step;
    high[dim] = -step;
    tpui_hlo_t before = tpui_pad(b, x, zero, low, high, NULL);
    tpui_hlo_t before_index = tpui_pad(b, index, none, low, high, NULL);
    // The later one wins ties; NaN wins over numbers and later NaN over earlier.
    tpui_hlo_t later = tpui_compare(b, op->argument, x, before);
    if (tpu_dtype_is_float(x.dtype)) later = tpui_binary(b, "or", later, tpui_is_nan(b, x));
    later = tpui_binary(b, "or", later,
                        tpui_compare(b, "LT", place, tpui_constant_int(b, TPU_I64, step)));
    x = tpui_select(b, later, x, before);
    index = tpui_select(b, later, index, before_index);
  }
  tpui_set_result_reshaped(op, 0, x);
  tpui_set_result_reshaped(op, 1, index);
}
