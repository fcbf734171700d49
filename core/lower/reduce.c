/* Reductions. Attributes are dim(s), keepdim, dtype in that order; the result's metadata already
 * says which dimensions stay, so values are reshaped to it. */
#include <math.h>
#include <string.h>

#include "lower/complex.h"
#include "lower/dims.h"
#include "lower/gather.h"
#include "lower/op_lowering.h"
#include "lower/pointwise.h"

/* --- dimension arguments --- */

tpui_dims_t tpui_dims_all(int rank) {
  tpui_dims_t all = {.count = rank};
  for (int i = 0; i < rank; ++i) all.dims[i] = i;
  return all;
}

tpui_dims_t tpui_dims_attr(const tpui_lowering_t* op, int position, int rank) {
  const int64_t* values = NULL;
  int64_t single = 0;
  int count = tpu_attr_ints(op->record->attrs, position, &values);
  if (tpu_attr_kind(op->record->attrs, position) == TPU_ATTR_INT) {
    single = tpu_attr_int(op->record->attrs, position, 0);
    values = &single;
    count = 1;
  }
  if (count == 0 || rank == 0) return tpui_dims_all(rank);
  bool marked[TPU_MAX_RANK] = {false};
  for (int i = 0; i < count; ++i) {
    int64_t dim = values[i] < 0 ? values[i] + rank : values[i];
    if (dim < 0 || dim >= rank) {
      tpui_fail(op->b, TPU_OUT_OF_RANGE, "dimension %lld of a tensor with %d dimensions",
                (long long)values[i], rank);
      return (tpui_dims_t){0};
    }
    marked[dim] = true;
  }
  tpui_dims_t result = {0};
  for (int i = 0; i < rank; ++i) {
    if (marked[i]) result.dims[result.count++] = i;
  }
  return result;
}

int64_t tpui_dims_numel(const tpui_dims_t* dims, tpui_hlo_t x) {
  int64_t count = 1;
  for (int i = 0; i < dims->count; ++i) count *= x.sizes[dims->dims[i]];
  return count;
}

int tpui_dim_attr(const tpui_lowering_t* op, int position, int rank) {
  if (rank == 0) return -1;
  int64_t dim = tpu_attr_int(op->record->attrs, position, 0);
  if (dim < 0) dim += rank;
  if (dim < 0 || dim >= rank) {
    tpui_fail(op->b, TPU_OUT_OF_RANGE, "dimension %lld of a tensor with %d dimensions",
              (long long)dim, rank);
    return 0;
  }
  return (int)dim;
}

/* --- sums --- */

/* The dtype in which a reduction to result 0 accumulates. */
static tpu_dtype_t accumulator_dtype(const tpui_lowering_t* op) {
  const tpu_meta_t* meta = tpui_result_meta(op, 0);
  return tpui_math_dtype(meta != NULL ? meta->dtype : TPU_F32);
}

/* Below this many elements integers are reduced at once. */
#define MIN_SPLIT 65536
#define PIECES 32

/* A sum ("add") or product ("multiply") of integers over `dims`. XLA:CPU fuses no conversion into
 * one: an int64 copy of the operand would be made, 8 times its size for int8. So pieces of the
 * longest dimension are combined first, which is one loop over the operand and leaves 1/32 of it in
 * the accumulator's dtype. */
static tpui_hlo_t reduce_integers(tpui_builder_t* b, const char* operation, tpui_hlo_t x,
                                  tpu_dtype_t dtype, const tpui_dims_t* dims) {
  int dim = dims->count > 0 ? dims->dims[0] : 0;
  for (int i = 1; tpui_ok(b) && i < dims->count; ++i) {
    if (x.sizes[dims->dims[i]] > x.sizes[dim]) dim = dims->dims[i];
  }
  bool split = tpui_ok(b) && dims->count > 0 && x.dtype != dtype &&
               tpui_count(x, 0, x.rank) >= MIN_SPLIT && x.sizes[dim] >= PIECES;
  if (!split) {
    return tpui_reduce(b, operation, tpui_convert(b, x, dtype), dims->count, dims->dims);
  }
  int64_t piece = x.sizes[dim] / PIECES, end = piece * PIECES;
  tpui_hlo_t all = tpui_convert(b, tpui_slice_dim(b, x, dim, 0, piece), dtype);
  for (int64_t at = piece; at < end; at += piece) {
    tpui_hlo_t next = tpui_slice_dim(b, x, dim, at, at + piece);
    all = tpui_binary(b, operation, all, tpui_convert(b, next, dtype));
  }
  all = tpui_reduce(b, operation, all, dims->count, dims->dims);
  if (end == x.sizes[dim]) return all;
  tpui_hlo_t rest = tpui_convert(b, tpui_slice_dim(b, x, dim, end, x.sizes[dim]), dtype);
  rest = tpui_reduce(b, operation, rest, dims->count, dims->dims);
  return tpui_binary(b, operation, all, rest);
}

/* The same for numbers of any dtype, which are accumulated as `dtype`. */
static tpui_hlo_t reduce_as(tpui_builder_t* b, const char* operation, tpui_hlo_t x,
                            tpu_dtype_t dtype, const tpui_dims_t* dims) {
  if (tpu_dtype_is_integral(dtype) && dtype != TPU_BOOL) {
    return reduce_integers(b, operation, x, dtype, dims);
  }
  return tpui_reduce(b, operation, tpui_convert(b, x, dtype), dims->count, dims->dims);
}

/* sum and nansum; argument "nan" ignores NaN. */
void tpui_lower_sum(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_operand(op, 0);
  tpui_dims_t dims = tpui_dims_attr(op, 0, x.rank);
  if (op->argument[0] != '\0' && !tpu_dtype_is_integral(x.dtype)) {
    x = tpui_select(b, tpui_is_nan(b, x), tpui_like(b, x, 0.0), x);
  }
  tpu_dtype_t dtype = accumulator_dtype(op);
  tpui_set_result_reshaped(op, 0, reduce_as(b, dtype == TPU_BOOL ? "or" : "add", x, dtype, &dims));
}

void tpui_lower_mean(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_operand_as(op, 0, accumulator_dtype(op));
  tpui_dims_t dims = tpui_dims_attr(op, 0, x.rank);
  double count = (double)tpui_dims_numel(&dims, x);
  tpui_hlo_t sum = tpui_reduce(b, "add", x, dims.count, dims.dims);
  tpui_hlo_t divisor = tpui_convert(b, tpui_constant(b, TPU_F64, count), sum.dtype);
  tpui_set_result_reshaped(op, 0, tpui_binary(b, "divide", sum, divisor));
}

/* prod (all dimensions; attribute 0 is a dtype) and, with argument "dim", prod.dim_int. */
void tpui_lower_prod(const tpui_lowering_t* op) {
  tpui_hlo_t x = tpui_operand(op, 0);
  tpu_dtype_t dtype = accumulator_dtype(op);
  tpui_dims_t dims =
      op->argument[0] != '\0' ? tpui_dims_attr(op, 0, x.rank) : tpui_dims_all(x.rank);
  tpui_set_result_reshaped(
      op, 0, reduce_as(op->b, dtype == TPU_BOOL ? "and" : "multiply", x, dtype, &dims));
}

/* any and all; argument: or, and. */
void tpui_lower_any(const tpui_lowering_t* op) {
  tpui_hlo_t x = tpui_operand_as(op, 0, TPU_BOOL);
  tpui_dims_t dims = tpui_dims_attr(op, 0, x.rank);
  tpui_set_result_reshaped(op, 0, tpui_reduce(op->b, op->argument, x, dims.count, dims.dims));
}

void tpui_lower_count_nonzero(const tpui_lowering_t* op) {
  tpui_hlo_t x = tpui_operand_as(op, 0, TPU_BOOL);
  tpui_dims_t dims = tpui_dims_attr(op, 0, x.rank);
  tpui_set_result_reshaped(op, 0, reduce_integers(op->b, "add", x, TPU_I64, &dims));
}

void tpui_lower_trace(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_operand_as(op, 0, accumulator_dtype(op));
  if (!tpui_ok(b) || x.rank != 2) return;
  tpui_hlo_t on_diagonal = tpui_on_diagonal(b, x.sizes);
  tpui_hlo_t zero = tpui_convert(b, tpui_constant(b, TPU_F64, 0.0), x.dtype);
  const int dims[2] = {0, 1};
  tpui_set_result(op, 0, tpui_reduce(b, "add", tpui_select(b, on_diagonal, x, zero), 2, dims));
}

/* --- extremes --- */

/* amax, amin, max(), min(); argument: maximum or minimum. */
void tpui_lower_amax(const tpui_lowering_t* op) {
  tpui_hlo_t x = tpui_operand(op, 0);
  tpui_dims_t dims = tpui_dims_attr(op, 0, x.rank);
  tpui_set_result_reshaped(op, 0, tpui_reduce(op->b, op->argument, x, dims.count, dims.dims));
}

/* aminmax(dim?, keepdim): results minimum, maximum. */
void tpui_lower_aminmax(const tpui_lowering_t* op) {
  tpui_hlo_t x = tpui_operand(op, 0);
  tpui_dims_t dims = tpui_dims_attr(op, 0, x.rank);
  tpui_set_result_reshaped(op, 0, tpui_reduce(op->b, "minimum", x, dims.count, dims.dims));
  tpui_set_result_reshaped(op, 1, tpui_reduce(op->b, "maximum", x, dims.count, dims.dims));
}

/* max.dim, min.dim: values and indices; argument: GT or LT. */
void tpui_lower_max_dim(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_operand(op, 0), value, index;
  int dim = tpui_dim_attr(op, 0, x.rank);
  if (dim < 0) {
    x = tpui_flatten(b, x);
    dim = 0;
  }
  tpui_arg_reduce(b, op->argument, x, dim, &value, &index);
  tpui_set_result_reshaped(op, 0, value);
  tpui_set_result_reshaped(op, 1, index);
}

/* argmax(dim?, keepdim), argmin; argument: GT or LT. */
void tpui_lower_argmax(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_operand(op, 0), value, index;
  bool all = x.rank == 0 || tpu_attr_kind(op->record->attrs, 0) == TPU_ATTR_NONE;
  if (all) x = tpui_flatten(b, x);
  tpui_arg_reduce(b, op->argument, x, all ? 0 : tpui_dim_attr(op, 0, x.rank), &value, &index);
  tpui_set_result_reshaped(op, 0, index);
}

/* --- variance --- */

/* |x|^2 as a real number. */
static tpui_hlo_t squared_size(tpui_builder_t* b, tpui_hlo_t x) {
  if (tpu_dtype_kind(x.dtype) != TPU_KIND_COMPLEX) return tpui_binary(b, "multiply", x, x);
  tpui_hlo_t real = tpui_unary(b, "real", x), imag = tpui_unary(b, "imag", x);
  return tpui_binary(b, "add", tpui_binary(b, "multiply", real, real),
                     tpui_binary(b, "multiply", imag, imag));
}

/* Sum of squared differences over max(0, count - correction); two passes, so that large means do
 * not cancel. Operand 1: correction, 1 when not given. */
static tpui_hlo_t variance_over(const tpui_lowering_t* op, tpui_hlo_t x, const tpui_dims_t* dims,
                                tpui_hlo_t* out_mean) {
  tpui_builder_t* b = op->b;
  double count = (double)tpui_dims_numel(dims, x);
  tpui_hlo_t mean = tpui_reduce_keep(b, "add", x, dims->count, dims->dims);
  mean = tpui_binary_constant(b, "divide", mean, count);
  tpui_hlo_t gap = squared_size(b, tpui_binary(b, "subtract", x, mean));
  tpui_hlo_t squares = tpui_reduce(b, "add", gap, dims->count, dims->dims);
  tpui_hlo_t correction =
      tpui_has_operand(op, 1) ? tpui_operand_as(op, 1, squares.dtype) : tpui_like(b, squares, 1.0);
  tpui_hlo_t freedom = tpui_binary(b, "subtract", tpui_like(b, squares, count), correction);
  freedom = tpui_binary(b, "maximum", freedom, tpui_like(b, squares, 0.0));
  *out_mean = mean;
  return tpui_binary(b, "divide", squares, freedom);
}

/* var.correction, std.correction and their _mean forms; argument "sqrt": std. */
void tpui_lower_var(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_operand(op, 0), mean;
  if (tpu_dtype_kind(x.dtype) != TPU_KIND_COMPLEX) x = tpui_convert(b, x, accumulator_dtype(op));
  tpui_dims_t dims = tpui_dims_attr(op, 0, x.rank);
  tpui_hlo_t result = variance_over(op, x, &dims, &mean);
  if (op->argument[0] != '\0') result = tpui_unary(b, op->argument, result);
  tpui_set_result_reshaped(op, 0, result);
  if (op->record->result_count > 1) tpui_set_result_reshaped(op, 1, mean);
}

/* --- others --- */

/* logsumexp(self, dim, keepdim): a maximum of infinite size is not subtracted. */
void tpui_lower_logsumexp(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_operand_as(op, 0, accumulator_dtype(op));
  tpui_dims_t dims = tpui_dims_attr(op, 0, x.rank);
  // Complex numbers are shifted by their largest real part.
  const bool complex = tpui_is_complex(x);
  tpui_hlo_t top =
      tpui_reduce_keep(b, "maximum", complex ? tpui_unary(b, "real", x) : x, dims.count, dims.dims);
  tpui_hlo_t infinite = tpui_compare_constant(b, "EQ", tpui_unary(b, "abs", top), INFINITY);
  top = tpui_select(b, infinite, tpui_like(b, top, 0.0), top);
  top = tpui_convert(b, top, x.dtype);
  tpui_hlo_t shifted = tpui_binary(b, "subtract", x, top);
  shifted = complex ? tpui_complex_unary(b, "exponential", shifted)
                    : tpui_unary(b, "exponential", shifted);
  tpui_hlo_t sum = tpui_reduce_keep(b, "add", shifted, dims.count, dims.dims);
  sum = complex ? tpui_complex_unary(b, "log", sum) : tpui_unary(b, "log", sum);
  tpui_set_result_reshaped(op, 0, tpui_binary(b, "add", sum, top));
}

/* isin(elements, test_elements); attributes: assume_unique, invert. */
void tpui_lower_isin(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_math_operand(op, 0), y = tpui_flatten(b, tpui_math_operand(op, 1));
  tpui_hlo_t equal = tpui_compare(b, "EQ", tpui_unsqueeze(b, x, x.rank), y);
  const int last[1] = {x.rank};
  tpui_hlo_t found = tpui_reduce(b, "or", equal, 1, last);
  if (tpu_attr_int(op->record->attrs, 1, 0) != 0) found = tpui_unary(b, "not", found);
  tpui_set_pointwise(op, 0, found);
}
