#include "engine/watch.h"

#include "base/alloc.h"

void tpui_capture_touched(tpui_lane_t* lane, const char* obstacle) {
  tpui_capture_t* c = lane->capture;
  if (!tpui_capture_is_mine(lane)) {
    c->interrupted = true;
  } else if (obstacle != NULL && c->obstacle == NULL) {
    c->obstacle = obstacle;
  }
}

void tpui_capture_recorded(tpui_lane_t* lane, bool draws) {
  if (lane->capture != NULL) tpui_capture_touched(lane, NULL);
  for (tpui_lane_t* at = lane->engine->lanes; draws && at != NULL; at = at->next) {
    if (at != lane && at->capture != NULL && at->capture->draws) at->capture->interrupted = true;
  }
}

static bool may_write(const tpui_capture_t* c, const tpu_storage_t* storage) {
  if (storage->serial > c->first_serial) return true;
  for (int k = 0; k < c->input_count; ++k) {
    if (c->inputs[k].storage == storage) return true;
  }
  return false;
}

void tpui_capture_bound(tpui_lane_t* lane, const tpu_storage_t* storage) {
  bool allowed = may_write(lane->capture, storage);
  tpui_capture_touched(lane, allowed ? NULL : "it writes to a tensor that it did not make");
}

void tpui_capture_constant(tpui_lane_t* lane, tpu_value_t* value) {
  tpui_capture_t* c = lane->capture;
  if (!tpui_capture_is_mine(lane)) return;
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
