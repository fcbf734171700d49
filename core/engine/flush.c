/* Flushing: from a recorded window to launched programs, and back from failures. */
#include <string.h>

#include "base/alloc.h"
#include "base/log.h"
#include "engine/internal.h"

/* flags: one byte per value (live), then one per external (nobody else holds it). */
static tpu_status_t mark_flags(tpu_engine_t* e, uint8_t** out_live, uint8_t** out_dead) {
  const tpu_recorder_t* r = &e->recorder;
  TPU_RETURN_IF_ERROR(tpu_grow((void**)&e->flags, &e->flags_capacity,
                               r->value_count + r->external_count + 1, 1));
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

static tpu_status_t reserve_buffers(tpu_engine_t* e) {
  size_t old = e->buffers_capacity;
  if (e->recorder.value_count <= old) return NULL;
  TPU_RETURN_IF_ERROR(tpu_grow((void**)&e->buffers, &e->buffers_capacity, e->recorder.value_count,
                               sizeof(tpu_buffer_t*)));
  memset(e->buffers + old, 0, (e->buffers_capacity - old) * sizeof(tpu_buffer_t*));
  return NULL;
}

/* The plan for the window: the expected one, a known one, or a new one. */
static tpu_status_t find_plan(tpu_engine_t* e, const tpu_window_t* window, tpui_plan_t** out_plan) {
  tpui_plan_t* expected = e->last_plan != NULL ? e->last_plan->next : NULL;
  if (expected != NULL && e->recorder.predicted == &expected->window &&
      tpui_plan_completes(expected, window)) {
    *out_plan = expected;
    return NULL;
  }
  uint64_t hash = tpui_plan_hash(window);
  *out_plan = tpui_plan_find(&e->plans, window, hash);
  if (*out_plan != NULL) return NULL;
  return tpui_plan_add(&e->plans, window, hash, out_plan);
}

/* Brings back what failed results replaced, newest content first. Runs while `buffers` still holds
 * the results that no storage wanted. */
static void restore_one(tpu_engine_t* e, tpu_storage_t* storage, tpu_value_t* failed) {
  uint32_t number = failed->number;
  for (size_t i = e->undo_count; i-- > 0;) {
    tpui_undo_t* undo = &e->undo[i];
    if (undo->storage != storage->serial || undo->number != number) continue;
    tpu_value_t* old = NULL;
    if (undo->old != NULL) {
      // A donated buffer is gone; then the failure stays visible.
      old = undo->old;
      tpu_value_retain(old);
    } else if (e->buffers[undo->old_number] != NULL) {
      tpu_meta_id_t meta = e->recorder.value_metas[undo->old_number];
      if (tpu_value_create(&e->pool, meta, &old) == NULL) {
        tpu_value_fulfil(old, e->buffers[undo->old_number]);
        e->buffers[undo->old_number] = NULL;
      }
    } else {
      number = undo->old_number;  // that one failed or is gone too: go further back
      continue;
    }
    if (old != NULL) {
      tpu_value_release(&e->pool, storage->value);
      storage->value = old;
    }
    return;
  }
}

static void restore_storages(tpu_engine_t* e) {
  for (size_t i = e->undo_count; i-- > 0;) {
    const tpui_undo_t* undo = &e->undo[i];
    for (size_t s = 0; s < e->storage_slab_count; ++s) {
      tpu_storage_t* slab = e->storage_slabs[s];
      for (size_t k = 0; k < TPUI_SLAB_STORAGES; ++k) {
        tpu_storage_t* storage = &slab[k];
        if (storage->serial != undo->storage || storage->value == NULL) continue;
        if (storage->value->state == TPU_VALUE_FAILED) restore_one(e, storage, storage->value);
      }
    }
  }
}

static void clear_undo(tpu_engine_t* e) {
  for (size_t i = 0; i < e->undo_count; ++i) {
    if (e->undo[i].old == NULL) continue;
    --e->undo[i].old->undo_refs;
    tpu_value_release(&e->pool, e->undo[i].old);
  }
  e->undo_count = 0;
}

/* Every value of the window that is still held gets its buffer or the error. */
static void hand_out(tpu_engine_t* e, tpu_status_t error) {
  tpu_recorder_t* r = &e->recorder;
  for (size_t v = 0; v < r->value_count; ++v) {
    tpu_value_t* value = r->values[v];
    if (value == NULL) continue;
    if (e->buffers[v] != NULL) {
      tpu_value_fulfil(value, e->buffers[v]);
      e->buffers[v] = NULL;
    } else {
      tpu_value_fail(value, tpu_status_copy(error));
    }
  }
}

static void drop_leftovers(tpu_engine_t* e) {
  for (size_t v = 0; v < e->recorder.value_count; ++v) {
    if (e->buffers[v] == NULL) continue;
    tpu_buffer_release(e->buffers[v]);
    e->buffers[v] = NULL;
  }
}

static void finish(tpu_engine_t* e, tpu_status_t error) {
  hand_out(e, error);
  if (error != NULL) restore_storages(e);
  drop_leftovers(e);
  clear_undo(e);
  if (e->pending_error == NULL) {
    e->pending_error = error;
  } else {
    tpu_status_free(error);
  }
}

static void run(tpu_engine_t* e, const tpui_plan_t* plan, const tpui_variant_t* variant,
                const uint8_t* dead) {
  tpu_job_t job = {
      .device = e->device,
      .steps = variant->steps,
      .step_count = variant->step_count,
      .externals = e->recorder.externals,
      .external_dead = dead,
      .external_count = plan->window.external_count,
      .value_count = plan->window.value_count,
      .buffers = e->buffers,
      .slots = e->recorder.slots,
  };
  tpu_job_run(&job);
  e->stats.launches += job.launches;
  finish(e, job.error);
}

static tpu_status_t plan_window(tpu_engine_t* e, const tpu_window_t* window, const uint8_t* live,
                                const uint8_t* dead, tpui_plan_t** out_plan,
                                tpui_variant_t** out_variant) {
  TPU_RETURN_IF_ERROR(find_plan(e, window, out_plan));
  (*out_plan)->last_use = ++e->plans.clock;
  *out_variant = tpui_plan_fit(*out_plan, e->recorder.slots, e->recorder.values);
  if (TPU_LIKELY(*out_variant != NULL)) {
    ++e->stats.window_hits;
    return NULL;
  }
  ++e->stats.window_plans;
  tpui_planner_t planner = {.compiler = e->compiler, .partition = &e->partition};
  return tpui_plan_extend(&planner, *out_plan, e->recorder.slots, live, dead, out_variant);
}

tpu_status_t tpui_flush(tpu_engine_t* e) {
  if (e->recorder.record_count == 0) return NULL;
  tpu_window_t window;
  tpu_recorder_window(&e->recorder, &window);
  uint8_t *live, *dead;
  tpui_plan_t* plan = NULL;
  tpui_variant_t* variant = NULL;
  TPU_RETURN_IF_ERROR(mark_flags(e, &live, &dead));
  TPU_RETURN_IF_ERROR(reserve_buffers(e));
  TPU_RETURN_IF_ERROR(plan_window(e, &window, live, dead, &plan, &variant));
  if (tpu_log_enabled(TPU_LOG_FLUSH)) {
    tpu_log(TPU_LOG_FLUSH, "%u records, %u values, %u externals -> %u programs",
            window.record_count, window.value_count, window.external_count, variant->step_count);
  }
  ++e->stats.flushes;
  run(e, plan, variant, dead);
  if (e->last_plan != NULL) e->last_plan->next = plan;
  e->last_plan = plan;
  tpu_recorder_reset(&e->recorder, plan->next != NULL ? &plan->next->window : NULL);
  return NULL;
}

static tpu_status_t take_pending(tpu_engine_t* e) {
  tpu_status_t error = e->pending_error;
  e->pending_error = NULL;
  return error;
}

tpu_status_t tpui_flush_if_due(tpu_engine_t* e) {
  if (TPU_LIKELY(e->mode == TPU_MODE_FUSED && e->recorder.record_count < e->window_limit)) {
    return NULL;
  }
  TPU_RETURN_IF_ERROR(tpui_flush(e));
  // Fused mode tells at the next sync; here the op that failed is the one just recorded.
  return e->mode == TPU_MODE_FUSED ? NULL : take_pending(e);
}

tpu_status_t tpu_engine_flush(tpu_engine_t* engine, bool wait) {
  tpu_mutex_lock(&engine->lock);
  tpu_status_t status = tpui_flush(engine);
  if (status == NULL && wait) status = take_pending(engine);
  tpu_mutex_unlock(&engine->lock);
  return status;
}
