#include "engine/flight.h"

#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/env.h"
#include "base/events.h"
#include "base/layout.h"
#include "engine/errors.h"
#include "engine/finite.h"
#include "engine/flags.h"
#include "engine/rescue.h"

/* Jobs that may wait at once; bounds the memory that windows in flight hold. */
#define MAX_IN_FLIGHT 4

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
    tpu_free(flight->job.flags);
    tpu_free(flight->memory);
    tpu_free(flight);
  }
}

/* Copies the window into the flight's arrays. */
static tpu_status_t copy_window(const tpui_lane_t* lane, tpui_flight_t* f, const uint8_t* dead) {
  const tpu_recorder_t* r = &lane->recorder;
  tpu_layout_t layout;
  tpu_layout_init(&layout);
  TPU_LAYOUT_COPY(&layout, f->values, r->values, r->value_count);
  TPU_LAYOUT_ADD(&layout, f->job.buffers, r->value_count);
  TPU_LAYOUT_COPY(&layout, f->job.externals, r->externals, r->external_count);
  TPU_LAYOUT_COPY(&layout, f->job.slots, r->slots, r->slot_count);
  TPU_LAYOUT_COPY(&layout, f->undo, lane->undo, lane->undo_count);
  TPU_LAYOUT_COPY(&layout, f->job.external_dead, dead, r->external_count);
  TPU_LAYOUT_COPY(&layout, f->job.locations, r->record_locations, r->traces ? r->record_count : 0);
  TPU_RETURN_IF_ERROR(tpu_layout_reuse(&layout, &f->memory, &f->capacity));
  if (!r->traces) f->job.locations = NULL;
  memset(f->job.buffers, 0, r->value_count * sizeof(*f->job.buffers));
  return NULL;
}

/* Live values point at the flight's entries, externals and undo entries change owner. */
static void take_window(tpui_lane_t* lane, tpui_flight_t* f) {
  const tpu_recorder_t* r = &lane->recorder;
  for (size_t v = 0; v < r->value_count; ++v) {
    if (f->values[v] == NULL) continue;
    f->values[v]->pending.slot = &f->values[v];
    f->values[v]->state = TPU_VALUE_LAUNCHED;
  }
  for (size_t i = 0; i < r->external_count; ++i) {
    tpu_value_retain(f->job.externals[i]);
    if (f->channel == NULL) ++f->job.externals[i]->passing_refs;
    if (f->job.external_dead[i]) tpu_value_set_given(r->pool, f->job.externals[i], true);
  }
  f->job.external_count = (uint32_t)r->external_count;
  f->job.value_count = (uint32_t)r->value_count;
  f->undo_count = lane->undo_count;
  lane->undo_count = 0;
}

static void begin_job(tpui_flight_t* f) {
  tpu_engine_t* e = f->engine;
  f->job.serial = f->job.failed_job = ++e->job_serial;
  f->job.device = e->device;
  f->job.steps = f->variant->steps;
  f->job.step_count = f->variant->step_count;
  f->job.next_step = 0;
  f->job.held_values = f->job.held_externals = NULL;
  f->job.launches = 0;
  f->job.error = NULL;
}

tpu_status_t tpui_flight_load(tpui_lane_t* lane, tpui_plan_t* plan, tpui_variant_t* variant,
                              const uint8_t* external_dead, tpu_channel_t* channel,
                              tpui_flight_t** out_flight) {
  tpu_engine_t* e = lane->engine;
  tpui_flight_t* flight = NULL;
  TPU_RETURN_IF_ERROR(take_flight(e, &flight));
  tpu_status_t status = copy_window(lane, flight, external_dead);
  if (status != NULL) {
    give_flight(e, flight);
    return status;
  }
  flight->engine = e;
  flight->plan = plan;
  flight->variant = variant;
  flight->channel = channel;
  take_window(lane, flight);
  begin_job(flight);
  *out_flight = flight;
  return NULL;
}

/* A READY value that takes `buffer`, with one reference; false (nothing taken) without memory. */
static bool adopt_buffer(tpu_engine_t* e, tpu_meta_id_t meta, tpu_buffer_t* buffer,
                         tpu_value_t** out_value) {
  tpu_status_t status = tpu_value_create(&e->pool, meta, out_value);
  if (status == NULL) {
    tpu_value_fulfil(&e->pool, *out_value, buffer);
    return true;
  }
  tpu_status_free(status);
  return false;
}

static bool has_content(const tpu_value_t* value) {
  return value != NULL && value->state == TPU_VALUE_READY &&
         tpu_buffer_has_content(value->ready.buffer);
}

/* The content that entry `undo` replaced, with one reference; NULL when it is not there. `buffers`
 * still holds the results that nobody wanted. */
static tpu_value_t* former_value(tpui_flight_t* f, tpui_undo_t* undo) {
  tpu_value_t* old = undo->old != NULL ? undo->old : f->values[undo->old_number];
  if (has_content(old)) {
    tpu_value_retain(old);
    return old;
  }
  if (undo->old != NULL) return NULL;
  tpu_buffer_t** buffer = &f->job.buffers[undo->old_number];
  if (*buffer == NULL || !tpu_buffer_has_content(*buffer)) return NULL;
  if (!adopt_buffer(f->engine, f->plan->window.value_metas[undo->old_number], *buffer, &old)) {
    return NULL;
  }
  *buffer = NULL;
  f->values[undo->old_number] = undo->adopted = old;  // for others that go back to it
  tpu_value_retain(old);
  return old;
}

/* What a tensor holds whose content, of entry `last`, failed: what it held before, unless that
 * failed too. One reference; NULL when there is nothing, `*out_lost` if there should be. */
static tpu_value_t* find_former(tpui_flight_t* f, size_t last, bool* out_lost) {
  uint32_t number = f->undo[last].number;
  *out_lost = false;
  for (size_t i = last + 1; i-- > 0;) {
    tpui_undo_t* undo = &f->undo[i];
    if (undo->serial != f->undo[last].serial || undo->number != number) continue;
    tpu_value_t* old = former_value(f, undo);
    if (old != NULL) return old;
    bool failed = undo->old != NULL
                      ? undo->old->state == TPU_VALUE_FAILED
                      : f->rescue != NULL && f->rescue->made[undo->old_number] == TPUI_FAILED;
    *out_lost = !failed;
    if (!failed || undo->old != NULL) return NULL;
    number = undo->old_number;
  }
  return NULL;
}

/* Later windows that wrote the tensor meant to go back to the failed content: they go further. */
static void aim_back(tpui_undo_t* undos, size_t count, const tpui_undo_t* lost, tpu_value_t* former,
                     tpu_value_pool_t* pool) {
  for (size_t i = 0; i < count; ++i) {
    if (undos[i].serial != lost->serial || undos[i].old != lost->failed) continue;
    tpu_value_release(pool, lost->failed);
    undos[i].old = former;
    tpu_value_retain(former);
  }
}

/* Finds the storages whose content failed, while values are as before the landing. */
static void mark_lost(tpui_flight_t* f) {
  for (size_t i = 0; i < f->undo_count; ++i) {
    tpui_undo_t* undo = &f->undo[i];
    tpu_value_t* value = f->values[undo->number];
    bool lost = value != NULL && f->job.buffers[undo->number] == NULL &&
                undo->storage->serial == undo->serial;
    undo->failed = lost ? value : NULL;
    undo->adopted = NULL;
    if (lost) tpu_value_retain(value);
  }
}

static void bind_former(tpui_flight_t* f, const tpui_undo_t* undo, tpu_value_t* former, bool lost) {
  tpu_value_pool_t* pool = &f->engine->pool;
  tpu_storage_t* storage = undo->storage;
  if (storage->value != undo->failed) return;
  if (former != NULL) {
    tpu_value_retain(former);
    tpu_value_set_given(pool, former, false);
    tpu_value_release(pool, storage->value);
    tpui_storage_set(storage, former);
  } else if (lost) {
    undo->failed->failed.error =
        tpu_status_annotate(undo->failed->failed.error,
                            "what the tensor held before is lost too: a program had taken it");
  }
}

/* Tensors whose new content failed get back what they held. */
static void restore_storages(tpui_flight_t* f) {
  tpu_engine_t* e = f->engine;
  for (size_t i = 0; i < f->undo_count; ++i) {
    tpui_undo_t* undo = &f->undo[i];
    if (undo->failed == NULL) continue;
    bool lost;
    tpu_value_t* former = find_former(f, i, &lost);
    bind_former(f, undo, former, lost);
    if (former == NULL) continue;
    for (tpui_lane_t* lane = e->lanes; lane != NULL; lane = lane->next) {
      aim_back(lane->undo, lane->undo_count, undo, former, &e->pool);
    }
    for (tpui_flight_t* next = f->launched; next != NULL; next = next->launched) {
      aim_back(next->undo, next->undo_count, undo, former, &e->pool);
    }
    tpu_value_release(&e->pool, former);
  }
  for (size_t i = 0; i < f->undo_count; ++i) {
    tpu_value_release(&e->pool, f->undo[i].failed);
    tpu_value_release(&e->pool, f->undo[i].adopted);
  }
}

/* Every value that is still held gets its buffer or the error. Entries of failed ones turn NULL. */
static void hand_out(tpui_flight_t* f) {
  for (uint32_t v = 0; v < f->job.value_count; ++v) {
    tpu_value_t* value = f->values[v];
    if (value == NULL) continue;
    if (f->job.buffers[v] != NULL) {
      tpu_value_fulfil(&f->engine->pool, value, f->job.buffers[v]);
      f->job.buffers[v] = NULL;
    } else {
      tpu_value_fail(value, tpu_status_copy(f->job.error), f->job.failed_job);
      f->values[v] = NULL;
    }
  }
}

static void fail_flight(tpui_flight_t* f) {
  mark_lost(f);
  hand_out(f);
  restore_storages(f);
  // An inherited failure was pending before, and the user may have been told since.
  if (f->job.failed_job == f->job.serial) {
    tpui_keep_pending(f->engine, f->job.error, f->job.serial);
  } else {
    tpu_status_free(f->job.error);
  }
}

void tpui_flight_finish(tpui_flight_t* f) {
  tpu_engine_t* e = f->engine;
  e->stats.launches += f->job.launches;
  tpui_flags_watch(e, &f->job);
  if (TPU_LIKELY(f->job.error == NULL)) {
    hand_out(f);
  } else {
    fail_flight(f);
  }
  for (uint32_t v = 0; v < f->job.value_count; ++v) tpu_buffer_release(f->job.buffers[v]);
  for (size_t i = 0; i < f->undo_count; ++i) tpu_value_release(&e->pool, f->undo[i].old);
  for (uint32_t i = 0; i < f->job.external_count; ++i) {
    if (f->channel == NULL) --f->job.externals[i]->passing_refs;
    tpu_value_release(&e->pool, f->job.externals[i]);
  }
  tpu_free(f->rescue);
  f->rescue = NULL;
  if (f->channel != NULL) tpui_plan_free(f->plan);
  give_flight(e, f);
}

/* On the launch thread, without the lock. */
static void run_queued(tpu_queue_item_t* item) {
  tpui_flight_t* flight = (tpui_flight_t*)item;
  tpu_engine_t* e = flight->engine;
  if (TPU_UNLIKELY(flight->awaits)) {
    tpu_mutex_lock(&e->lock);
    tpui_flight_await_inputs(flight);
    tpu_mutex_unlock(&e->lock);
  }
  tpui_flight_run(flight);
  tpu_mutex_lock(&e->lock);
  e->first_flight = flight->launched;
  if (e->first_flight == NULL) e->last_flight = NULL;
  tpui_flight_finish(flight);
  --e->in_flight;
  (void)pthread_cond_broadcast(&e->landed);
  tpu_mutex_unlock(&e->lock);
}

/* Runs a job and hands out its results. A result that is not finite is an error of the op; the
 * result itself stays, for the user to look at. */
static void run_here(tpu_engine_t* e, tpui_flight_t* flight) {
  const tpu_window_t* window = &flight->plan->window;
  bool check = tpu_engine_checks_finite(e) && tpui_inputs_finite(window, &flight->job);
  flight->locked = true;
  tpui_flight_run(flight);
  if (check && flight->job.error == NULL) {
    flight->job.error = tpui_outputs_finite(window, &flight->job);
  }
  tpui_flight_finish(flight);
}

static bool has_all_inputs(const tpui_flight_t* f) {
  for (uint32_t i = 0; i < f->job.external_count; ++i) {
    if (f->job.externals[i]->state == TPU_VALUE_LAUNCHED) return false;
  }
  return true;
}

void tpui_flight_await_inputs(const tpui_flight_t* f) {
  while (!has_all_inputs(f)) (void)pthread_cond_wait(&f->engine->landed, &f->engine->lock);
}

/* In order: a small job may overtake nothing, so it is queued behind others. */
void tpui_flight_launch(tpu_engine_t* e, tpui_flight_t* flight) {
  flight->awaits = e->apart != NULL && !has_all_inputs(flight);
  bool behind = flight->variant->heavy || e->in_flight > 0 || flight->awaits;
  bool queue = e->mode != TPU_MODE_DEBUG && behind;
  flight->item.run = run_queued;
  flight->locked = false;
  flight->launched = NULL;
  if (queue) {
    tpu_status_t status = tpu_queue_push(e->queue, &flight->item);
    if (status == NULL) {
      *(e->last_flight != NULL ? &e->last_flight->launched : &e->first_flight) = flight;
      e->last_flight = flight;
      ++e->in_flight;
      return;
    }
    tpu_status_free(status);  // no thread to be had, so nothing is queued: run it here
  }
  tpui_flight_await_inputs(flight);
  run_here(e, flight);
}

tpu_status_t tpui_wait_landing(tpu_engine_t* e) {
  struct timespec until;
  (void)clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += TPU_STOP_EVERY_NS;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  int64_t begin = tpu_event_begin();
  int error = pthread_cond_timedwait(&e->landed, &e->lock, &until);
  tpu_event_end(TPU_EVENT_WAIT, begin, "launched work", 0);
  if (error == 0 || e->stop == NULL) return NULL;
  tpu_mutex_unlock(&e->lock);
  tpu_status_t status = tpu_stop_ask(e->stop);
  tpu_mutex_lock(&e->lock);
  return status;
}

tpu_status_t tpui_wait_idle(tpu_engine_t* e) {
  while (e->in_flight > 0) TPU_RETURN_IF_ERROR(tpui_wait_landing(e));
  return NULL;
}

tpu_status_t tpui_wait_value(tpu_engine_t* e, const tpu_value_t* value) {
  while (value->state == TPU_VALUE_LAUNCHED) TPU_RETURN_IF_ERROR(tpui_wait_landing(e));
  return NULL;
}

tpu_status_t tpui_wait_for_room(tpu_engine_t* e) {
  // None beside one that runs on this thread.
  int most = e->mode == TPU_MODE_DEBUG ? 1 : MAX_IN_FLIGHT;
  while (e->in_flight >= most || e->draining > 0) TPU_RETURN_IF_ERROR(tpui_wait_landing(e));
  return NULL;
}

void tpui_wait_to_the_end(tpu_engine_t* e) {
  while (e->in_flight > 0) (void)pthread_cond_wait(&e->landed, &e->lock);
}
