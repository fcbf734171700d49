/* Adaptive pools: window o of `out` covers input places floor(o*in/out) .. ceil((o+1)*in/out). */
#include "lower/gather.h"
#include "lower/linear_map.h"
#include "lower/op_lowering.h"
#include "lower/pool.h"

static int64_t window_start(int64_t o, int64_t in, int64_t out) { return o * in / out; }
static int64_t window_end(int64_t o, int64_t in, int64_t out) {
  return ((o + 1) * in + out - 1) / out;
}

/* --- linear maps --- */

static tpui_hlo_t apply_matrix(tpui_builder_t* b, tpui_hlo_t matrix, tpui_hlo_t x, int dim,
                               int contract) {
  if (!tpui_ok(b)) return x;
  tpui_hlo_t y = tpui_dot_general(b, x, matrix, 0, NULL, NULL, 1, &dim, &contract, x.dtype);
  int permutation[TPU_MAX_RANK];  // the new dimension is last; it belongs at `dim`
  for (int i = 0; i < x.rank; ++i) {
    permutation[i] = i < dim ? i : i == dim ? x.rank - 1 : i - 1;
  }
  return dim == x.rank - 1 ? y : tpui_transpose(b, y, permutation);
}

tpui_hlo_t tpui_apply_matrix(tpui_builder_t* b, tpui_hlo_t matrix, tpui_hlo_t x, int dim) {
  return apply_matrix(b, matrix, x, dim, 1);
}

tpui_hlo_t tpui_apply_transposed(tpui_builder_t* b, tpui_hlo_t matrix, tpui_hlo_t y, int dim) {
  return apply_matrix(b, matrix, y, dim, 0);
}

/* [out, in]: 1 / window length inside window o, 0 elsewhere. */
static tpui_hlo_t average_matrix(tpui_builder_t* b, int64_t in, int64_t out, tpu_dtype_t dtype) {
  int64_t* starts = tpui_arena(b, (size_t)out * sizeof(int64_t));
  int64_t* ends = tpui_arena(b, (size_t)out * sizeof(int64_t));
  if (starts == NULL || ends == NULL) return tpui_constant(b, dtype, 0);
  for (int64_t o = 0; o < out; ++o) {
    starts[o] = window_start(o, in, out);
    ends[o] = window_end(o, in, out);
  }
  const int64_t sizes[] = {out, in};
  tpu_dtype_t index = tpui_index_dtype(in);
  tpui_hlo_t place = tpui_iota(b, index, 2, sizes, 1);
  tpui_hlo_t start = tpui_spread(b, tpui_constant_ints(b, index, (int)out, starts), 0, 2, sizes);
  tpui_hlo_t end = tpui_spread(b, tpui_constant_ints(b, index, (int)out, ends), 0, 2, sizes);
  tpui_hlo_t inside =
      tpui_binary(b, "and", tpui_compare(b, "GE", place, start), tpui_compare(b, "LT", place, end));
  tpui_hlo_t length = tpui_convert(b, tpui_binary(b, "subtract", end, start), dtype);
  tpui_hlo_t share = tpui_binary(b, "divide", tpui_constant(b, dtype, 1), length);
  return tpui_select(b, inside, share, tpui_constant(b, dtype, 0));
}

/* x with dimension `dim` split into (first, second). */
static tpui_hlo_t split_dim(tpui_builder_t* b, tpui_hlo_t x, int dim, int64_t first,
                            int64_t second) {
  int64_t sizes[TPU_MAX_RANK + 1];
  if (!tpui_ok(b)) return x;
  for (int i = 0; i < dim; ++i) sizes[i] = x.sizes[i];
  sizes[dim] = first;
  sizes[dim + 1] = second;
  for (int i = dim + 1; i < x.rank; ++i) sizes[i + 1] = x.sizes[i];
  return tpui_reshape(b, x, x.rank + 1, sizes);
}

static tpui_hlo_t average_along(tpui_builder_t* b, tpui_hlo_t x, int dim, int64_t out) {
  int64_t in = x.sizes[dim];
  if (!tpui_ok(b)) return x;
  if (in % out != 0) return tpui_apply_matrix(b, average_matrix(b, in, out, x.dtype), x, dim);
  int inner = dim + 1;
  tpui_hlo_t sum = tpui_reduce(b, "add", split_dim(b, x, dim, out, in / out), 1, &inner);
  return tpui_binary_constant(b, "divide", sum, (double)(in / out));
}

static tpui_hlo_t average_grad_along(tpui_builder_t* b, tpui_hlo_t y, int dim, int64_t in) {
  int64_t out = y.sizes[dim];
  if (!tpui_ok(b)) return y;
  if (in % out != 0) return tpui_apply_transposed(b, average_matrix(b, in, out, y.dtype), y, dim);
  int64_t wide[TPU_MAX_RANK + 1], flat[TPU_MAX_RANK];
  int dims[TPU_MAX_RANK];
  for (int i = 0; i < y.rank; ++i) {
    dims[i] = i <= dim ? i : i + 1;
    wide[dims[i]] = y.sizes[i];
    flat[i] = i == dim ? in : y.sizes[i];
  }
  wide[dim + 1] = in / out;
  y = tpui_binary_constant(b, "divide", y, (double)(in / out));
  return tpui_reshape(b, tpui_broadcast_in_dim(b, y, y.rank + 1, wide, dims), y.rank, flat);
}

/* --- average --- */

void tpui_lower_adaptive_avg_pool(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  int spatial = op->argument[0] - '0';
  tpui_hlo_t x = tpui_operand(op, 0);
  const tpu_meta_t* result = tpui_result_meta(op, 0);
  if (!tpui_ok(b)) return;
  tpu_dtype_t dtype = tpui_math_dtype(x.dtype);
  x = tpui_convert(b, x, dtype);
  if (result->numel == 0) x = tpui_constant(b, dtype, 0);
  for (int i = 1; i <= spatial && x.rank >= spatial; ++i) {
    x = average_along(b, x, x.rank - i, result->sizes[result->rank - i]);
  }
  tpui_set_result(op, 0, x);
}

void tpui_lower_adaptive_avg_pool_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  int spatial = op->argument[0] - '0';
  tpui_hlo_t grad = tpui_operand(op, 0);
  const tpu_meta_t* x = tpui_operand_meta(op, 1);
  if (!tpui_ok(b)) return;
  tpu_dtype_t dtype = tpui_math_dtype(grad.dtype);
  if (x->numel == 0 || tpui_count(grad, 0, grad.rank) == 0) {
    tpui_set_result(op, 0, tpui_constant(b, dtype, 0));
    return;
  }
  grad = tpui_convert(b, grad, dtype);
  for (int i = 1; i <= spatial; ++i) {
    grad = average_grad_along(b, grad, grad.rank - i, x->sizes[x->rank - i]);
  }
  tpui_set_result(op, 0, grad);
}

/* --- maximum --- */

/* Maximum along `dim` with its flat index; places past a window's end repeat its last one, which
 * never beats itself. */
static void adaptive_max_along(tpui_builder_t* b, int dim, int64_t out, tpui_hlo_t* value,
                               tpui_hlo_t* index) {
  int64_t in = value->sizes[dim], longest = 0;
  int64_t* places = tpui_arena(b, (size_t)out * sizeof(int64_t));
  if (places == NULL) return;
  for (int64_t o = 0; o < out; ++o) {
    int64_t length = window_end(o, in, out) - window_start(o, in, out);
    if (length > longest) longest = length;
  }
  tpui_hlo_t best = *value, best_index = *index;
  for (int64_t k = 0; k < longest && tpui_ok(b); ++k) {
    for (int64_t o = 0; o < out; ++o) {
      int64_t place = window_start(o, in, out) + k, last = window_end(o, in, out) - 1;
      places[o] = place < last ? place : last;
    }
    tpui_hlo_t line = tpui_constant_ints(b, TPU_I64, (int)out, places);
    tpui_hlo_t v = tpui_take_dim(b, *value, dim, line), at = tpui_take_dim(b, *index, dim, line);
    if (k > 0) {
      tpui_hlo_t better = tpui_binary(b, "or", tpui_compare(b, "GT", v, best), tpui_is_nan(b, v));
      v = tpui_select(b, better, v, best);
      at = tpui_select(b, better, at, best_index);
    }
    best = v;
    best_index = at;
  }
  *value = best;
  *index = best_index;
}

void tpui_lower_adaptive_max_pool(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  int spatial = op->argument[0] - '0';
  tpui_hlo_t x = tpui_operand(op, 0);
  const tpu_meta_t* result = tpui_result_meta(op, 0);
  if (!tpui_ok(b)) return;
  if (result->numel == 0) {
    tpui_set_result(op, 0, tpui_constant(b, x.dtype, 0));
    tpui_set_result(op, 1, tpui_constant(b, TPU_I64, 0));
    return;
  }
  int64_t plane = tpui_count(x, x.rank - spatial, x.rank);
  tpui_hlo_t index = tpui_iota(b, tpui_index_dtype(plane), 1, &plane, 0);
  index = tpui_reshape(b, index, spatial, x.sizes + x.rank - spatial);
  index = tpui_broadcast_to(b, index, x.rank, x.sizes);
  for (int i = 1; i <= spatial; ++i) {
    adaptive_max_along(b, x.rank - i, result->sizes[result->rank - i], &x, &index);
  }
  tpui_set_result(op, 0, x);
  tpui_set_result(op, 1, index);
}

void tpui_lower_adaptive_max_pool_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t grad = tpui_operand(op, 0), x = tpui_operand(op, 1), index = tpui_operand(op, 2);
  if (!tpui_pool_grad_opens(op, x, &grad)) return;
  tpui_set_result(op, 0, tpui_pool_scatter(b, grad, index, x, op->argument[0] - '0'));
}
