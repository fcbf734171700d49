#include "lower/packed.h"

#include <string.h>

#include "base/alloc.h"

void tpu_packed_free(tpu_packed_t* packed) {
  for (uint32_t i = 0; i < packed->slot_count; ++i) tpu_free(packed->slots[i].plan);
  tpu_free(packed->doubles);
  tpu_free(packed->slots);
  *packed = (tpu_packed_t){0};
}

tpu_status_t tpu_packed_add_double(tpu_packed_t* packed, uint32_t slot) {
  TPU_RETURN_IF_ERROR(tpu_grow((void**)&packed->doubles, &packed->double_capacity,
                               (size_t)packed->double_count + 1, sizeof(uint32_t)));
  packed->doubles[packed->double_count++] = slot;
  return NULL;
}

tpu_status_t tpu_packed_add_int(tpu_packed_t* packed, uint32_t slot) {
  TPU_RETURN_IF_ERROR(tpu_grow((void**)&packed->slots, &packed->slot_capacity,
                               (size_t)packed->slot_count + 1, sizeof(tpu_packed_slot_t)));
  packed->slots[packed->slot_count++] =
      (tpu_packed_slot_t){.slot = slot, .first = packed->int_count++};
  return NULL;
}

bool tpu_packed_plan_is_flat(const tpu_view_plan_t* plan) {
  return plan->kind == TPU_VIEW_GATHER || tpu_view_plan_has_steps(plan);
}

/* Numbers of an offset, in the plan's order. */
static uint32_t write_starts(const tpu_view_plan_t* plan, const int64_t* starts, int64_t* out) {
  uint32_t count = 0;
  for (int k = 0; k < plan->factor_count && plan->kind == TPU_VIEW_CHAIN; ++k) {
    if (tpu_view_factor_is_sliced(plan, k)) out[count++] = starts[k];
  }
  return count;
}

tpu_status_t tpu_packed_add_offset(tpu_packed_t* packed, uint32_t slot,
                                   const tpu_view_plan_t* plan) {
  int64_t numbers[TPU_VIEW_MAX_FACTORS];
  void* copy = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc(1, sizeof(*plan), &copy));
  tpu_status_t status = tpu_packed_add_int(packed, slot);
  if (status != NULL) {
    tpu_free(copy);
    return status;
  }
  tpu_packed_slot_t* added = &packed->slots[packed->slot_count - 1];
  added->plan = memcpy(copy, plan, sizeof(*plan));
  if (!tpu_packed_plan_is_flat(plan)) {
    packed->int_count = added->first + write_starts(plan, plan->starts, numbers);
  }
  return NULL;
}

/* Writes a slot's numbers; false when its offset does not fit. */
static bool fill_slot(const tpu_packed_slot_t* packed, const tpu_slot_t* slots, int64_t* out) {
  int64_t number = slots[packed->slot].as_int, starts[TPU_VIEW_MAX_FACTORS];
  if (packed->plan == NULL || tpu_packed_plan_is_flat(packed->plan)) {
    *out = number;
    return true;
  }
  if (!tpu_view_plan_starts(packed->plan, number, starts)) return false;
  (void)write_starts(packed->plan, starts, out);
  return true;
}

bool tpu_packed_fits(const tpu_packed_t* packed, const tpu_slot_t* slots) {
  int64_t numbers[TPU_VIEW_MAX_FACTORS];
  for (uint32_t i = 0; i < packed->slot_count; ++i) {
    if (!fill_slot(&packed->slots[i], slots, numbers)) return false;
  }
  return true;
}

void tpu_packed_fill_doubles(const tpu_packed_t* packed, const tpu_slot_t* slots, double* out) {
  for (uint32_t i = 0; i < packed->double_count; ++i) out[i] = slots[packed->doubles[i]].as_double;
}

bool tpu_packed_fill_ints(const tpu_packed_t* packed, const tpu_slot_t* slots, int64_t* out) {
  for (uint32_t i = 0; i < packed->slot_count; ++i) {
    if (!fill_slot(&packed->slots[i], slots, out + packed->slots[i].first)) return false;
  }
  return true;
}
