/* Tensors from numbers. */
#include <math.h>
#include <string.h>

#include "lower/op_lowering.h"
#include "lower/pointwise.h"

/* Zeros of every result's sizes. */
void tpui_lower_zeros(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  for (int k = 0; k < op->record->result_count; ++k) {
    const tpu_meta_t* meta = tpui_result_meta(op, k);
    if (meta == NULL) continue;
    tpui_hlo_t zero = tpui_convert(b, tpui_constant_int(b, TPU_I64, 0), meta->dtype);
    if (tpu_dtype_is_float(meta->dtype)) zero = tpui_hidden_zero(b, meta->dtype, false);
    tpui_set_result(op, k, tpui_broadcast_to(b, zero, meta->rank, meta->sizes));
  }
}

/* fill: the value is the last operand, a number or a tensor of one element. */
void tpui_lower_fill(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  int last = tpui_operand_count(op) - 1;
  double number;
  tpui_hlo_t value = tpui_operand(op, last);
  tpu_dtype_t dtype = tpui_result_meta(op, 0)->dtype;
  if (tpui_operand_constant(op, last, &number) && number == 0.0 && tpu_dtype_is_float(dtype)) {
    value = tpui_hidden_zero(b, dtype, signbit(number));
  }
  tpui_set_result(op, 0, tpui_reshape(b, value, 0, NULL));
}

/* Ones on the main diagonal. */
void tpui_lower_eye(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  const tpu_meta_t* meta = tpui_result_meta(op, 0);
  if (meta->rank != 2) {
    tpui_fail(b, TPU_INTERNAL, "a result of %d dimensions", meta->rank);
    return;
  }
  tpui_set_result(op, 0, tpui_on_diagonal(b, meta->sizes));
}

/* Numbers are computed in double (or int64) and rounded once, as PyTorch's kernels do. */
static tpu_dtype_t sequence_dtype(tpu_dtype_t result) {
  return tpu_dtype_is_integral(result) ? TPU_I64 : TPU_F64;
}

/* ARANGE: operands start, step; the result's size says how many. */
void tpui_lower_arange(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  const tpu_meta_t* meta = tpui_result_meta(op, 0);
  tpu_dtype_t dtype = sequence_dtype(meta->dtype);
  tpui_hlo_t index = tpui_iota(b, dtype, 1, meta->sizes, 0);
  tpui_hlo_t scaled = tpui_binary(b, "multiply", index, tpui_operand_as(op, 1, dtype));
  tpui_set_result(op, 0, tpui_binary(b, "add", scaled, tpui_operand_as(op, 0, dtype)));
}

/* start + step * i in the first half, end - step * (n - 1 - i) in the second: both ends exact. */
static tpui_hlo_t linspace_values(const tpui_lowering_t* op, tpu_dtype_t dtype) {
  tpui_builder_t* b = op->b;
  const tpu_meta_t* meta = tpui_result_meta(op, 0);
  int64_t count = meta->sizes[0];
  tpui_hlo_t start = tpui_reshape(b, tpui_operand_as(op, 0, dtype), 0, NULL);
  tpui_hlo_t end = tpui_reshape(b, tpui_operand_as(op, 1, dtype), 0, NULL);
  if (count == 1) return tpui_broadcast_to(b, start, 1, meta->sizes);
  tpui_hlo_t step = tpui_binary_constant(b, "divide", tpui_binary(b, "subtract", end, start),
                                         (double)(count - 1));
  tpui_hlo_t index = tpui_iota(b, dtype, 1, meta->sizes, 0);
  tpui_hlo_t rest = tpui_binary(b, "subtract", tpui_like(b, index, (double)(count - 1)), index);
  tpui_hlo_t up = tpui_binary(b, "add", start, tpui_binary(b, "multiply", step, index));
  tpui_hlo_t down = tpui_binary(b, "subtract", end, tpui_binary(b, "multiply", step, rest));
  tpui_hlo_t first_half = tpui_compare_constant(b, "LT", index, (double)(count / 2));
  return tpui_select(b, first_half, up, down);
}

/* linspace_values(start, end); attribute 0: steps. */
void tpui_lower_linspace(const tpui_lowering_t* op) {
  const tpu_meta_t* meta = tpui_result_meta(op, 0);
  bool narrow = tpu_dtype_is_float(meta->dtype) && meta->dtype != TPU_F64;
  tpui_set_result(op, 0, linspace_values(op, narrow ? TPU_F32 : TPU_F64));
}

/* logspace(start, end, base); attribute 0: steps. */
void tpui_lower_logspace(const tpui_lowering_t* op) {
  const tpu_meta_t* meta = tpui_result_meta(op, 0);
  bool narrow = tpu_dtype_is_float(meta->dtype) && meta->dtype != TPU_F64;
  tpui_hlo_t exponents = linspace_values(op, narrow ? TPU_F32 : TPU_F64);
  tpui_hlo_t base = tpui_operand_as(op, 2, exponents.dtype);
  tpui_set_result(op, 0, tpui_binary(op->b, "power", base, exponents));
}
