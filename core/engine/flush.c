#include "engine/flush.h"

#include <string.h>

#include "base/alloc.h"
#include "base/events.h"
#include "base/log.h"
#include "engine/channel.h"
#include "engine/errors.h"
#include "engine/flags.h"
#include "engine/flight.h"
#include "engine/lane.h"
#include "engine/loop.h"
#include "engine/tier.h"
#include "engine/watch.h"
#include "trace/print.h"

/* What replaced content in this window gives it back if it fails, and takes it otherwise: such
 * references do not keep a buffer from donation. Those of other windows do. */
static void count_undo(const tpui_lane_t* lane, int32_t by) {
  for (size_t i = 0; i < lane->undo_count; ++i) {
    if (lane->undo[i].old != NULL) lane->undo[i].old->refs += by;
  }
}

tpu_status_t tpui_mark_flags(tpui_lane_t* lane, bool in_order, uint8_t** out_live,
                             uint8_t** out_dead) {
  tpu_engine_t* e = lane->engine;
  const tpu_recorder_t* r = &lane->recorder;
  TPU_RETURN_IF_ERROR(
      tpu_grow((void**)&e->flags, &e->flags_capacity, r->value_count + r->external_count + 1, 1));
  uint8_t *live = e->flags, *dead = e->flags + r->value_count;
  for (size_t v = 0; v < r->value_count; ++v) live[v] = r->values[v] != NULL;
  count_undo(lane, -1);
  for (size_t i = 0; i < r->external_count; ++i) {
    const tpu_value_t* value = r->externals[i];
    dead[i] = value->refs == 1 + (in_order ? value->passing_refs : 0);
  }
  count_undo(lane, 1);
  *out_live = live;
  *out_dead = dead;
  return NULL;
}

/* The plan for the window: the expected one, a known one, or a new one; NULL when making one must
 * wait, since it may drop plans that jobs in flight still run. */
static tpu_status_t find_plan(tpui_lane_t* lane, const tpu_window_t* window,
                              tpui_plan_t** out_plan) {
  tpu_engine_t* e = lane->engine;
  tpui_plan_t* expected = lane->last_plan != NULL ? lane->last_plan->next : NULL;
  if (expected != NULL && lane->recorder.predicted == &expected->window &&
      tpui_plan_completes(expected, window)) {
    *out_plan = expected;
    return NULL;
  }
  uint64_t hash = tpui_plan_hash(window);
  *out_plan = tpui_plan_find(&e->plans, window, hash);
  if (*out_plan != NULL || e->in_flight > 0) return NULL;
  bool dropped;
  TPU_RETURN_IF_ERROR(tpui_plan_add(&e->plans, window, hash, out_plan, &dropped));
  if (dropped) tpui_lanes_expect_nothing(e);
  return NULL;
}

/* Drops programs until there is some room for new ones: first what no plan holds, then plans.
 * `plan` stays. While nothing is in flight. */
static tpu_status_t bound_programs(tpu_engine_t* e, const tpui_plan_t* plan) {
  bool dropped = true;
  if (TPU_LIKELY(e->code_limit <= 0 || tpu_device_code_bytes(e->device) <= e->code_limit)) {
    return NULL;
  }
  int64_t target = e->code_limit / 4 * 3;
  tpu_compiler_trim_memory(e->compiler, target);
  while (dropped && tpu_device_code_bytes(e->device) > target) {
    tpui_lanes_expect_nothing(e);
    TPU_RETURN_IF_ERROR(tpui_plan_cache_halve(&e->plans, plan->last_use, &dropped));
    tpu_compiler_trim_memory(e->compiler, target);
  }
  return NULL;
}

/* Gives no variant when one must be made first and jobs in flight have to land before that. */
static tpu_status_t plan_window(tpui_lane_t* lane, const tpu_window_t* window, const uint8_t* live,
                                const uint8_t* dead, tpui_plan_t** out_plan,
                                tpui_variant_t** out_variant) {
  tpu_engine_t* e = lane->engine;
  const tpu_slot_t* slots = lane->recorder.slots;
  *out_variant = NULL;
  TPU_RETURN_IF_ERROR(find_plan(lane, window, out_plan));
  if (*out_plan == NULL) return NULL;
  (*out_plan)->last_use = ++e->plans.clock;
  if (TPU_UNLIKELY(lane->window_recurs)) tpui_tier_expect(*out_plan);
  bool interpret;
  TPU_RETURN_IF_ERROR(tpui_tier_choose(e, *out_plan, slots, live, dead, &interpret));
  if (TPU_UNLIKELY(interpret)) {
    tpui_planner_t planner = tpui_planner(e);
    return tpui_plan_interpret(&planner, *out_plan, slots, live, dead, e->in_flight == 0,
                               out_variant);
  }
  bool ready;
  TPU_RETURN_IF_ERROR(tpui_tier_adopt(e, *out_plan, slots, live, &ready, out_variant));
  if (TPU_UNLIKELY(!ready || *out_variant != NULL)) return NULL;
  *out_variant = tpui_plan_fit(*out_plan, slots, live);
  if (TPU_LIKELY(*out_variant != NULL)) {
    ++e->stats.window_hits;
    return NULL;
  }
  if (e->in_flight > 0) return NULL;  // extending may drop the oldest variant
  ++e->stats.window_plans;
  TPU_RETURN_IF_ERROR(bound_programs(e, *out_plan));
  return tpui_tier_make(e, *out_plan, slots, live, dead, out_variant);
}

/* A line each, since other threads may log between them. */
static void log_lines(char* text) {
  for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
    *end = '\0';
    tpu_log(TPU_LOG_TRACE, "%s", line);
  }
}

static void log_window(const tpu_window_t* window, const tpui_plan_t* plan,
                       const tpui_variant_t* variant, const uint8_t* dead) {
  if (tpu_log_enabled(TPU_LOG_FLUSH) && variant->interpreted) {
    tpu_log(TPU_LOG_FLUSH, "%u records, %u values, %u externals -> interpreted, %u of %u times",
            window->record_count, window->value_count, window->external_count,
            plan->interpretations + 1, plan->most_interpretations);
  } else if (tpu_log_enabled(TPU_LOG_FLUSH)) {
    tpu_log(TPU_LOG_FLUSH, "%u records, %u values, %u externals -> %u programs",
            window->record_count, window->value_count, window->external_count, variant->step_count);
  }
  if (!tpu_log_enabled(TPU_LOG_TRACE)) return;
  tpu_strbuf_t text = {0};
  tpu_window_marks_t marks = {
      .live = variant->live, .external_dead = dead, .slot_dynamic = variant->slot_dynamic};
  tpu_window_print_whole(window, &marks, &text);
  if (text.data != NULL && !text.failed) log_lines(text.data);
  tpu_strbuf_free(&text);
}

/* Launches the window as it is now. `*out_waits`: nothing was done, jobs in flight must land, or
 * what is built for `*out_plan` must be finished. */
static tpu_status_t flush_now(tpui_lane_t* lane, tpui_plan_t** out_plan, bool* out_waits) {
  tpu_engine_t* e = lane->engine;
  tpu_window_t window;
  uint8_t *live, *dead;
  tpui_variant_t* variant = NULL;
  tpui_flight_t* flight = NULL;
  tpu_recorder_window(&lane->recorder, &window);
  TPU_RETURN_IF_ERROR(tpui_mark_flags(lane, true, &live, &dead));
  TPU_RETURN_IF_ERROR(plan_window(lane, &window, live, dead, out_plan, &variant));
  tpui_plan_t* plan = *out_plan;
  *out_waits = variant == NULL;
  if (*out_waits) return NULL;
  TPU_RETURN_IF_ERROR(tpui_flight_load(lane, plan, variant, dead, NULL, &flight));
  log_window(&window, plan, variant, dead);
  ++e->stats.flushes;
  lane->window_recurs = false;
  if (variant->interpreted) {
    ++plan->interpretations;
    ++e->stats.interpretations;
  } else {
    ++plan->compiled_launches;
  }
  if (lane->last_plan != NULL) lane->last_plan->next = plan;
  lane->last_plan = plan;
  tpu_recorder_reset(&lane->recorder, plan->next != NULL ? &plan->next->window : NULL);
  tpui_flight_launch(e, flight);
  return NULL;
}

/* Waits until no job is in flight. Nobody else launches one meanwhile: with several threads there
 * might always be one. */
static tpu_status_t drain_flights(tpu_engine_t* e) {
  ++e->draining;
  tpu_status_t status = tpui_wait_idle(e);
  if (--e->draining == 0) (void)pthread_cond_broadcast(&e->landed);
  return status;
}

/* Waiting gives the lock up, and others then record or flush: so all waiting comes before looking
 * at the window, and a lane's windows are launched in the order in which they were recorded. */
tpu_status_t tpui_flush(tpui_lane_t* lane) {
  tpu_engine_t* e = lane->engine;
  bool waits = !lane->ahead;
  while (waits) {
    TPU_RETURN_IF_ERROR(tpui_wait_for_room(e));
    tpui_flags_bound(e);
    if (lane->recorder.record_count == 0) return NULL;
    if (TPU_UNLIKELY(lane->capture != NULL)) {
      tpui_capture_touched(lane, "it waits for the device");
    }
    tpui_plan_t* plan = NULL;
    uint32_t records = (uint32_t)lane->recorder.record_count;
    int64_t begin = tpu_event_begin();
    TPU_RETURN_IF_ERROR(flush_now(lane, &plan, &waits));
    if (!waits) tpu_event_end(TPU_EVENT_FLUSH, begin, "window", records);
    if (!waits) return NULL;
    // The plan may be gone after the first wait: the second one comes with the next turn.
    if (e->in_flight > 0) {
      TPU_RETURN_IF_ERROR(drain_flights(e));
    } else {
      TPU_RETURN_IF_ERROR(tpui_tier_wait(e, plan));
    }
  }
  return NULL;
}

/* Waits for all content that is there and gives the first error that nobody was told. Devices may
 * accept a program and fail it later. Gives the lock up while it waits; what others add meanwhile
 * is newer, so that it need not be waited for. */
static tpu_status_t await_contents(tpu_engine_t* e) {
  tpu_status_t result = NULL;
  for (size_t left = e->pool.unawaited_count; left > 0 && e->pool.oldest != NULL; --left) {
    tpu_value_t* value = e->pool.oldest;
    ++e->stats.awaits;
    tpu_value_retain(value);
    tpu_mutex_unlock(&e->lock);
    int64_t begin = tpu_event_begin();
    tpu_status_t status = tpu_buffer_await_unless(value->ready.buffer, e->stop);
    tpu_event_end(TPU_EVENT_WAIT, begin, "content", 0);
    tpu_mutex_lock(&e->lock);
    bool stopped = tpu_status_code(status) == TPU_CANCELLED;
    if (!stopped) tpu_value_set_awaited(&e->pool, value);
    tpu_value_release(&e->pool, value);
    if (stopped) {
      tpu_status_free(result);  // whoever waits next is told by the values
      return status;
    }
    if (result == NULL) {
      result = status;
    } else {
      tpu_status_free(status);
    }
  }
  return result;
}

/* What is running, also where its results are gone already. */
static tpu_status_t await_runs(tpu_engine_t* e) {
  tpu_mutex_unlock(&e->lock);
  tpu_status_t status = tpu_device_await_runs(e->device, e->stop);
  tpu_mutex_lock(&e->lock);
  return status;
}

/* The error to tell at a sync, once. */
static tpu_status_t sync_contents(tpu_engine_t* e) {
  tpu_status_t error = await_contents(e);
  if (tpu_status_code(error) == TPU_CANCELLED) return error;  // others are told by the next one
  tpu_status_t late = await_runs(e);
  if (error == NULL || tpu_status_code(late) == TPU_CANCELLED) {
    tpu_status_free(error);
    error = late;
  } else {
    tpu_status_free(late);
  }
  if (tpu_status_code(error) == TPU_CANCELLED) return error;
  tpu_status_t wrong = tpui_flags_look(e, UINT64_MAX);
  tpu_status_t pending = tpui_take_pending(e);
  // Of several errors the earlier one is the cause, or as good.
  tpu_status_t told = pending != NULL ? pending : error != NULL ? error : wrong;
  if (error != told) tpu_status_free(error);
  if (wrong != told) tpu_status_free(wrong);
  return told;
}

/* Flushes if the mode or the size of the window asks for it. */
static tpu_status_t flush_if_due(tpui_lane_t* lane) {
  tpu_engine_t* e = lane->engine;
  if (TPU_LIKELY(e->mode == TPU_MODE_FUSED && lane->recorder.record_count < lane->flush_at)) {
    return NULL;
  }
  if (TPU_UNLIKELY(lane->ahead)) return NULL;
  bool due;
  TPU_RETURN_IF_ERROR(tpui_window_is_due(lane, &due));
  if (!due) return NULL;
  // At the capture's end.
  if (TPU_UNLIKELY(lane->capture != NULL) && tpui_capture_is_mine(lane)) return NULL;
  TPU_RETURN_IF_ERROR(tpui_flush(lane));
  // Fused mode tells at the next sync; in Debug mode the op that failed is the one just recorded,
  // in Strict mode that or an earlier one.
  if (e->mode == TPU_MODE_FUSED) return NULL;
  return e->mode == TPU_MODE_DEBUG ? sync_contents(e) : tpui_take_pending(e);
}

tpu_status_t tpui_recording_end(tpui_lane_t* lane, tpu_status_t status) {
  if (TPU_LIKELY(status == NULL)) status = flush_if_due(lane);
  tpu_mutex_unlock(&lane->engine->lock);
  return status;
}

/* What others launch meanwhile need not be waited for. */
static tpu_status_t wait_for_launched(tpu_engine_t* e) {
  uint64_t newest = e->job_serial;
  while ((e->first_flight != NULL && e->first_flight->job.serial <= newest) ||
         tpui_channels_busy(e, newest)) {
    TPU_RETURN_IF_ERROR(tpui_wait_landing(e));
  }
  return NULL;
}

static tpu_status_t flush_and_wait(tpu_engine_t* e) {
  TPU_RETURN_IF_ERROR(tpui_lanes_flush(e, true));
  TPU_RETURN_IF_ERROR(wait_for_launched(e));
  return sync_contents(e);
}

tpu_status_t tpu_engine_flush(tpu_engine_t* engine, bool wait) {
  tpui_lane_t* lane;
  TPU_RETURN_IF_ERROR(tpui_lane_look(engine, &lane));
  tpu_status_t status = tpui_lanes_flush(engine, false);
  if (status == NULL) status = tpui_flush(lane);
  if (status == NULL && wait) status = flush_and_wait(engine);
  tpu_mutex_unlock(&engine->lock);
  return status;
}
