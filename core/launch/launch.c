#include "launch/launch.h"

#include <string.h>

#include "base/alloc.h"
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

/* False when an input failed earlier; the failure of an external value becomes the job's. */
static bool gather_inputs(tpu_job_t* job, const tpu_step_t* step, tpu_buffer_t** inputs,
                          uint8_t* donated) {
  for (uint32_t i = 0; i < step->input_count; ++i) {
    uint32_t index = tpu_ref_index(step->inputs[i]);
    if (tpu_ref_kind(step->inputs[i]) == TPU_REF_EXTERNAL) {
      const tpu_value_t* value = job->externals[index];
      bool failed = value->state == TPU_VALUE_FAILED;
      inputs[i] = failed ? NULL : value->ready.buffer;
      donated[i] = step->donatable[i] && job->external_dead[index];
      if (failed && job->error == NULL) {
        job->error = tpu_status_copy(value->failed.error);
        job->failed_job = value->failed.job;
      }
    } else {
      inputs[i] = job->buffers[index];
      donated[i] = step->donatable[i];
    }
    if (inputs[i] == NULL) return false;
  }
  return true;
}

static tpu_status_t run_step(tpu_job_t* job, const tpu_step_t* step, tpu_buffer_t** inputs,
                             uint8_t* donated, tpu_buffer_t** outputs) {
  uint32_t count = step->input_count;
  tpu_buffer_t *doubles = NULL, *ints = NULL;
  tpu_status_t status = NULL;
  if (step->packed.double_count > 0) status = pack_doubles(job, step, &doubles);
  if (status == NULL && step->packed.int_count > 0) status = pack_ints(job, step, &ints);
  if (status == NULL) {
    if (doubles != NULL) inputs[count] = doubles, donated[count++] = 0;
    if (ints != NULL) inputs[count] = ints, donated[count++] = 0;
    status = tpu_executable_run(step->executable, (int)count, inputs, step->donatable, donated,
                                step->output_bytes, outputs);
  }
  tpu_buffer_release(doubles);
  tpu_buffer_release(ints);
  return status;
}

static void keep_flag(tpu_job_t* job, const tpu_step_t* step, tpu_buffer_t* buffer) {
  tpu_checks_retain(step->checks);
  job->flags[job->flag_count++] =
      (tpu_flag_t){.buffer = buffer, .checks = step->checks, .job = job->serial};
}

static tpu_status_t execute_step(tpu_job_t* job, const tpu_step_t* step) {
  tpu_buffer_t* inline_buffers[INLINE_BUFFERS];
  uint8_t inline_donated[INLINE_BUFFERS];
  size_t inputs = (size_t)step->input_count + 2, values = step->output_count;
  size_t outputs = values + (step->checks != NULL);
  if (step->checks != NULL) {
    TPU_RETURN_IF_ERROR(tpu_grow((void**)&job->flags, &job->flag_capacity, job->flag_count + 1,
                                 sizeof(*job->flags)));
  }
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
  if (step->error != NULL) {
    status = tpu_status_copy(step->error);
  } else if (gather_inputs(job, step, buffers, donated)) {
    status = run_step(job, step, buffers, donated, buffers + inputs);
    if (status == NULL) {
      ++job->launches;
      for (size_t i = 0; i < values; ++i) job->buffers[step->outputs[i]] = buffers[inputs + i];
      if (step->checks != NULL) keep_flag(job, step, buffers[inputs + values]);
    }
  }
  tpu_free(memory);
  return status;
}

static void log_step(const tpu_job_t* job, const tpu_step_t* step, int64_t begin_ns) {
  tpu_log(TPU_LOG_LAUNCH, "program %u of %u: %u ops from %s, %u in, %u out, %.1f us",
          (uint32_t)(step - job->steps), job->step_count, step->record_count,
          tpu_op_info(step->op)->name, step->input_count, step->output_count,
          (double)(tpu_clock_ns() - begin_ns) * 1e-3);
}

/* Takes the error. What could not be compiled says so itself. */
static void keep_error(tpu_job_t* job, const tpu_step_t* step, tpu_status_t status) {
  const char* name = tpu_op_info(step->op)->name;
  if (step->error == NULL && step->record_count == 1) {
    status = tpu_status_annotate(status, "%s", name);
  } else if (step->error == NULL) {
    status = tpu_status_annotate(status, "program of %u ops from %s", step->record_count, name);
  }
  if (job->error == NULL) {
    job->error = status;
  } else {
    tpu_status_free(status);
  }
}

static void release_values(tpu_job_t* job, const tpu_step_t* step) {
  for (uint32_t i = 0; i < step->release_count; ++i) {
    tpu_buffer_release(job->buffers[step->releases[i]]);
    job->buffers[step->releases[i]] = NULL;
  }
}

void tpu_job_run(tpu_job_t* job) {
  bool log = tpu_log_enabled(TPU_LOG_LAUNCH);
  for (uint32_t s = 0; s < job->step_count; ++s) {
    const tpu_step_t* step = &job->steps[s];
    int64_t begin = log ? tpu_clock_ns() : 0;
    tpu_status_t status = execute_step(job, step);
    if (TPU_UNLIKELY(log)) log_step(job, step, begin);
    if (TPU_UNLIKELY(status != NULL)) keep_error(job, step, status);
    release_values(job, step);
  }
}
