/* Upsampling: nearest, nearest-exact, linear and cubic in one to three dimensions, with gradients.
 *
 * Along each dimension the result is a sum of taps: y[o] = sum_t weight_t[o] * x[place_t[o]]. The
 * gradient uses the same taps as a matrix, so it needs no scatter. Places are computed from the
 * scale in the program, because a scale is a number that may vary between calls.
 */
#include <string.h>

#include "lower/gather.h"
#include "lower/linear_map.h"
#include "lower/op_lowering.h"

#define MAX_TAPS 4

typedef struct taps_t {
  int count;
  tpui_hlo_t places[MAX_TAPS];   // indices [out], inside the input
  tpui_hlo_t weights[MAX_TAPS];  // math dtype [out]; not set for nearest
} taps_t;

typedef struct resample_t {
  tpui_builder_t* b;
  const char* mode;  // "nearest" "exact" "linear" "cubic"
  bool align_corners;
  int spatial;
  int first_scale;  // operand of the first dimension's scale
  tpu_dtype_t dtype;
} resample_t;

static resample_t read_resample(const tpui_lowering_t* op, int align_position) {
  resample_t r = {.b = op->b, .spatial = op->argument[0] - '0', .mode = op->argument + 1};
  r.first_scale = 1;
  bool has_corners = strcmp(r.mode, "linear") == 0 || strcmp(r.mode, "cubic") == 0;
  if (has_corners) r.align_corners = tpu_attr_int(op->record->attrs, align_position, 0) != 0;
  return r;
}

/* Input places per output place, rank 0. */
static tpui_hlo_t scale_ratio(const resample_t* r, const tpui_lowering_t* op, int i, int64_t in,
                              int64_t out, tpu_dtype_t dtype) {
  tpui_builder_t* b = r->b;
  if (r->align_corners) {
    return tpui_binary(b, "divide", tpui_constant(b, dtype, out > 1 ? (double)(in - 1) : 0),
                       tpui_constant(b, dtype, out > 1 ? (double)(out - 1) : 1));
  }
  tpui_hlo_t whole = tpui_binary(b, "divide", tpui_constant(b, dtype, (double)in),
                                 tpui_constant(b, dtype, (double)out));
  if (!tpui_has_operand(op, r->first_scale + i)) return whole;
  tpui_hlo_t scale = tpui_operand(op, r->first_scale + i);
  tpui_hlo_t inverse = tpui_binary(b, "divide", tpui_constant(b, scale.dtype, 1), scale);
  inverse = tpui_convert(b, inverse, dtype);
  return tpui_select(b, tpui_compare_constant(b, "GT", scale, 0), inverse, whole);
}

static tpui_hlo_t as_place(tpui_builder_t* b, tpui_hlo_t x, int64_t in) {
  tpu_dtype_t dtype = tpui_index_dtype(in);
  tpui_hlo_t place = tpui_convert(b, x, dtype);
  place = tpui_binary(b, "maximum", place, tpui_constant(b, dtype, 0));
  return tpui_binary(b, "minimum", place, tpui_constant_int(b, dtype, in - 1));
}

/* Cubic convolution with a = -0.75: |t| <= 1 and 1 < |t| < 2. */
static tpui_hlo_t cubic_near(tpui_builder_t* b, tpui_hlo_t t) {
  tpui_hlo_t w =
      tpui_binary_constant(b, "subtract", tpui_binary_constant(b, "multiply", t, 1.25), 2.25);
  w = tpui_binary(b, "multiply", tpui_binary(b, "multiply", w, t), t);
  return tpui_binary_constant(b, "add", w, 1);
}

static tpui_hlo_t cubic_far(tpui_builder_t* b, tpui_hlo_t t) {
  const double a = -0.75;
  tpui_hlo_t w = tpui_binary_constant(b, "multiply", t, a);
  w = tpui_binary(b, "multiply", tpui_binary_constant(b, "subtract", w, 5 * a), t);
  w = tpui_binary(b, "multiply", tpui_binary_constant(b, "add", w, 8 * a), t);
  return tpui_binary_constant(b, "subtract", w, 4 * a);
}

static taps_t make_taps(const resample_t* r, const tpui_lowering_t* op, int i, int64_t in,
                        int64_t out) {
  tpui_builder_t* b = r->b;
  taps_t taps = {.count = 1};
  bool nearest = strcmp(r->mode, "nearest") == 0, exact = strcmp(r->mode, "exact") == 0;
  tpu_dtype_t dtype = nearest || exact ? TPU_F32 : r->dtype;
  tpui_hlo_t at = tpui_iota(b, dtype, 1, &out, 0);
  tpui_hlo_t step = scale_ratio(r, op, i, in, out, dtype);
  if (nearest || exact) {
    if (exact) at = tpui_binary_constant(b, "add", at, 0.5);
    at = tpui_unary(b, "floor", tpui_binary(b, "multiply", at, step));
    taps.places[0] = as_place(b, at, in);
    return taps;
  }
  if (r->align_corners) {
    at = tpui_binary(b, "multiply", at, step);
  } else {
    at = tpui_binary(b, "multiply", tpui_binary_constant(b, "add", at, 0.5), step);
    at = tpui_binary_constant(b, "subtract", at, 0.5);
  }
  bool cubic = strcmp(r->mode, "cubic") == 0;
  if (!cubic) at = tpui_binary_constant(b, "maximum", at, 0);
  tpui_hlo_t base = tpui_unary(b, "floor", at);
  if (!cubic) {
    base = tpui_binary_constant(b, "minimum", base, (double)(in - 1));
    tpui_hlo_t right = tpui_binary(b, "subtract", at, base);
    right = tpui_binary_constant(b, "minimum", right, 1);
    taps.count = 2;
    taps.places[0] = as_place(b, base, in);
    taps.places[1] = as_place(b, tpui_binary_constant(b, "add", base, 1), in);
    taps.weights[0] = tpui_binary(b, "subtract", tpui_constant(b, dtype, 1), right);
    taps.weights[1] = right;
    return taps;
  }
  taps.count = 4;
  tpui_hlo_t t = tpui_binary(b, "subtract", at, base);
  tpui_hlo_t rest = tpui_binary(b, "subtract", tpui_constant(b, dtype, 1), t);
  taps.weights[0] = cubic_far(b, tpui_binary_constant(b, "add", t, 1));
  taps.weights[1] = cubic_near(b, t);
  taps.weights[2] = cubic_near(b, rest);
  taps.weights[3] = cubic_far(b, tpui_binary_constant(b, "add", rest, 1));
  for (int k = 0; k < 4; ++k) {
    taps.places[k] = as_place(b, tpui_binary_constant(b, "add", base, k - 1), in);
  }
  return taps;
}

/* [out, in] matrix of the taps. */
static tpui_hlo_t tap_matrix(const resample_t* r, const taps_t* taps, int64_t in, int64_t out) {
  tpui_builder_t* b = r->b;
  const int64_t sizes[] = {out, in};
  tpui_hlo_t column = tpui_iota(b, tpui_index_dtype(in), 2, sizes, 1), sum = {0};
  for (int k = 0; k < taps->count; ++k) {
    tpui_hlo_t hit = tpui_compare(b, "EQ", column, tpui_spread(b, taps->places[k], 0, 2, sizes));
    tpui_hlo_t weight = taps->count == 1 ? tpui_constant(b, r->dtype, 1)
                                         : tpui_spread(b, taps->weights[k], 0, 2, sizes);
    tpui_hlo_t term = tpui_select(b, hit, weight, tpui_constant(b, r->dtype, 0));
    sum = k == 0 ? term : tpui_binary(b, "add", sum, term);
  }
  return sum;
}

/* True when every input place is repeated out/in times (nearest with a whole ratio). */
static bool is_repeat(const resample_t* r, const tpui_lowering_t* op, int i, int64_t in,
                      int64_t out) {
  if (r->mode[0] != 'n' && r->mode[0] != 'e') return false;
  if (in == 0 || out % in != 0) return false;
  double scale = 0;
  if (!tpui_has_operand(op, r->first_scale + i)) return true;
  return tpui_operand_constant(op, r->first_scale + i, &scale) &&
         (scale == (double)(out / in) || scale <= 0);
}

static tpui_hlo_t repeat_along(tpui_builder_t* b, tpui_hlo_t x, int dim, int64_t times) {
  int64_t wide[TPU_MAX_RANK + 1], flat[TPU_MAX_RANK];
  int dims[TPU_MAX_RANK];
  if (!tpui_ok(b)) return x;
  for (int i = 0; i < x.rank; ++i) {
    dims[i] = i <= dim ? i : i + 1;
    wide[dims[i]] = x.sizes[i];
    flat[i] = i == dim ? x.sizes[i] * times : x.sizes[i];
  }
  wide[dim + 1] = times;
  return tpui_reshape(b, tpui_broadcast_in_dim(b, x, x.rank + 1, wide, dims), x.rank, flat);
}

static tpui_hlo_t sum_repeats(tpui_builder_t* b, tpui_hlo_t y, int dim, int64_t times) {
  int64_t wide[TPU_MAX_RANK + 1];
  if (!tpui_ok(b)) return y;
  for (int i = 0; i < y.rank; ++i) wide[i <= dim ? i : i + 1] = y.sizes[i];
  wide[dim] = y.sizes[dim] / times;
  wide[dim + 1] = times;
  int inner = dim + 1;
  return tpui_reduce(b, "add", tpui_reshape(b, y, y.rank + 1, wide), 1, &inner);
}

static tpui_hlo_t forward_along(const resample_t* r, const tpui_lowering_t* op, int i, tpui_hlo_t x,
                                int64_t out) {
  int dim = x.rank - r->spatial + i;
  int64_t in = x.sizes[dim];
  if (is_repeat(r, op, i, in, out)) return repeat_along(r->b, x, dim, out / in);
  taps_t taps = make_taps(r, op, i, in, out);
  tpui_hlo_t sum = {0};
  for (int k = 0; k < taps.count; ++k) {
    tpui_hlo_t term = tpui_take_dim(r->b, x, dim, taps.places[k]);
    if (taps.count > 1) {
      term = tpui_binary(r->b, "multiply", term,
                         tpui_spread(r->b, taps.weights[k], dim, term.rank, term.sizes));
    }
    sum = k == 0 ? term : tpui_binary(r->b, "add", sum, term);
  }
  return sum;
}

void tpui_lower_upsample(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  resample_t r = read_resample(op, 1);
  tpui_hlo_t x = tpui_operand(op, 0);
  const tpu_meta_t* result = tpui_result_meta(op, 0);
  if (!tpui_ok(b)) return;
  r.dtype = tpui_math_dtype(x.dtype);
  if (result->numel == 0) {
    tpui_set_result(op, 0, tpui_constant(b, x.dtype, 0));
    return;
  }
  bool weighted = r.mode[0] == 'l' || r.mode[0] == 'c';
  bool integral = tpu_dtype_is_integral(x.dtype);
  if (weighted && integral) r.dtype = TPU_F32;
  if (weighted) x = tpui_convert(b, x, r.dtype);
  for (int i = r.spatial - 1; i >= 0; --i) {
    x = forward_along(&r, op, i, x, result->sizes[result->rank - r.spatial + i]);
    if (weighted && integral) {  // uint8 images: PyTorch rounds and saturates after every dimension
      x = tpui_unary(b, "floor", tpui_binary_constant(b, "add", x, 0.5));
      x = tpui_binary_constant(b, "minimum", tpui_binary_constant(b, "maximum", x, 0), 255);
    }
  }
  tpui_set_result(op, 0, x);
}

void tpui_lower_upsample_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  resample_t r = read_resample(op, 2);
  tpui_hlo_t grad = tpui_operand(op, 0);
  const tpu_meta_t* result = tpui_result_meta(op, 0);
  if (!tpui_ok(b)) return;
  r.dtype = tpui_math_dtype(grad.dtype);
  if (result->numel == 0) {
    tpui_set_result(op, 0, tpui_constant(b, r.dtype, 0));
    return;
  }
  grad = tpui_convert(b, grad, r.dtype);
  for (int i = 0; i < r.spatial; ++i) {
    int dim = grad.rank - r.spatial + i;
    int64_t in = result->sizes[dim], out = grad.sizes[dim];
    if (is_repeat(&r, op, i, in, out)) {
      grad = sum_repeats(b, grad, dim, out / in);
    } else {
      taps_t taps = make_taps(&r, op, i, in, out);
      grad = tpui_apply_transposed(b, tap_matrix(&r, &taps, in, out), grad, dim);
    }
  }
  tpui_set_result(op, 0, grad);
}
