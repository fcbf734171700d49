/* Reading with index tensors: index_select, gather, index, take, embedding. */
#include <string.h>

#include "lower/gather.h"
#include "lower/index_list.h"
#include "lower/op_lowering.h"

/* Whole slices of operand 0 along one dimension. */
static tpui_hlo_t take_slices(const tpui_lowering_t* op, int64_t dim, tpui_hlo_t index) {
  tpui_axes_t x = tpui_axes_operand(op);
  int at = tpui_wrap_dim(dim, x.rank);
  if (tpui_ok(op->b)) tpui_check_index(op, index, x.sizes[at], false, at);
  tpui_pick_t pick = tpui_pick_dim(at, tpui_clamp_index(op->b, index, x.sizes[at]));
  return tpui_axes_gather(op->b, &x, &pick);
}

void tpui_lower_index_select(const tpui_lowering_t* op) {
  tpui_hlo_t index = tpui_at_least_1d(op->b, tpui_operand(op, 1));
  int64_t dim = tpu_attr_int(op->record->attrs, 0, 0);
  tpui_set_result_reshaped(op, 0, take_slices(op, dim, index));
}

void tpui_lower_gather(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t index = tpui_at_least_1d(b, tpui_operand(op, 1));
  tpui_axes_t x = tpui_axes_operand(op);
  int dim = tpui_wrap_dim(tpu_attr_int(op->record->attrs, 0, 0), x.rank);
  if (tpui_count(index, 0, index.rank) == 0) {
    tpui_set_result(op, 0, tpui_constant(b, x.array.dtype, 0));
    return;
  }
  tpui_check_index(op, index, x.sizes[dim], false, dim);
  if (x.meta == NULL) {
    tpui_set_result_reshaped(op, 0, tpui_take_along(b, x.array, dim, index));
    return;
  }
  tpui_pick_t pick = tpui_pick_along(b, &x, dim, tpui_clamp_index(b, index, x.sizes[dim]));
  tpui_set_result_reshaped(op, 0, tpui_axes_gather(b, &x, &pick));
}

void tpui_lower_take(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t index = tpui_operand(op, 1);
  tpui_axes_t x = tpui_axes_operand(op);
  int64_t count = tpui_operand_meta(op, 0)->numel;
  tpui_check_index(op, index, count, true, -1);
  if (x.meta == NULL) {
    tpui_set_result(op, 0, tpui_take_flat(b, x.array, index));
    return;
  }
  tpui_pick_t pick = tpui_pick_flat(b, &x, tpui_clamp_index(b, index, count));
  tpui_set_result(op, 0, tpui_axes_gather(b, &x, &pick));
}

void tpui_lower_embedding(const tpui_lowering_t* op) {
  tpui_set_result(op, 0, take_slices(op, 0, tpui_operand(op, 1)));
}

/* --- index lists (x[i, :, j]) --- */

/* Reads the Tensor?[] that starts at operand 1. False after an error. */
static bool read_list(const tpui_lowering_t* op, tpui_index_list_t* list) {
  memset(list, 0, sizeof *list);
  tpui_builder_t* b = op->b;
  tpui_pick_t* pick = &list->pick;
  int64_t length = tpu_attr_int(op->record->attrs, 0, 0);
  list->operand_end = 1 + (int)length;
  for (int i = 0; i < length; ++i) {
    if (!tpui_has_operand(op, 1 + i)) continue;
    tpui_hlo_t index = tpui_operand(op, 1 + i);
    if (!tpui_ok(b)) return false;
    if (index.dtype == TPU_BOOL) {
      tpui_fail(b, TPU_UNIMPLEMENTED, "a boolean mask among the indices; use mask.nonzero()");
      return false;
    }
    if (pick->count == TPU_MAX_RANK) return false;
    pick->dims[pick->count] = i;
    pick->indices[pick->count++] = index;
  }
  // The common shape: right-aligned, size 1 stretches.
  for (int k = 0; k < pick->count; ++k) {
    if (pick->indices[k].rank > pick->rank) pick->rank = pick->indices[k].rank;
  }
  for (int i = 0; i < pick->rank; ++i) pick->sizes[i] = 1;
  for (int k = 0; k < pick->count; ++k) {
    int shift = pick->rank - pick->indices[k].rank;
    for (int i = 0; i < pick->indices[k].rank; ++i) {
      int64_t size = pick->indices[k].sizes[i];
      if (size != 1) pick->sizes[shift + i] = size;
    }
  }
  return true;
}

bool tpui_index_list_read(const tpui_lowering_t* op, const tpui_axes_t* x, bool clamp,
                          tpui_index_list_t* list) {
  if (!read_list(op, list)) return false;
  tpui_pick_t* pick = &list->pick;
  bool adjacent = true;
  for (int k = 0; k < pick->count; ++k) {
    int64_t size = x->sizes[pick->dims[k]];
    tpui_check_index(op, pick->indices[k], size, true, pick->dims[k]);
    pick->indices[k] = clamp ? tpui_clamp_index(op->b, pick->indices[k], size)
                             : tpui_wrap_index(op->b, pick->indices[k], size);
    adjacent = adjacent && pick->dims[k] == pick->dims[0] + k;
  }
  // The common shape takes the place of neighbours, else it goes to the front.
  pick->at = adjacent && pick->count > 0 ? pick->dims[0] : 0;
  for (int i = 0, whole = 0; i <= x->rank; ++i) {
    bool indexed = false;
    for (int k = 0; k < pick->count; ++k) indexed = indexed || pick->dims[k] == i;
    if (indexed) continue;
    for (int j = 0; whole == pick->at && j < pick->rank; ++j) {
      list->result[list->result_rank++] = pick->sizes[j];
    }
    ++whole;
    if (i < x->rank) list->result[list->result_rank++] = x->sizes[i];
  }
  return tpui_ok(op->b);
}

void tpui_lower_index(const tpui_lowering_t* op) {
  tpui_axes_t x = tpui_axes_operand(op);
  tpui_index_list_t list;
  if (!tpui_index_list_read(op, &x, true, &list)) return;
  tpui_set_result_reshaped(
      op, 0, list.pick.count == 0 ? tpui_operand(op, 0) : tpui_axes_gather(op->b, &x, &list.pick));
}
