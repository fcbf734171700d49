#include "lower/vector_norm.h"

#include <math.h>

#include "lower/op_lowering.h"
#include "lower/pointwise.h"

static tpui_hlo_t norm_general(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t order,
                               const tpui_dims_t* dims) {
  tpui_hlo_t sum =
      tpui_reduce(b, "add", tpui_binary(b, "power", x, order), dims->count, dims->dims);
  return tpui_binary(b, "power", sum, tpui_binary(b, "divide", tpui_like(b, order, 1.0), order));
}

/* A p-norm of non-negative numbers for a `p` that is known now. */
static tpui_hlo_t norm_known(tpui_builder_t* b, tpui_hlo_t x, double p, const tpui_dims_t* dims) {
  if (p == 0.0) {
    tpui_hlo_t nonzero = tpui_convert(b, tpui_compare_constant(b, "NE", x, 0.0), x.dtype);
    return tpui_reduce(b, "add", nonzero, dims->count, dims->dims);
  }
  if (p == 1.0) return tpui_reduce(b, "add", x, dims->count, dims->dims);
  if (p == 2.0) {
    return tpui_unary(
        b, "sqrt",
        tpui_reduce(b, "add", tpui_binary(b, "multiply", x, x), dims->count, dims->dims));
  }
  if (isinf(p)) {
    return tpui_reduce(b, p > 0 ? "maximum" : "minimum", x, dims->count, dims->dims);
  }
  return norm_general(b, x, tpui_like(b, x, p), dims);
}

/* The same when the order varies between calls: chosen at run time. */
static tpui_hlo_t norm_varying(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t order,
                               const tpui_dims_t* dims) {
  static const double special[] = {0.0, INFINITY, -INFINITY};
  tpui_hlo_t result = norm_general(b, x, order, dims);
  for (int i = 0; i < 3; ++i) {
    result = tpui_select(b, tpui_compare_constant(b, "EQ", order, special[i]),
                         norm_known(b, x, special[i], dims), result);
  }
  return result;
}

tpui_hlo_t tpui_vector_norm(const tpui_lowering_t* op, int order, tpui_hlo_t x,
                            const tpui_dims_t* dims) {
  double p = 2.0;
  if (!tpui_has_operand(op, order)) return norm_known(op->b, x, 2.0, dims);
  if (tpui_operand_constant(op, order, &p)) return norm_known(op->b, x, p, dims);
  return norm_varying(op->b, x, tpui_operand_as(op, order, x.dtype), dims);
}

/* linalg_vector_norm(self, ord, dim?, keepdim, dtype) and norm.ScalarOpt_dim(self, p?, dim,
 * keepdim) */
void tpui_lower_vector_norm(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  const tpu_meta_t* meta = tpui_result_meta(op, 0);
  tpui_hlo_t x = tpui_operand(op, 0);
  if (tpu_dtype_kind(x.dtype) >= TPU_KIND_SIGNED) x = tpui_unary(b, "abs", x);
  x = tpui_convert(b, x, tpui_math_dtype(meta->dtype));
  tpui_dims_t dims = tpui_dims_attr(op, 0, x.rank);
  tpui_set_result_reshaped(op, 0, tpui_vector_norm(op, 1, x, &dims));
}
