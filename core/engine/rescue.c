#include "engine/rescue.h"

#include <string.h>

#include "base/alloc.h"
#include "base/layout.h"
#include "base/log.h"
#include "engine/holders.h"

static const tpu_window_t* window_of(const tpui_flight_t* f) { return &f->plan->window; }

static bool is_exhausted(tpu_status_t status) {
  return tpu_status_code(status) == TPU_RESOURCE_EXHAUSTED;
}

static void lock_engine(const tpui_flight_t* f) {
  if (!f->locked) tpu_mutex_lock(&f->engine->lock);
}
static void unlock_engine(const tpui_flight_t* f) {
  if (!f->locked) tpu_mutex_unlock(&f->engine->lock);
}

/* --- what became of values --- */

static void mark_record(tpui_flight_t* f, uint32_t record, tpui_made_t made) {
  tpu_record_t r;
  tpu_window_record(window_of(f), record, &r);
  memset(f->rescue->made + r.first_value, (int)made, (size_t)r.result_count);
}

static void mark_step(tpui_flight_t* f, const tpu_step_t* step, tpui_made_t made) {
  for (uint32_t i = 0; i < step->record_count; ++i) mark_record(f, step->records[i], made);
}

/* What has not been made by now never will be. */
static void mark_rest_failed(tpui_flight_t* f, const tpu_step_t* step) {
  for (uint32_t i = 0; i < step->record_count; ++i) {
    tpu_record_t r;
    tpu_window_record(window_of(f), step->records[i], &r);
    if (f->rescue->made[r.first_value] != TPUI_MADE) mark_record(f, step->records[i], TPUI_FAILED);
  }
}

static void find_undo_externals(tpui_flight_t* f) {
  for (size_t i = 0; i < f->undo_count; ++i) {
    f->rescue->undo_externals[i] = UINT32_MAX;
    for (uint32_t k = 0; f->undo[i].old != NULL && k < f->job.external_count; ++k) {
      if (f->job.externals[k] == f->undo[i].old) f->rescue->undo_externals[i] = k;
    }
  }
}

static tpu_status_t open_rescue(tpui_flight_t* f) {
  size_t values = f->job.value_count, externals = f->job.external_count;
  tpui_rescue_t *block = NULL, made = {0};
  void* memory = NULL;
  tpu_layout_t layout;
  tpu_layout_init(&layout);
  TPU_LAYOUT_ADD(&layout, block, 1);
  TPU_LAYOUT_ADD(&layout, made.undo_externals, f->undo_count);
  TPU_LAYOUT_ADD(&layout, made.records, window_of(f)->record_count);
  TPU_LAYOUT_ADD(&layout, made.made, values);
  TPU_LAYOUT_ADD(&layout, made.held_values, values);
  TPU_LAYOUT_ADD(&layout, made.held_externals, externals);
  TPU_LAYOUT_ADD(&layout, made.due, values);
  TPU_LAYOUT_ADD(&layout, made.live, values);
  TPU_LAYOUT_ADD(&layout, made.dead, externals);
  TPU_RETURN_IF_ERROR(tpu_layout_allocate(&layout, &memory));
  *block = made;
  f->rescue = block;
  find_undo_externals(f);
  for (uint32_t s = 0; s < f->job.next_step; ++s) mark_step(f, &f->job.steps[s], TPUI_MADE);
  f->job.held_values = block->held_values;
  f->job.held_externals = block->held_externals;
  return NULL;
}

/* --- what must be kept --- */

/* Marks what tensors may have to go back to, because what replaced it is not there. What `step`
 * (NULL: none) replaces may be used up by it. */
static void update_holds(tpui_flight_t* f, const tpu_step_t* step) {
  tpui_rescue_t* rescue = f->rescue;
  if (step != NULL) mark_step(f, step, TPUI_MADE);
  memset(rescue->held_values, 0, f->job.value_count);
  memset(rescue->held_externals, 0, f->job.external_count);
  for (size_t i = 0; i < f->undo_count; ++i) {
    const tpui_undo_t* undo = &f->undo[i];
    if (rescue->made[undo->number] == TPUI_MADE) continue;
    if (undo->old == NULL) rescue->held_values[undo->old_number] = 1;
    if (rescue->undo_externals[i] != UINT32_MAX) {
      rescue->held_externals[rescue->undo_externals[i]] = 1;
    }
  }
  if (step != NULL) mark_step(f, step, TPUI_NOT_MADE);
}

static void note_due(tpui_flight_t* f, const tpu_step_t* step) {
  for (uint32_t i = 0; i < step->release_count; ++i) f->rescue->due[step->releases[i]] = 1;
}

static void release_due(tpui_flight_t* f) {
  update_holds(f, NULL);
  for (uint32_t v = 0; v < f->job.value_count; ++v) {
    if (!f->rescue->due[v] || f->rescue->held_values[v]) continue;
    tpu_buffer_release(f->job.buffers[v]);
    f->job.buffers[v] = NULL;
    f->rescue->due[v] = 0;
  }
}

/* --- making room --- */

/* Results that the programs give and this window does not need: nobody holds them any more, no step
 * reads them and no tensor goes back to them. True when there were some. */
static bool release_unwanted(tpui_flight_t* f) {
  uint8_t* wanted = f->rescue->live;
  if (f->job.next_step == f->job.step_count) return false;
  memcpy(wanted, f->rescue->held_values, f->job.value_count);
  const tpu_step_t* now = &f->job.steps[f->job.next_step];
  for (uint32_t i = 0; i < now->record_count; ++i) {  // its ops may be running one by one
    tpu_record_t r;
    tpu_window_record(window_of(f), now->records[i], &r);
    memset(wanted + r.first_value, 1, (size_t)r.result_count);
  }
  for (uint32_t s = f->job.next_step; s < f->job.step_count; ++s) {
    const tpu_step_t* step = &f->job.steps[s];
    for (uint32_t i = 0; i < step->input_count; ++i) {
      if (tpu_ref_kind(step->inputs[i]) != TPU_REF_WINDOW) continue;
      wanted[tpu_ref_index(step->inputs[i])] = 1;
    }
  }
  bool released = false;
  for (uint32_t v = 0; v < f->job.value_count; ++v) {
    if (wanted[v] || f->values[v] != NULL || f->job.buffers[v] == NULL) continue;
    tpu_buffer_release(f->job.buffers[v]);
    f->job.buffers[v] = NULL;
    released = true;
  }
  return released;
}

/* Devices that run behind the host hold the temporaries of what is still running. The errors belong
 * to those who read the content. */
static bool await_running(tpui_flight_t* f) {
  bool waited = false;
  for (uint32_t i = 0; i < f->job.external_count; ++i) {
    tpu_buffer_t* buffer = tpu_job_input(&f->job, tpu_ref_make(TPU_REF_EXTERNAL, i));
    if (buffer != NULL) tpu_status_free(tpu_buffer_await(buffer));
    waited |= buffer != NULL;
  }
  for (uint32_t v = 0; v < f->job.value_count; ++v) {
    tpu_buffer_t* buffer = tpu_job_input(&f->job, tpu_ref_make(TPU_REF_WINDOW, v));
    if (buffer != NULL) tpu_status_free(tpu_buffer_await(buffer));
    waited |= buffer != NULL;
  }
  return waited;
}

/* Frees what can be freed while the flight runs; true when a second try may go better. */
static bool make_room(tpui_flight_t* f) {
  bool waited = false;
  if (!tpu_device_platform(f->job.device)->host_addressable) {
    tpu_compiler_clear_memory(f->engine->compiler);  // programs lie in the same memory
    waited = await_running(f);
  }
  lock_engine(f);
  bool released = release_unwanted(f);
  unlock_engine(f);
  return waited || released;
}

/* --- one by one --- */

static void keep_error(tpui_flight_t* f, const tpu_step_t* step, tpu_status_t error) {
  if (is_exhausted(error) && f->job.error == NULL) {
    lock_engine(f);
    error = tpui_add_holders(f->engine, f, error);
    unlock_engine(f);
  }
  tpu_job_keep_error(&f->job, step, error);
}

/* Runs a step without giving anything away before it has succeeded; if that takes too much memory,
 * as it would have been run in the first place. */
static tpu_status_t try_step(tpui_flight_t* f, const tpu_step_t* step, bool* out_ran) {
  update_holds(f, step);
  tpu_status_t status = tpu_job_run_step(&f->job, step, TPU_JOB_PRESERVE, out_ran);
  if (!is_exhausted(status)) return status;
  (void)make_room(f);
  tpu_status_free(status);
  return tpu_job_run_step(&f->job, step, TPU_JOB_DONATE, out_ran);
}

static void step_ran(tpui_flight_t* f, const tpu_step_t* step) {
  mark_step(f, step, TPUI_MADE);
  note_due(f, step);
  release_due(f);
}

/* What of the step's records can be computed, in rescue->records; the rest fails. */
static uint32_t find_runnable(tpui_flight_t* f, const tpu_step_t* step) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < step->record_count; ++i) {
    tpu_record_t r;
    tpu_window_record(window_of(f), step->records[i], &r);
    bool runnable = true;
    for (int k = 0; k < r.operand_count; ++k) {
      uint32_t ref = tpu_record_ref(&r, k), index = tpu_ref_index(ref);
      if (tpu_ref_kind(ref) == TPU_REF_WINDOW && f->rescue->made[index] == TPUI_NOT_MADE) continue;
      if (tpu_ref_kind(ref) > TPU_REF_EXTERNAL) continue;
      runnable &= tpu_job_input(&f->job, ref) != NULL;
    }
    if (runnable) {
      f->rescue->records[count++] = step->records[i];
    } else {
      mark_record(f, step->records[i], TPUI_FAILED);
    }
  }
  return count;
}

/* live and dead for pieces of a step: as for the step itself, and what of its own results tensors
 * have to go back to already. */
static void mark_step_needs(tpui_flight_t* f, const tpu_step_t* step) {
  tpui_rescue_t* rescue = f->rescue;
  update_holds(f, NULL);
  memset(rescue->live, 1, f->job.value_count);
  for (uint32_t i = 0; i < step->record_count; ++i) {
    tpu_record_t r;
    tpu_window_record(window_of(f), step->records[i], &r);
    memset(rescue->live + r.first_value, 0, (size_t)r.result_count);
  }
  for (uint32_t i = 0; i < step->output_count; ++i) rescue->live[step->outputs[i]] = 1;
  for (uint32_t i = 0; i < step->release_count; ++i) rescue->live[step->releases[i]] = 0;
  for (size_t i = 0; i < f->undo_count; ++i) {
    const tpui_undo_t* undo = &f->undo[i];
    if (undo->old == NULL && rescue->made[undo->number] == TPUI_FAILED) {
      rescue->live[undo->old_number] = 1;
    }
  }
  memset(rescue->dead, 0, f->job.external_count);
  for (uint32_t i = 0; i < step->input_count; ++i) {
    uint32_t ref = step->inputs[i];
    if (tpu_ref_kind(ref) == TPU_REF_EXTERNAL) {
      rescue->dead[tpu_ref_index(ref)] = step->donatable[i];
    }
  }
}

/* Runs rescue->records[count] as one program (then gives its error, and nothing is lost), or as one
 * for each (then those that fail are dealt with). What ran before need not check its data again. */
static tpu_status_t run_pieces(tpui_flight_t* f, uint32_t count, bool single, bool again) {
  tpu_engine_t* e = f->engine;
  tpui_planner_t planner = tpui_planner(e);
  tpui_pieces_t pieces = {.records = f->rescue->records,
                          .record_count = count,
                          .single = single,
                          .checks = planner.partition.checks && !again,
                          .live = f->rescue->live,
                          .external_dead = f->rescue->dead};
  tpui_variant_t* variant = NULL;
  TPU_RETURN_IF_ERROR(
      tpui_plan_pieces(&planner, f->plan, f->variant, f->job.slots, &pieces, &variant));
  tpu_status_t result = NULL;
  for (uint32_t s = 0; s < variant->step_count && result == NULL; ++s) {
    const tpu_step_t* step = &variant->steps[s];
    bool ran;
    tpu_status_t status = try_step(f, step, &ran);
    if (ran) {
      step_ran(f, step);
    } else if (!single) {
      result = status != NULL ? status : tpu_status_make(TPU_INTERNAL, "an input is missing");
    } else {
      if (status != NULL) keep_error(f, step, status);
      mark_step(f, step, TPUI_FAILED);
    }
  }
  tpui_variant_free(variant);
  return result;
}

/* Whether a step that failed may go better as other steps. */
static bool has_other_way(const tpu_step_t* step, tpu_status_t error) {
  if (step->error != NULL) return false;
  // What has no kernel on the host may have a program.
  bool on_host_only = (tpu_op_info(step->op)->flags & TPU_OP_HOST) != 0;
  bool refused = step->host != NULL && !on_host_only && tpu_status_code(error) == TPU_UNIMPLEMENTED;
  return error == NULL || step->record_count > 1 || refused;
}

/* A step that failed with `error` (taken), or that lacks an input. */
static void rescue_step(tpui_flight_t* f, const tpu_step_t* step, tpu_status_t error) {
  uint32_t count = find_runnable(f, step);
  bool whole = count == step->record_count;
  if (error != NULL && !whole) {
    keep_error(f, step, tpu_status_annotate(error, "the run took what it was given and failed"));
    error = NULL;
  }
  if (count > 0 && has_other_way(step, error)) {
    if (error != NULL) {
      tpu_log(TPU_LOG_LAUNCH, "a program failed, running its %u ops one by one: %s",
              step->record_count, tpu_status_message(error));
    }
    mark_step_needs(f, step);
    tpu_status_t status = run_pieces(f, count, whole, false);
    if (status != NULL && !whole) {
      tpu_status_free(status);
      status = run_pieces(f, count, true, false);
    }
    tpu_status_free(error);
    error = status;
  }
  if (error != NULL) keep_error(f, step, error);
  mark_rest_failed(f, step);
  note_due(f, step);
  release_due(f);
}

/* --- going back --- */

/* Records that have to run again so that a value is there, in rescue->records. `*out_failed`: its
 * op, or one that it depends on, failed. 0 records: it cannot be had. */
static uint32_t plan_recovery(tpui_flight_t* f, uint32_t value, bool* out_failed) {
  const tpu_window_t* w = window_of(f);
  uint8_t* needed = f->rescue->live;  // by value
  uint32_t count = 0, last = w->value_records[value];
  bool possible = true;
  *out_failed = false;
  memset(needed, 0, w->value_count);
  needed[value] = 1;
  for (uint32_t i = last + 1; i-- > 0;) {
    tpu_record_t r;
    tpu_window_record(w, i, &r);
    bool wanted = false;
    for (int k = 0; k < r.result_count; ++k) wanted |= needed[r.first_value + (uint32_t)k];
    if (!wanted) continue;
    f->rescue->records[count++] = i;
    for (int k = 0; k < r.operand_count; ++k) {
      uint32_t ref = tpu_record_ref(&r, k), index = tpu_ref_index(ref);
      if (tpu_ref_kind(ref) > TPU_REF_EXTERNAL || tpu_job_input(&f->job, ref) != NULL) continue;
      if (tpu_ref_kind(ref) == TPU_REF_WINDOW) {
        *out_failed |= f->rescue->made[index] == TPUI_FAILED;
        needed[index] = 1;
      } else {
        bool failed = f->job.externals[index]->state == TPU_VALUE_FAILED;
        *out_failed |= failed;
        possible &= failed;
      }
    }
  }
  for (uint32_t i = 0; i < count / 2; ++i) {
    uint32_t other = f->rescue->records[i];
    f->rescue->records[i] = f->rescue->records[count - 1 - i];
    f->rescue->records[count - 1 - i] = other;
  }
  return possible && !*out_failed ? count : 0;
}

/* Computes content again that was released, or never computed since something replaced it. */
static void recover_value(tpui_flight_t* f, uint32_t value) {
  bool failed;
  uint32_t count = plan_recovery(f, value, &failed);
  if (failed) f->rescue->made[value] = TPUI_FAILED;
  if (count == 0) return;
  memset(f->rescue->live, 1, f->job.value_count);
  for (uint32_t i = 0; i < count; ++i) {
    tpu_record_t r;
    tpu_window_record(window_of(f), f->rescue->records[i], &r);
    memset(f->rescue->live + r.first_value, 0, (size_t)r.result_count);
  }
  f->rescue->live[value] = 1;
  memset(f->rescue->dead, 0, f->job.external_count);
  tpu_status_t status = run_pieces(f, count, false, true);
  if (status != NULL) tpu_log(TPU_LOG_LAUNCH, "lost: %s", tpu_status_message(status));
  tpu_status_free(status);  // the tensor says that it has no content
}

/* Makes sure that the content is there to which tensors go back, where that is possible. */
static void recover_values(tpui_flight_t* f) {
  for (size_t i = 0; i < f->undo_count; ++i) {
    const tpui_undo_t* undo = &f->undo[i];
    if (f->rescue->made[undo->number] != TPUI_FAILED || undo->old != NULL) continue;
    if (f->rescue->made[undo->old_number] == TPUI_FAILED) continue;
    if (tpu_job_input(&f->job, tpu_ref_make(TPU_REF_WINDOW, undo->old_number)) != NULL) continue;
    recover_value(f, undo->old_number);
  }
}

/* --- all of it --- */

/* The rest of a flight, from a step on that did not run. */
static void run_rescued(tpui_flight_t* f, tpu_status_t error) {
  tpu_job_t* job = &f->job;
  bool ran = false, first = true;
  for (; job->next_step < job->step_count; ++job->next_step, first = false) {
    const tpu_step_t* step = &job->steps[job->next_step];
    update_holds(f, step);
    if (!first) error = tpu_job_run_step(job, step, TPU_JOB_DONATE, &ran);
    if (is_exhausted(error) && make_room(f)) {
      tpu_status_free(error);
      error = tpu_job_run_step(job, step, TPU_JOB_DONATE, &ran);
    }
    if (ran) {
      step_ran(f, step);
    } else {
      rescue_step(f, step, error);
    }
  }
  recover_values(f);
}

void tpui_flight_run(tpui_flight_t* f) {
  tpu_status_t error = NULL;
  if (TPU_LIKELY(tpu_job_run(&f->job, &error))) return;
  tpu_status_t status = open_rescue(f);
  if (status == NULL) {
    run_rescued(f, error);
    return;
  }
  // Not even memory for the books: the step and all behind it fail.
  tpu_job_keep_error(&f->job, &f->job.steps[f->job.next_step], error != NULL ? error : status);
  if (error != NULL) tpu_status_free(status);
}
