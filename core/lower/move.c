/* Moving elements: copies, view writes, cat, flip, roll, repeat, pad, triangles. */
#include <string.h>

#include "lower/dims.h"
#include "lower/op_lowering.h"
#include "lower/pointwise.h"

/* VIEW_READ, CONVERT, copies: operand 0 through its view, in the result's dtype. */
void tpui_lower_identity(const tpui_lowering_t* op) {
  tpui_set_pointwise(op, 0, tpui_operand(op, 0));
}

/* VIEW_WRITE: operands are the base, the update, and the offset (int64) whose view word is the
 * destination's metadata. */
void tpui_lower_view_write(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  const tpu_record_t* r = op->record;
  if (r->operand_count != 3 || tpu_ref_kind(tpu_record_ref(r, 2)) != TPU_REF_SCALAR ||
      tpui_operand_meta(op, 0) == NULL) {
    tpui_fail(b, TPU_INTERNAL, "malformed record");
    return;
  }
  const tpu_meta_t* view = tpu_meta_get(tpu_record_view(r, 2));
  if (view == NULL) {
    tpui_fail(b, TPU_INTERNAL, "no destination");
    return;
  }
  tpui_hlo_t base = tpui_operand(op, 0), update = tpui_operand(op, 1);
  // XLA would fuse a gather into the write, which then cannot happen in place.
  if (tpui_is_gathered(op, 0)) update = tpui_barrier(b, update);
  tpui_set_result(
      op, 0,
      tpui_view_write(b, base, tpui_operand_meta(op, 0), view, tpu_record_slot(r, 2), update));
}

/* STORAGE_RESIZE: a flat tensor of another length, zeros behind what was there. */
void tpui_lower_storage_resize(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_operand(op, 0);
  const tpu_meta_t* meta = tpui_result_meta(op, 0);
  if (!tpui_ok(b)) return;
  if (x.rank != 1 || meta->rank != 1) {
    tpui_fail(b, TPU_INTERNAL, "storages are resized flat");
    return;
  }
  const int64_t low[1] = {0}, high[1] = {meta->sizes[0] - x.sizes[0]};
  tpui_hlo_t zero = tpui_convert(b, tpui_constant_int(b, TPU_I64, 0), x.dtype);
  tpui_set_result(op, 0, tpui_pad(b, x, zero, low, high, NULL));
}

/* cat(tensors..., dim); attribute 0: their number, 1: dim. Empty vectors may stand among tensors of
 * other ranks and count as nothing. */
void tpui_lower_cat(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  const tpu_meta_t* meta = tpui_result_meta(op, 0);
  int count = tpui_operand_count(op), kept = 0;
  tpui_hlo_t* parts = tpui_arena(b, (size_t)(count > 0 ? count : 1) * sizeof(tpui_hlo_t));
  int dim = tpui_dim_attr(op, 1, meta->rank);
  for (int i = 0; i < count && parts != NULL && tpui_ok(b); ++i) {
    tpui_hlo_t x = tpui_operand_as(op, i, meta->dtype);
    if (x.rank == 1 && x.sizes[0] == 0) continue;
    parts[kept++] = x;
  }
  if (!tpui_ok(b)) return;
  if (kept == 0) {
    tpui_lower_zeros(op);
    return;
  }
  tpui_set_result(op, 0, tpui_concatenate(b, kept, parts, dim));
}

void tpui_lower_flip(const tpui_lowering_t* op) {
  tpui_hlo_t x = tpui_operand(op, 0);
  const int64_t* values = NULL;
  if (tpu_attr_ints(op->record->attrs, 0, &values) > 0) {
    tpui_dims_t dims = tpui_dims_attr(op, 0, x.rank);
    x = tpui_reverse(op->b, x, dims.count, dims.dims);
  }
  tpui_set_result(op, 0, x);
}

/* By operand k: two pieces, or for a number that varies a piece of the tensor written twice. */
static tpui_hlo_t roll_dim(const tpui_lowering_t* op, tpui_hlo_t x, int dim, int k) {
  tpui_builder_t* b = op->b;
  double number;
  if (!tpui_ok(b) || x.sizes[dim] == 0) return x;
  int64_t size = x.sizes[dim];
  if (tpui_operand_constant(op, k, &number)) {
    int64_t by = (((int64_t)number % size) + size) % size;
    if (by == 0) return x;
    tpui_hlo_t parts[2] = {tpui_slice_dim(b, x, dim, size - by, size),
                           tpui_slice_dim(b, x, dim, 0, size - by)};
    return tpui_concatenate(b, 2, parts, dim);
  }
  tpui_hlo_t modulus = tpui_constant_int(b, TPU_I64, size), starts[TPU_MAX_RANK];
  tpui_hlo_t rest = tpui_binary(b, "remainder", tpui_operand_as(op, k, TPU_I64), modulus);
  for (int i = 0; i < x.rank; ++i) starts[i] = tpui_constant_int(b, TPU_I64, 0);
  starts[dim] = tpui_binary(b, "remainder", tpui_sub(b, modulus, rest), modulus);
  tpui_hlo_t twice[2] = {x, x};
  return tpui_dynamic_slice(b, tpui_concatenate(b, 2, twice, dim), starts, x.sizes);
}

/* roll(self, shifts.., dims), attributes: how many shifts, dims. Without dims the tensor is rolled
 * as one row. */
void tpui_lower_roll(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_operand(op, 0);
  const int64_t* dims = NULL;
  int shift_count = (int)tpu_attr_int(op->record->attrs, 0, 0);
  int dim_count = tpu_attr_ints(op->record->attrs, 1, &dims);
  if (!tpui_ok(b)) return;
  if (dim_count == 0 && shift_count == 1) {
    int64_t count[1] = {tpui_result_meta(op, 0)->numel};
    x = roll_dim(op, tpui_reshape(b, x, 1, count), 0, 1);
  }
  for (int i = 0; i < dim_count && i < shift_count && x.rank > 0; ++i) {
    int64_t dim = dims[i] < 0 ? dims[i] + x.rank : dims[i];
    x = roll_dim(op, x, (int)dim, 1 + i);
  }
  tpui_set_result_reshaped(op, 0, x);
}

/* repeat(self, repeats): each dimension becomes (repeats, size), then both are merged. */
void tpui_lower_repeat(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_operand(op, 0);
  const tpu_meta_t* meta = tpui_result_meta(op, 0);
  const int64_t* repeats = NULL;
  int rank = tpu_attr_ints(op->record->attrs, 0, &repeats);
  int64_t sizes[2 * TPU_MAX_RANK];
  int dims[TPU_MAX_RANK], lead = rank - x.rank;
  if (!tpui_ok(b)) return;
  for (int i = 0; i < rank; ++i) {
    sizes[2 * i] = repeats[i];
    sizes[2 * i + 1] = i < lead ? 1 : x.sizes[i - lead];
    if (i >= lead) dims[i - lead] = 2 * i + 1;
  }
  x = tpui_broadcast_in_dim(b, x, 2 * rank, sizes, dims);
  tpui_set_result(op, 0, tpui_reshape(b, x, meta->rank, meta->sizes));
}

/* constant_pad_nd(self, pad, value): pairs (low, high) from the last dimension on; negative ones
 * crop. */
void tpui_lower_constant_pad(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_operand(op, 0);
  const int64_t* pad = NULL;
  int count = tpu_attr_ints(op->record->attrs, 0, &pad);
  int64_t low[TPU_MAX_RANK] = {0}, high[TPU_MAX_RANK] = {0};
  for (int i = 0; i < count / 2 && i < x.rank; ++i) {
    low[x.rank - 1 - i] = pad[2 * i];
    high[x.rank - 1 - i] = pad[2 * i + 1];
  }
  tpui_hlo_t value = tpui_has_operand(op, 1)
                         ? tpui_operand_as(op, 1, x.dtype)
                         : tpui_convert(b, tpui_constant_int(b, TPU_I64, 0), x.dtype);
  tpui_set_result(op, 0, tpui_pad(b, x, value, low, high, NULL));
}

/* tril, triu: attribute 0 is the diagonal; argument: GE keeps row + diagonal >= column, LE the
 * others. */
void tpui_lower_triangle(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_operand(op, 0);
  tpui_hlo_t diagonal = tpui_operand_as(op, 1, TPU_I64);
  if (!tpui_ok(b) || x.rank < 2) return;
  const int64_t sizes[2] = {x.sizes[x.rank - 2], x.sizes[x.rank - 1]};
  tpui_hlo_t row = tpui_iota(b, TPU_I64, 2, sizes, 0);
  row = tpui_binary(b, "add", row, diagonal);
  tpui_hlo_t keep = tpui_compare(b, op->argument, row, tpui_iota(b, TPU_I64, 2, sizes, 1));
  tpui_hlo_t zero = tpui_convert(b, tpui_constant_int(b, TPU_I64, 0), x.dtype);
  tpui_set_result(op, 0, tpui_select(b, keep, x, zero));
}

/* channel_shuffle(self, groups): dimension 1 as (groups, C / groups), transposed. */
void tpui_lower_channel_shuffle(const tpui_lowering_t* op) {
  tpui_builder_t* b = op->b;
  tpui_hlo_t x = tpui_operand(op, 0);
  int64_t groups = tpu_attr_int(op->record->attrs, 0, 1);
  if (!tpui_ok(b) || x.rank < 2 || groups < 1) return;
  int64_t rest = tpui_count(x, 2, x.rank);
  const int64_t split[4] = {x.sizes[0], groups, x.sizes[1] / groups, rest};
  const int order[4] = {0, 2, 1, 3};
  tpui_set_result_reshaped(op, 0, tpui_transpose(b, tpui_reshape(b, x, 4, split), order));
}
