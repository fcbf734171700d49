#include "engine/loop.h"

/* A window that grows without a sync is a loop (launch it turn by turn from now on, so that all its
 * windows are the same), or just long (look again later). True when it should be launched now. */
static tpu_status_t look_for_loop(tpui_lane_t* lane, bool* out_launch) {
  const tpu_engine_t* e = lane->engine;
  tpu_window_t window;
  uint32_t count = (uint32_t)lane->recorder.record_count, period;
  *out_launch = count == lane->loop_length || count >= e->window_limit;
  if (*out_launch) return NULL;
  tpu_recorder_window(&lane->recorder, &window);
  TPU_RETURN_IF_ERROR(tpu_partition_period(&window, &period));
  if (period == 0) {
    lane->flush_at = count * 2 < e->window_limit ? count * 2 : e->window_limit;
    return NULL;
  }
  lane->loop_length = (TPUI_LOOP_MIN + period - 1) / period * period;
  lane->loop_misses = 0;
  *out_launch = true;
  return NULL;
}

/* Windows of a known loop end after its turns, others at the first look. A loop whose windows keep
 * being new (the first ones are) is over. */
static void set_flush_at(tpui_lane_t* lane) {
  if (lane->recorder.record_count == lane->loop_length) {
    lane->loop_misses = lane->recorder.predicted != NULL ? 0 : lane->loop_misses + 1;
    if (lane->loop_misses > TPUI_LOOP_MISSES) lane->loop_length = 0;
  }
  uint32_t limit = lane->loop_length > 0 ? lane->loop_length : TPUI_LOOP_CHECK;
  uint32_t most = lane->engine->window_limit;
  lane->flush_at = limit < most ? limit : most;
}

tpu_status_t tpui_window_is_due(tpui_lane_t* lane, bool* out_due) {
  *out_due = true;
  if (lane->engine->mode == TPU_MODE_FUSED) TPU_RETURN_IF_ERROR(look_for_loop(lane, out_due));
  if (*out_due) set_flush_at(lane);
  return NULL;
}
