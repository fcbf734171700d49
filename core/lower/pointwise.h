/* Helpers that the op families share. Internal to lower/.
 *
 * Formulas are computed in the "math dtype": the record's compute dtype, except that 16-bit floats
 * are computed in float32 and rounded once at the end, as PyTorch does.
 */
#ifndef TPU_LOWER_POINTWISE_H_
#define TPU_LOWER_POINTWISE_H_

#include "lower/builder.h"
#include "lower/gather.h"

/* The record's compute dtype; result 0's dtype when the op does not promote. */
tpu_dtype_t tpui_compute_dtype(const tpui_lowering_t* op);
/* tpui_math_dtype of the above. */
tpu_dtype_t tpui_record_math_dtype(const tpui_lowering_t* op);
/* Operand k in the math dtype. Tensors are first converted to the compute dtype. */
tpui_hlo_t tpui_math_operand(const tpui_lowering_t* op, int k);
/* Sets result k to `value` broadcast to the result's sizes. */
void tpui_set_pointwise(const tpui_lowering_t* op, int k, tpui_hlo_t value);
/* A constant of x's dtype, rank 0. */
tpui_hlo_t tpui_like(tpui_builder_t* b, tpui_hlo_t x, double value);

/* 0 or -0 (rank 0) that is no constant for the plugin's front end, which drops zeros from sums
 * though -0 + 0 is 0. For dtypes that are no floats it is the constant 0. */
tpui_hlo_t tpui_hidden_zero(tpui_builder_t* b, tpu_dtype_t dtype, bool negative);

/* Rounds towards zero; keeps NaN, infinities and the sign of zero. */
tpui_hlo_t tpui_trunc(tpui_builder_t* b, tpui_hlo_t x);
/* BOOL: the sign bit of a float, x < 0 of an integer. */
tpui_hlo_t tpui_signbit(tpui_builder_t* b, tpui_hlo_t x);
/* x * y where a scalar operand equal to 1 in this program leaves x as it is. */
tpui_hlo_t tpui_scaled(const tpui_lowering_t* op, tpui_hlo_t x, int scalar_operand);
/* 1 / (1 + exp(-x)) and log(1 + exp(x)), without overflow. */
tpui_hlo_t tpui_sigmoid(tpui_builder_t* b, tpui_hlo_t x);
tpui_hlo_t tpui_softplus(tpui_builder_t* b, tpui_hlo_t x);

/* Fails the lowering for complex operands: UNIMPLEMENTED with a hint. */
bool tpui_refuse_complex(const tpui_lowering_t* op, tpui_hlo_t x);

#endif  // TPU_LOWER_POINTWISE_H_
