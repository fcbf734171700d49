#include "engine/loop.h"

/* A window that grows without a sync is a loop (launch it turn by turn from now on, so that all its
 * windows are the same), or just long (look again later). True when it should be launched now. */
static tpu_status_t look_for_loop(tpu_engine_t* e, bool* out_launch) {
  tpu_window_t window;
  uint32_t count = (uint32_t)e->recorder.record_count, period;
  *out_launch = count == e->loop_length || count >= e->window_limit;
  if (*out_launch) return NULL;
  tpu_recorder_window(&e->recorder, &window);
  TPU_RETURN_IF_ERROR(tpu_partition_period(&window, &period));
  if (period == 0) {
    e->flush_at = count * 2 < e->window_limit ? count * 2 : e->window_limit;
    return NULL;
  }
  e->loop_length = (TPUI_LOOP_MIN + period - 1) / period * period;
  e->loop_misses = 0;
  *out_launch = true;
  return NULL;
}

/* Windows of a known loop end after its turns, others at the first look. A loop whose windows keep
 * being new (the first ones are) is over. */
static void set_flush_at(tpu_engine_t* e) {
  if (e->recorder.record_count == e->loop_length) {
    e->loop_misses = e->recorder.predicted != NULL ? 0 : e->loop_misses + 1;
    if (e->loop_misses > TPUI_LOOP_MISSES) e->loop_length = 0;
  }
  uint32_t limit = e->loop_length > 0 ? e->loop_length : TPUI_LOOP_CHECK;
  e->flush_at = limit < e->window_limit ? limit : e->window_limit;
}

tpu_status_t tpui_window_is_due(tpu_engine_t* e, bool* out_due) {
  *out_due = true;
  if (e->mode == TPU_MODE_FUSED) TPU_RETURN_IF_ERROR(look_for_loop(e, out_due));
  if (*out_due) set_flush_at(e);
  return NULL;
}
