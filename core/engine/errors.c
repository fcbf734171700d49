#include "engine/errors.h"

void tpui_keep_pending(tpu_engine_t* e, tpu_status_t error, uint64_t job) {
  if (e->pending_error != NULL) {
    tpu_status_free(error);
    return;
  }
  e->pending_error = error;
  e->pending_job = job;
}

tpu_status_t tpui_take_pending(tpu_engine_t* e) {
  tpu_status_t error = e->pending_error;
  e->pending_error = NULL;
  return error;
}

void tpui_told_of(tpu_engine_t* e, uint64_t job) {
  if (e->pending_job == job) tpu_status_free(tpui_take_pending(e));
}

void tpui_told(tpu_engine_t* e, const tpu_value_t* value) { tpui_told_of(e, value->failed.job); }
