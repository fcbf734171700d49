#include "like_internal.h"

/* One run: what its device needs when its turn comes. */
typedef struct like_run_t {
  like_program_t* program;
  size_t inputs, outputs, kept;
  int late_code;  // the error that it ends with; 0: none
  like_buffer_t **in, **out;
  int64_t* kept_indices;
  like_event_t* done;
} like_run_t;

static pjrt_error_t* await_real(pjrt_buffer_t* buffer) {
  pjrt_buffer_ready_event_args_t ready = {.buffer = buffer};
  pjrt_error_t* error = LIKE_REAL(Buffer_ReadyEvent, &ready);
  if (error != NULL) return error;
  pjrt_event_await_args_t await = {.event = ready.event};
  error = LIKE_REAL(Event_Await, &await);
  pjrt_event_destroy_args_t destroy = {.event = ready.event};
  like_error_free(LIKE_REAL(Event_Destroy, &destroy));
  return error;
}

static pjrt_error_t* execute(like_run_t* run) {
  if (run->late_code != 0) {
    return like_error(run->late_code, "the device failed while this program ran");
  }
  for (size_t i = 0; i < run->inputs; ++i) {
    pjrt_error_t* error = like_event_wait(run->in[i]->made);
    if (error != NULL) return error;
  }
  pjrt_buffer_t** in = like_new((run->inputs + 1) * sizeof(*in));
  pjrt_buffer_t** out = like_new((run->outputs + 1) * sizeof(*out));
  for (size_t i = 0; i < run->inputs; ++i) in[i] = run->in[i]->real;
  pjrt_execute_options_t options = {
      .struct_size = PJRT_STRUCT_SIZE(pjrt_execute_options_t, num_hlo_output_callbacks),
      .non_donatable_input_indices = run->kept_indices,
      .num_non_donatable_input_indices = run->kept,
  };
  pjrt_buffer_t* const* in_list = in;
  pjrt_loaded_executable_execute_args_t args = {.executable = run->program->real,
                                                .options = &options,
                                                .argument_lists = &in_list,
                                                .num_devices = 1,
                                                .num_args = run->inputs,
                                                .output_lists = &out};
  pjrt_error_t* error = LIKE_REAL(LoadedExecutable_Execute, &args);
  for (size_t i = 0; error == NULL && i < run->outputs; ++i) {
    run->out[i]->real = out[i];
    error = await_real(out[i]);
  }
  free(in);
  free(out);
  return error;
}

static void run_queued(void* data) {
  like_run_t* run = data;
  pjrt_error_t* error = execute(run);
  like_add(LIKE_ended_runs, 1);
  for (size_t i = 0; i < run->outputs; ++i) {
    like_event_set(run->out[i]->made, like_error_copy(error));
    like_buffer_release(run->out[i]);
  }
  for (size_t i = 0; i < run->inputs; ++i) like_buffer_release(run->in[i]);
  like_event_set(run->done, error);
  like_event_release(run->done);
  like_program_release(run->program);
  free(run->in);
  free(run->out);
  free(run->kept_indices);
  free(run);
}

static bool is_kept(const pjrt_execute_options_t* options, size_t index) {
  for (size_t i = 0; i < options->num_non_donatable_input_indices; ++i) {
    if (options->non_donatable_input_indices[i] == (int64_t)index) return true;
  }
  return false;
}

static bool same_type(const fake_type_t* a, const fake_type_t* b) {
  return a->dtype == b->dtype && a->rank == b->rank &&
         memcmp(a->dims, b->dims, a->rank * sizeof(a->dims[0])) == 0;
}

static pjrt_error_t* check_arguments(const like_program_t* program, size_t count,
                                     pjrt_buffer_t* const* arguments) {
  const fake_program_t* signature = program->signature;
  if (count != signature->argument_count) {
    return like_error(3, "Execution supplied %zu buffers but compiled program expected %zu", count,
                      signature->argument_count);
  }
  for (size_t i = 0; i < count; ++i) {
    const like_buffer_t* buffer = (const like_buffer_t*)arguments[i];
    if (buffer->deleted) {
      return like_error(3, "Invalid buffer passed: buffer has been deleted or donated.");
    }
    if (!same_type(&buffer->type, &signature->arguments[i])) {
      return like_error(3, "Executable expected parameter %zu of another shape", i);
    }
  }
  return NULL;
}

static bool is_donated(const like_run_t* run, const pjrt_execute_options_t* options, size_t index) {
  return run->program->signature->arguments[index].donor && !is_kept(options, index);
}

/* Books the results, and takes what is donated. */
static pjrt_error_t* take_memory(like_run_t* run, const pjrt_execute_options_t* options,
                                 like_device_t* device) {
  const fake_program_t* signature = run->program->signature;
  int64_t bytes = 0, freed = 0;
  for (size_t i = 0; i < run->outputs; ++i) bytes += like_layout_bytes(&signature->results[i]);
  for (size_t i = 0; i < run->inputs; ++i) {
    if (is_donated(run, options, i)) freed += run->in[i]->bytes;
  }
  if (!like_memory_take(device, bytes, run->program->temporary, freed)) {
    if (like_value(LIKE_oom_late) == 0) {
      return like_error(8,
                        "Error loading program: Attempting to reserve %lld bytes. That was not "
                        "possible.",
                        (long long)bytes);
    }
    run->late_code = 8;
    for (size_t i = 0; i < run->inputs; ++i) {
      if (is_donated(run, options, i)) like_buffer_delete(run->in[i]);
    }
    return NULL;
  }
  like_lock();
  for (size_t i = 0; i < run->inputs; ++i) {
    if (!is_donated(run, options, i)) continue;
    run->in[i]->deleted = true;
    run->in[i]->bytes = 0;
  }
  like_unlock();
  return NULL;
}

static void keep_indices(like_run_t* run, const pjrt_execute_options_t* options) {
  run->kept = options->num_non_donatable_input_indices;
  run->kept_indices = like_new((run->kept + 1) * sizeof(int64_t));
  for (size_t i = 0; i < run->kept; ++i) {
    run->kept_indices[i] = options->non_donatable_input_indices[i];
  }
}

static like_run_t* make_run(like_program_t* program, size_t inputs,
                            pjrt_buffer_t* const* arguments) {
  like_run_t* run = like_new(sizeof(*run));
  run->program = like_program_retain(program);
  run->inputs = inputs;
  run->outputs = program->signature->result_count;
  run->in = like_new((inputs + 1) * sizeof(*run->in));
  run->out = like_new((run->outputs + 1) * sizeof(*run->out));
  for (size_t i = 0; i < inputs; ++i) {
    run->in[i] = like_buffer_retain((like_buffer_t*)arguments[i]);
  }
  return run;
}

static void drop_run(like_run_t* run) {
  for (size_t i = 0; i < run->inputs; ++i) like_buffer_release(run->in[i]);
  like_program_release(run->program);
  free(run->in);
  free(run->out);
  free(run);
}

static like_buffer_t* make_output(like_run_t* run, like_device_t* device, size_t index) {
  like_buffer_t* buffer = like_buffer_new(device, &run->program->signature->results[index]);
  if (run->late_code == 8) buffer->bytes = 0;  // it was never to be had
  run->out[index] = like_buffer_retain(buffer);
  return buffer;
}

static like_device_t* device_of(const pjrt_loaded_executable_execute_args_t* args) {
  if (args->execute_device != NULL) return (like_device_t*)args->execute_device;
  return &((like_program_t*)args->executable)->client->devices[0];
}

pjrt_error_t* like_LoadedExecutable_Execute(void* pointer) {
  pjrt_loaded_executable_execute_args_t* args = pointer;
  like_program_t* program = (like_program_t*)args->executable;
  if (args->num_devices != 1) return like_error(12, "tpu_like: one device per run");
  pjrt_error_t* error = check_arguments(program, args->num_args, args->argument_lists[0]);
  if (error != NULL) return error;
  like_device_t* device = device_of(args);
  like_run_t* run = make_run(program, args->num_args, args->argument_lists[0]);
  error = take_memory(run, args->options, device);
  if (error != NULL) {
    drop_run(run);
    return error;
  }
  like_add(LIKE_runs, 1);
  if (like_value(LIKE_fail_runs) > 0) {
    like_add(LIKE_fail_runs, -1);
    run->late_code = 13;
  }
  keep_indices(run, args->options);
  run->done = like_event_new();
  for (size_t i = 0; i < run->outputs; ++i) {
    args->output_lists[0][i] = (pjrt_buffer_t*)make_output(run, device, i);
  }
  if (args->device_complete_events != NULL) {
    args->device_complete_events[0] = (pjrt_event_t*)like_event_retain(run->done);
  }
  like_queue_push(&device->programs, run_queued, run);
  return NULL;
}
