#include "engine/finite.h"

#include <math.h>

#include "base/alloc.h"

/* Reads the buffer back, if it still has content. */
static tpu_status_t buffer_finite(tpu_buffer_t* buffer, tpu_meta_id_t id, bool* out_finite) {
  const tpu_meta_t* meta = tpu_meta_get(id);
  *out_finite = true;
  if (buffer == NULL || tpu_dtype_is_integral(meta->dtype) || !tpu_buffer_has_content(buffer)) {
    return NULL;
  }
  int64_t size = tpu_meta_bytes(meta);
  void* copy = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc(1, (size_t)size + 1, &copy));
  tpu_status_t status = tpu_buffer_read(buffer, 0, copy, size);
  if (status == NULL) *out_finite = tpu_dtype_all_finite(meta->dtype, copy, (size_t)size);
  tpu_free(copy);
  return status;
}

static bool numbers_finite(const tpu_window_t* window, const tpu_slot_t* slots) {
  for (uint32_t i = 0; i < window->record_count; ++i) {
    tpu_record_t r;
    tpu_window_record(window, i, &r);
    for (tpu_slot_walk_t at = tpu_record_slots(&r); tpu_record_next_slot(&r, &at);) {
      uint32_t ref = tpu_record_ref(&r, at.operand);
      if (tpu_ref_kind(ref) == TPU_REF_SCALAR && tpu_dtype_is_float(tpu_ref_scalar_dtype(ref)) &&
          !isfinite(slots[at.slot].as_double)) {
        return false;
      }
    }
  }
  return true;
}

bool tpui_inputs_finite(const tpu_window_t* window, const tpu_job_t* job) {
  bool finite = numbers_finite(window, job->slots);
  for (uint32_t i = 0; finite && i < job->external_count; ++i) {
    const tpu_value_t* value = job->externals[i];
    if (value->state != TPU_VALUE_READY) return false;  // the job itself tells that failure
    tpu_status_t status = buffer_finite(value->ready.buffer, value->meta, &finite);
    if (status != NULL) finite = false;
    tpu_status_free(status);
  }
  return finite;
}

tpu_status_t tpui_outputs_finite(const tpu_window_t* window, const tpu_job_t* job) {
  for (uint32_t v = 0; v < job->value_count; ++v) {
    bool finite;
    TPU_RETURN_IF_ERROR(buffer_finite(job->buffers[v], window->value_metas[v], &finite));
    if (finite) continue;
    uint32_t record = window->value_records[v];
    tpu_status_t status = tpu_status_make(TPU_INVALID_ARGUMENT,
                                          "'%s' made NaN or infinity from finite inputs "
                                          "(TORCH_TPU_CHECK_NONFINITE=1)",
                                          tpu_op_info(tpu_window_origin(window, record))->name);
    return tpu_location_append(status, job->locations != NULL ? job->locations[record] : 0);
  }
  return NULL;
}
