/* Reading with index tensors: index_select, gather, index, take, embedding. */
#include <string.h>

#include "lower/gather.h"
#include "lower/index_list.h"
#include "lower/op_lowering.h"

void tpui_lower_index_select(const tpui_lowering_t* op) {
  tpui_hlo_t x = tpui_at_least_1d(op->b, tpui_operand(op, 0));
  int dim = tpui_wrap_dim(tpu_attr_int(op->record->attrs, 0, 0), x.rank);
  tpui_hlo_t index = tpui_at_least_1d(op->b, tpui_operand(op, 1));
  if (tpui_ok(op->b)) tpui_check_index(op, index, x.sizes[dim], false, dim);
  tpui_set_result_reshaped(op, 0, tpui_take_dim(op->b, x, dim, index));
}

void tpui_lower_gather(const tpui_lowering_t* op) {
  tpui_hlo_t x = tpui_at_least_1d(op->b, tpui_operand(op, 0));
  int dim = tpui_wrap_dim(tpu_attr_int(op->record->attrs, 0, 0), x.rank);
  tpui_hlo_t index = tpui_at_least_1d(op->b, tpui_operand(op, 1));
  if (tpui_count(index, 0, index.rank) == 0) {
    tpui_set_result(op, 0, tpui_constant(op->b, x.dtype, 0));
    return;
  }
  tpui_check_index(op, index, x.sizes[dim], false, dim);
  tpui_set_result_reshaped(op, 0, tpui_take_along(op->b, x, dim, index));
}

void tpui_lower_take(const tpui_lowering_t* op) {
  tpui_hlo_t x = tpui_operand(op, 0), index = tpui_operand(op, 1);
  tpui_check_index(op, index, tpui_count(x, 0, x.rank), true, -1);
  tpui_set_result(op, 0, tpui_take_flat(op->b, x, index));
}

void tpui_lower_embedding(const tpui_lowering_t* op) {
  tpui_hlo_t x = tpui_operand(op, 0), index = tpui_operand(op, 1);
  if (tpui_ok(op->b)) tpui_check_index(op, index, x.sizes[0], false, 0);
  tpui_set_result(op, 0, tpui_take_dim(op->b, x, 0, index));
}

/* --- index lists (x[i, :, j]) --- */

/* Reads the Tensor?[] that starts at operand 1. False after an error. */
static bool read_list(const tpui_lowering_t* op, tpui_index_list_t* list) {
  memset(list, 0, sizeof *list);
  tpui_builder_t* b = op->b;
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
    if (list->count == TPU_MAX_RANK) return false;
    list->dims[list->count] = i;
    list->indices[list->count++] = index;
  }
  // The common shape: right-aligned, size 1 stretches.
  for (int k = 0; k < list->count; ++k) {
    if (list->indices[k].rank > list->rank) list->rank = list->indices[k].rank;
  }
  for (int i = 0; i < list->rank; ++i) list->sizes[i] = 1;
  for (int k = 0; k < list->count; ++k) {
    int shift = list->rank - list->indices[k].rank;
    for (int i = 0; i < list->indices[k].rank; ++i) {
      int64_t size = list->indices[k].sizes[i];
      if (size != 1) list->sizes[shift + i] = size;
    }
  }
  return true;
}

/* One number per element: the position in the merged dimension. Clamped for reading; for writing,
 * an index outside becomes `merged`, which a scatter drops. */
static tpui_hlo_t merge_indices(const tpui_lowering_t* op, const tpui_index_list_t* list,
                                tpui_hlo_t x, bool clamp) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t position = tpui_constant_int(b, TPU_I64, 0);
  tpui_hlo_t valid = tpui_constant(b, TPU_BOOL, 1);
  int64_t merged = 1;
  for (int k = 0; k < list->count; ++k) {
    int64_t size = x.sizes[list->dims[k]];
    tpui_check_index(op, list->indices[k], size, true, list->dims[k]);
    merged *= size;
    tpui_hlo_t index = clamp ? tpui_clamp_index(b, list->indices[k], size)
                             : tpui_wrap_index(b, list->indices[k], size);
    position =
        k == 0
            ? index
            : tpui_binary(b, "add",
                          tpui_binary(b, "multiply", position, tpui_constant_int(b, TPU_I64, size)),
                          index);
    if (clamp) continue;
    tpui_hlo_t inside =
        tpui_binary(b, "and", tpui_compare_constant(b, "GE", index, 0),
                    tpui_compare(b, "LT", index, tpui_constant_int(b, TPU_I64, size)));
    valid = k == 0 ? inside : tpui_binary(b, "and", valid, inside);
  }
  if (!clamp) position = tpui_select(b, valid, position, tpui_constant_int(b, TPU_I64, merged));
  return tpui_broadcast_to(b, position, list->rank, list->sizes);
}

bool tpui_index_list_read(const tpui_lowering_t* op, tpui_hlo_t x, bool clamp,
                          tpui_index_list_t* list) {
  if (!read_list(op, list)) return false;
  bool adjacent = true;
  for (int k = 1; k < list->count; ++k) {
    adjacent = adjacent && list->dims[k] == list->dims[k - 1] + 1;
  }
  // Indexed dimensions that are not neighbours move to the front, as PyTorch's result has them.
  bool indexed[TPU_MAX_RANK] = {false};
  int at = 0;
  for (int k = 0; k < list->count; ++k) indexed[list->dims[k]] = true;
  if (adjacent) {
    for (int i = 0; i < x.rank; ++i) list->permutation[i] = i;
    list->first = list->count > 0 ? list->dims[0] : 0;
  } else {
    for (int i = 0; i < x.rank; ++i) {
      if (indexed[i]) list->permutation[at++] = i;
    }
    for (int i = 0; i < x.rank; ++i) {
      if (!indexed[i]) list->permutation[at++] = i;
    }
    list->first = 0;
  }
  list->moved = !adjacent;
  // Sizes with the indexed dimensions merged into one, and of the result.
  for (int i = 0; i < x.rank; ++i) {
    int64_t size = x.sizes[list->permutation[i]];
    bool inside = i >= list->first && i < list->first + list->count;
    if (!inside) {
      list->merged[list->merged_rank++] = size;
      list->result[list->result_rank++] = size;
    } else if (i == list->first) {
      list->merged[list->merged_rank++] = size;
      for (int j = 0; j < list->rank; ++j) list->result[list->result_rank++] = list->sizes[j];
    } else {
      list->merged[list->merged_rank - 1] *= size;
    }
  }
  if (list->count > 0) list->position = merge_indices(op, list, x, clamp);
  return tpui_ok(op->b);
}

void tpui_lower_index(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_operand(op, 0);
  tpui_index_list_t list;
  if (!tpui_index_list_read(op, x, true, &list)) return;
  if (list.count > 0) {
    if (list.moved) x = tpui_transpose(b, x, list.permutation);
    x = tpui_reshape(b, x, list.merged_rank, list.merged);
    x = tpui_take_dim(b, x, list.first, list.position);
  }
  tpui_set_result_reshaped(op, 0, x);
}
