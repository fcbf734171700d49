/* Writing by index with arithmetic, and such reductions: scatter_reduce, index_reduce. */
#include "lower/combine.h"

#include <string.h>

#include "lower/gather.h"
#include "lower/op_lowering.h"
#include "lower/sort.h"

static const struct {
  const char* name;
  const char* kind;
} reductions[] = {
    {"sum", "add"}, {"mean", "add"}, {"prod", "multiply"}, {"amax", "maximum"}, {"amin", "minimum"},
};

/* Attributes: dim, reduce, include_self. False, with an error, for a word that is no reduction. */
static bool read_combine(const tpui_lowering_t* op, tpu_dtype_t dtype, tpui_combine_t* how) {
  const char* name = tpu_attr_text(op->record->attrs, 1);
  *how = (tpui_combine_t){.dtype = tpui_math_dtype(dtype),
                          .without_self = tpu_attr_int(op->record->attrs, 2, 1) == 0,
                          .mean = strcmp(name, "mean") == 0};
  for (size_t i = 0; i < sizeof reductions / sizeof reductions[0]; ++i) {
    if (strcmp(reductions[i].name, name) == 0) how->kind = reductions[i].kind;
  }
  if (how->kind != NULL) return true;
  tpui_fail(op->b, TPU_INVALID_ARGUMENT, "unknown reduction '%s'", name);
  return false;
}

static tpui_hlo_t identity_of(tpui_builder_t* b, const tpui_combine_t* how) {
  if (strcmp(how->kind, "maximum") == 0) return tpui_lowest(b, how->dtype);
  if (strcmp(how->kind, "minimum") == 0) return tpui_highest(b, how->dtype);
  return tpui_constant(b, how->dtype, strcmp(how->kind, "add") == 0 ? 0 : 1);
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

/* --- apart from the tensor: a table with a row for each place that is picked --- */

/* How many elements of the common shape there are, and how many the dimensions taken whole have. */
static void count_picked(const tpui_axes_t* x, const tpui_pick_t* pick, int64_t* out_places,
                         int64_t* out_width) {
  *out_places = *out_width = 1;
  for (int i = 0; i < pick->rank; ++i) *out_places *= pick->sizes[i];
  for (int d = 0, k = 0; d < x->rank; ++d) {
    if (k < pick->count && pick->dims[k] == d) {
      ++k;
    } else {
      *out_width *= x->sizes[d];
    }
  }
}

bool tpui_combines_apart(const tpui_axes_t* x, const tpui_pick_t* pick) {
  int64_t places, width;
  count_picked(x, pick, &places, &width);
  return x->meta != NULL || places * width < tpui_count(x->array, 0, x->array.rank) / 8;
}

/* Updates as rows: the common shape in front and flat, the rest behind and flat; or back again. */
static tpui_hlo_t as_rows(tpui_builder_t* b, const tpui_pick_t* pick, tpui_hlo_t updates,
                          const int64_t* row_sizes) {
  int order[2 * TPU_MAX_RANK], rank = 0;
  for (int i = 0; i < pick->rank; ++i) order[rank++] = pick->at + i;
  for (int i = 0; i < pick->at; ++i) order[rank++] = i;
  while (rank < updates.rank) {
    order[rank] = rank;
    ++rank;
  }
  if (pick->at > 0) updates = tpui_transpose(b, updates, order);
  return tpui_reshape(b, updates, 2, row_sizes);
}

static tpui_hlo_t from_rows(tpui_builder_t* b, const tpui_pick_t* pick, tpui_hlo_t rows, int rank,
                            const int64_t* sizes) {
  if (pick->at == 0) return tpui_reshape(b, rows, rank, sizes);
  int order[2 * TPU_MAX_RANK];
  int64_t moved[2 * TPU_MAX_RANK];
  for (int i = 0; i < rank; ++i) {
    bool front = i < pick->at, common = !front && i < pick->at + pick->rank;
    order[i] = front ? pick->rank + i : common ? i - pick->at : i;
    moved[order[i]] = sizes[i];
  }
  return tpui_transpose(b, tpui_reshape(b, rows, rank, moved), order);
}

/* A number for each picked place, [places]: equal where the place is; -1 outside. */
static tpui_hlo_t number_places(tpui_builder_t* b, const tpui_axes_t* x, const tpui_pick_t* pick) {
  tpui_hlo_t number = tpui_constant_int(b, TPU_I64, 0), inside = tpui_constant(b, TPU_BOOL, 1);
  for (int k = 0; k < pick->count; ++k) {
    tpui_hlo_t index = tpui_broadcast_to(b, pick->indices[k], pick->rank, pick->sizes);
    tpui_hlo_t size = tpui_constant_int(b, TPU_I64, x->sizes[pick->dims[k]]);
    number = tpui_add(b, tpui_mul(b, number, size), index);
    tpui_hlo_t here = tpui_binary(b, "and", tpui_compare_constant(b, "GE", index, 0),
                                  tpui_compare(b, "LT", index, size));
    inside = tpui_binary(b, "and", inside, here);
  }
  number = tpui_select(b, inside, number, tpui_constant_int(b, TPU_I64, -1));
  return tpui_flatten(b, tpui_broadcast_to(b, number, pick->rank, pick->sizes));
}

/* The row of each picked place, [places]: the same for the same place. */
static tpui_hlo_t find_rows(tpui_builder_t* b, tpui_hlo_t number) {
  if (!tpui_ok(b)) return number;
  const int64_t line[] = {1, number.sizes[0]};
  tpui_hlo_t sorted = tpui_reshape(b, tpui_sort_integers(b, number, 0), 2, line);
  number = tpui_reshape(b, number, 2, line);
  return tpui_flatten(b, tpui_search_sorted(b, sorted, number, false));
}

/* The updates' rows combined with each other and what is there, where each belongs. */
static tpui_hlo_t combine_rows(tpui_builder_t* b, const tpui_combine_t* how, tpui_hlo_t row,
                               tpui_hlo_t there, tpui_hlo_t updates) {
  tpui_hlo_t table = tpui_broadcast_to(b, identity_of(b, how), 2, updates.sizes);
  if (!how->without_self) table = tpui_scatter_dim(b, "set", table, 0, row, there);
  table = tpui_scatter_dim(b, how->kind, table, 0, row, updates);
  if (how->mean) {
    tpui_hlo_t start = tpui_full(b, how->dtype, how->without_self ? 0 : 1, 1, row.sizes);
    tpui_hlo_t ones = tpui_full(b, how->dtype, 1, 1, row.sizes);
    tpui_hlo_t count = tpui_scatter_dim(b, "add", start, 0, row, ones);
    table = divide_counts(b, table, tpui_spread(b, count, 0, 2, updates.sizes));
  }
  return tpui_take_dim(b, table, 0, row);
}

void tpui_combine_apart(const tpui_lowering_t* op, const tpui_axes_t* x, const tpui_pick_t* pick,
                        tpui_hlo_t updates, const tpui_combine_t* how) {
  tpui_builder_t* b = op->b;
  int64_t rows[2];
  if (!tpui_ok(b)) return;
  count_picked(x, pick, &rows[0], &rows[1]);
  if (rows[0] * rows[1] == 0) {
    tpui_axes_set_result(op, x, x->array);
    return;
  }
  if (how->dtype != x->array.dtype || how->without_self || how->mean) {
    tpui_hlo_t there = tpui_convert(b, tpui_axes_gather(b, x, pick), how->dtype);
    tpui_hlo_t row = find_rows(b, number_places(b, x, pick));
    tpui_hlo_t made =
        combine_rows(b, how, row, as_rows(b, pick, there, rows), as_rows(b, pick, updates, rows));
    made = from_rows(b, pick, made, updates.rank, updates.sizes);
    updates = tpui_convert(b, made, x->array.dtype);
    tpui_axes_set_result(op, x, tpui_axes_scatter(b, "set", x, pick, updates));
  } else {
    tpui_axes_set_result(op, x, tpui_axes_scatter(b, how->kind, x, pick, updates));
  }
}

/* --- reductions --- */

/* With one pass over the tensor. `touched` (bool) and `counts` are made as `put` says. */
typedef tpui_hlo_t (*put_t)(tpui_builder_t* b, const char* kind, tpui_hlo_t x, int dim,
                            tpui_hlo_t index, tpui_hlo_t source);

static void combine_whole(const tpui_lowering_t* op, put_t put, tpui_hlo_t x, int dim,
                          tpui_hlo_t index, tpui_hlo_t source, const tpui_combine_t* how) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t start = tpui_convert(b, x, how->dtype);
  tpui_hlo_t ones = tpui_full_like(b, source, how->dtype, 1);
  if (how->without_self) {
    tpui_hlo_t touched = put(b, "set", tpui_full_like(b, x, TPU_BOOL, 0), dim, index,
                             tpui_convert(b, ones, TPU_BOOL));
    start = tpui_select(b, touched, identity_of(b, how), start);
  }
  tpui_hlo_t result = put(b, how->kind, start, dim, index, source);
  if (how->mean) {
    tpui_hlo_t none = tpui_full_like(b, x, how->dtype, how->without_self ? 0 : 1);
    result = divide_counts(b, result, put(b, "add", none, dim, index, ones));
  }
  tpui_set_result_reshaped(op, 0, result);
}

static void lower_reduction(const tpui_lowering_t* op, bool slices) {
  tpui_builder_t* b = op->b;
  tpu_dtype_t dtype = tpui_operand_meta(op, 0)->dtype;
  tpui_axes_t x = tpui_axes_target(op, dtype);
  tpui_hlo_t index = tpui_at_least_1d(b, tpui_operand(op, 1));
  tpui_combine_t how;
  if (!tpui_ok(b) || !read_combine(op, dtype, &how)) return;
  int dim = tpui_wrap_dim(tpu_attr_int(op->record->attrs, 0, 0), x.rank);
  tpui_check_index(op, index, x.sizes[dim], false, dim);
  tpui_hlo_t source = tpui_convert(b, tpui_operand_as(op, 2, dtype), how.dtype);
  if (slices) {
    int64_t sizes[TPU_MAX_RANK];
    for (int i = 0; i < x.rank; ++i) sizes[i] = i == dim ? index.sizes[0] : x.sizes[i];
    source = tpui_reshape(b, source, x.rank, sizes);
  } else {
    source = tpui_cut_to(b, tpui_at_least_1d(b, source), index);
  }
  tpui_hlo_t wrapped = tpui_wrap_index(b, index, x.sizes[dim]);
  bool any = tpui_ok(b) && tpui_count(index, 0, index.rank) > 0;
  tpui_pick_t pick = {0};
  if (any) pick = slices ? tpui_pick_dim(dim, wrapped) : tpui_pick_along(b, &x, dim, wrapped);
  if (!any) {
    tpui_axes_set_result(op, &x, x.array);
  } else if (tpui_combines_apart(&x, &pick)) {
    tpui_combine_apart(op, &x, &pick, source, &how);
  } else {
    combine_whole(op, slices ? tpui_scatter_dim : tpui_scatter_along, x.array, dim, index, source,
                  &how);
  }
}

void tpui_lower_scatter_reduce(const tpui_lowering_t* op) { lower_reduction(op, false); }
void tpui_lower_index_reduce(const tpui_lowering_t* op) { lower_reduction(op, true); }
