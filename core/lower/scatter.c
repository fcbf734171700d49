/* Writing with index tensors: scatter, index_put, index_add, index_copy, index_fill, put. */
#include <string.h>

#include "lower/combine.h"
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

static bool is_set(const char* kind) { return strcmp(kind, "set") == 0; }

/* Updates (of the dtype in which they are combined) into the picked elements of x, whose array has
 * the tensor's dtype. */
static void put_picked(const tpui_lowering_t* op, const char* kind, const tpui_axes_t* x,
                       const tpui_pick_t* pick, tpui_hlo_t updates) {
  tpui_builder_t* b = op->b;
  tpui_axes_t target = *x;
  const tpui_combine_t how = {.kind = kind, .dtype = updates.dtype};
  if (is_set(kind)) {
    tpui_axes_set_result(op, x, tpui_axes_scatter(b, kind, x, pick, updates));
  } else if (tpui_combines_apart(x, pick)) {
    tpui_combine_apart(op, x, pick, updates, &how);
  } else {
    target.array = tpui_convert(b, x->array, updates.dtype);
    tpui_axes_set_result(op, &target, tpui_axes_scatter(b, kind, &target, pick, updates));
  }
}

void tpui_lower_scatter(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  const char* kind = op->argument;
  if (strcmp(kind, "reduce") == 0) kind = tpu_attr_text(op->record->attrs, 1);
  tpu_dtype_t dtype = tpui_operand_meta(op, 0)->dtype;
  tpui_axes_t x = tpui_axes_target(op, dtype);
  tpui_hlo_t index = at_least_1d(op, 1), source = read_source(op, 2, dtype);
  source = tpui_convert(b, source, is_set(kind) ? dtype : tpui_math_dtype(dtype));
  int dim = tpui_wrap_dim(tpu_attr_int(op->record->attrs, 0, 0), x.rank);
  tpui_check_index(op, index, x.sizes[dim], false, dim);
  if (!tpui_ok(b) || tpui_count(index, 0, index.rank) == 0) {
    tpui_axes_set_result(op, &x, x.array);
    return;
  }
  tpui_pick_t pick = tpui_pick_along(b, &x, dim, tpui_wrap_index(b, index, x.sizes[dim]));
  bool apart = source.dtype != dtype && tpui_combines_apart(&x, &pick);
  if (x.meta != NULL || apart) {
    put_picked(op, kind, &x, &pick, tpui_cut_to(b, source, index));
  } else {
    tpui_hlo_t array = tpui_convert(b, x.array, source.dtype);
    tpui_set_result_reshaped(op, 0, tpui_scatter_along(b, kind, array, dim, index, source));
  }
}

/* --- whole slices along one dimension --- */

/* Self, index (rank 1), source (self's sizes with index's length along dim) in `dtype`. */
typedef struct slices_t {
  tpui_axes_t x;
  tpui_hlo_t index, source;
  int dim;
} slices_t;

static slices_t read_slices(const tpui_lowering_t* op, tpu_dtype_t dtype) {
  tpu_dtype_t own = tpui_operand_meta(op, 0)->dtype;
  slices_t s = {.x = tpui_axes_target(op, own), .index = at_least_1d(op, 1)};
  s.dim = tpui_wrap_dim(tpu_attr_int(op->record->attrs, 0, 0), s.x.rank);
  tpui_check_index(op, s.index, s.x.sizes[s.dim], false, s.dim);
  int64_t sizes[TPU_MAX_RANK];
  for (int i = 0; i < s.x.rank; ++i) sizes[i] = i == s.dim ? s.index.sizes[0] : s.x.sizes[i];
  tpui_hlo_t source = tpui_operand_as(op, 2, own);
  s.source = tpui_convert(op->b, tpui_reshape(op->b, source, s.x.rank, sizes), dtype);
  return s;
}

static void set_slices(const tpui_lowering_t* op, const char* kind, const slices_t* s) {
  tpui_hlo_t index = tpui_wrap_index(op->b, s->index, s->x.sizes[s->dim]);
  tpui_pick_t pick = tpui_pick_dim(s->dim, index);
  put_picked(op, kind, &s->x, &pick, s->source);
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
  tpui_axes_t x = tpui_axes_target(op, dtype);
  if (accumulate) dtype = tpui_math_dtype(dtype);
  tpui_index_list_t list;
  if (!tpui_index_list_read(op, &x, false, &list)) return;
  tpui_hlo_t values = tpui_operand_as(op, list.operand_end, dtype);
  values = tpui_broadcast_to(b, values, list.result_rank, list.result);
  if (list.pick.count > 0) {
    put_picked(op, accumulate ? "add" : "set", &x, &list.pick, values);
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
