/* Flushing: from a recorded window to a job, and from a finished job to values.
 *
 * Small jobs run on the caller's thread with the engine lock held. Others are queued: the launch
 * thread runs them without the lock and takes it to hand out the results.
 */
#include <string.h>

#include "base/alloc.h"
#include "base/env.h"
#include "base/log.h"
#include "engine/internal.h"
#include "trace/print.h"

/* Jobs that may wait at once; bounds the memory that windows in flight hold. */
#define MAX_IN_FLIGHT 4

struct tpui_flight_t {
  tpu_queue_item_t item;
  tpu_engine_t* engine;
  uint64_t serial;
  tpui_variant_t* variant;  // borrowed; in_flight keeps it
  tpui_plan_t* plan;
  tpu_job_t job;
  tpu_value_t** values;  // [value_count] entries turn NULL when the value dies
  tpui_undo_t* undo;
  size_t undo_count;
  tpui_flight_t* next_free;
  void* memory;  // of the arrays above, reused from job to job
  size_t capacity;
};

/* flags: one byte per value (live), then one per external (nobody else holds it). */
static tpu_status_t mark_flags(tpu_engine_t* e, uint8_t** out_live, uint8_t** out_dead) {
  const tpu_recorder_t* r = &e->recorder;
  TPU_RETURN_IF_ERROR(
      tpu_grow((void**)&e->flags, &e->flags_capacity, r->value_count + r->external_count + 1, 1));
  uint8_t *live = e->flags, *dead = e->flags + r->value_count;
  for (size_t v = 0; v < r->value_count; ++v) live[v] = r->values[v] != NULL;
  for (size_t i = 0; i < r->external_count; ++i) {
    // The window holds one reference, undo entries some; anything beyond is a user.
    dead[i] = r->externals[i]->refs == 1 + r->externals[i]->undo_refs;
  }
  *out_live = live;
  *out_dead = dead;
  return NULL;
}

/* The plan for the window: the expected one, a known one, or a new one; NULL when making one must
 * wait, since it may drop plans that jobs in flight still run. */
static tpu_status_t find_plan(tpu_engine_t* e, const tpu_window_t* window, tpui_plan_t** out_plan) {
  tpui_plan_t* expected = e->last_plan != NULL ? e->last_plan->next : NULL;
  if (expected != NULL && e->recorder.predicted == &expected->window &&
      tpui_plan_completes(expected, window)) {
    *out_plan = expected;
    return NULL;
  }
  uint64_t hash = tpui_plan_hash(window);
  *out_plan = tpui_plan_find(&e->plans, window, hash);
  if (*out_plan != NULL || e->in_flight > 0) return NULL;
  e->recorder.predicted = NULL;  // it may be dropped now
  return tpui_plan_add(&e->plans, window, hash, out_plan);
}

/* Gives no variant when one must be made first and jobs in flight have to land before that. */
static tpu_status_t plan_window(tpu_engine_t* e, const tpu_window_t* window, const uint8_t* live,
                                const uint8_t* dead, tpui_plan_t** out_plan,
                                tpui_variant_t** out_variant) {
  *out_variant = NULL;
  TPU_RETURN_IF_ERROR(find_plan(e, window, out_plan));
  if (*out_plan == NULL) return NULL;
  (*out_plan)->last_use = ++e->plans.clock;
  *out_variant = tpui_plan_fit(*out_plan, e->recorder.slots, e->recorder.values);
  if (TPU_LIKELY(*out_variant != NULL)) {
    ++e->stats.window_hits;
    return NULL;
  }
  if (e->in_flight > 0) return NULL;  // extending may drop the oldest variant
  ++e->stats.window_plans;
  tpui_planner_t planner = {.compiler = e->compiler,
                            .partition = &e->partition,
                            .host_calls = tpu_device_has_host_calls(e->device)};
  return tpui_plan_extend(&planner, *out_plan, e->recorder.slots, live, dead, out_variant);
}

static void* carve(char** cursor, size_t size) {
  void* at = *cursor;
  *cursor += (size + 15) / 16 * 16;
  return at;
}

/* Lays the flight's arrays out in its memory, which grows as needed. */
static tpu_status_t reserve_flight(tpui_flight_t* f, const tpu_recorder_t* r, size_t undo_count) {
  size_t v = r->value_count, x = r->external_count, s = r->slot_count;
  size_t bytes = v * 16 + x * 9 + s * 8 + undo_count * sizeof(tpui_undo_t) + 6 * 16;
  TPU_RETURN_IF_ERROR(tpu_grow(&f->memory, &f->capacity, bytes, 1));
  char* cursor = f->memory;
  f->values = carve(&cursor, v * sizeof(void*));
  f->job.buffers = carve(&cursor, v * sizeof(void*));
  f->job.externals = carve(&cursor, x * sizeof(void*));
  f->job.slots = carve(&cursor, s * sizeof(tpu_slot_t));
  f->undo = carve(&cursor, undo_count * sizeof(tpui_undo_t));
  f->job.external_dead = carve(&cursor, x);
  memset(f->job.buffers, 0, v * sizeof(void*));
  return NULL;
}

static void give_flight(tpu_engine_t* e, tpui_flight_t* flight) {
  flight->next_free = e->free_flights;
  e->free_flights = flight;
}

static tpu_status_t take_flight(tpu_engine_t* e, tpui_flight_t** out_flight) {
  if (e->free_flights != NULL) {
    *out_flight = e->free_flights;
    e->free_flights = e->free_flights->next_free;
    return NULL;
  }
  return tpu_calloc(1, sizeof(tpui_flight_t), (void**)out_flight);
}

void tpui_flights_free(tpu_engine_t* e) {
  while (e->free_flights != NULL) {
    tpui_flight_t* flight = e->free_flights;
    e->free_flights = flight->next_free;
    tpu_free(flight->memory);
    tpu_free(flight);
  }
}

/* A window may have no externals, slots or undo entries, and then no arrays for them. */
static void copy_array(void* to, const void* from, size_t bytes) {
  if (bytes > 0) memcpy(to, from, bytes);
}

/* Moves the window into a flight: live values point at its entries, externals change owner. */
static void load_flight(tpu_engine_t* e, tpui_flight_t* f, tpui_plan_t* plan,
                        tpui_variant_t* variant, const uint8_t* dead) {
  tpu_recorder_t* r = &e->recorder;
  f->engine = e;
  f->serial = ++e->flight_serial;
  f->plan = plan;
  f->variant = variant;
  copy_array(f->values, r->values, r->value_count * sizeof(void*));
  for (size_t v = 0; v < r->value_count; ++v) {
    if (f->values[v] == NULL) continue;
    f->values[v]->slot = &f->values[v];
    f->values[v]->state = TPU_VALUE_LAUNCHED;
  }
  copy_array(f->job.externals, r->externals, r->external_count * sizeof(void*));
  for (size_t i = 0; i < r->external_count; ++i) tpu_value_retain(r->externals[i]);
  copy_array((void*)f->job.slots, r->slots, r->slot_count * sizeof(tpu_slot_t));
  copy_array((void*)f->job.external_dead, dead, r->external_count);
  copy_array(f->undo, e->undo, e->undo_count * sizeof(tpui_undo_t));
  f->undo_count = e->undo_count;
  e->undo_count = 0;
  f->job.device = e->device;
  f->job.steps = variant->steps;
  f->job.step_count = variant->step_count;
  f->job.external_count = (uint32_t)r->external_count;
  f->job.value_count = (uint32_t)r->value_count;
  f->job.launches = 0;
  f->job.error = NULL;
  f->job.inherited = false;
}

/* The content that a failed result replaced, with one reference; NULL when it failed too or was
 * given away to a program. `buffers` still holds the results that nobody wanted. */
static tpu_value_t* former_value(tpui_flight_t* f, const tpui_undo_t* undo) {
  tpu_value_t* old = undo->old != NULL ? undo->old : f->values[undo->old_number];
  if (old != NULL) {
    if (old->state != TPU_VALUE_READY || !tpu_buffer_has_content(old->buffer)) return NULL;
    tpu_value_retain(old);
    return old;
  }
  tpu_buffer_t** buffer = &f->job.buffers[undo->old_number];
  if (*buffer == NULL || !tpu_buffer_has_content(*buffer)) return NULL;
  if (!tpui_value_adopt(f->engine, f->plan->window.value_metas[undo->old_number], *buffer, &old)) {
    return NULL;
  }
  *buffer = NULL;
  return old;
}

/* Goes back from the failed content to the newest that is there. */
static void restore_storage(tpui_flight_t* f, tpu_storage_t* storage) {
  tpu_engine_t* e = f->engine;
  uint32_t number = storage->value->number;
  for (size_t i = f->undo_count; i-- > 0;) {
    tpui_undo_t* undo = &f->undo[i];
    if (undo->storage != storage->serial || undo->number != number) continue;
    tpu_value_t* old = former_value(f, undo);
    if (old != NULL) {
      tpu_value_release(&e->pool, storage->value);
      tpui_storage_set(storage, old);
      return;
    }
    if (undo->old != NULL) return;
    number = undo->old_number;
  }
}

static void restore_storages(tpui_flight_t* f) {
  tpu_engine_t* e = f->engine;
  for (size_t i = 0; i < e->storage_slab_count * TPUI_SLAB_STORAGES; ++i) {
    tpu_storage_t* storage = &e->storage_slabs[i / TPUI_SLAB_STORAGES][i % TPUI_SLAB_STORAGES];
    tpu_value_t* value = storage->value;
    // Only values of this very flight: others were restored, or belong to a later one.
    if (value == NULL || value->state != TPU_VALUE_FAILED || value->flight != f->serial) continue;
    restore_storage(f, storage);
  }
}

/* Every value that is still held gets its buffer or the error. Entries of failed ones turn NULL. */
static void hand_out(tpui_flight_t* f) {
  for (uint32_t v = 0; v < f->job.value_count; ++v) {
    tpu_value_t* value = f->values[v];
    if (value == NULL) continue;
    if (f->job.buffers[v] != NULL) {
      tpu_value_fulfil(value, f->job.buffers[v]);
      f->job.buffers[v] = NULL;
    } else {
      tpu_value_fail(value, tpu_status_copy(f->job.error));
      value->flight = f->serial;
      f->values[v] = NULL;
    }
  }
}

/* Hands out results and gives everything back. With the engine lock. */
static void finish(tpui_flight_t* f) {
  tpu_engine_t* e = f->engine;
  e->stats.launches += f->job.launches;
  hand_out(f);
  if (TPU_UNLIKELY(f->job.error != NULL)) {
    restore_storages(f);
    // An inherited failure was pending before, and the user may have been told since.
    if (e->pending_error == NULL && !f->job.inherited) {
      e->pending_error = f->job.error;
    } else {
      tpu_status_free(f->job.error);
    }
  }
  for (uint32_t v = 0; v < f->job.value_count; ++v) tpu_buffer_release(f->job.buffers[v]);
  for (size_t i = 0; i < f->undo_count; ++i) {
    if (f->undo[i].old == NULL) continue;
    --f->undo[i].old->undo_refs;
    tpu_value_release(&e->pool, f->undo[i].old);
  }
  for (uint32_t i = 0; i < f->job.external_count; ++i) {
    tpu_value_release(&e->pool, f->job.externals[i]);
  }
  give_flight(e, f);
}

/* On the launch thread, without the lock. */
static void run_queued(tpu_queue_item_t* item) {
  tpui_flight_t* flight = (tpui_flight_t*)item;
  tpu_engine_t* e = flight->engine;
  tpu_job_run(&flight->job);
  tpu_mutex_lock(&e->lock);
  finish(flight);
  --e->in_flight;
  (void)pthread_cond_broadcast(&e->landed);
  tpu_mutex_unlock(&e->lock);
}

static bool checks_finite(const tpu_engine_t* e) {
  return e->mode == TPU_MODE_DEBUG && tpu_env_bool(TPU_ENV_CHECK_NONFINITE);
}

/* Runs a job and hands out its results. A result that is not finite is an error of the op; the
 * result itself stays, for the user to look at. */
static void run_here(tpu_engine_t* e, tpui_flight_t* flight) {
  const tpu_window_t* window = &flight->plan->window;
  bool check = checks_finite(e) && tpui_inputs_finite(window, &flight->job);
  tpu_job_run(&flight->job);
  if (check && flight->job.error == NULL) {
    flight->job.error = tpui_outputs_finite(window, &flight->job);
  }
  finish(flight);
}

/* In order: a small job may overtake nothing, so it is queued behind others. */
static void launch(tpu_engine_t* e, tpui_flight_t* flight) {
  bool queue = e->mode != TPU_MODE_DEBUG && (flight->variant->heavy || e->in_flight > 0);
  flight->item.run = run_queued;
  if (queue) {
    tpu_status_t status = tpu_queue_push(e->queue, &flight->item);
    if (status == NULL) {
      ++e->in_flight;
      return;
    }
    tpu_status_free(status);  // no thread to be had, so nothing is queued: run it here
  }
  run_here(e, flight);
}

void tpui_wait_idle(tpu_engine_t* e) {
  while (e->in_flight > 0) (void)pthread_cond_wait(&e->landed, &e->lock);
}

void tpui_wait_value(tpu_engine_t* e, const tpu_value_t* value) {
  while (value->state == TPU_VALUE_LAUNCHED) (void)pthread_cond_wait(&e->landed, &e->lock);
}

static void log_window(const tpu_window_t* window, const tpui_variant_t* variant) {
  if (tpu_log_enabled(TPU_LOG_FLUSH)) {
    tpu_log(TPU_LOG_FLUSH, "%u records, %u values, %u externals -> %u programs",
            window->record_count, window->value_count, window->external_count, variant->step_count);
  }
  if (!tpu_log_enabled(TPU_LOG_TRACE)) return;
  tpu_strbuf_t text = {0};
  for (uint32_t i = 0; i < window->record_count; ++i) {
    tpu_strbuf_clear(&text);
    tpu_record_print(window, i, &text);
    tpu_log(TPU_LOG_TRACE, "%s", tpu_strbuf_text(&text));
  }
  tpu_strbuf_free(&text);
}

/* Launches the window as it is now. `*out_waits`: nothing was done, jobs in flight must land. */
static tpu_status_t flush_now(tpu_engine_t* e, bool* out_waits) {
  tpu_window_t window;
  uint8_t *live, *dead;
  tpui_plan_t* plan = NULL;
  tpui_variant_t* variant = NULL;
  tpui_flight_t* flight = NULL;
  tpu_recorder_window(&e->recorder, &window);
  TPU_RETURN_IF_ERROR(mark_flags(e, &live, &dead));
  TPU_RETURN_IF_ERROR(plan_window(e, &window, live, dead, &plan, &variant));
  *out_waits = variant == NULL;
  if (*out_waits) return NULL;
  TPU_RETURN_IF_ERROR(take_flight(e, &flight));
  tpu_status_t status = reserve_flight(flight, &e->recorder, e->undo_count);
  if (status != NULL) {
    give_flight(e, flight);
    return status;
  }
  log_window(&window, variant);
  ++e->stats.flushes;
  load_flight(e, flight, plan, variant, dead);
  if (e->last_plan != NULL) e->last_plan->next = plan;
  e->last_plan = plan;
  tpu_recorder_reset(&e->recorder, plan->next != NULL ? &plan->next->window : NULL);
  launch(e, flight);
  return NULL;
}

/* Waits until one more job may be in flight; none beside one that runs on this thread. */
static void wait_for_room(tpu_engine_t* e) {
  int most = e->mode == TPU_MODE_DEBUG ? 1 : MAX_IN_FLIGHT;
  while (e->in_flight >= most) (void)pthread_cond_wait(&e->landed, &e->lock);
}

/* Waiting gives the lock up, and others then record or flush: so all waiting comes before looking
 * at the window, and windows are launched in the order in which they were recorded. */
tpu_status_t tpui_flush(tpu_engine_t* e) {
  bool waits = true;
  while (waits) {
    wait_for_room(e);
    if (e->recorder.record_count == 0) return NULL;
    if (TPU_UNLIKELY(e->capture != NULL)) tpui_capture_touched(e, "it waits for the device");
    TPU_RETURN_IF_ERROR(flush_now(e, &waits));
    if (waits) tpui_wait_idle(e);
  }
  return NULL;
}

void tpui_told(tpu_engine_t* e, tpu_status_t error) {
  if (e->pending_error == NULL || tpu_status_code(error) != tpu_status_code(e->pending_error) ||
      strcmp(tpu_status_message(error), tpu_status_message(e->pending_error)) != 0) {
    return;
  }
  tpu_status_free(e->pending_error);
  e->pending_error = NULL;
}

static tpu_status_t take_pending(tpu_engine_t* e) {
  tpu_status_t error = e->pending_error;
  e->pending_error = NULL;
  return error;
}

/* Waits for the content of all storages and gives the first error that nobody was told. Devices may
 * accept a program and fail it later. Gives the lock up while it waits. */
static tpu_status_t await_contents(tpu_engine_t* e) {
  tpu_status_t result = NULL;
  for (size_t i = 0; i < e->storage_slab_count * TPUI_SLAB_STORAGES; ++i) {
    tpu_value_t* value = e->storage_slabs[i / TPUI_SLAB_STORAGES][i % TPUI_SLAB_STORAGES].value;
    if (value == NULL || value->state != TPU_VALUE_READY || value->awaited) continue;
    tpu_value_retain(value);
    tpu_mutex_unlock(&e->lock);
    tpu_status_t status = tpu_buffer_await(value->buffer);
    tpu_mutex_lock(&e->lock);
    value->awaited = true;
    tpu_value_release(&e->pool, value);
    if (result == NULL) {
      result = status;
    } else {
      tpu_status_free(status);
    }
  }
  return result;
}

/* The error to tell at a sync, once. */
static tpu_status_t sync_contents(tpu_engine_t* e) {
  tpu_status_t error = await_contents(e), pending = take_pending(e);
  if (pending == NULL) return error;
  tpu_status_free(error);  // the earlier one is the cause, or as good
  return pending;
}

tpu_status_t tpui_flush_if_due(tpu_engine_t* e) {
  if (TPU_LIKELY(e->mode == TPU_MODE_FUSED && e->recorder.record_count < e->flush_at)) {
    return NULL;
  }
  bool due;
  TPU_RETURN_IF_ERROR(tpui_window_is_due(e, &due));
  if (!due) return NULL;
  if (TPU_UNLIKELY(e->capture != NULL) && tpui_capture_is_mine(e)) return NULL;  // at its end
  TPU_RETURN_IF_ERROR(tpui_flush(e));
  // Fused mode tells at the next sync; in Debug mode the op that failed is the one just recorded,
  // in Strict mode that or an earlier one.
  if (e->mode == TPU_MODE_FUSED) return NULL;
  return e->mode == TPU_MODE_DEBUG ? sync_contents(e) : take_pending(e);
}

tpu_status_t tpu_engine_flush(tpu_engine_t* engine, bool wait) {
  tpu_mutex_lock(&engine->lock);
  tpu_status_t status = tpui_flush(engine);
  if (wait) tpui_wait_idle(engine);
  if (status == NULL && wait) status = sync_contents(engine);
  tpu_mutex_unlock(&engine->lock);
  return status;
}
