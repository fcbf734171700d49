/* Checks of a program's data: see lower/check.h. */
#include <math.h>

#include "base/alloc.h"
#include "lower/builder_internal.h"
#include "lower/gather.h"

/* The greatest of all elements, as I64 of rank 0; `x` is U64 and not empty. */
static tpui_hlo_t greatest_of(tpui_builder_t* b, tpui_hlo_t x) {
  int dims[TPUI_MAX_HLO_RANK];
  for (int i = 0; i < x.rank; ++i) dims[i] = i;
  return tpui_bitcast(b, tpui_reduce(b, "maximum", x, x.rank, dims), TPU_I64);
}

static bool is_known(const tpui_builder_t* b, tpui_hlo_t checked, const tpu_check_t* row) {
  for (uint32_t i = 0; b->checks != NULL && i < b->checks->count; ++i) {
    const tpu_check_t* other = &b->checks->rows[i];
    if (b->checked[i].of == checked.id && other->lowest == row->lowest &&
        other->span == row->span && other->text == row->text) {
      return true;
    }
  }
  return false;
}

/* `found` is the result of the check of `checked`. */
static void add_check(tpui_builder_t* b, tpui_hlo_t checked, const tpu_check_t* row,
                      tpui_hlo_t found) {
  if (!tpui_ok(b)) return;
  uint32_t count = b->checks != NULL ? b->checks->count : 0;
  tpu_status_t status =
      tpu_grow((void**)&b->checked, &b->checked_capacity, count + 1, sizeof(*b->checked));
  if (status == NULL) status = tpu_checks_add(&b->checks, row);
  if (status != NULL) {
    tpui_latch_status(b, status);
  } else {
    b->checked[count] = (tpui_checked_t){.of = checked.id, .found = found};
  }
}

static tpu_check_t row_of(const tpui_lowering_t* op) {
  return (tpu_check_t){.op = op->record->op, .record = op->b->record_index, .dim = -1};
}

void tpui_check_index(const tpui_lowering_t* op, tpui_hlo_t index, int64_t size, bool negative,
                      int dim) {
  tpui_builder_t* b = op->b;
  if (!b->program->checks || !tpui_ok(b) || tpui_count(index, 0, index.rank) == 0) return;
  tpu_check_t row = row_of(op);
  row.dim = dim;
  row.code = TPU_OUT_OF_RANGE;
  row.lowest = negative ? -size : 0;
  row.span = (uint64_t)(size - row.lowest);
  if (is_known(b, index, &row)) return;
  tpui_hlo_t wide = tpui_convert(b, index, TPU_I64);
  if (row.lowest != 0) wide = tpui_add(b, wide, tpui_constant_int(b, TPU_I64, -row.lowest));
  add_check(b, index, &row, greatest_of(b, tpui_bitcast(b, wide, TPU_U64)));
}

void tpui_check_none(const tpui_lowering_t* op, tpui_hlo_t bad, tpu_status_code_t code,
                     const char* text) {
  tpui_builder_t* b = op->b;
  if (!b->program->checks || !tpui_ok(b) || tpui_count(bad, 0, bad.rank) == 0) return;
  tpu_check_t row = row_of(op);
  row.code = code;
  row.span = 1;
  row.text = text;
  int dims[TPUI_MAX_HLO_RANK];
  for (int i = 0; i < bad.rank; ++i) dims[i] = i;
  add_check(b, bad, &row, tpui_convert(b, tpui_reduce(b, "or", bad, bad.rank, dims), TPU_I64));
}

void tpui_check_within(const tpui_lowering_t* op, tpui_hlo_t x, double low, double high,
                       const char* text) {
  tpui_builder_t* b = op->b;
  if (!b->program->checks || !tpui_ok(b)) return;
  // False for NaN.
  tpui_hlo_t good = tpui_compare_constant(b, "GE", x, low);
  if (high < INFINITY) {
    good = tpui_binary(b, "and", good, tpui_compare_constant(b, "LE", x, high));
  }
  tpui_check_none(op, tpui_unary(b, "not", good), TPU_INVALID_ARGUMENT, text);
}

void tpui_check_at_most(const tpui_lowering_t* op, tpui_hlo_t number, int64_t most,
                        tpu_status_code_t code, const char* text) {
  tpui_builder_t* b = op->b;
  if (!b->program->checks || !tpui_ok(b)) return;
  tpu_check_t row = row_of(op);
  row.code = code;
  row.span = (uint64_t)most + 1;
  row.text = text;
  add_check(b, number, &row, tpui_convert(b, number, TPU_I64));
}

void tpui_check_nothing(tpui_builder_t* b) {
  const tpu_check_t row = {.dim = -1, .code = TPU_INTERNAL, .span = 1, .text = "no check"};
  tpui_hlo_t zero = tpui_constant_int(b, TPU_I64, 0);
  add_check(b, zero, &row, zero);
}

bool tpui_checks_data(const tpui_builder_t* b) { return b->program->checks; }

tpui_hlo_t tpui_checks_result(tpui_builder_t* b) {
  const int64_t one = 1;
  uint32_t count = b->checks->count;
  tpui_hlo_t* parts = tpui_arena(b, count * sizeof(*parts));
  if (parts == NULL) return tpui_harmless();
  for (uint32_t i = 0; i < count; ++i) parts[i] = tpui_reshape(b, b->checked[i].found, 1, &one);
  return count == 1 ? parts[0] : tpui_concatenate(b, (int)count, parts, 0);
}
