#include "launch/step.h"

#include <string.h>

#include "base/alloc.h"
#include "base/layout.h"

/* Numbers that are no inputs follow them as arguments: one vector of floats, one of integers. */
#define MOST_PACKED 2

static void fill_arrays(const tpu_program_t* program, tpu_step_t* step) {
  const tpu_window_t* w = program->window;
  for (uint32_t i = 0; i < program->input_count; ++i) {
    step->inputs[i] = program->inputs[i].ref;
    step->donatable[i] = program->inputs[i].donatable;
  }
  for (uint32_t i = 0; i < program->output_count; ++i) {
    step->outputs[i] = program->outputs[i];
    step->output_bytes[i] = tpu_meta_bytes(tpu_meta_get(w->value_metas[program->outputs[i]]));
    step->output_ops[i] = tpu_window_origin(w, w->value_records[program->outputs[i]]);
  }
  for (uint32_t i = 0; i < program->record_count; ++i) step->records[i] = program->records[i];
  if (step->checks != NULL) {
    step->output_bytes[program->output_count] = (int64_t)(step->checks->count * sizeof(int64_t));
  }
}

tpu_status_t tpu_step_make(const tpu_program_t* program, tpu_lowered_t* lowered,
                           const tpu_step_runner_t* runner, tpu_step_t* out_step) {
  size_t inputs = program->input_count, outputs = program->output_count;
  tpu_record_t first;
  tpu_window_record(program->window, program->records[0], &first);
  tpu_step_t step = {.executable = runner->executable,
                     .host = runner->host,
                     .error = runner->error,
                     .op = first.op,
                     .record = program->records[0],
                     .record_count = program->record_count,
                     .input_count = program->input_count,
                     .output_count = program->output_count,
                     .packed = lowered->packed,
                     .checks = lowered->checks};
  lowered->packed = (tpu_packed_t){0};
  lowered->checks = NULL;
  *out_step = (tpu_step_t){0};
  tpu_layout_t layout;
  tpu_layout_init(&layout);
  TPU_LAYOUT_ADD(&layout, step.output_bytes, outputs + 1);
  TPU_LAYOUT_ADD(&layout, step.inputs, inputs);
  TPU_LAYOUT_ADD(&layout, step.outputs, outputs);
  TPU_LAYOUT_ADD(&layout, step.output_ops, outputs);
  TPU_LAYOUT_ADD(&layout, step.records, program->record_count);
  TPU_LAYOUT_ADD(&layout, step.releases, inputs + outputs);
  TPU_LAYOUT_ADD(&layout, step.donatable, inputs + MOST_PACKED);
  tpu_status_t status = tpu_layout_allocate(&layout, &step.memory);
  if (status != NULL) {
    tpu_step_free(&step);
    return status;
  }
  fill_arrays(program, &step);
  *out_step = step;
  return NULL;
}

void tpu_step_free(tpu_step_t* step) {
  tpu_executable_release(step->executable);
  tpu_free(step->host);
  tpu_status_free(step->error);
  tpu_packed_free(&step->packed);
  tpu_checks_release(step->checks);
  tpu_free(step->memory);
  *step = (tpu_step_t){0};
}

/* The last step that reads or makes each value; UINT32_MAX: none. */
static void find_last_steps(const tpu_step_t* steps, uint32_t count, uint32_t* last_step) {
  for (uint32_t s = 0; s < count; ++s) {
    const tpu_step_t* step = &steps[s];
    for (uint32_t i = 0; i < step->input_count; ++i) {
      if (tpu_ref_kind(step->inputs[i]) != TPU_REF_WINDOW) continue;
      last_step[tpu_ref_index(step->inputs[i])] = s;
    }
    for (uint32_t i = 0; i < step->output_count; ++i) last_step[step->outputs[i]] = s;
  }
}

static void release_value(tpu_step_t* step, uint32_t s, uint32_t value, const uint8_t* live,
                          uint32_t* last_step) {
  if (last_step[value] != s || live[value]) return;
  last_step[value] = UINT32_MAX;  // once is enough
  step->releases[step->release_count++] = value;
}

tpu_status_t tpu_steps_plan_releases(tpu_step_t* steps, uint32_t count, const uint8_t* live,
                                     uint32_t value_count) {
  uint32_t* last_step = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc(value_count, sizeof(*last_step), (void**)&last_step));
  if (last_step == NULL) return NULL;
  memset(last_step, 0xff, value_count * sizeof(*last_step));
  find_last_steps(steps, count, last_step);
  for (uint32_t s = 0; s < count; ++s) {
    tpu_step_t* step = &steps[s];
    for (uint32_t i = 0; i < step->input_count; ++i) {
      if (tpu_ref_kind(step->inputs[i]) != TPU_REF_WINDOW) continue;
      release_value(step, s, tpu_ref_index(step->inputs[i]), live, last_step);
    }
    for (uint32_t i = 0; i < step->output_count; ++i) {
      release_value(step, s, step->outputs[i], live, last_step);
    }
  }
  tpu_free(last_step);
  return NULL;
}
