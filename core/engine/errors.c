#include "engine/errors.h"

#include <string.h>

void tpui_keep_pending(tpu_engine_t* e, tpu_status_t error) {
  if (e->pending_error == NULL) {
    e->pending_error = error;
  } else {
    tpu_status_free(error);
  }
}

tpu_status_t tpui_take_pending(tpu_engine_t* e) {
  tpu_status_t error = e->pending_error;
  e->pending_error = NULL;
  return error;
}

void tpui_told(tpu_engine_t* e, tpu_status_t error) {
  if (e->pending_error == NULL || tpu_status_code(error) != tpu_status_code(e->pending_error) ||
      strcmp(tpu_status_message(error), tpu_status_message(e->pending_error)) != 0) {
    return;
  }
  tpu_status_free(e->pending_error);
  e->pending_error = NULL;
}
