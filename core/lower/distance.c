/* p-norms between and along rows: cdist, renorm, weight norm. */
#include <math.h>

#include "lower/dims.h"
#include "lower/op_lowering.h"
#include "lower/pointwise.h"
#include "lower/vector_norm.h"

/* Differences of all row pairs: x1 [..., P, M], x2 [..., R, M] -> [..., P, R, M]. */
static tpui_hlo_t pair_gaps(const tpui_lowering_t* op, int k, tpu_dtype_t dtype) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_operand_as(op, k, dtype), y = tpui_operand_as(op, k + 1, dtype);
  return tpui_binary(b, "subtract", tpui_unsqueeze(b, x, x.rank - 1),
                     tpui_unsqueeze(b, y, y.rank - 2));
}

/* _cdist_forward(x1, x2, p, compute_mode): distances [..., P, R] */
void tpui_lower_cdist(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t gaps = pair_gaps(op, 0, tpui_math_dtype(tpui_result_meta(op, 0)->dtype));
  tpui_dims_t dims = {.count = 1, .dims = {gaps.rank - 1}};
  if (!tpui_ok(b)) return;
  if (gaps.sizes[gaps.rank - 1] == 0 || tpui_result_meta(op, 0)->numel == 0) {
    tpui_lower_zeros(op);
    return;
  }
  tpui_set_result(op, 0, tpui_vector_norm(op, 2, tpui_unary(b, "abs", gaps), &dims));
}

/* d norm / d gap for a norm of order p: sign(gap) (|gap| / norm)^(p - 1); 0 where the norm is 0. */
static tpui_hlo_t norm_slope(const tpui_lowering_t* op, tpui_hlo_t gap, tpui_hlo_t norm,
                             int order) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t sign = tpui_unary(b, "sign", gap), zero = tpui_like(b, gap, 0.0);
  tpui_hlo_t size = tpui_unary(b, "abs", gap), p = tpui_operand_as(op, order, gap.dtype);
  tpui_hlo_t ratio = tpui_binary(b, "divide", size, norm);
  tpui_hlo_t general = tpui_mul(
      b, sign, tpui_binary(b, "power", ratio, tpui_binary_constant(b, "subtract", p, 1.0)));
  tpui_hlo_t extreme = tpui_select(b, tpui_compare(b, "EQ", size, norm), sign, zero);
  tpui_hlo_t slope = tpui_select(b, tpui_compare_constant(b, "EQ", p, INFINITY), extreme, general);
  slope = tpui_select(b, tpui_compare_constant(b, "EQ", p, 1.0), sign, slope);
  slope = tpui_select(b, tpui_compare_constant(b, "EQ", p, 0.0), zero, slope);
  tpui_hlo_t nothing = tpui_binary(b, "or", tpui_compare_constant(b, "EQ", norm, 0.0),
                                   tpui_compare_constant(b, "EQ", gap, 0.0));
  return tpui_select(b, nothing, zero, slope);
}

/* Sums over the dimensions in which a tensor like `meta` was broadcast to x. */
static tpui_hlo_t sum_to(tpui_builder_t* b, tpui_hlo_t x, const tpu_meta_t* meta) {
  int dims[TPU_MAX_RANK], count = 0, lead = x.rank - meta->rank;
  for (int i = 0; i < x.rank; ++i) {
    if (i < lead || (meta->sizes[i - lead] == 1 && x.sizes[i] != 1)) dims[count++] = i;
  }
  return tpui_reduce(b, "add", x, count, dims);
}

/* _cdist_backward(grad, x1, x2, p, distances): gradient of x1 */
void tpui_lower_cdist_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  const tpu_meta_t* meta = tpui_result_meta(op, 0);
  tpu_dtype_t dtype = tpui_math_dtype(meta->dtype);
  tpui_hlo_t gaps = pair_gaps(op, 1, dtype);
  tpui_hlo_t g = tpui_operand_as(op, 0, dtype), norm = tpui_operand_as(op, 4, dtype);
  g = tpui_unsqueeze(b, g, g.rank);
  norm = tpui_unsqueeze(b, norm, norm.rank);
  tpui_hlo_t all = tpui_mul(b, g, norm_slope(op, gaps, norm, 3));
  const int over[1] = {all.rank - 2};
  tpui_set_result_reshaped(op, 0, sum_to(b, tpui_reduce(b, "add", all, 1, over), meta));
}

/* renorm(self, p, dim, maxnorm): slices along dim whose norm is too large are scaled down. */
void tpui_lower_renorm(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_operand_as(op, 0, tpui_math_dtype(tpui_result_meta(op, 0)->dtype));
  int dim = tpui_dim_attr(op, 0, x.rank);
  tpui_dims_t dims = {0};
  int64_t sizes[TPU_MAX_RANK];
  for (int i = 0; i < x.rank; ++i) {
    sizes[i] = i == dim ? x.sizes[i] : 1;
    if (i != dim) dims.dims[dims.count++] = i;
  }
  if (!tpui_ok(b)) return;
  tpui_hlo_t size = tpui_unary(b, "abs", x);
  tpui_hlo_t norm = tpui_reshape(b, tpui_vector_norm(op, 1, size, &dims), x.rank, sizes);
  tpui_hlo_t limit = tpui_operand_as(op, 2, norm.dtype);
  tpui_hlo_t scale = tpui_binary(b, "divide", limit, tpui_binary_constant(b, "add", norm, 1e-7));
  scale = tpui_select(b, tpui_compare(b, "GT", norm, limit), scale, tpui_like(b, norm, 1.0));
  tpui_set_result(op, 0, tpui_mul(b, x, tpui_convert(b, scale, x.dtype)));
}

/* --- weight norm: w = v * g / |v|, the norm over all dimensions but one --- */

static tpui_dims_t all_but(const tpui_lowering_t* op, int rank) {
  int keep = tpui_dim_attr(op, 0, rank);
  tpui_dims_t dims = {0};
  for (int i = 0; i < rank; ++i) {
    if (i != keep) dims.dims[dims.count++] = i;
  }
  return dims;
}

/* _weight_norm_interface(v, g, dim): w, norms */
void tpui_lower_weight_norm(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t v = tpui_operand_as(op, 0, tpui_math_dtype(tpui_result_meta(op, 0)->dtype));
  tpui_hlo_t g = tpui_operand_as(op, 1, v.dtype);
  tpui_dims_t dims = all_but(op, v.rank);
  tpui_hlo_t norm =
      tpui_unary(b, "sqrt", tpui_reduce_keep(b, "add", tpui_mul(b, v, v), dims.count, dims.dims));
  tpui_set_result(op, 0, tpui_mul(b, v, tpui_binary(b, "divide", g, norm)));
  tpui_set_result_reshaped(op, 1, norm);
}

/* _weight_norm_interface_backward(grad_w, v, g, norms, dim): gradients of v and g */
void tpui_lower_weight_norm_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t w = tpui_operand_as(op, 0, tpui_math_dtype(tpui_result_meta(op, 0)->dtype));
  tpui_hlo_t v = tpui_operand_as(op, 1, w.dtype), g = tpui_operand_as(op, 2, w.dtype);
  tpui_dims_t dims = all_but(op, v.rank);
  tpui_hlo_t along = tpui_reduce_keep(b, "add", tpui_mul(b, w, v), dims.count, dims.dims);
  tpui_hlo_t norm = tpui_reshape(b, tpui_operand_as(op, 3, w.dtype), along.rank, along.sizes);
  tpui_hlo_t unit = tpui_binary(b, "divide", along, norm);
  tpui_hlo_t inner =
      tpui_binary(b, "subtract", w, tpui_mul(b, v, tpui_binary(b, "divide", unit, norm)));
  tpui_set_result(op, 0, tpui_mul(b, tpui_binary(b, "divide", g, norm), inner));
  tpui_set_result_reshaped(op, 1, unit);
}
