/* Matrix products. 16-bit floats are accumulated in float32. */
#include <string.h>

#include "lower/op_lowering.h"
#include "lower/pointwise.h"

/* (Tall) transposed times narrow: the gradient of a weight. */
static bool transposed_is_faster(const tpui_lowering_t* op, int k, tpui_hlo_t x, tpui_hlo_t y) {
  if (!tpui_target(op->b)->slow_transposed_dot || x.rank != 2 || y.rank != 2) return false;
  const tpu_meta_t* meta = tpui_operand_meta(op, k);
  return meta->strides[0] == 1 && meta->strides[1] > 1 && x.sizes[0] > y.sizes[1] &&
         y.sizes[1] >= 32 && x.sizes[1] >= 32;
}

static tpui_hlo_t transposed_product(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t y,
                                     tpu_dtype_t dtype) {
  const int y_contract[1] = {0}, x_contract[1] = {1}, swap[2] = {1, 0};
  tpui_hlo_t value = tpui_dot_general(b, y, x, 0, NULL, NULL, 1, y_contract, x_contract, dtype);
  // Without the barrier XLA turns the product round again.
  return tpui_transpose(b, tpui_barrier(b, value), swap);
}

/* Product of two operands whose last and second-to-last dimensions contract; dimension 0 is a batch
 * when `batched`. Accumulates in the math dtype of the result. */
static tpui_hlo_t operand_product(const tpui_lowering_t* op, int k, bool batched) {
  tpui_hlo_t x = tpui_operand(op, k), y = tpui_operand(op, k + 1);
  if (!batched && transposed_is_faster(op, k, x, y)) {
    return transposed_product(op->b, x, y, tpui_math_dtype(x.dtype));
  }
  const int batch[1] = {0};
  const int x_contract[1] = {x.rank - 1}, y_contract[1] = {batched ? 1 : 0};
  return tpui_dot_general(op->b, x, y, batched ? 1 : 0, batch, batch, 1, x_contract, y_contract,
                          tpui_math_dtype(x.dtype));
}

/* beta * self + alpha * value. With beta 0, self does not count, not even its NaNs. */
static void set_added(const tpui_lowering_t* op, tpui_hlo_t value, int beta, int alpha) {
  tpui_builder_t* b = op->b;
  double number;
  value = tpui_scaled(op, value, alpha);
  if (tpui_operand_constant(op, beta, &number)) {
    if (number != 0.0) {
      tpui_hlo_t self = tpui_scaled(op, tpui_operand_as(op, 0, value.dtype), beta);
      value = tpui_binary(b, "add", value, self);
    }
    tpui_set_pointwise(op, 0, value);
    return;
  }
  tpui_hlo_t factor = tpui_operand_as(op, beta, value.dtype);
  tpui_hlo_t zero = tpui_convert(b, tpui_constant(b, TPU_F64, 0.0), value.dtype);
  tpui_hlo_t self = tpui_binary(b, "multiply", factor, tpui_operand_as(op, 0, value.dtype));
  self = tpui_select(b, tpui_compare(b, "EQ", factor, zero), zero, self);
  tpui_set_pointwise(op, 0, tpui_binary(b, "add", value, self));
}

/* mm, mv, dot (rank 1 and 2 operands) and, with argument "batch", bmm. */
void tpui_lower_matmul(const tpui_lowering_t* op) {
  tpui_set_result(op, 0, operand_product(op, 0, op->argument[0] != '\0'));
}

/* addmm, addmv and, with argument "batch", baddbmm (self, x, y, beta, alpha). */
void tpui_lower_addmm(const tpui_lowering_t* op) {
  set_added(op, operand_product(op, 1, op->argument[0] != '\0'), 3, 4);
}

/* addbmm: the batch dimension contracts, too. */
void tpui_lower_addbmm(const tpui_lowering_t* op) {
  tpui_hlo_t x = tpui_operand(op, 1), y = tpui_operand(op, 2);
  const int x_contract[2] = {0, 2}, y_contract[2] = {0, 1};
  tpui_hlo_t value = tpui_dot_general(op->b, x, y, 0, NULL, NULL, 2, x_contract, y_contract,
                                      tpui_math_dtype(x.dtype));
  set_added(op, value, 3, 4);
}

/* vdot conjugates its first operand. */
void tpui_lower_vdot(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_operand(op, 0), y = tpui_operand(op, 1);
  if (tpu_dtype_kind(x.dtype) == TPU_KIND_COMPLEX) {
    x = tpui_binary(b, "complex", tpui_unary(b, "real", x),
                    tpui_unary(b, "negate", tpui_unary(b, "imag", x)));
  }
  const int contract[1] = {0};
  tpui_set_result(
      op, 0,
      tpui_dot_general(b, x, y, 0, NULL, NULL, 1, contract, contract, tpui_math_dtype(x.dtype)));
}

/* addr(self, vec1, vec2, beta, alpha): outer product. */
void tpui_lower_addr(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpu_dtype_t dtype = tpui_math_dtype(tpui_result_meta(op, 0)->dtype);
  tpui_hlo_t x = tpui_unsqueeze(b, tpui_operand_as(op, 1, dtype), 1);
  tpui_hlo_t y = tpui_unsqueeze(b, tpui_operand_as(op, 2, dtype), 0);
  set_added(op, tpui_binary(b, dtype == TPU_BOOL ? "and" : "multiply", x, y), 3, 4);
}

/* linalg_cross(self, other, dim): a x b = a[1,2,0] b[2,0,1] - a[2,0,1] b[1,2,0]. */
static tpui_hlo_t rotate_three(tpui_builder_t* b, tpui_hlo_t x, int dim, int64_t by) {
  tpui_hlo_t parts[2] = {tpui_slice_dim(b, x, dim, by, 3), tpui_slice_dim(b, x, dim, 0, by)};
  return tpui_concatenate(b, 2, parts, dim);
}

void tpui_lower_cross(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  const tpu_meta_t* meta = tpui_result_meta(op, 0);
  tpu_dtype_t dtype = tpui_math_dtype(meta->dtype);
  tpui_hlo_t x = tpui_broadcast_to(b, tpui_operand_as(op, 0, dtype), meta->rank, meta->sizes);
  tpui_hlo_t y = tpui_broadcast_to(b, tpui_operand_as(op, 1, dtype), meta->rank, meta->sizes);
  int64_t dim = tpu_attr_int(op->record->attrs, 0, -1);
  if (dim < 0) dim += meta->rank;
  tpui_hlo_t left =
      tpui_binary(b, "multiply", rotate_three(b, x, (int)dim, 1), rotate_three(b, y, (int)dim, 2));
  tpui_hlo_t right =
      tpui_binary(b, "multiply", rotate_three(b, x, (int)dim, 2), rotate_three(b, y, (int)dim, 1));
  tpui_set_result(op, 0, tpui_binary(b, "subtract", left, right));
}
