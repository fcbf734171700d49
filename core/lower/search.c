/* searchsorted and bucketize. */
#include <string.h>

#include "lower/gather.h"
#include "lower/op_lowering.h"
#include "lower/pointwise.h"
#include "lower/sort.h"

/* Sequences up to this length are counted instead of bisected: one fused loop, no gathers. */
#define MAX_COUNTED 64

/* True where the sequence element stays left of the value. NaN values go to the end. */
static tpui_hlo_t stays_left(tpui_builder_t* b, tpui_hlo_t element, tpui_hlo_t value, bool right) {
  return tpui_unary(b, "not", tpui_compare(b, right ? "GT" : "GE", element, value));
}

static tpui_hlo_t count_left(tpui_builder_t* b, tpui_hlo_t sequence, tpui_hlo_t values,
                             bool right) {
  const int64_t sizes[] = {values.sizes[0], values.sizes[1], sequence.sizes[1]};
  const int sequence_dims[] = {0, 2}, value_dims[] = {0, 1}, last = 2;
  tpui_hlo_t left = stays_left(b, tpui_broadcast_in_dim(b, sequence, 3, sizes, sequence_dims),
                               tpui_broadcast_in_dim(b, values, 3, sizes, value_dims), right);
  return tpui_reduce(b, "add", tpui_convert(b, left, TPU_I64), 1, &last);
}

/* What decides at a place of the sequence whether the search goes on to the right of it. */
typedef struct search_t {
  tpui_builder_t* b;
  tpui_hlo_t sequence, values;
  bool right;
  bool counted;               // the two below are set, and enough
  tpui_hlo_t count, numbers;  // elements that stay left of the value; elements that are not NaN
} search_t;

static tpui_hlo_t goes_right(const search_t* s, tpui_hlo_t place) {
  tpui_builder_t* b = s->b;
  if (!s->counted) {
    return stays_left(b, tpui_take_along(b, s->sequence, 1, place), s->values, s->right);
  }
  return tpui_binary(b, "or", tpui_compare(b, "LT", place, s->count),
                     tpui_compare(b, "GE", place, s->numbers));
}

static tpui_hlo_t bisect_sequence(const search_t* s) {
  tpui_builder_t* b = s->b;
  int64_t length = s->sequence.sizes[1];
  tpui_hlo_t low = tpui_full_like(b, s->values, TPU_I64, 0);
  tpui_hlo_t high = tpui_full_like(b, s->values, TPU_I64, (double)length);
  tpui_hlo_t one = tpui_constant_int(b, TPU_I64, 1);
  for (int64_t rest = length; rest > 0 && tpui_ok(b); rest /= 2) {
    tpui_hlo_t middle =
        tpui_binary(b, "shift_right_logical", tpui_binary(b, "add", low, high), one);
    tpui_hlo_t left = goes_right(s, middle);
    tpui_hlo_t open = tpui_compare(b, "LT", low, high);
    tpui_hlo_t above = tpui_binary(b, "and", open, left);
    tpui_hlo_t below = tpui_binary(b, "and", open, tpui_unary(b, "not", left));
    low = tpui_select(b, above, tpui_binary(b, "add", middle, one), low);
    high = tpui_select(b, below, middle, high);
  }
  return low;
}

tpui_hlo_t tpui_search_sorted(tpui_builder_t* b, tpui_hlo_t sequence, tpui_hlo_t values,
                              bool right) {
  if (!tpui_ok(b)) return values;
  search_t s = {.b = b, .sequence = sequence, .values = values, .right = right};
  if (sequence.sizes[1] > MAX_COUNTED) return bisect_sequence(&s);
  return count_left(b, sequence, values, right);
}

/* Short sequences of floats may end in NaN, which is not greater than anything: a bisection that
 * meets one goes to its right. So the counts are bisected, to the place that PyTorch gives. */
static tpui_hlo_t search_with_nan(tpui_builder_t* b, tpui_hlo_t sequence, tpui_hlo_t values,
                                  bool right) {
  bool is_short = sequence.sizes[1] <= MAX_COUNTED;
  if (!is_short || !tpu_dtype_is_float(sequence.dtype)) {
    return tpui_search_sorted(b, sequence, values, right);
  }
  const int last = 1;
  tpui_hlo_t nan = tpui_convert(b, tpui_is_nan(b, sequence), TPU_I64);
  tpui_hlo_t nans = tpui_reduce_keep(b, "add", nan, 1, &last);
  search_t s = {.b = b, .sequence = sequence, .values = values, .counted = true};
  s.numbers = tpui_binary(b, "subtract", tpui_constant_int(b, TPU_I64, sequence.sizes[1]), nans);
  s.count = tpui_binary(b, "subtract", count_left(b, sequence, values, right), nans);
  return bisect_sequence(&s);
}

/* Sequence of rank 1 (searched by all values) or lines that match the values' lines. */
static void lower_search(const tpui_lowering_t* op, tpui_hlo_t sequence, tpui_hlo_t values,
                         bool right) {
  tpui_builder_t* b = op->b;
  if (!tpui_ok(b)) return;
  int64_t length = sequence.sizes[sequence.rank - 1];
  int64_t lines = sequence.rank == 1 ? 1 : tpui_count(sequence, 0, sequence.rank - 1);
  int64_t total = tpui_count(values, 0, values.rank);
  if (total == 0 || lines == 0 || length == 0) {
    tpui_set_result(op, 0, tpui_constant(b, TPU_I64, 0));
    return;
  }
  sequence = tpui_reshape(b, sequence, 2, (const int64_t[]){lines, length});
  values = tpui_reshape(b, values, 2, (const int64_t[]){lines, total / lines});
  tpui_set_result_reshaped(op, 0, search_with_nan(b, sequence, values, right));
}

/* Operands: sorted_sequence, values, sorter?; attributes: out_int32, right, side?. */
void tpui_lower_searchsorted(const tpui_lowering_t* op) {
  tpu_dtype_t dtype = tpui_compute_dtype(op);
  tpui_hlo_t sequence = tpui_at_least_1d(op->b, tpui_operand_as(op, 0, dtype));
  if (tpui_has_operand(op, 2)) {
    sequence = tpui_take_along(op->b, sequence, sequence.rank - 1, tpui_operand(op, 2));
  }
  bool right = tpu_attr_int(op->record->attrs, 1, 0) != 0;
  if (tpu_attr_kind(op->record->attrs, 2) == TPU_ATTR_TEXT) {
    right = strcmp(tpu_attr_text(op->record->attrs, 2), "right") == 0;
  }
  lower_search(op, sequence, tpui_operand_as(op, 1, dtype), right);
}

/* Operands: values, boundaries; attributes: out_int32, right. */
void tpui_lower_bucketize(const tpui_lowering_t* op) {
  tpu_dtype_t dtype = tpui_compute_dtype(op);
  tpui_hlo_t sequence = tpui_at_least_1d(op->b, tpui_operand_as(op, 1, dtype));
  bool right = tpu_attr_int(op->record->attrs, 1, 0) != 0;
  lower_search(op, sequence, tpui_operand_as(op, 0, dtype), right);
}
