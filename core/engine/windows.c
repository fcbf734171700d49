/* What is known of windows, for reports. */
#include "base/alloc.h"
#include "engine/state.h"

static tpu_op_t op_of(const tpu_window_t* w, uint32_t record) {
  tpu_record_t r;
  tpu_window_record(w, record, &r);
  return r.op;
}

static tpu_window_info_t info_of(const tpui_plan_t* plan) {
  const tpu_window_t* w = &plan->window;
  return (tpu_window_info_t){
      .last_use = plan->last_use,
      .record_count = w->record_count,
      .first_op = op_of(w, 0),
      .last_op = op_of(w, w->record_count - 1),
      .interpreted = plan->interpretations,
      .most_interpretations = plan->most_interpretations,
      .compiled = plan->compiled_launches,
      .program_count = plan->variant_count > 0 ? plan->variants[0]->step_count : 0,
      .set_count = (uint32_t)plan->variant_count,
      .is_building = plan->build != NULL && !tpui_build_is_done(plan->build),
  };
}

tpu_status_t tpu_engine_windows(tpu_engine_t* engine, tpu_window_info_t** out_windows,
                                size_t* out_count) {
  *out_windows = NULL;
  *out_count = 0;
  tpu_mutex_lock(&engine->lock);
  const tpui_plan_cache_t* cache = &engine->plans;
  tpu_status_t status = tpu_calloc(cache->count, sizeof(tpu_window_info_t), (void**)out_windows);
  for (size_t i = 0; i < cache->capacity && status == NULL; ++i) {
    if (cache->plans[i] != NULL) (*out_windows)[(*out_count)++] = info_of(cache->plans[i]);
  }
  tpu_mutex_unlock(&engine->lock);
  return status;
}
