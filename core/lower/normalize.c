/* Softmax and layer, group and batch norms. Computed in float32 for 16-bit floats.
 *
 * Norms share one scheme: a value is brought to a shape in which the dimensions to average over are
 * known, statistics keep their dimensions with size 1, and weights are broadcast to that shape.
 */
#include <math.h>
#include <string.h>

#include "lower/dims.h"
#include "lower/op_lowering.h"
#include "lower/pointwise.h"

static tpui_hlo_t sum_keep(tpui_builder_t* b, tpui_hlo_t x, const tpui_dims_t* dims) {
  return tpui_reduce_keep(b, "add", x, dims->count, dims->dims);
}
static tpui_hlo_t mean_keep(tpui_builder_t* b, tpui_hlo_t x, const tpui_dims_t* dims) {
  return tpui_binary_constant(b, "divide", sum_keep(b, x, dims), (double)tpui_dims_numel(dims, x));
}

/* --- softmax --- */

/* Dimension of attribute 0; a rank-0 operand counts as one element of rank 1. */
static tpui_dims_t softmax_dim(const tpui_lowering_t* op, tpui_hlo_t* x) {
  const int64_t one[1] = {1};
  if (x->rank == 0) *x = tpui_reshape(op->b, *x, 1, one);
  return (tpui_dims_t){.count = 1, .dims = {tpui_dim_attr(op, 0, x->rank)}};
}

static tpu_dtype_t math_of_operand(const tpui_lowering_t* op, int k) {
  const tpu_meta_t* meta = tpui_operand_meta(op, k);
  return tpui_math_dtype(meta != NULL ? meta->dtype : TPU_F32);
}

/* _softmax and, with argument "log", _log_softmax (self, dim, half_to_float) */
void tpui_lower_softmax(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_operand_as(op, 0, math_of_operand(op, 0));
  tpui_dims_t dims = softmax_dim(op, &x);
  tpui_hlo_t shifted = tpui_sub(b, x, tpui_reduce_keep(b, "maximum", x, dims.count, dims.dims));
  tpui_hlo_t e = tpui_unary(b, "exponential", shifted);
  tpui_hlo_t total = sum_keep(b, e, &dims);
  tpui_hlo_t y = op->argument[0] != '\0' ? tpui_sub(b, shifted, tpui_unary(b, "log", total))
                                         : tpui_binary(b, "divide", e, total);
  tpui_set_result_reshaped(op, 0, y);
}

/* (grad, output, dim, input_dtype) of both. */
void tpui_lower_softmax_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t g = tpui_operand_as(op, 0, math_of_operand(op, 0));
  tpui_hlo_t y = tpui_operand_as(op, 1, g.dtype), dx;
  softmax_dim(op, &y);
  tpui_dims_t dims = softmax_dim(op, &g);
  if (op->argument[0] != '\0') {
    dx = tpui_sub(b, g, tpui_mul(b, tpui_unary(b, "exponential", y), sum_keep(b, g, &dims)));
  } else {
    tpui_hlo_t gy = tpui_mul(b, g, y);
    dx = tpui_sub(b, gy, tpui_mul(b, y, sum_keep(b, gy, &dims)));
  }
  tpui_set_result_reshaped(op, 0, dx);
}

/* --- pieces of the norms --- */

/* Centred value and 1 / sqrt(variance + eps), statistics with size-1 dimensions. */
static void standardize_dims(tpui_builder_t* b, tpui_hlo_t x, const tpui_dims_t* dims,
                             tpui_hlo_t eps, tpui_hlo_t* out_mean, tpui_hlo_t* out_variance,
                             tpui_hlo_t* out_rstd) {
  *out_mean = mean_keep(b, x, dims);
  tpui_hlo_t gap = tpui_sub(b, x, *out_mean);
  *out_variance = mean_keep(b, tpui_mul(b, gap, gap), dims);
  *out_rstd = tpui_unary(b, "rsqrt", tpui_add(b, *out_variance, eps));
}

/* Operand k (optional) in x's dtype, reshaped. Returns false when it was not given. */
static bool optional_operand(const tpui_lowering_t* op, int k, tpu_dtype_t dtype, int rank,
                             const int64_t* sizes, tpui_hlo_t* out) {
  if (!tpui_has_operand(op, k)) return false;
  *out = tpui_reshape(op->b, tpui_operand_as(op, k, dtype), rank, sizes);
  return true;
}

/* d/dx of xhat = (x - mean) * rstd for the gradient `g` of xhat, statistics depending on x. */
static tpui_hlo_t standardize_backward(tpui_builder_t* b, tpui_hlo_t g, tpui_hlo_t xhat,
                                       tpui_hlo_t rstd, const tpui_dims_t* dims) {
  tpui_hlo_t centred = tpui_sub(b, g, mean_keep(b, g, dims));
  tpui_hlo_t along = tpui_mul(b, xhat, mean_keep(b, tpui_mul(b, g, xhat), dims));
  return tpui_mul(b, rstd, tpui_sub(b, centred, along));
}

/* Result k: `value` when the mask at attribute `position` asks for it, else zeros. */
static bool wants_result(const tpui_lowering_t* op, int k, int position) {
  const int64_t* mask = NULL;
  int count = tpu_attr_ints(op->record->attrs, position, &mask);
  return tpui_result_meta(op, k) != NULL && (k >= count || mask[k] != 0);
}

static void set_masked(const tpui_lowering_t* op, int k, int position, tpui_hlo_t value) {
  const tpu_meta_t* meta = tpui_result_meta(op, k);
  if (meta == NULL) return;
  if (!wants_result(op, k, position)) {
    value = tpui_full(op->b, value.dtype, 0.0, meta->rank, meta->sizes);
  }
  tpui_set_result_reshaped(op, k, value);
}

/* --- layer norm --- */

/* Trailing dimensions that attribute 0 (normalized_shape) covers. */
static tpui_dims_t layer_dims(const tpui_lowering_t* op, tpui_hlo_t x) {
  const int64_t* shape = NULL;
  int count = tpu_attr_ints(op->record->attrs, 0, &shape);
  tpui_dims_t dims = {.count = count <= x.rank ? count : x.rank};
  for (int i = 0; i < dims.count; ++i) dims.dims[i] = x.rank - dims.count + i;
  return dims;
}

/* native_layer_norm(input, normalized_shape, weight?, bias?, eps): output, mean, rstd */
void tpui_lower_layer_norm(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_operand_as(op, 0, math_of_operand(op, 0)), mean, variance, rstd;
  tpui_dims_t dims = layer_dims(op, x);
  if (!tpui_ok(b)) return;
  if (tpui_result_meta(op, 0)->numel == 0) {
    tpui_lower_zeros(op);
    return;
  }
  standardize_dims(b, x, &dims, tpui_operand_as(op, 3, x.dtype), &mean, &variance, &rstd);
  tpui_hlo_t y = tpui_mul(b, tpui_sub(b, x, mean), rstd);
  if (tpui_has_operand(op, 1)) y = tpui_mul(b, y, tpui_operand_as(op, 1, x.dtype));
  if (tpui_has_operand(op, 2)) y = tpui_add(b, y, tpui_operand_as(op, 2, x.dtype));
  tpui_set_result(op, 0, y);
  tpui_set_result_reshaped(op, 1, mean);
  tpui_set_result_reshaped(op, 2, rstd);
}

/* native_layer_norm_backward(grad, input, normalized_shape, mean, rstd, weight?, bias?, mask) */
void tpui_lower_layer_norm_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_operand_as(op, 1, math_of_operand(op, 1));
  tpui_hlo_t g = tpui_operand_as(op, 0, x.dtype);
  tpui_dims_t dims = layer_dims(op, x);
  if (!tpui_ok(b)) return;
  int64_t stat_sizes[TPU_MAX_RANK], numel = 1;
  for (int i = 0; i < x.rank; ++i) {
    stat_sizes[i] = i < x.rank - dims.count ? x.sizes[i] : 1;
    numel *= x.sizes[i];
  }
  if (numel == 0) {
    tpui_lower_zeros(op);
    return;
  }
  tpui_hlo_t mean = tpui_reshape(b, tpui_operand_as(op, 2, x.dtype), x.rank, stat_sizes);
  tpui_hlo_t rstd = tpui_reshape(b, tpui_operand_as(op, 3, x.dtype), x.rank, stat_sizes);
  tpui_hlo_t xhat = tpui_mul(b, tpui_sub(b, x, mean), rstd);
  tpui_hlo_t scaled = tpui_has_operand(op, 4) ? tpui_mul(b, g, tpui_operand_as(op, 4, x.dtype)) : g;
  tpui_dims_t outer = {.count = x.rank - dims.count};
  for (int i = 0; i < outer.count; ++i) outer.dims[i] = i;
  set_masked(op, 0, 1, standardize_backward(b, scaled, xhat, rstd, &dims));
  set_masked(op, 1, 1, tpui_reduce(b, "add", tpui_mul(b, g, xhat), outer.count, outer.dims));
  set_masked(op, 2, 1, tpui_reduce(b, "add", g, outer.count, outer.dims));
}

/* --- group norm: [N, C, ...] as [N, G, C/G, HxW] --- */

typedef struct group_shape_t {
  int64_t full[4];    // N, G, C/G, HxW
  int64_t stats[4];   // N, G, 1, 1
  int64_t weight[4];  // 1, G, C/G, 1
} group_shape_t;

static group_shape_t group_shape(const tpui_lowering_t* op) {
  tpu_attrs_id_t attrs = op->record->attrs;
  int64_t n = tpu_attr_int(attrs, 0, 0), c = tpu_attr_int(attrs, 1, 0);
  int64_t hw = tpu_attr_int(attrs, 2, 0), g = tpu_attr_int(attrs, 3, 1);
  int64_t per_group = g > 0 ? c / g : 0;
  return (group_shape_t){{n, g, per_group, hw}, {n, g, 1, 1}, {1, g, per_group, 1}};
}

static const tpui_dims_t group_dims = {.count = 2, .dims = {2, 3}};

/* native_group_norm(input, weight?, bias?, N, C, HxW, group, eps): output, mean, rstd */
void tpui_lower_group_norm(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  group_shape_t s = group_shape(op);
  if (tpui_result_meta(op, 0)->numel == 0) {
    tpui_lower_zeros(op);
    return;
  }
  tpui_hlo_t x = tpui_operand_as(op, 0, math_of_operand(op, 0)), mean, variance, rstd, w;
  x = tpui_reshape(b, x, 4, s.full);
  standardize_dims(b, x, &group_dims, tpui_operand_as(op, 3, x.dtype), &mean, &variance, &rstd);
  tpui_hlo_t y = tpui_mul(b, tpui_sub(b, x, mean), rstd);
  if (optional_operand(op, 1, x.dtype, 4, s.weight, &w)) y = tpui_mul(b, y, w);
  if (optional_operand(op, 2, x.dtype, 4, s.weight, &w)) y = tpui_add(b, y, w);
  tpui_set_result_reshaped(op, 0, y);
  tpui_set_result_reshaped(op, 1, mean);
  tpui_set_result_reshaped(op, 2, rstd);
}

/* native_group_norm_backward(grad, input, mean, rstd, weight?, N, C, HxW, group, mask) */
void tpui_lower_group_norm_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  group_shape_t s = group_shape(op);
  const tpu_meta_t* input = tpui_operand_meta(op, 1);
  if (input == NULL || input->numel == 0) {
    tpui_lower_zeros(op);
    return;
  }
  tpui_hlo_t x = tpui_operand_as(op, 1, math_of_operand(op, 1)), w;
  x = tpui_reshape(b, x, 4, s.full);
  tpui_hlo_t g = tpui_reshape(b, tpui_operand_as(op, 0, x.dtype), 4, s.full);
  tpui_hlo_t mean = tpui_reshape(b, tpui_operand_as(op, 2, x.dtype), 4, s.stats);
  tpui_hlo_t rstd = tpui_reshape(b, tpui_operand_as(op, 3, x.dtype), 4, s.stats);
  tpui_hlo_t xhat = tpui_mul(b, tpui_sub(b, x, mean), rstd);
  tpui_hlo_t scaled = optional_operand(op, 4, x.dtype, 4, s.weight, &w) ? tpui_mul(b, g, w) : g;
  const int outer[2] = {0, 3};
  set_masked(op, 0, 4, standardize_backward(b, scaled, xhat, rstd, &group_dims));
  set_masked(op, 1, 4, tpui_reduce(b, "add", tpui_mul(b, g, xhat), 2, outer));
  set_masked(op, 2, 4, tpui_reduce(b, "add", g, 2, outer));
}
