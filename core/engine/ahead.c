#include "engine/ahead.h"

#include <string.h>

#include "base/alloc.h"
#include "base/layout.h"
#include "engine/flush.h"
#include "engine/lane.h"
#include "engine/storage.h"

tpu_status_t tpu_engine_ahead_begin(tpu_engine_t* e) {
  tpui_lane_t* lane;
  TPU_RETURN_IF_ERROR(tpui_lane_look(e, &lane));
  tpu_status_t status = NULL;
  if (lane->ahead || lane->capture != NULL) {
    status = tpu_status_make(TPU_FAILED_PRECONDITION,
                             "this thread already records ahead of time, or captures");
  }
  if (status == NULL) status = tpui_flush(lane);
  if (status == NULL) lane->ahead = true;
  tpu_mutex_unlock(&e->lock);
  return status;
}

/* --- forgetting --- */

/* Tensors that were written get back what they held before the window. */
static void restore_contents(tpui_lane_t* lane) {
  tpu_value_pool_t* pool = &lane->engine->pool;
  for (size_t i = lane->undo_count; i-- > 0;) {
    tpui_undo_t* undo = &lane->undo[i];
    if (undo->old == NULL) continue;
    bool there = undo->storage->serial == undo->serial && undo->storage->value != NULL;
    if (there && undo->old->state != TPU_VALUE_HOLLOW) {
      tpu_value_release(pool, undo->storage->value);
      tpu_value_retain(undo->old);
      tpui_storage_set(undo->storage, undo->old);
    }
    tpu_value_release(pool, undo->old);
  }
  lane->undo_count = 0;
}

static bool is_forgotten(const tpui_lane_t* lane, const tpu_value_t* value) {
  if (value == NULL) return false;
  return value->state == TPU_VALUE_HOLLOW ||
         (value->state == TPU_VALUE_RECORDED && value->pending.window == lane->recorder.window_id);
}

/* Nothing that was recorded happened. Values that something else than a tensor holds fail. */
static void forget_window(tpui_lane_t* lane) {
  tpu_engine_t* e = lane->engine;
  restore_contents(lane);
  for (size_t i = 0; i < e->storage_slab_count * TPUI_SLAB_STORAGES; ++i) {
    tpu_storage_t* storage = &e->storage_slabs[i / TPUI_SLAB_STORAGES][i % TPUI_SLAB_STORAGES];
    if (!is_forgotten(lane, storage->value)) continue;
    tpu_value_release(&e->pool, storage->value);
    tpui_storage_set(storage, NULL);
  }
  for (size_t v = 0; v < lane->recorder.value_count; ++v) {
    tpu_value_t* value = lane->recorder.values[v];
    if (value == NULL) continue;
    tpu_value_fail(value, tpu_status_make(TPU_FAILED_PRECONDITION, "recorded ahead of time only"),
                   0);
  }
  tpu_recorder_reset(&lane->recorder, NULL);
  lane->last_plan = NULL;
  lane->window_recurs = false;
  lane->ahead = false;
}

/* The lane where this thread records ahead of time, with the lock held; NULL if it does not. */
static tpu_status_t find_ahead(tpu_engine_t* e, tpui_lane_t** out_lane) {
  TPU_RETURN_IF_ERROR(tpui_lane_look(e, out_lane));
  if ((*out_lane)->ahead) return NULL;
  tpu_mutex_unlock(&e->lock);
  return tpu_status_make(TPU_FAILED_PRECONDITION, "this thread does not record ahead of time");
}

tpu_status_t tpu_engine_ahead_declare(tpu_engine_t* e, int count, const tpu_operand_t* tensors) {
  tpui_lane_t* lane;
  TPU_RETURN_IF_ERROR(find_ahead(e, &lane));
  tpu_status_t status = NULL;
  for (int k = 0; k < count && status == NULL; ++k) {
    if (tensors[k].storage->value != NULL) continue;
    status = tpui_storage_ensure_value(lane, tensors[k].storage, tensors[k].view);
  }
  tpu_mutex_unlock(&e->lock);
  return status;
}

void tpu_engine_ahead_cancel(tpu_engine_t* e) {
  tpui_lane_t* lane;
  tpu_status_t status = find_ahead(e, &lane);
  if (status == NULL) {
    forget_window(lane);
    tpu_mutex_unlock(&e->lock);
  }
  tpu_status_free(status);
}

/* --- programs --- */

static tpu_ahead_value_t value_of(const tpu_window_t* window, uint32_t ref, bool given) {
  return (tpu_ahead_value_t){.number = tpu_ref_index(ref),
                             .external = tpu_ref_kind(ref) == TPU_REF_EXTERNAL,
                             .given = given,
                             .meta = tpu_window_ref_meta(window, ref)};
}

/* The launch's arrays and text are one allocation, at its inputs. */
static tpu_status_t add_launch(void* user, const tpu_program_t* program,
                               const tpu_lowered_t* lowered) {
  tpu_ahead_t* made = user;
  tpu_ahead_launch_t* launch = &made->launches[made->launch_count];
  tpu_ahead_value_t *inputs = NULL, *outputs = NULL;
  char* text = NULL;
  void* memory = NULL;
  tpu_layout_t layout;
  tpu_layout_init(&layout);
  TPU_LAYOUT_ADD(&layout, inputs, program->input_count + 1);
  TPU_LAYOUT_ADD(&layout, outputs, program->output_count);
  TPU_LAYOUT_ADD(&layout, text, lowered->text.size + 1);
  TPU_RETURN_IF_ERROR(tpu_layout_allocate(&layout, &memory));
  for (uint32_t k = 0; k < program->input_count; ++k) {
    inputs[k] = value_of(program->window, program->inputs[k].ref, program->inputs[k].donatable);
  }
  for (uint32_t k = 0; k < program->output_count; ++k) {
    outputs[k] =
        value_of(program->window, tpu_ref_make(TPU_REF_WINDOW, program->outputs[k]), false);
  }
  memcpy(text, tpu_strbuf_text(&lowered->text), lowered->text.size);
  *launch = (tpu_ahead_launch_t){.text = text,
                                 .text_size = lowered->text.size,
                                 .input_count = program->input_count,
                                 .output_count = program->output_count,
                                 .inputs = inputs,
                                 .outputs = outputs};
  ++made->launch_count;
  return NULL;
}

/* Room for a launch per record: there are no more programs than those. */
static tpu_status_t make_room(const tpu_window_t* window, tpu_ahead_t** out_made) {
  tpu_ahead_t *block = NULL, made = {.external_count = window->external_count};
  void* memory = NULL;
  tpu_layout_t layout;
  tpu_layout_init(&layout);
  TPU_LAYOUT_ADD(&layout, block, 1);
  TPU_LAYOUT_ADD(&layout, made.launches, window->record_count);
  TPU_LAYOUT_COPY(&layout, made.externals, window->external_metas, window->external_count);
  TPU_RETURN_IF_ERROR(tpu_layout_allocate(&layout, &memory));
  *block = made;
  *out_made = block;
  return NULL;
}

static tpu_status_t write_programs(tpui_lane_t* lane, tpu_platform_kind_t kind,
                                   tpu_ahead_t** out_made) {
  const tpu_platform_t* platform = tpu_platform_get(kind);
  if (platform == NULL) return tpu_status_make(TPU_INVALID_ARGUMENT, "platform %d", (int)kind);
  tpui_planner_t planner = tpui_planner(lane->engine);
  planner.host_ops = NULL;
  tpui_partition_write_for(&planner.partition, platform);
  tpu_window_t window;
  uint8_t *live, *dead;
  tpu_recorder_window(&lane->recorder, &window);
  TPU_RETURN_IF_ERROR(tpui_mark_flags(lane, true, &live, &dead));
  tpu_ahead_t* made = NULL;
  TPU_RETURN_IF_ERROR(make_room(&window, &made));
  tpui_program_sink_t sink = {.take = add_launch, .user = made};
  tpu_status_t status = tpui_plan_write(&planner, &window, live, dead, &sink);
  if (status != NULL) {
    tpu_ahead_free(made);
    return status;
  }
  *out_made = made;
  return NULL;
}

tpu_status_t tpu_engine_ahead_end(tpu_engine_t* e, tpu_platform_kind_t platform,
                                  tpu_ahead_t** out_made) {
  *out_made = NULL;
  tpui_lane_t* lane;
  TPU_RETURN_IF_ERROR(find_ahead(e, &lane));
  tpu_status_t status = write_programs(lane, platform, out_made);
  forget_window(lane);
  tpu_mutex_unlock(&e->lock);
  return status;
}

void tpu_ahead_free(tpu_ahead_t* made) {
  if (made == NULL) return;
  for (uint32_t i = 0; i < made->launch_count; ++i) tpu_free(made->launches[i].inputs);
  tpu_free(made);
}
