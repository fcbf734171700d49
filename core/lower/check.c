#include "lower/check.h"

#include <stdatomic.h>

#include "base/alloc.h"

tpu_status_t tpu_checks_add(tpu_checks_t** inout_checks, const tpu_check_t* row) {
  if (*inout_checks == NULL) {
    TPU_RETURN_IF_ERROR(tpu_calloc(1, sizeof(tpu_checks_t), (void**)inout_checks));
    atomic_init(&(*inout_checks)->refs, 1);
  }
  tpu_checks_t* checks = *inout_checks;
  TPU_RETURN_IF_ERROR(
      tpu_grow((void**)&checks->rows, &checks->capacity, checks->count + 1, sizeof(*row)));
  checks->rows[checks->count++] = *row;
  return NULL;
}

void tpu_checks_retain(tpu_checks_t* checks) {
  atomic_fetch_add_explicit(&checks->refs, 1, memory_order_relaxed);
}

void tpu_checks_release(tpu_checks_t* checks) {
  if (checks == NULL) return;
  if (atomic_fetch_sub_explicit(&checks->refs, 1, memory_order_acq_rel) != 1) return;
  tpu_free(checks->rows);
  tpu_free(checks);
}

const tpu_check_t* tpu_checks_failed(const tpu_checks_t* checks, const int64_t* numbers,
                                     int64_t* out_number) {
  for (uint32_t i = 0; i < checks->count; ++i) {
    const tpu_check_t* row = &checks->rows[i];
    if (TPU_LIKELY((uint64_t)numbers[i] < row->span)) continue;
    *out_number = (int64_t)((uint64_t)numbers[i] + (uint64_t)row->lowest);
    return row;
  }
  return NULL;
}

tpu_status_t tpu_check_error(const tpu_check_t* row, int64_t number, const char* place) {
  const char* name = tpu_op_info(row->op)->name;
  if (row->text != NULL) {
    return tpu_status_make(row->code, "%s: %s (%s)", name, row->text, place);
  }
  int64_t size = row->lowest + (int64_t)row->span;
  if (row->dim < 0) {
    return tpu_status_make(row->code, "%s: index %lld is out of range for size %lld (%s)", name,
                           (long long)number, (long long)size, place);
  }
  return tpu_status_make(row->code,
                         "%s: index %lld is out of range for size %lld (dimension %d, %s)", name,
                         (long long)number, (long long)size, row->dim, place);
}
