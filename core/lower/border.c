/* Padding with the tensor's own elements: reflection and replication, and their gradients.
 *
 * Attribute 0 holds pairs (low, high) from the last dimension on; a negative amount crops.
 * Argument of the op table: "reflect" or "replicate".
 */
#include <string.h>

#include "lower/gather.h"
#include "lower/op_lowering.h"

typedef struct border_t {
  tpui_builder_t* b;
  bool reflect;
  int dim;
  int64_t size;       // of the unpadded dimension, before any cropping
  int64_t low, high;  // may be negative
} border_t;

static int64_t positive_part(int64_t value) { return value > 0 ? value : 0; }

/* Adds zeros (positive) or crops (negative) along one dimension. */
static tpui_hlo_t shift_edges(const border_t* p, tpui_hlo_t x, int64_t low, int64_t high) {
  int64_t lows[TPU_MAX_RANK] = {0}, highs[TPU_MAX_RANK] = {0};
  lows[p->dim] = low;
  highs[p->dim] = high;
  return tpui_pad(p->b, x, tpui_convert(p->b, tpui_constant_int(p->b, TPU_I64, 0), x.dtype), lows,
                  highs, NULL);
}

/* `count` elements that lie beyond one end of x, in the order in which they stand there. */
static tpui_hlo_t beyond_end(const border_t* p, tpui_hlo_t x, bool high, int64_t count) {
  int64_t size = x.sizes[p->dim];
  if (p->reflect) {
    int64_t start = high ? size - 1 - count : 1;
    return tpui_reverse(p->b, tpui_slice_dim(p->b, x, p->dim, start, start + count), 1, &p->dim);
  }
  int64_t sizes[TPU_MAX_RANK];
  for (int i = 0; i < x.rank; ++i) sizes[i] = i == p->dim ? count : x.sizes[i];
  int64_t at = high ? size - 1 : 0;
  return tpui_broadcast_to(p->b, tpui_slice_dim(p->b, x, p->dim, at, at + 1), x.rank, sizes);
}

static tpui_hlo_t pad_dim(const border_t* p, tpui_hlo_t x) {
  tpui_hlo_t parts[3];
  int count = 0;
  if (!tpui_ok(p->b)) return x;
  if (p->low > 0) parts[count++] = beyond_end(p, x, false, p->low);
  parts[count++] = shift_edges(p, x, p->low < 0 ? p->low : 0, p->high < 0 ? p->high : 0);
  if (p->high > 0) parts[count++] = beyond_end(p, x, true, p->high);
  return tpui_concatenate(p->b, count, parts, p->dim);
}

/* Gradient of what `beyond_end` took, back at the places it was taken from, `size` long. */
static tpui_hlo_t back_inside(const border_t* p, tpui_hlo_t g, bool high, int64_t count) {
  if (p->reflect) {
    int64_t start = high ? p->size - 1 - count : 1;
    g = tpui_reverse(p->b, g, 1, &p->dim);
    return shift_edges(p, g, start, p->size - start - count);
  }
  g = tpui_reduce_keep(p->b, "add", g, 1, &p->dim);
  return high ? shift_edges(p, g, p->size - 1, 0) : shift_edges(p, g, 0, p->size - 1);
}

static tpui_hlo_t unpad_dim(const border_t* p, tpui_hlo_t g) {
  tpui_builder_t* b = p->b;
  if (!tpui_ok(b)) return g;
  int64_t low = positive_part(p->low), total = g.sizes[p->dim], high = positive_part(p->high);
  tpui_hlo_t middle = tpui_slice_dim(b, g, p->dim, low, total - high);
  middle = shift_edges(p, middle, positive_part(-p->low), positive_part(-p->high));
  if (low > 0) {
    tpui_hlo_t part = tpui_slice_dim(b, g, p->dim, 0, low);
    middle = tpui_binary(b, "add", middle, back_inside(p, part, false, low));
  }
  if (high > 0) {
    tpui_hlo_t part = tpui_slice_dim(b, g, p->dim, total - high, total);
    middle = tpui_binary(b, "add", middle, back_inside(p, part, true, high));
  }
  return middle;
}

/* Applies `step` to each padded dimension of x; `shape` has the unpadded sizes. */
static tpui_hlo_t each_dim(const tpui_lowering_t* op, tpui_hlo_t x, const tpu_meta_t* shape,
                           tpui_hlo_t (*step)(const border_t*, tpui_hlo_t)) {
  const int64_t* pad = NULL;
  int count = tpu_attr_ints(op->record->attrs, 0, &pad);
  for (int i = 0; i < count / 2 && i < x.rank; ++i) {
    border_t p = {.b = op->b,
                  .reflect = strcmp(op->argument, "reflect") == 0,
                  .dim = x.rank - 1 - i,
                  .size = shape->sizes[x.rank - 1 - i],
                  .low = pad[2 * i],
                  .high = pad[2 * i + 1]};
    x = step(&p, x);
  }
  return x;
}

/* reflection_pad and replication_pad(self, padding) */
void tpui_lower_border_pad(const tpui_lowering_t* op) {
  const tpu_meta_t* meta = tpui_operand_meta(op, 0);
  tpui_set_result(op, 0, each_dim(op, tpui_operand(op, 0), meta, pad_dim));
}

/* (grad, self, padding); of self only the sizes matter. */
void tpui_lower_border_pad_backward(const tpui_lowering_t* op) {
  const tpu_meta_t* meta = tpui_operand_meta(op, 1);
  tpui_hlo_t g = tpui_operand(op, 0);
  g = tpui_convert(op->b, g, tpui_math_dtype(g.dtype));
  tpui_set_result(op, 0, each_dim(op, g, meta, unpad_dim));
}
