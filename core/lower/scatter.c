/* Writing with index tensors: scatter, index_put, index_add, index_copy, index_fill, put. */
#include <string.h>

#include "lower/gather.h"
#include "lower/index_list.h"
#include "lower/op_lowering.h"

static tpui_hlo_t at_least_1d(const tpui_lowering_t* op, int k) {
  return tpui_at_least_1d(op->b, tpui_operand(op, k));
}

/* The source of a scatter: a scalar (a complex one is a tensor of rank 0), or a tensor made at
 * least 1-d; converted to x's dtype. */
static tpui_hlo_t read_source(const tpui_lowering_t* op, int k, tpu_dtype_t dtype) {
  tpui_hlo_t source = tpui_operand_as(op, k, dtype);
  return source.rank == 0 ? source : tpui_at_least_1d(op->b, source);
}

/* Straight into what operand 0 is a view of. */
static void scatter_through(const tpui_lowering_t* op, const char* kind, const tpui_axes_t* x,
                            int dim, tpui_hlo_t index, tpui_hlo_t source) {
  tpui_builder_t* b = op->b;
  if (tpui_count(index, 0, index.rank) > 0) {
    tpui_pick_t pick = tpui_pick_along(b, x, dim, tpui_wrap_index(b, index, x->sizes[dim]));
    source = tpui_cut_to(b, source, index);
    tpui_axes_set_result(op, x, tpui_axes_scatter(b, kind, x, &pick, source));
  } else {
    tpui_axes_set_result(op, x, x->array);
  }
}

void tpui_lower_scatter(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  const char* kind = op->argument;
  if (strcmp(kind, "reduce") == 0) kind = tpu_attr_text(op->record->attrs, 1);
  tpu_dtype_t dtype = tpui_operand_meta(op, 0)->dtype;
  tpui_axes_t x = tpui_axes_target(op, strcmp(kind, "set") == 0 ? dtype : tpui_math_dtype(dtype));
  tpui_hlo_t index = at_least_1d(op, 1), source = read_source(op, 2, dtype);
  source = tpui_convert(b, source, x.array.dtype);
  int dim = tpui_wrap_dim(tpu_attr_int(op->record->attrs, 0, 0), x.rank);
  tpui_check_index(op, index, x.sizes[dim], false, dim);
  if (x.meta != NULL) {
    scatter_through(op, kind, &x, dim, index, source);
  } else {
    tpui_set_result_reshaped(op, 0, tpui_scatter_along(b, kind, x.array, dim, index, source));
  }
}

/* --- scatter_reduce --- */

typedef struct reduce_kind_t {
  const char* name;
  const char* combine;
} reduce_kind_t;

static const reduce_kind_t reduce_kinds[] = {
    {"sum", "add"}, {"mean", "add"}, {"prod", "multiply"}, {"amax", "maximum"}, {"amin", "minimum"},
};

static const char* combine_of(const char* name) {
  for (size_t i = 0; i < sizeof reduce_kinds / sizeof reduce_kinds[0]; ++i) {
    if (strcmp(reduce_kinds[i].name, name) == 0) return reduce_kinds[i].combine;
  }
  return NULL;
}

static tpui_hlo_t identity_of(tpui_builder_t* b, const char* combine, tpu_dtype_t dtype) {
  if (strcmp(combine, "maximum") == 0) return tpui_lowest(b, dtype);
  if (strcmp(combine, "minimum") == 0) return tpui_highest(b, dtype);
  return tpui_constant(b, dtype, strcmp(combine, "add") == 0 ? 0 : 1);
}

/* Sum divided by the number of summands; integers round down. */
static tpui_hlo_t divide_counts(tpui_builder_t* b, tpui_hlo_t sum, tpui_hlo_t count) {
  count = tpui_binary(b, "maximum", count, tpui_constant(b, count.dtype, 1));
  tpui_hlo_t quotient = tpui_binary(b, "divide", sum, count);
  if (tpu_dtype_kind(sum.dtype) != TPU_KIND_SIGNED) return quotient;
  tpui_hlo_t rest = tpui_binary(b, "remainder", sum, count);
  tpui_hlo_t below = tpui_compare_constant(b, "LT", rest, 0);
  return tpui_binary(b, "subtract", quotient, tpui_convert(b, below, sum.dtype));
}

void tpui_lower_scatter_reduce(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = at_least_1d(op, 0), index = at_least_1d(op, 1);
  tpui_hlo_t source = read_source(op, 2, x.dtype);
  tpu_attrs_id_t attrs = op->record->attrs;
  int dim = tpui_wrap_dim(tpu_attr_int(attrs, 0, 0), x.rank);
  tpui_check_index(op, index, x.sizes[dim], false, dim);
  const char* name = tpu_attr_text(attrs, 1);
  const char* combine = combine_of(name);
  bool include_self = tpu_attr_int(attrs, 2, 1) != 0;
  if (combine == NULL) {
    tpui_fail(b, TPU_INVALID_ARGUMENT, "unknown reduction '%s'", name);
    return;
  }
  tpu_dtype_t dtype = tpui_math_dtype(x.dtype);
  tpui_hlo_t start = tpui_convert(b, x, dtype);
  source = tpui_convert(b, source, dtype);
  if (!include_self) {
    tpui_hlo_t touched = tpui_scatter_along(b, "set", tpui_full_like(b, x, TPU_BOOL, 0), dim, index,
                                            tpui_constant(b, TPU_BOOL, 1));
    start = tpui_select(b, touched, identity_of(b, combine, dtype), start);
  }
  tpui_hlo_t result = tpui_scatter_along(b, combine, start, dim, index, source);
  if (strcmp(name, "mean") == 0) {
    tpui_hlo_t count = tpui_scatter_along(b, "add", tpui_full_like(b, x, dtype, include_self), dim,
                                          index, tpui_constant(b, dtype, 1));
    result = divide_counts(b, result, count);
  }
  tpui_set_result_reshaped(op, 0, result);
}

/* --- whole slices along one dimension --- */

/* Self, index (rank 1), source (self's sizes with index's length along dim), all in `dtype`. */
typedef struct slices_t {
  tpui_axes_t x;
  tpui_hlo_t index, source;
  int dim;
} slices_t;

static slices_t read_slices(const tpui_lowering_t* op, tpu_dtype_t dtype) {
  slices_t s = {.x = tpui_axes_target(op, dtype), .index = at_least_1d(op, 1)};
  s.dim = tpui_wrap_dim(tpu_attr_int(op->record->attrs, 0, 0), s.x.rank);
  tpui_check_index(op, s.index, s.x.sizes[s.dim], false, s.dim);
  int64_t sizes[TPU_MAX_RANK];
  for (int i = 0; i < s.x.rank; ++i) sizes[i] = i == s.dim ? s.index.sizes[0] : s.x.sizes[i];
  tpui_hlo_t source = tpui_operand_as(op, 2, tpui_operand_meta(op, 0)->dtype);
  s.source = tpui_convert(op->b, tpui_reshape(op->b, source, s.x.rank, sizes), dtype);
  return s;
}

static void set_slices(const tpui_lowering_t* op, const char* kind, const slices_t* s) {
  tpui_hlo_t index = tpui_wrap_index(op->b, s->index, s->x.sizes[s->dim]);
  tpui_pick_t pick = tpui_pick_dim(s->dim, index);
  tpui_axes_set_result(op, &s->x, tpui_axes_scatter(op->b, kind, &s->x, &pick, s->source));
}

void tpui_lower_index_copy(const tpui_lowering_t* op) {
  slices_t s = read_slices(op, tpui_operand_meta(op, 0)->dtype);
  set_slices(op, "set", &s);
}

void tpui_lower_index_add(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpu_dtype_t dtype = tpui_math_dtype(tpui_operand_meta(op, 0)->dtype);
  slices_t s = read_slices(op, dtype);
  double alpha = 0;
  if (!(tpui_operand_constant(op, 3, &alpha) && alpha == 1)) {
    const char* product = dtype == TPU_BOOL ? "and" : "multiply";
    s.source = tpui_binary(b, product, s.source, tpui_operand_as(op, 3, dtype));
  }
  set_slices(op, "add", &s);
}

/* Attributes: dim, reduce, include_self. */
void tpui_lower_index_reduce(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpu_dtype_t dtype = tpui_math_dtype(tpui_operand_meta(op, 0)->dtype);
  slices_t s = read_slices(op, dtype);
  tpui_hlo_t x = s.x.array;
  const char* name = tpu_attr_text(op->record->attrs, 1);
  const char* combine = combine_of(name);
  bool include_self = tpu_attr_int(op->record->attrs, 2, 1) != 0;
  if (combine == NULL) {
    tpui_fail(b, TPU_INVALID_ARGUMENT, "unknown reduction '%s'", name);
    return;
  }
  tpui_hlo_t start = x, ones = tpui_full_like(b, s.source, dtype, 1);
  if (!include_self) {
    tpui_hlo_t touched = tpui_scatter_dim(b, "set", tpui_full_like(b, x, TPU_BOOL, 0), s.dim,
                                          s.index, tpui_convert(b, ones, TPU_BOOL));
    start = tpui_select(b, touched, identity_of(b, combine, dtype), start);
  }
  tpui_hlo_t result =
      tpui_scatter_dim(b, combine, start, s.dim, s.index, tpui_convert(b, s.source, dtype));
  if (strcmp(name, "mean") == 0) {
    tpui_hlo_t count =
        tpui_scatter_dim(b, "add", tpui_full_like(b, x, dtype, include_self), s.dim, s.index, ones);
    result = divide_counts(b, result, count);
  }
  tpui_set_result_reshaped(op, 0, result);
}

/* Few slices are written one by one; else each place of the tensor asks whether it is meant. */
void tpui_lower_index_fill(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_axes_t x = tpui_axes_target(op, tpui_operand_meta(op, 0)->dtype);
  tpui_hlo_t index = at_least_1d(op, 1), value = tpui_operand_as(op, 2, x.array.dtype);
  if (value.rank > 0) value = tpui_reshape(b, value, 0, NULL);
  int dim = tpui_wrap_dim(tpu_attr_int(op->record->attrs, 0, 0), x.rank);
  int64_t size = x.sizes[dim];
  if (!tpui_ok(b)) return;
  tpui_check_index(op, index, size, true, dim);
  if (x.meta != NULL || index.sizes[0] < size / 8) {
    int64_t sizes[TPU_MAX_RANK];
    for (int i = 0; i < x.rank; ++i) sizes[i] = i == dim ? index.sizes[0] : x.sizes[i];
    slices_t s = {x, index, tpui_broadcast_to(b, value, x.rank, sizes), dim};
    set_slices(op, "set", &s);
    return;
  }
  tpui_hlo_t none = tpui_full(b, TPU_BOOL, 0, 1, &size);
  tpui_hlo_t all = tpui_full(b, TPU_BOOL, 1, 1, index.sizes);
  tpui_hlo_t hit = tpui_scatter_dim(b, "set", none, 0, index, all);
  hit = tpui_spread(b, hit, dim, x.rank, x.sizes);
  tpui_set_result_reshaped(op, 0, tpui_select(b, hit, value, x.array));
}

void tpui_lower_embedding_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpu_attrs_id_t attrs = op->record->attrs;
  int64_t rows = tpu_attr_int(attrs, 0, 0);
  tpui_hlo_t grad = tpui_operand(op, 0);
  tpu_dtype_t dtype = tpui_math_dtype(grad.dtype);
  tpui_hlo_t index = tpui_flatten(b, tpui_convert(b, tpui_operand(op, 1), TPU_I64));
  if (!tpui_ok(b) || grad.rank == 0) return;
  tpui_check_index(op, index, rows, false, 0);
  int64_t count = index.sizes[0], width = grad.sizes[grad.rank - 1];
  grad = tpui_convert(b, tpui_reshape(b, grad, 2, (const int64_t[]){count, width}), dtype);
  double padding = 0;
  if (!tpui_operand_constant(op, 2, &padding) || padding >= 0) {
    // Row `rows` does not exist: its updates are dropped.
    tpui_hlo_t skip = tpui_compare(b, "EQ", index, tpui_operand_as(op, 2, TPU_I64));
    index = tpui_select(b, skip, tpui_constant_int(b, TPU_I64, rows), index);
  }
  if (tpu_attr_int(attrs, 1, 0) != 0) {
    tpui_hlo_t uses = tpui_scatter_dim(b, "add", tpui_full(b, dtype, 0, 1, &rows), 0, index,
                                       tpui_full(b, dtype, 1, 1, &count));
    tpui_hlo_t frequency = tpui_take_dim(b, uses, 0, index);
    frequency = tpui_binary(b, "maximum", frequency, tpui_constant(b, dtype, 1));
    grad = tpui_binary(b, "divide", grad, tpui_spread(b, frequency, 0, 2, grad.sizes));
  }
  tpui_hlo_t zeros = tpui_full(b, dtype, 0, 2, (const int64_t[]){rows, width});
  tpui_set_result(op, 0, tpui_scatter_dim(b, "add", zeros, 0, index, grad));
}

/* --- index_put --- */

/* x[mask] = one value, or a value per remaining dimension: a select, no indices are needed. */
static void put_mask(const tpui_lowering_t* op, tpui_hlo_t x, int position, int values_at,
                     bool accumulate) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t mask = tpui_operand(op, 1 + position);
  tpui_hlo_t value = tpui_operand_as(op, values_at, x.dtype);
  if (tpui_count(value, 0, value.rank) != 1 || position + mask.rank > x.rank) {
    tpui_fail(b, TPU_UNIMPLEMENTED, "a mask with more than one value; use mask.nonzero()");
    return;
  }
  int dims[TPU_MAX_RANK];
  for (int i = 0; i < mask.rank; ++i) dims[i] = position + i;
  mask = tpui_broadcast_in_dim(b, mask, x.rank, x.sizes, dims);
  value = tpui_reshape(b, value, 0, NULL);
  if (accumulate) value = tpui_binary(b, x.dtype == TPU_BOOL ? "or" : "add", x, value);
  tpui_set_result(op, 0, tpui_select(b, mask, value, x));
}

void tpui_lower_index_put(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  int length = (int)tpu_attr_int(op->record->attrs, 0, 0);
  bool accumulate = tpu_attr_int(op->record->attrs, 1, 0) != 0;
  int given = 0, mask_at = -1;
  for (int i = 0; i < length; ++i) {
    const tpu_meta_t* meta = tpui_operand_meta(op, 1 + i);
    if (meta == NULL) continue;
    ++given;
    if (meta->dtype == TPU_BOOL) mask_at = i;
  }
  if (given == 1 && mask_at >= 0) {
    put_mask(op, tpui_operand(op, 0), mask_at, 1 + length, accumulate);
    return;
  }
  tpu_dtype_t dtype = tpui_operand_meta(op, 0)->dtype;
  if (accumulate) dtype = tpui_math_dtype(dtype);
  tpui_axes_t x = tpui_axes_target(op, dtype);
  tpui_index_list_t list;
  if (!tpui_index_list_read(op, &x, false, &list)) return;
  tpui_hlo_t values = tpui_operand_as(op, list.operand_end, dtype);
  values = tpui_broadcast_to(b, values, list.result_rank, list.result);
  if (list.pick.count > 0) {
    const char* kind = accumulate ? "add" : "set";
    tpui_axes_set_result(op, &x, tpui_axes_scatter(b, kind, &x, &list.pick, values));
  } else {
    if (accumulate) values = tpui_binary(b, "add", tpui_operand_as(op, 0, dtype), values);
    tpui_set_result_reshaped(op, 0, values);
  }
}

/* --- flat forms --- */

void tpui_lower_put(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_axes_t x = tpui_axes_target(op, tpui_operand_meta(op, 0)->dtype);
  tpui_hlo_t index = tpui_operand(op, 1), source = tpui_operand_as(op, 2, x.array.dtype);
  const char* kind = tpu_attr_int(op->record->attrs, 0, 0) != 0 ? "add" : "set";
  int64_t count = tpui_operand_meta(op, 0)->numel;
  tpui_check_index(op, index, count, true, -1);
  if (x.meta == NULL) {
    tpui_set_result_reshaped(op, 0, tpui_put_flat(b, kind, x.array, index, source));
    return;
  }
  tpui_pick_t pick = tpui_pick_flat(b, &x, tpui_wrap_index(b, index, count));
  source = tpui_reshape(b, source, pick.rank, pick.sizes);
  tpui_axes_set_result(op, &x, tpui_axes_scatter(b, kind, &x, &pick, source));
}

static const char too_few[] = "Number of elements of source < number of ones in mask";

void tpui_lower_masked_scatter(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_operand(op, 0);
  tpui_hlo_t mask = tpui_broadcast_to(b, tpui_operand_as(op, 1, TPU_BOOL), x.rank, x.sizes);
  tpui_hlo_t source = tpui_operand_as(op, 2, x.dtype);
  if (!tpui_ok(b)) return;
  int64_t size = tpui_count(x, 0, x.rank), given = tpui_count(source, 0, source.rank);
  if (size == 0 || given == 0) {
    tpui_check_none(op, mask, TPU_INVALID_ARGUMENT, too_few);
    tpui_set_result(op, 0, x);
    return;
  }
  // The n-th true element takes the n-th element of the source.
  tpu_dtype_t dtype = tpui_index_dtype(size);
  tpui_hlo_t number = tpui_scan(b, "add", tpui_flatten(b, tpui_convert(b, mask, dtype)), 0);
  if (given < size) {
    tpui_hlo_t total = tpui_reshape(b, tpui_slice_dim(b, number, 0, size - 1, size), 0, NULL);
    tpui_check_at_most(op, total, given, TPU_INVALID_ARGUMENT, too_few);
  }
  number = tpui_binary(b, "maximum", tpui_binary(b, "subtract", number, tpui_constant(b, dtype, 1)),
                       tpui_constant(b, dtype, 0));
  tpui_hlo_t taken = tpui_take_flat(b, source, number);
  tpui_set_result(op, 0, tpui_select(b, mask, tpui_reshape(b, taken, x.rank, x.sizes), x));
}

void tpui_lower_unfold_backward(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpu_attrs_id_t attrs = op->record->attrs;
  const int64_t* input = NULL;
  int rank = tpu_attr_ints(attrs, 0, &input);
  int dim = tpui_wrap_dim(tpu_attr_int(attrs, 1, 0), rank);
  int64_t size = tpu_attr_int(attrs, 2, 1), step = tpu_attr_int(attrs, 3, 1);
  tpui_hlo_t grad = tpui_operand(op, 0);
  if (rank == 0) {  // a 0-d tensor unfolds to `size` (0 or 1) elements
    int only = 0;
    tpui_set_result(op, 0, tpui_reduce(b, "add", grad, 1, &only));
    return;
  }
  if (!tpui_ok(b) || grad.rank != rank + 1) return;
  // Element (window w, place k) came from input place w * step + k.
  int64_t windows = grad.sizes[dim];
  const int64_t table_sizes[] = {windows, size};
  tpui_hlo_t place =
      tpui_binary(b, "add",
                  tpui_binary(b, "multiply", tpui_iota(b, TPU_I64, 2, table_sizes, 0),
                              tpui_constant_int(b, TPU_I64, step)),
                  tpui_iota(b, TPU_I64, 2, table_sizes, 1));
  int permutation[TPU_MAX_RANK];  // the window's place moves next to the window
  int64_t sizes[TPU_MAX_RANK];
  for (int i = 0; i <= rank; ++i) permutation[i] = i <= dim ? i : i == dim + 1 ? rank : i - 1;
  for (int i = 0; i < rank; ++i) sizes[i] = i == dim ? windows * size : input[i];
  tpui_hlo_t source = tpui_reshape(b, tpui_transpose(b, grad, permutation), rank, sizes);
  tpu_dtype_t dtype = tpui_math_dtype(grad.dtype);
  tpui_hlo_t zeros = tpui_full(b, dtype, 0, rank, input);
  tpui_set_result(op, 0,
                  tpui_scatter_dim(b, "add", zeros, dim, tpui_flatten(b, place),
                                   tpui_convert(b, source, dtype)));
}
