#include "launch/launch.h"

#include <string.h>

#include "base/alloc.h"
#include "base/events.h"
#include "base/layout.h"
#include "base/log.h"

#define INLINE_BUFFERS 96

static tpu_status_t pack_ints(tpu_job_t* job, const tpu_step_t* step, tpu_buffer_t** out_buffer) {
  int64_t inline_numbers[64], count = step->packed.int_count;
  void* memory = inline_numbers;
  if (count > 64) TPU_RETURN_IF_ERROR(tpu_calloc((size_t)count, sizeof(int64_t), &memory));
  int64_t* numbers = memory;
  tpu_status_t status = NULL;
  if (tpu_packed_fill_ints(&step->packed, job->slots, numbers)) {
    status = tpu_buffer_from_host(job->device, numbers, TPU_I64, 1, &count, out_buffer);
  } else {
    status = tpu_status_make(TPU_INTERNAL, "a view's offset does not fit its program");
  }
  if (memory != inline_numbers) tpu_free(memory);
  return status;
}

static tpu_status_t pack_doubles(tpu_job_t* job, const tpu_step_t* step,
                                 tpu_buffer_t** out_buffer) {
  double inline_numbers[64];
  int64_t count = step->packed.double_count;
  void* memory = inline_numbers;
  if (count > 64) TPU_RETURN_IF_ERROR(tpu_calloc((size_t)count, sizeof(double), &memory));
  double* numbers = memory;
  tpu_packed_fill_doubles(&step->packed, job->slots, numbers);
  tpu_status_t status = tpu_buffer_from_host(job->device, numbers, TPU_F64, 1, &count, out_buffer);
  if (memory != inline_numbers) tpu_free(memory);
  return status;
}

static const tpu_value_t* external_of(const tpu_job_t* job, uint32_t ref) {
  return tpu_ref_kind(ref) == TPU_REF_EXTERNAL ? job->externals[tpu_ref_index(ref)] : NULL;
}

tpu_buffer_t* tpu_job_input(const tpu_job_t* job, uint32_t ref) {
  const tpu_value_t* value = external_of(job, ref);
  tpu_buffer_t* buffer = NULL;
  if (value == NULL) {
    buffer = job->buffers[tpu_ref_index(ref)];
  } else if (value->state != TPU_VALUE_FAILED) {
    buffer = value->ready.buffer;
  }
  return buffer != NULL && tpu_buffer_has_content(buffer) ? buffer : NULL;
}

static bool is_given(const tpu_job_t* job, const tpu_step_t* step, uint32_t i) {
  uint32_t ref = step->inputs[i], index = tpu_ref_index(ref);
  if (!step->donatable[i]) return false;
  bool external = tpu_ref_kind(ref) == TPU_REF_EXTERNAL;
  if (external && !job->external_dead[index]) return false;
  const uint8_t* held = external ? job->held_externals : job->held_values;
  return TPU_LIKELY(held == NULL) || !held[index];
}

/* False when an input failed earlier; the failure of an external value becomes the job's. */
static bool gather_inputs(tpu_job_t* job, const tpu_step_t* step, tpu_buffer_t** inputs,
                          uint8_t* donated) {
  for (uint32_t i = 0; i < step->input_count; ++i) {
    const tpu_value_t* value = external_of(job, step->inputs[i]);
    if (value != NULL && value->state == TPU_VALUE_FAILED && job->error == NULL) {
      job->error = tpu_status_copy(value->failed.error);
      job->failed_job = value->failed.job;
    }
    inputs[i] = tpu_job_input(job, step->inputs[i]);
    donated[i] = is_given(job, step, i);
    if (inputs[i] == NULL) return false;
  }
  return true;
}

/* What was to be given away goes after the run that has succeeded. */
static void drop_given(uint32_t count, tpu_buffer_t* const* inputs, const uint8_t* donated) {
  for (uint32_t i = 0; i < count; ++i) {
    if (donated[i]) tpu_buffer_drop(inputs[i]);
  }
}

static tpu_status_t run_program(tpu_job_t* job, const tpu_step_t* step, tpu_job_donate_t donate,
                                tpu_buffer_t** inputs, uint8_t* donated, tpu_buffer_t** outputs) {
  uint32_t count = step->input_count;
  tpu_buffer_t *doubles = NULL, *ints = NULL;
  tpu_status_t status = NULL;
  if (step->packed.double_count > 0) status = pack_doubles(job, step, &doubles);
  if (status == NULL && step->packed.int_count > 0) status = pack_ints(job, step, &ints);
  if (status == NULL) {
    if (doubles != NULL) inputs[count] = doubles, donated[count++] = 0;
    if (ints != NULL) inputs[count] = ints, donated[count++] = 0;
    bool preserve = donate == TPU_JOB_PRESERVE;
    status = tpu_executable_run(step->executable, (int)count, inputs, step->donatable,
                                preserve ? NULL : donated, step->output_bytes, outputs);
    if (preserve && status == NULL) drop_given(count, inputs, donated);
  }
  tpu_buffer_release(doubles);
  tpu_buffer_release(ints);
  return status;
}

static tpu_status_t run_on_host(tpu_job_t* job, const tpu_step_t* step, tpu_job_donate_t donate,
                                tpu_buffer_t** inputs, uint8_t* donated, tpu_buffer_t** outputs) {
  bool preserve = donate == TPU_JOB_PRESERVE;
  tpu_status_t status = tpu_host_step_run(step->host, job->device, job->slots, inputs,
                                          preserve ? NULL : donated, outputs);
  if (preserve && status == NULL) drop_given(step->input_count, inputs, donated);
  return status;
}

/* Room for the flag of a step with checks, in the job's next flag. */
static tpu_status_t prepare_flag(tpu_job_t* job, const tpu_step_t* step) {
  TPU_RETURN_IF_ERROR(
      tpu_grow((void**)&job->flags, &job->flag_capacity, job->flag_count + 1, sizeof(*job->flags)));
  tpu_flag_t* flag = &job->flags[job->flag_count];
  *flag = (tpu_flag_t){.checks = step->checks, .job = job->serial};
  if (TPU_LIKELY(job->locations == NULL)) return NULL;
  TPU_RETURN_IF_ERROR(
      tpu_calloc(step->checks->count, sizeof(*flag->locations), (void**)&flag->locations));
  for (uint32_t i = 0; i < step->checks->count; ++i) {
    flag->locations[i] = job->locations[step->checks->rows[i].record];
  }
  return NULL;
}

/* The step ran, and `buffer` (taken) is what its checks found; or NULL. */
static void end_flag(tpu_job_t* job, tpu_buffer_t* buffer) {
  tpu_flag_t* flag = &job->flags[job->flag_count];
  if (buffer == NULL) {
    tpu_free(flag->locations);
    return;
  }
  flag->buffer = buffer;
  tpu_checks_retain(flag->checks);
  ++job->flag_count;
}

static tpu_status_t run_step(tpu_job_t* job, const tpu_step_t* step, tpu_job_donate_t donate,
                             tpu_buffer_t** inputs, uint8_t* donated, tpu_buffer_t** outputs) {
  if (step->host != NULL) return run_on_host(job, step, donate, inputs, donated, outputs);
  if (step->checks == NULL) return run_program(job, step, donate, inputs, donated, outputs);
  TPU_RETURN_IF_ERROR(prepare_flag(job, step));
  tpu_status_t status = run_program(job, step, donate, inputs, donated, outputs);
  end_flag(job, status == NULL ? outputs[step->output_count] : NULL);
  return status;
}

static void take_outputs(tpu_job_t* job, const tpu_step_t* step, tpu_buffer_t* const* outputs) {
  ++job->launches;
  for (uint32_t i = 0; i < step->output_count; ++i) {
    tpu_buffer_set_origin(outputs[i], (uint32_t)step->output_ops[i]);
    job->buffers[step->outputs[i]] = outputs[i];
  }
}

tpu_status_t tpu_job_run_step(tpu_job_t* job, const tpu_step_t* step, tpu_job_donate_t donate,
                              bool* out_ran) {
  *out_ran = false;
  if (step->error != NULL) return tpu_status_copy(step->error);
  tpu_buffer_t* inline_buffers[INLINE_BUFFERS];
  uint8_t inline_donated[INLINE_BUFFERS];
  size_t inputs = (size_t)step->input_count + 2;
  size_t outputs = (size_t)step->output_count + (step->checks != NULL);
  tpu_buffer_t** buffers = inline_buffers;  // inputs, then outputs
  uint8_t* donated = inline_donated;
  void* memory = NULL;
  if (inputs + outputs > INLINE_BUFFERS) {
    tpu_layout_t layout;
    tpu_layout_init(&layout);
    TPU_LAYOUT_ADD(&layout, buffers, inputs + outputs);
    TPU_LAYOUT_ADD(&layout, donated, inputs);
    TPU_RETURN_IF_ERROR(tpu_layout_allocate(&layout, &memory));
  }
  tpu_status_t status = NULL;
  if (gather_inputs(job, step, buffers, donated)) {
    status = run_step(job, step, donate, buffers, donated, buffers + inputs);
    *out_ran = status == NULL;
    if (status == NULL) take_outputs(job, step, buffers + inputs);
  }
  tpu_free(memory);
  return status;
}

static void log_step(const tpu_job_t* job, const tpu_step_t* step, int64_t begin_ns) {
  tpu_log(TPU_LOG_LAUNCH, "%s %u of %u: %u ops from %s, %u in, %u out, %.1f us",
          step->host != NULL ? "host step" : "program", (uint32_t)(step - job->steps),
          job->step_count, step->record_count, tpu_op_info(step->op)->name, step->input_count,
          step->output_count, (double)(tpu_clock_ns() - begin_ns) * 1e-3);
}

void tpu_job_keep_error(tpu_job_t* job, const tpu_step_t* step, tpu_status_t error) {
  const char* name = tpu_op_info(step->op)->name;
  // What could not be compiled says so itself.
  if (step->error == NULL && step->record_count == 1) {
    error = tpu_status_annotate(error, "%s", name);
  } else if (step->error == NULL) {
    error = tpu_status_annotate(error, "program of %u ops from %s", step->record_count, name);
  }
  if (job->locations != NULL) {
    error = tpu_location_append(error, job->locations[step->record]);
  }
  if (job->error == NULL) {
    job->error = error;
  } else {
    tpu_status_free(error);
  }
}

static void release_values(tpu_job_t* job, const tpu_step_t* step) {
  for (uint32_t i = 0; i < step->release_count; ++i) {
    uint32_t value = step->releases[i];
    if (TPU_UNLIKELY(job->held_values != NULL) && job->held_values[value]) continue;
    tpu_buffer_release(job->buffers[value]);
    job->buffers[value] = NULL;
  }
}

bool tpu_job_run(tpu_job_t* job, tpu_status_t* out_error) {
  bool log = tpu_log_enabled(TPU_LOG_LAUNCH);
  for (; job->next_step < job->step_count; ++job->next_step) {
    const tpu_step_t* step = &job->steps[job->next_step];
    int64_t begin = log ? tpu_clock_ns() : 0;
    bool ran;
    int64_t event = tpu_event_begin();
    *out_error = tpu_job_run_step(job, step, TPU_JOB_DONATE, &ran);
    tpu_event_end(step->host != NULL ? TPU_EVENT_HOST_STEP : TPU_EVENT_LAUNCH, event,
                  tpu_op_info(step->op)->name, step->record_count);
    if (TPU_UNLIKELY(!ran)) return false;
    if (TPU_UNLIKELY(log)) log_step(job, step, begin);
    release_values(job, step);
  }
  return true;
}
