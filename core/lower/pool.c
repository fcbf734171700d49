/* Max and average pools of two or three spatial dimensions, and their gradients.
 *
 * Where windows are slow as operations of their own, a window is walked one dimension at a time
 * (separable): k places per dimension instead of k^n, as strided slices that fuse into one loop.
 */
#include "lower/pool.h"

#include "lower/gather.h"
#include "lower/op_lowering.h"

#define MAX_SPATIAL TPUI_MAX_POOLED

typedef tpui_windows_t pool_t;

/* int[n] arguments may have one value for all dimensions, or none. */
static void read_sizes(const tpui_lowering_t* op, int position, int count, const int64_t* if_none,
                       int64_t* out) {
  const int64_t* values = NULL;
  int given = tpu_attr_ints(op->record->attrs, position, &values);
  for (int i = 0; i < count; ++i) {
    out[i] = given == 0 ? if_none[i] : values[i < given ? i : given - 1];
  }
}

static const int64_t ones[MAX_SPATIAL] = {1, 1, 1};
static const int64_t zeros[MAX_SPATIAL] = {0, 0, 0};

static pool_t read_pool(const tpui_lowering_t* op, bool dilated) {
  pool_t p = {.b = op->b, .spatial = op->argument[0] - '0'};
  read_sizes(op, 0, p.spatial, ones, p.kernel);
  read_sizes(op, 1, p.spatial, p.kernel, p.stride);
  read_sizes(op, 2, p.spatial, zeros, p.padding);
  for (int i = 0; i < p.spatial; ++i) p.dilation[i] = 1;
  if (dilated) read_sizes(op, 3, p.spatial, ones, p.dilation);
  return p;
}

tpui_hlo_t tpui_window_place(const tpui_windows_t* p, tpui_hlo_t x, int i, int64_t k,
                             int64_t out_size, tpui_hlo_t fill) {
  int dim = x.rank - p->spatial + i;
  if (!tpui_ok(p->b)) return x;  // its rank means nothing
  int64_t size = x.sizes[dim];
  int64_t first = k * p->dilation[i] - p->padding[i];
  int64_t last = first + (out_size - 1) * p->stride[i];
  int64_t low[TPU_MAX_RANK] = {0}, high[TPU_MAX_RANK] = {0};
  int64_t starts[TPU_MAX_RANK] = {0}, limits[TPU_MAX_RANK], steps[TPU_MAX_RANK];
  if (first < 0) low[dim] = -first;
  if (last + 1 > size) high[dim] = last + 1 - size;
  x = tpui_pad(p->b, x, fill, low, high, NULL);
  for (int d = 0; d < x.rank; ++d) {
    starts[d] = d == dim ? first + low[dim] : 0;
    limits[d] = d == dim ? last + low[dim] + 1 : x.sizes[d];
    steps[d] = d == dim ? p->stride[i] : 1;
  }
  return tpui_slice(p->b, x, starts, limits, steps);
}

tpui_hlo_t tpui_window_unplace(const tpui_windows_t* p, tpui_hlo_t y, int i, int64_t k,
                               int64_t in_size) {
  int dim = y.rank - p->spatial + i;
  if (!tpui_ok(p->b)) return y;
  int64_t first = k * p->dilation[i] - p->padding[i];
  int64_t spread = (y.sizes[dim] - 1) * p->stride[i] + 1;
  int64_t low[TPU_MAX_RANK] = {0}, high[TPU_MAX_RANK] = {0}, interior[TPU_MAX_RANK] = {0};
  low[dim] = first;
  high[dim] = in_size - first - spread;
  interior[dim] = p->stride[i] - 1;
  return tpui_pad(p->b, y, tpui_constant(p->b, y.dtype, 0), low, high, interior);
}

/* --- max --- */

/* Maximum along one dimension with the flat index (within the pooled dimensions) where it was
 * found. `index` holds the flat index of every place of `value`; -1 stands for places outside. */
static void max_along(const pool_t* p, int i, int64_t out_size, tpui_hlo_t* value,
                      tpui_hlo_t* index) {
  tpui_builder_t* b = p->b;
  tpui_hlo_t lowest = tpui_lowest(b, value->dtype), zero = tpui_constant(b, index->dtype, 0);
  tpui_hlo_t best = lowest, best_index = zero;
  for (int64_t k = 0; k < p->kernel[i] && tpui_ok(b); ++k) {
    tpui_hlo_t v = tpui_window_place(p, *value, i, k, out_size, lowest);
    tpui_hlo_t outside = tpui_constant(b, index->dtype, -1);
    tpui_hlo_t at = tpui_window_place(p, *index, i, k, out_size, outside);
    if (k == 0) {
      best = v;
      best_index = at;
      continue;
    }
    // A place outside (index -1) never wins over one inside; NaN wins over everything before it.
    tpui_hlo_t better = tpui_compare(b, "GT", v, best);
    better = tpui_binary(b, "or", better, tpui_is_nan(b, v));
    better = tpui_binary(b, "or", better, tpui_compare_constant(b, "LT", best_index, 0));
    better = tpui_binary(b, "and", better, tpui_compare_constant(b, "GE", at, 0));
    best = tpui_select(b, better, v, best);
    best_index = tpui_select(b, better, at, best_index);
  }
  *value = best;
  *index = best_index;
}

/* What flat indices within the last `spatial` dimensions are counted in. */
static tpu_dtype_t flat_dtype(tpui_hlo_t x, int spatial) {
  return tpui_index_dtype(tpui_count(x, x.rank - spatial, x.rank));
}

/* Flat index within the last `spatial` dimensions. */
static tpui_hlo_t flat_index(tpui_builder_t* b, tpui_hlo_t x, int spatial) {
  int64_t sizes[MAX_SPATIAL];
  int64_t plane = tpui_count(x, x.rank - spatial, x.rank);
  for (int i = 0; i < spatial; ++i) sizes[i] = x.sizes[x.rank - spatial + i];
  tpui_hlo_t flat = tpui_iota(b, flat_dtype(x, spatial), 1, &plane, 0);
  return tpui_broadcast_to(b, tpui_reshape(b, flat, spatial, sizes), x.rank, x.sizes);
}

/* Windows up to this many places are compared directly. */
#define MAX_DIRECT_PLACES 32

/* One index per output place along pooled dimension i: (j * stride + first) * scale, spread over
 * `sizes`. With `clip`, the first place of the window that lies inside instead. */
static tpui_hlo_t place_line(const pool_t* p, int i, int64_t first, int64_t scale, bool clip,
                             tpu_dtype_t dtype, int rank, const int64_t* sizes) {
  int dim = rank - p->spatial + i;
  int64_t count = sizes[dim];
  int64_t* values = tpui_arena(p->b, (size_t)count * sizeof(int64_t));
  if (values == NULL) return tpui_constant(p->b, dtype, 0);
  for (int64_t j = 0; j < count; ++j) {
    int64_t place = j * p->stride[i] + first;
    while (clip && place < 0) place += p->dilation[i];
    values[j] = place * scale;
  }
  return tpui_spread(p->b, tpui_constant_ints(p->b, dtype, (int)count, values), dim, rank, sizes);
}

static int64_t place_count(const pool_t* p) {
  int64_t places = 1;
  for (int i = 0; i < p->spatial; ++i) places *= p->kernel[i];
  return places;
}

/* Compares the places of a window one after the other. A place outside holds the lowest value,
 * which is never greater than the best, so no check of bounds is needed. */
static void max_direct(const pool_t* p, tpui_hlo_t x, const int64_t* sizes, tpui_hlo_t* out_value,
                       tpui_hlo_t* out_index) {
  tpui_builder_t* b = p->b;
  tpui_hlo_t lowest = tpui_lowest(b, x.dtype), value = lowest, index = {0};
  tpu_dtype_t dtype = flat_dtype(x, p->spatial);
  int64_t scale[MAX_SPATIAL];
  for (int i = 0; i < p->spatial; ++i) {
    scale[i] = tpui_count(x, x.rank - p->spatial + i + 1, x.rank);
  }
  for (int i = 0; i < p->spatial; ++i) {
    tpui_hlo_t line = place_line(p, i, -p->padding[i], scale[i], true, dtype, x.rank, sizes);
    index = i == 0 ? line : tpui_binary(b, "add", index, line);
  }
  value = tpui_broadcast_to(b, value, x.rank, sizes);
  for (int64_t place = 0; place < place_count(p) && tpui_ok(b); ++place) {
    int64_t rest = place;
    tpui_hlo_t v = x, at = {0};
    for (int i = p->spatial - 1; i >= 0; --i) {
      int64_t k = rest % p->kernel[i];
      rest /= p->kernel[i];
      v = tpui_window_place(p, v, i, k, sizes[x.rank - p->spatial + i], lowest);
      int64_t first = k * p->dilation[i] - p->padding[i];
      tpui_hlo_t line = place_line(p, i, first, scale[i], false, dtype, x.rank, sizes);
      at = i == p->spatial - 1 ? line : tpui_binary(b, "add", at, line);
    }
    tpui_hlo_t better = tpui_compare(b, "GT", v, value);
    if (tpu_dtype_is_float(v.dtype)) better = tpui_binary(b, "or", better, tpui_is_nan(b, v));
    value = tpui_select(b, better, v, value);
    index = tpui_select(b, better, at, index);
  }
  *out_value = value;
  *out_index = index;
}

void tpui_lower_max_pool(const tpui_lowering_t* op) {
  pool_t p = read_pool(op, true);
  tpui_hlo_t x = tpui_operand(op, 0);
  const tpu_meta_t* result = tpui_result_meta(op, 0);
  if (!tpui_ok(op->b)) return;
  if (result->numel == 0) {
    tpui_set_result(op, 0, tpui_constant(op->b, x.dtype, 0));
    tpui_set_result(op, 1, tpui_constant(op->b, TPU_I64, 0));
    return;
  }
  tpui_hlo_t index;
  if (!tpui_target(op->b)->slow_windows) {
    tpui_window_max(&p, x, flat_index(op->b, x, p.spatial), result->sizes, &x, &index);
  } else if (place_count(&p) <= MAX_DIRECT_PLACES) {
    max_direct(&p, x, result->sizes, &x, &index);
  } else {
    index = flat_index(op->b, x, p.spatial);
    for (int i = p.spatial - 1; i >= 0; --i) {
      max_along(&p, i, result->sizes[x.rank - p.spatial + i], &x, &index);
    }
  }
  tpui_set_result(op, 0, x);
  tpui_set_result(op, 1, index);
}

/* Where a scatter is slow, the gradients of up to this many windows over one input place are added
 * up by comparing the window's index with the place. */
#define MAX_COMPARED_WINDOWS 64

/* Windows that can cover an input place along dimension i. */
static int64_t cover_count(const pool_t* p, int i) {
  int64_t reach = p->dilation[i] * (p->kernel[i] - 1) + 1;
  return (reach + p->stride[i] - 1) / p->stride[i];
}

/* For every input place along dimension i, the value of the t-th last window that begins at or
 * before it: out[x] = y[floor((x + padding) / stride) - t], `fill` where there is none. */
static tpui_hlo_t covering_window(const pool_t* p, tpui_hlo_t y, int i, int64_t t, int64_t in_size,
                                  tpui_hlo_t fill) {
  int dim = y.rank - p->spatial + i;
  int64_t stride = p->stride[i], wide[TPU_MAX_RANK + 1], flat[TPU_MAX_RANK];
  int dims[TPU_MAX_RANK];
  if (!tpui_ok(p->b)) return y;
  for (int d = 0; d < y.rank; ++d) {
    dims[d] = d <= dim ? d : d + 1;
    wide[dims[d]] = y.sizes[d];
    flat[d] = d == dim ? y.sizes[d] * stride : y.sizes[d];
  }
  wide[dim + 1] = stride;
  if (stride > 1) {
    y = tpui_broadcast_in_dim(p->b, y, y.rank + 1, wide, dims);
    y = tpui_reshape(p->b, y, y.rank - 1, flat);
  }
  int64_t low[TPU_MAX_RANK] = {0}, high[TPU_MAX_RANK] = {0};
  low[dim] = t * stride - p->padding[i];
  high[dim] = in_size - flat[dim] - low[dim];
  return tpui_pad(p->b, y, fill, low, high, NULL);
}

static tpui_hlo_t max_grad_by_compare(const pool_t* p, tpui_hlo_t grad, tpui_hlo_t index,
                                      tpui_hlo_t x, int64_t windows) {
  tpui_builder_t* b = p->b;
  tpui_hlo_t here = flat_index(b, x, p->spatial), total = tpui_full_like(b, x, grad.dtype, 0);
  tpui_hlo_t zero = tpui_constant(b, grad.dtype, 0), nowhere = tpui_constant(b, index.dtype, -1);
  for (int64_t window = 0; window < windows && tpui_ok(b); ++window) {
    int64_t rest = window;
    tpui_hlo_t share = grad, maximum = index;
    for (int i = p->spatial - 1; i >= 0; --i) {
      int64_t t = rest % cover_count(p, i), in_size = x.sizes[x.rank - p->spatial + i];
      rest /= cover_count(p, i);
      share = covering_window(p, share, i, t, in_size, zero);
      maximum = covering_window(p, maximum, i, t, in_size, nowhere);
    }
    share = tpui_select(b, tpui_compare(b, "EQ", maximum, here), share, zero);
    total = tpui_binary(b, "add", total, share);
  }
  return total;
}

tpui_hlo_t tpui_pool_scatter(tpui_builder_t* b, tpui_hlo_t grad, tpui_hlo_t index, tpui_hlo_t x,
                             int spatial) {
  int64_t lines = tpui_count(x, 0, x.rank - spatial);
  int64_t in_plane = tpui_count(x, x.rank - spatial, x.rank);
  const int64_t in[] = {lines, in_plane};
  const int64_t out[] = {lines, tpui_count(grad, grad.rank - spatial, grad.rank)};
  tpui_hlo_t zero = tpui_full(b, grad.dtype, 0, 2, in);
  tpui_hlo_t sum = tpui_scatter_along(b, "add", zero, 1, tpui_reshape(b, index, 2, out),
                                      tpui_reshape(b, grad, 2, out));
  return tpui_reshape(b, sum, x.rank, x.sizes);
}

bool tpui_pool_grad_opens(const tpui_lowering_t* op, tpui_hlo_t x, tpui_hlo_t* grad) {
  if (!tpui_ok(op->b)) return false;
  tpu_dtype_t dtype = tpui_math_dtype(grad->dtype);
  if (tpui_count(*grad, 0, grad->rank) == 0 || tpui_count(x, 0, x.rank) == 0) {
    tpui_set_result(op, 0, tpui_constant(op->b, dtype, 0));
    return false;
  }
  *grad = tpui_convert(op->b, *grad, dtype);
  return true;
}

static bool is_dilated(const pool_t* p) {
  for (int i = 0; i < p->spatial; ++i) {
    if (p->dilation[i] != 1) return true;
  }
  return false;
}

/* Operands: grad, self, indices. self says where the maxima are as well as the indices do. */
void tpui_lower_max_pool_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  pool_t p = read_pool(op, true);
  tpui_hlo_t grad = tpui_operand(op, 0), x = tpui_operand(op, 1);
  if (!tpui_ok(b)) return;
  tpui_hlo_t index = tpui_operand_as(op, 2, flat_dtype(x, p.spatial));
  if (!tpui_pool_grad_opens(op, x, &grad)) return;
  if (!tpui_target(b)->slow_windows && !is_dilated(&p)) {
    tpui_set_result(op, 0, tpui_window_scatter_max(&p, tpui_convert(b, x, grad.dtype), grad));
    return;
  }
  int64_t windows = 1;
  for (int i = 0; i < p.spatial; ++i) windows *= cover_count(&p, i);
  bool compared = tpui_target(b)->slow_scatter && windows <= MAX_COMPARED_WINDOWS;
  tpui_set_result(op, 0,
                  compared ? max_grad_by_compare(&p, grad, index, x, windows)
                           : tpui_pool_scatter(b, grad, index, x, p.spatial));
}

/* --- average --- */

/* What every window's sum is divided by, per place of the result; PyTorch's rule: the window's
 * extent clipped to the padded input, or to the input itself without count_include_pad. */
static tpui_hlo_t pool_divisors(const pool_t* p, const int64_t* in, const int64_t* out, int rank,
                                const int64_t* sizes, bool include_pad, tpu_dtype_t dtype) {
  tpui_builder_t* b = p->b;
  tpui_hlo_t total = {0};
  for (int i = 0; i < p->spatial; ++i) {
    int64_t* counts = tpui_arena(b, (size_t)(out[i] > 0 ? out[i] : 1) * sizeof(int64_t));
    if (counts == NULL) return tpui_constant(b, dtype, 1);
    for (int64_t j = 0; j < out[i]; ++j) {
      int64_t start = j * p->stride[i] - p->padding[i], end = start + p->kernel[i];
      if (end > in[i] + p->padding[i]) end = in[i] + p->padding[i];
      if (!include_pad && start < 0) start = 0;
      if (!include_pad && end > in[i]) end = in[i];
      counts[j] = end - start;
    }
    tpui_hlo_t line = tpui_convert(b, tpui_constant_ints(b, TPU_I64, (int)out[i], counts), dtype);
    line = tpui_spread(b, line, rank - p->spatial + i, rank, sizes);
    total = i == 0 ? line : tpui_binary(b, "multiply", total, line);
  }
  return total;
}

/* Operand `given` is the number to divide by instead, if there is one. */
static tpui_hlo_t read_divisors(const tpui_lowering_t* op, int given, const pool_t* p, tpui_hlo_t x,
                                int rank, const int64_t* y_sizes, tpu_dtype_t dtype) {
  if (tpui_has_operand(op, given)) return tpui_operand_as(op, given, dtype);
  int first = rank - p->spatial;
  bool include_pad = tpu_attr_int(op->record->attrs, 4, 1) != 0;
  return pool_divisors(p, x.sizes + first, y_sizes + first, rank, y_sizes, include_pad, dtype);
}

/* Sum of every window; `sizes` are the result's. */
static tpui_hlo_t sum_places(const pool_t* p, tpui_hlo_t sum, const int64_t* sizes) {
  tpui_hlo_t zero = tpui_constant(p->b, sum.dtype, 0);
  for (int i = p->spatial - 1; i >= 0; --i) {
    int64_t out_size = sizes[sum.rank - p->spatial + i];
    tpui_hlo_t total = tpui_window_place(p, sum, i, 0, out_size, zero);
    for (int64_t k = 1; k < p->kernel[i]; ++k) {
      total = tpui_binary(p->b, "add", total, tpui_window_place(p, sum, i, k, out_size, zero));
    }
    sum = total;
  }
  return sum;
}

/* The adjoint: every place gets the sum of the windows that cover it. */
static tpui_hlo_t spread_places(const pool_t* p, tpui_hlo_t grad, const int64_t* sizes) {
  for (int i = p->spatial - 1; i >= 0; --i) {
    int64_t in_size = sizes[grad.rank - p->spatial + i];
    tpui_hlo_t total = tpui_window_unplace(p, grad, i, 0, in_size);
    for (int64_t k = 1; k < p->kernel[i]; ++k) {
      total = tpui_binary(p->b, "add", total, tpui_window_unplace(p, grad, i, k, in_size));
    }
    grad = total;
  }
  return grad;
}

void tpui_lower_avg_pool(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  pool_t p = read_pool(op, false);
  tpui_hlo_t x = tpui_operand(op, 0);
  const tpu_meta_t* result = tpui_result_meta(op, 0);
  if (!tpui_ok(b)) return;
  tpu_dtype_t dtype = tpui_math_dtype(x.dtype);
  if (result->numel == 0) {
    tpui_set_result(op, 0, tpui_constant(b, dtype, 0));
    return;
  }
  tpui_hlo_t sum = tpui_convert(b, x, dtype);
  sum = tpui_target(b)->slow_windows ? sum_places(&p, sum, result->sizes)
                                     : tpui_window_sum(&p, sum, result->sizes);
  tpui_hlo_t by = read_divisors(op, 1, &p, x, result->rank, result->sizes, dtype);
  tpui_set_result(op, 0, tpui_binary(b, "divide", sum, by));
}

void tpui_lower_avg_pool_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  pool_t p = read_pool(op, false);
  tpui_hlo_t grad = tpui_operand(op, 0), x = tpui_operand(op, 1);
  if (!tpui_pool_grad_opens(op, x, &grad)) return;
  grad = tpui_binary(b, "divide", grad,
                     read_divisors(op, 2, &p, x, grad.rank, grad.sizes, grad.dtype));
  tpui_set_result(op, 0,
                  tpui_target(b)->slow_windows ? spread_places(&p, grad, x.sizes)
                                               : tpui_window_spread(&p, grad, x.sizes));
}
