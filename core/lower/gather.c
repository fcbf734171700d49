/* Gather and scatter with PyTorch's index rules. */
#include "lower/gather.h"

#include <string.h>

/* --- shapes --- */

int tpui_wrap_dim(int64_t dim, int rank) {
  int span = rank > 0 ? rank : 1;
  return (int)(dim < 0 ? dim + span : dim);
}

tpui_hlo_t tpui_at_least_1d(tpui_builder_t* b, tpui_hlo_t x) {
  const int64_t one = 1;
  return x.rank > 0 ? x : tpui_reshape(b, x, 1, &one);
}

int64_t tpui_count(tpui_hlo_t x, int first, int last) {
  int64_t count = 1;
  for (int i = first; i < last; ++i) count *= x.sizes[i];
  return count;
}

tpui_hlo_t tpui_flatten(tpui_builder_t* b, tpui_hlo_t x) {
  int64_t count = tpui_count(x, 0, x.rank);
  return tpui_reshape(b, x, 1, &count);
}

void tpui_set_result_reshaped(const tpui_lowering_t* op, int k, tpui_hlo_t x) {
  const tpu_meta_t* meta = tpui_result_meta(op, k);
  if (meta == NULL || !tpui_ok(op->b)) return;
  tpui_set_result(op, k, tpui_reshape(op->b, x, meta->rank, meta->sizes));
}

tpui_hlo_t tpui_full_like(tpui_builder_t* b, tpui_hlo_t like, tpu_dtype_t dtype, double value) {
  return tpui_full(b, dtype, value, like.rank, like.sizes);
}

tpu_dtype_t tpui_math_dtype(tpu_dtype_t dtype) {
  return tpu_dtype_is_float(dtype) && dtype != TPU_F64 ? TPU_F32 : dtype;
}

tpui_hlo_t tpui_spread(tpui_builder_t* b, tpui_hlo_t x, int dim, int rank, const int64_t* sizes) {
  return tpui_broadcast_in_dim(b, x, rank, sizes, &dim);
}

tpui_hlo_t tpui_on_diagonal(tpui_builder_t* b, const int64_t sizes[2]) {
  tpu_dtype_t dtype = tpui_index_dtype(sizes[0] > sizes[1] ? sizes[0] : sizes[1]);
  return tpui_compare(b, "EQ", tpui_iota(b, dtype, 2, sizes, 0), tpui_iota(b, dtype, 2, sizes, 1));
}

/* --- indices --- */

static tpui_hlo_t wrap_negative(tpui_builder_t* b, tpui_hlo_t index, int64_t size) {
  bool is_unsigned = tpu_dtype_kind(index.dtype) < TPU_KIND_SIGNED;
  tpui_hlo_t wide = tpui_convert(b, index, TPU_I64);
  if (is_unsigned) return wide;
  tpui_hlo_t wrapped = tpui_binary(b, "add", wide, tpui_constant_int(b, TPU_I64, size));
  return tpui_select(b, tpui_compare_constant(b, "LT", wide, 0), wrapped, wide);
}

tpui_hlo_t tpui_wrap_index(tpui_builder_t* b, tpui_hlo_t index, int64_t size) {
  return wrap_negative(b, index, size);
}

tpui_hlo_t tpui_clamp_index(tpui_builder_t* b, tpui_hlo_t index, int64_t size) {
  tpui_hlo_t wrapped = wrap_negative(b, index, size);
  wrapped = tpui_binary(b, "maximum", wrapped, tpui_constant_int(b, TPU_I64, 0));
  return tpui_binary(b, "minimum", wrapped, tpui_constant_int(b, TPU_I64, size > 0 ? size - 1 : 0));
}

/* --- raw operations --- */

tpui_hlo_t tpui_gather(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t indices,
                       const tpui_gather_dims_t* dims, const int64_t* slice_sizes, int rank,
                       const int64_t* sizes) {
  int64_t count = 1;
  for (int i = 0; i < rank; ++i) count *= sizes[i];
  if (count == 0) return tpui_full(b, x.dtype, 0, rank, sizes);
  if (tpui_count(x, 0, x.rank) == 0) {
    tpui_fail(b, TPU_OUT_OF_RANGE, "an index into a tensor without elements");
    return x;
  }
  const char* attributes = tpui_text(
      b,
      "<{dimension_numbers = #stablehlo.gather<offset_dims = [%s], collapsed_slice_dims = [%s], "
      "start_index_map = [%s], index_vector_dim = %d>, indices_are_sorted = false, "
      "slice_sizes = %s}>",
      tpui_text_ints(b, dims->window_count, dims->window_dims),
      tpui_text_ints(b, dims->collapsed_count, dims->collapsed_dims),
      tpui_text_ints(b, dims->map_count, dims->index_map), dims->index_vector_dim,
      tpui_text_array(b, x.rank, slice_sizes));
  const tpui_hlo_t operands[] = {x, indices};
  return tpui_raw(b, "stablehlo.gather", 2, operands, attributes, "", x.dtype, rank, sizes);
}

/* Region that combines the old element with the update; "set" takes the update. */
static const char* combiner_text(tpui_builder_t* b, const char* kind, tpu_dtype_t dtype) {
  if (strcmp(kind, "set") != 0) {
    bool either = dtype == TPU_BOOL && strcmp(kind, "add") == 0;
    return tpui_text_combiner(b, either ? "or" : kind, dtype);
  }
  const char* type = tpui_text_type(b, (tpui_type_t){dtype, 0, NULL});
  return tpui_text(b, "({\n^bb0(%%l: %s, %%r: %s):\n\"stablehlo.return\"(%%r) : (%s) -> ()\n})",
                   type, type, type);
}

tpui_hlo_t tpui_scatter(tpui_builder_t* b, const char* kind, tpui_hlo_t x, tpui_hlo_t indices,
                        tpui_hlo_t updates, const tpui_gather_dims_t* dims) {
  if (tpui_count(updates, 0, updates.rank) == 0 || tpui_count(x, 0, x.rank) == 0) return x;
  const char* attributes = tpui_text(
      b,
      "<{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [%s], "
      "inserted_window_dims = [%s], scatter_dims_to_operand_dims = [%s], index_vector_dim = %d>, "
      "indices_are_sorted = false, unique_indices = false}>",
      tpui_text_ints(b, dims->window_count, dims->window_dims),
      tpui_text_ints(b, dims->collapsed_count, dims->collapsed_dims),
      tpui_text_ints(b, dims->map_count, dims->index_map), dims->index_vector_dim);
  const tpui_hlo_t operands[] = {x, indices, updates};
  return tpui_raw(b, "stablehlo.scatter", 3, operands, attributes, combiner_text(b, kind, x.dtype),
                  x.dtype, x.rank, x.sizes);
}

/* --- along one dimension --- */

tpui_pick_t tpui_pick_dim(int dim, tpui_hlo_t index) {
  tpui_pick_t pick = {.count = 1, .dims = {dim}, .indices = {index}, .rank = index.rank, .at = dim};
  for (int i = 0; i < index.rank; ++i) pick.sizes[i] = index.sizes[i];
  return pick;
}

tpui_pick_t tpui_pick_along(tpui_builder_t* b, const tpui_axes_t* x, int dim, tpui_hlo_t index) {
  tpui_pick_t pick = {.count = x->rank, .rank = index.rank};
  if (index.rank != x->rank) {
    tpui_fail(b, TPU_INVALID_ARGUMENT, "index must have %d dimensions, it has %d", x->rank,
              index.rank);
  }
  for (int i = 0; i < x->rank && tpui_ok(b); ++i) {
    pick.dims[i] = i;
    pick.sizes[i] = index.sizes[i];
    pick.indices[i] = i == dim ? index : tpui_iota(b, TPU_I64, index.rank, index.sizes, i);
  }
  return pick;
}

tpui_pick_t tpui_pick_flat(tpui_builder_t* b, const tpui_axes_t* x, tpui_hlo_t index) {
  tpui_pick_t pick = {.count = x->rank, .rank = index.rank};
  for (int i = 0; i < index.rank; ++i) pick.sizes[i] = index.sizes[i];
  for (int i = x->rank - 1; i >= 0; --i) {
    tpui_hlo_t size = tpui_constant_int(b, TPU_I64, x->sizes[i]);
    pick.dims[i] = i;
    // What is left for the first dimension may be outside.
    pick.indices[i] = i == 0 ? index : tpui_binary(b, "remainder", index, size);
    index = tpui_div(b, index, size);
  }
  return pick;
}

tpui_hlo_t tpui_take_dim(tpui_builder_t* b, tpui_hlo_t x, int dim, tpui_hlo_t index) {
  if (!tpui_ok(b)) return x;
  tpui_axes_t axes = tpui_axes_whole(b, x);
  tpui_pick_t pick = tpui_pick_dim(dim, tpui_clamp_index(b, index, x.sizes[dim]));
  return tpui_axes_gather(b, &axes, &pick);
}

tpui_hlo_t tpui_scatter_dim(tpui_builder_t* b, const char* kind, tpui_hlo_t x, int dim,
                            tpui_hlo_t index, tpui_hlo_t source) {
  if (!tpui_ok(b)) return x;
  tpui_axes_t axes = tpui_axes_whole(b, x);
  tpui_pick_t pick = tpui_pick_dim(dim, tpui_wrap_index(b, index, x.sizes[dim]));
  return tpui_axes_scatter(b, kind, &axes, &pick, source);
}

/* Flat position in x of every element of `index`'s shape, with `index` as coordinate `dim`. Flat
 * positions keep the emitted loops one-dimensional, whatever the rank. */
static tpui_hlo_t flat_position(tpui_builder_t* b, tpui_hlo_t x, int dim, tpui_hlo_t index) {
  tpui_hlo_t position = tpui_binary(b, "multiply", index,
                                    tpui_constant_int(b, TPU_I64, tpui_count(x, dim + 1, x.rank)));
  for (int i = 0; i < x.rank; ++i) {
    if (i == dim || index.sizes[i] == 1) continue;
    tpui_hlo_t coordinate = tpui_iota(b, TPU_I64, index.rank, index.sizes, i);
    int64_t stride = tpui_count(x, i + 1, x.rank);
    coordinate = tpui_binary(b, "multiply", coordinate, tpui_constant_int(b, TPU_I64, stride));
    position = tpui_binary(b, "add", position, coordinate);
  }
  return position;
}

/* Gathers at positions that are known to be valid. */
static tpui_hlo_t gather_flat(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t position) {
  const tpui_gather_dims_t dims = {
      .collapsed_count = 1, .map_count = 1, .index_vector_dim = position.rank};
  const int64_t one = 1;
  return tpui_gather(b, tpui_flatten(b, x), position, &dims, &one, position.rank, position.sizes);
}

static tpui_hlo_t scatter_flat(tpui_builder_t* b, const char* kind, tpui_hlo_t x,
                               tpui_hlo_t position, tpui_hlo_t source) {
  const tpui_gather_dims_t dims = {.collapsed_count = 1, .map_count = 1, .index_vector_dim = 1};
  tpui_hlo_t flat = tpui_scatter(b, kind, tpui_flatten(b, x), tpui_flatten(b, position),
                                 tpui_flatten(b, source), &dims);
  return tpui_reshape(b, flat, x.rank, x.sizes);
}

tpui_hlo_t tpui_take_along(tpui_builder_t* b, tpui_hlo_t x, int dim, tpui_hlo_t index) {
  if (!tpui_ok(b)) return x;
  if (x.rank != index.rank) {
    tpui_fail(b, TPU_INVALID_ARGUMENT, "index must have %d dimensions, it has %d", x.rank,
              index.rank);
    return x;
  }
  return gather_flat(b, x, flat_position(b, x, dim, tpui_clamp_index(b, index, x.sizes[dim])));
}

tpui_hlo_t tpui_cut_to(tpui_builder_t* b, tpui_hlo_t source, tpui_hlo_t index) {
  if (source.rank == 0) return tpui_broadcast_to(b, source, index.rank, index.sizes);
  int64_t starts[TPU_MAX_RANK] = {0};
  bool same = true;
  for (int i = 0; i < source.rank; ++i) same = same && source.sizes[i] == index.sizes[i];
  return same ? source : tpui_slice(b, source, starts, index.sizes, NULL);
}

/* One index per line along `dim` and every other dimension whole: each element of x has at most one
 * update, found by comparing with its own coordinate. */
static tpui_hlo_t scatter_one_per_line(tpui_builder_t* b, const char* kind, tpui_hlo_t x, int dim,
                                       tpui_hlo_t index, tpui_hlo_t source) {
  tpui_hlo_t here = tpui_iota(b, TPU_I64, x.rank, x.sizes, dim);
  tpui_hlo_t hit = tpui_compare(b, "EQ", here, index);
  tpui_hlo_t update = tpui_broadcast_to(b, source, x.rank, x.sizes);
  if (strcmp(kind, "set") != 0) {
    bool either = x.dtype == TPU_BOOL && strcmp(kind, "add") == 0;
    update = tpui_binary(b, either ? "or" : kind, x, update);
  }
  return tpui_select(b, hit, update, x);
}

tpui_hlo_t tpui_scatter_along(tpui_builder_t* b, const char* kind, tpui_hlo_t x, int dim,
                              tpui_hlo_t index, tpui_hlo_t source) {
  if (!tpui_ok(b)) return x;
  if (tpui_count(index, 0, index.rank) == 0) return x;
  if (x.rank != index.rank || (source.rank != 0 && source.rank != index.rank)) {
    tpui_fail(b, TPU_INVALID_ARGUMENT, "index and src must have %d dimensions", x.rank);
    return x;
  }
  source = tpui_cut_to(b, source, index);
  tpui_hlo_t wrapped = tpui_wrap_index(b, index, x.sizes[dim]);
  bool one_per_line = tpui_target(b)->slow_scatter && index.sizes[dim] == 1;
  for (int i = 0; i < x.rank; ++i) {
    one_per_line = one_per_line && (i == dim || index.sizes[i] == x.sizes[i]);
  }
  if (one_per_line) return scatter_one_per_line(b, kind, x, dim, wrapped, source);
  // An index outside `dim` must not land in a neighbouring line: it becomes -1, which is dropped.
  tpui_hlo_t valid =
      tpui_binary(b, "and", tpui_compare_constant(b, "GE", wrapped, 0),
                  tpui_compare(b, "LT", wrapped, tpui_constant_int(b, TPU_I64, x.sizes[dim])));
  tpui_hlo_t position = flat_position(b, x, dim, wrapped);
  position = tpui_select(b, valid, position, tpui_constant_int(b, TPU_I64, -1));
  return scatter_flat(b, kind, x, position, source);
}

tpui_hlo_t tpui_take_flat(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t index) {
  if (!tpui_ok(b)) return x;
  return gather_flat(b, x, tpui_clamp_index(b, index, tpui_count(x, 0, x.rank)));
}

tpui_hlo_t tpui_put_flat(tpui_builder_t* b, const char* kind, tpui_hlo_t x, tpui_hlo_t index,
                         tpui_hlo_t source) {
  if (!tpui_ok(b)) return x;
  return scatter_flat(b, kind, x, tpui_wrap_index(b, index, tpui_count(x, 0, x.rank)), source);
}

/* --- scans --- */

/* Identity of a reduction kind. */
static tpui_hlo_t identity_of(tpui_builder_t* b, const char* kind, tpu_dtype_t dtype) {
  if (strcmp(kind, "maximum") == 0) return tpui_lowest(b, dtype);
  if (strcmp(kind, "minimum") == 0) return tpui_highest(b, dtype);
  return tpui_constant(b, dtype, strcmp(kind, "add") == 0 || strcmp(kind, "or") == 0 ? 0 : 1);
}

tpui_hlo_t tpui_scan(tpui_builder_t* b, const char* kind, tpui_hlo_t x, int dim) {
  tpui_hlo_t identity = identity_of(b, kind, x.dtype);
  for (int64_t step = 1; tpui_ok(b) && step < x.sizes[dim]; step *= 2) {
    int64_t low[TPU_MAX_RANK] = {0}, high[TPU_MAX_RANK] = {0};
    low[dim] = step;
    high[dim] = -step;
    tpui_hlo_t shifted = tpui_pad(b, x, identity, low, high, NULL);
    x = tpui_binary(b, kind, x, shifted);
  }
  return x;
}
