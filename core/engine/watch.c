#include "engine/watch.h"

#include "base/alloc.h"

void tpui_capture_touched(tpu_engine_t* e, const char* obstacle) {
  tpui_capture_t* c = e->capture;
  if (!tpui_capture_is_mine(e)) {
    c->interrupted = true;
  } else if (obstacle != NULL && c->obstacle == NULL) {
    c->obstacle = obstacle;
  }
}

static bool may_write(const tpui_capture_t* c, const tpu_storage_t* storage) {
  if (storage->serial > c->first_serial) return true;
  for (int k = 0; k < c->input_count; ++k) {
    if (c->inputs[k].storage == storage) return true;
  }
  return false;
}

void tpui_capture_bound(tpu_engine_t* e, const tpu_storage_t* storage) {
  bool allowed = may_write(e->capture, storage);
  tpui_capture_touched(e, allowed ? NULL : "it writes to a tensor that it did not make");
}

void tpui_capture_constant(tpu_engine_t* e, tpu_value_t* value) {
  tpui_capture_t* c = e->capture;
  if (!tpui_capture_is_mine(e)) return;
  tpu_status_t status = tpu_grow((void**)&c->constants, &c->constant_capacity,
                                 c->constant_count + 1, sizeof(*c->constants));
  if (status != NULL) {
    tpu_status_free(status);
    c->interrupted = true;
    return;
  }
  tpu_value_retain(value);
  c->constants[c->constant_count++] = value;
}
