#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "base/layout.h"
#include "device/device_internal.h"

/* Up to this many inputs and outputs a run needs no memory besides the stack. */
enum { SMALL_RUN = 64 };

/* Arrays that one run hands to the plugin. */
typedef struct run_space_t {
  pjrt_buffer_t** inputs;
  pjrt_buffer_t** outputs;
  int64_t* kept;  // indices of arguments that must not be donated
} run_space_t;

/* Space for a larger run. An executable keeps one; a second concurrent run makes its own. */
typedef struct run_block_t {
  size_t inputs, outputs;  // capacities
  run_space_t space;
} run_block_t;

struct tpu_executable_t {
  atomic_int references;
  tpu_device_t* device;
  pjrt_loaded_executable_t* loaded;  // owned
  pjrt_executable_t* executable;     // owned
  int output_count;
  int64_t* output_bytes;  // owned; -1 where the dtype is not in our table
  int64_t temporary_bytes, code_bytes;
  _Atomic(run_block_t*) block;
};

/* --- making --- */

static tpu_status_t check_program(const tpu_device_t* device, const void* bytes, size_t size,
                                  const char* what) {
  if (device == NULL) return tpu_status_make(TPU_INVALID_ARGUMENT, "device is NULL");
  if (bytes == NULL || size == 0) return tpu_status_make(TPU_INVALID_ARGUMENT, "empty %s", what);
  return NULL;
}

/* Bytes of each output, so that a run can compare them with what the caller books. */
static tpu_status_t read_outputs(tpu_executable_t* executable) {
  const tpu_plugin_t* plugin = executable->device->plugin;
  pjrt_executable_num_outputs_args_t number = {.executable = executable->executable};
  TPU_RETURN_IF_ERROR(tpu_pjrt_call(plugin, Executable_NumOutputs, &number));
  pjrt_executable_output_element_types_args_t types = {.executable = executable->executable};
  TPU_RETURN_IF_ERROR(tpu_pjrt_call(plugin, Executable_OutputElementTypes, &types));
  pjrt_executable_output_dimensions_args_t dims = {.executable = executable->executable};
  TPU_RETURN_IF_ERROR(tpu_pjrt_call(plugin, Executable_OutputDimensions, &dims));
  if (number.num_outputs > INT32_MAX || types.num_output_types != number.num_outputs ||
      dims.num_outputs != number.num_outputs) {
    return tpu_status_make(TPU_INTERNAL, "the plugin reports %zu outputs, %zu types, %zu shapes",
                           number.num_outputs, types.num_output_types, dims.num_outputs);
  }
  void* memory = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc(number.num_outputs, sizeof(int64_t), &memory));
  executable->output_bytes = memory;
  executable->output_count = (int)number.num_outputs;
  const int64_t* sizes = dims.dims;
  for (size_t i = 0; i < number.num_outputs; ++i) {
    tpu_dtype_t dtype = tpu_dtype_from_pjrt(types.output_types[i]);
    executable->output_bytes[i] = -1;
    if (dtype != TPU_DTYPE_INVALID) {
      TPU_RETURN_IF_ERROR(
          tpui_dense_bytes(dtype, (int)dims.dim_sizes[i], sizes, &executable->output_bytes[i]));
    }
    sizes += dims.dim_sizes[i];
  }
  return NULL;
}

/* An estimate of what plugins do not tell: measured on XLA's CPU plugin, see decision 012. */
#define UNKNOWN_CODE_BYTES (256 << 10)

/* Plugins need not know: some cannot say it for a program that came from a file. */
static void read_memory(tpu_executable_t* executable) {
  pjrt_executable_get_compiled_memory_stats_args_t args = {.executable = executable->executable};
  tpu_status_t status =
      tpu_pjrt_call(executable->device->plugin, Executable_GetCompiledMemoryStats, &args);
  bool known = status == NULL;
  tpu_status_free(status);
  if (known && args.temp_size_in_bytes > 0) executable->temporary_bytes = args.temp_size_in_bytes;
  int64_t code = known ? args.generated_code_size_in_bytes : 0;
  executable->code_bytes = code > UNKNOWN_CODE_BYTES ? code : UNKNOWN_CODE_BYTES;
  atomic_fetch_add_explicit(&executable->device->code_bytes, executable->code_bytes,
                            memory_order_relaxed);
}

static tpu_status_t fill_executable(tpu_executable_t* executable) {
  const tpu_plugin_t* plugin = executable->device->plugin;
  pjrt_loaded_executable_get_executable_args_t args = {.loaded_executable = executable->loaded};
  TPU_RETURN_IF_ERROR(tpu_pjrt_call(plugin, LoadedExecutable_GetExecutable, &args));
  executable->executable = args.executable;
  read_memory(executable);
  return read_outputs(executable);
}

static void destroy_executable(tpu_executable_t* executable) {
  const tpu_plugin_t* plugin = executable->device->plugin;
  if (executable->executable != NULL) {
    pjrt_executable_destroy_args_t args = {.executable = executable->executable};
    tpui_log_failed_destroy(tpu_pjrt_call(plugin, Executable_Destroy, &args));
  }
  if (executable->loaded != NULL) {
    pjrt_loaded_executable_destroy_args_t args = {.executable = executable->loaded};
    tpui_log_failed_destroy(tpu_pjrt_call(plugin, LoadedExecutable_Destroy, &args));
  }
  atomic_fetch_sub_explicit(&executable->device->code_bytes, executable->code_bytes,
                            memory_order_relaxed);
  tpu_free(atomic_load_explicit(&executable->block, memory_order_acquire));
  tpu_free(executable->output_bytes);
  tpu_free(executable);
}

/* An executable object with one reference and nothing in it. Made before the plugin is asked, so
 * that what the plugin returns always has an owner. */
static tpu_status_t make_object(tpu_device_t* device, tpu_executable_t** out_executable) {
  void* memory = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc(1, sizeof(tpu_executable_t), &memory));
  *out_executable = memory;
  atomic_init(&(*out_executable)->references, 1);
  (*out_executable)->device = device;
  return NULL;
}

/* Ends a create: hands the object out, or destroys it. */
static tpu_status_t finish_create(tpu_status_t status, tpu_executable_t* executable,
                                  tpu_executable_t** out_executable) {
  if (status == NULL) status = fill_executable(executable);
  if (status != NULL) {
    destroy_executable(executable);
    return status;
  }
  *out_executable = executable;
  return NULL;
}

tpu_status_t tpu_executable_compile(tpu_device_t* device, const char* text, size_t text_size,
                                    const void* options, size_t options_size,
                                    tpu_executable_t** out_executable) {
  *out_executable = NULL;
  TPU_RETURN_IF_ERROR(check_program(device, text, text_size, "program text"));
  /* The CPU plugin aborts the process on empty options. */
  TPU_RETURN_IF_ERROR(check_program(device, options, options_size, "compile options"));
  tpu_executable_t* executable = NULL;
  TPU_RETURN_IF_ERROR(make_object(device, &executable));
  pjrt_program_t program = {
      .struct_size = PJRT_SIZE_program,
      .code = text,
      .code_size = text_size,
      .format = "mlir",
      .format_size = 4,
  };
  pjrt_client_compile_args_t args = {
      .client = device->client,
      .program = &program,
      .compile_options = options,
      .compile_options_size = options_size,
  };
  tpu_status_t status = tpu_pjrt_call(device->plugin, Client_Compile, &args);
  executable->loaded = args.executable;
  return finish_create(status, executable, out_executable);
}

tpu_status_t tpu_executable_deserialize(tpu_device_t* device, const void* bytes, size_t size,
                                        const void* options, size_t options_size,
                                        tpu_executable_t** out_executable) {
  *out_executable = NULL;
  TPU_RETURN_IF_ERROR(check_program(device, bytes, size, "serialized program"));
  tpu_executable_t* executable = NULL;
  TPU_RETURN_IF_ERROR(make_object(device, &executable));
  pjrt_executable_deserialize_and_load_args_t args = {
      .client = device->client,
      .serialized_executable = bytes,
      .serialized_executable_size = size,
      .overridden_serialized_compile_options = options,
      .overridden_serialized_compile_options_size = options != NULL ? options_size : 0,
  };
  tpu_status_t status = tpu_pjrt_call(device->plugin, Executable_DeserializeAndLoad, &args);
  executable->loaded = args.loaded_executable;
  return finish_create(status, executable, out_executable);
}

tpu_status_t tpu_executable_serialize(tpu_executable_t* executable, void** out_bytes,
                                      size_t* out_size) {
  *out_bytes = NULL;
  *out_size = 0;
  pjrt_executable_serialize_args_t args = {.executable = executable->executable};
  TPU_RETURN_IF_ERROR(tpu_pjrt_call(executable->device->plugin, Executable_Serialize, &args));
  tpu_status_t status = tpu_calloc(args.serialized_bytes_size, 1, out_bytes);
  if (status == NULL && *out_bytes != NULL) {
    memcpy(*out_bytes, args.serialized_bytes, args.serialized_bytes_size);
    *out_size = args.serialized_bytes_size;
  }
  args.serialized_executable_deleter(args.serialized_executable);
  return status;
}

int tpu_executable_output_count(const tpu_executable_t* executable) {
  return executable->output_count;
}

int64_t tpu_executable_temporary_bytes(const tpu_executable_t* executable) {
  return executable->temporary_bytes;
}

int64_t tpu_executable_code_bytes(const tpu_executable_t* executable) {
  return executable->code_bytes;
}

int64_t tpu_device_code_bytes(const tpu_device_t* device) {
  return atomic_load_explicit(&device->code_bytes, memory_order_relaxed);
}

bool tpu_executable_is_shared(const tpu_executable_t* executable) {
  return atomic_load_explicit(&executable->references, memory_order_acquire) > 1;
}

void tpu_executable_retain(tpu_executable_t* executable) {
  atomic_fetch_add_explicit(&executable->references, 1, memory_order_relaxed);
}

void tpu_executable_release(tpu_executable_t* executable) {
  if (executable == NULL) return;
  if (atomic_fetch_sub_explicit(&executable->references, 1, memory_order_acq_rel) != 1) return;
  destroy_executable(executable);
}

/* --- running --- */

static tpu_status_t acquire_block(tpu_executable_t* executable, size_t inputs, size_t outputs,
                                  run_block_t** out_block) {
  run_block_t* block = atomic_exchange_explicit(&executable->block, NULL, memory_order_acquire);
  if (block != NULL && block->inputs >= inputs && block->outputs >= outputs) {
    *out_block = block;
    return NULL;
  }
  tpu_free(block);
  run_block_t made = {.inputs = inputs, .outputs = outputs};
  void* memory = NULL;
  tpu_layout_t layout;
  tpu_layout_init(&layout);
  TPU_LAYOUT_ADD(&layout, block, 1);
  TPU_LAYOUT_ADD(&layout, made.space.kept, inputs);
  TPU_LAYOUT_ADD(&layout, made.space.inputs, inputs);
  TPU_LAYOUT_ADD(&layout, made.space.outputs, outputs);
  TPU_RETURN_IF_ERROR(tpu_layout_allocate(&layout, &memory));
  *block = made;
  *out_block = block;
  return NULL;
}

static void give_back_block(tpu_executable_t* executable, run_block_t* block) {
  tpu_free(atomic_exchange_explicit(&executable->block, block, memory_order_acq_rel));
}

/* Fills the argument array. The plugin crashes on NULL and reads freed memory after a donation, so
 * both are refused here. */
static tpu_status_t bind_inputs(const tpu_executable_t* executable, int count,
                                tpu_buffer_t* const* inputs, const uint8_t* donatable,
                                const uint8_t* donated, run_space_t* space, size_t* out_kept,
                                int64_t* out_freed) {
  size_t kept = 0;
  int64_t freed = 0;
  for (int i = 0; i < count; ++i) {
    tpu_buffer_t* buffer = inputs[i];
    if (buffer != NULL && TPU_UNLIKELY(buffer->pjrt == NULL && buffer->content != NULL)) {
      TPU_RETURN_IF_ERROR(tpui_buffer_materialize(buffer));
    }
    if (TPU_UNLIKELY(buffer == NULL || buffer->pjrt == NULL ||
                     buffer->device != executable->device)) {
      return tpu_status_make(TPU_INVALID_ARGUMENT, "program argument %d %s", i,
                             buffer == NULL         ? "is NULL"
                             : buffer->pjrt == NULL ? "was donated before"
                                                    : "is on another device");
    }
    space->inputs[i] = buffer->pjrt;
    bool gives = donated != NULL && donated[i] != 0;
    bool may = donatable != NULL && donatable[i] != 0;
    if (gives && !may) {
      return tpu_status_make(TPU_INVALID_ARGUMENT,
                             "argument %d is donated but the program does not take donations of it",
                             i);
    }
    if (gives) freed += buffer->bytes;
    if (may && !gives) space->kept[kept++] = i;
  }
  *out_kept = kept;
  *out_freed = freed;
  return NULL;
}

static tpu_status_t check_outputs(const tpu_executable_t* executable, const int64_t* output_bytes) {
  for (int i = 0; i < executable->output_count; ++i) {
    int64_t real = executable->output_bytes[i];
    if (TPU_UNLIKELY(real >= 0 ? real != output_bytes[i] : output_bytes[i] < 0)) {
      return tpu_status_make(TPU_INVALID_ARGUMENT,
                             "output %d has %" PRId64 " bytes, the caller says %" PRId64, i, real,
                             output_bytes[i]);
    }
  }
  return NULL;
}

static tpu_status_t execute_once(tpu_executable_t* executable, uint64_t run, int input_count,
                                 size_t kept, const run_space_t* space) {
  tpu_device_t* device = executable->device;
  pjrt_execute_options_t options = {
      .struct_size = PJRT_SIZE_execute_options,
      .non_donatable_input_indices = space->kept,
      .num_non_donatable_input_indices = kept,
  };
  pjrt_buffer_t* const* argument_list = space->inputs;
  pjrt_buffer_t** output_list = space->outputs;
  pjrt_loaded_executable_execute_args_t args = {
      .executable = executable->loaded,
      .options = &options,
      .argument_lists = &argument_list,
      .num_devices = 1,
      .num_args = (size_t)input_count,
      .output_lists = &output_list,
  };
  pjrt_event_t* end = NULL;
  if (!device->platform->host_addressable) args.device_complete_events = &end;
  tpu_status_t status = tpu_pjrt_call(device->plugin, LoadedExecutable_Execute, &args);
  if (TPU_LIKELY(status == NULL)) tpui_completion_add(device, run, end);
  return status;
}

/* A plugin may have taken donated buffers when a run fails. What it has is dropped here, so that
 * nobody reads memory that is no longer theirs. Gives the bytes that are gone. */
static int64_t drop_taken(int count, tpu_buffer_t* const* inputs, const uint8_t* donated) {
  int64_t bytes = 0;
  for (int i = 0; donated != NULL && i < count; ++i) {
    if (donated[i] == 0 || inputs[i]->pjrt == NULL) continue;
    pjrt_buffer_is_deleted_args_t args = {.buffer = inputs[i]->pjrt};
    tpu_status_t status = tpu_pjrt_call(inputs[i]->device->plugin, Buffer_IsDeleted, &args);
    bool taken = status != NULL || args.is_deleted;
    tpu_status_free(status);
    if (!taken) continue;
    bytes += inputs[i]->bytes;
    tpui_buffer_drop_donated(inputs[i]);
  }
  return bytes;
}

/* Bytes in use while this runs, when it takes nothing over. `booked`: the outputs are in it. */
static int64_t run_level(tpu_executable_t* executable, const int64_t* output_bytes, bool booked) {
  tpu_device_t* device = executable->device;
  int64_t level = executable->temporary_bytes;
  for (int i = 0; i < executable->output_count && !booked; ++i) level += output_bytes[i];
  tpu_mutex_lock(&device->mutex);
  level += device->stats.bytes_in_use;
  tpu_mutex_unlock(&device->mutex);
  return level;
}

/* Books the outputs. Where a run like this failed before, `*inout_donated` turns NULL if there is
 * room to keep what is donated until the run succeeded. */
static tpu_status_t book_run(tpu_executable_t* executable, const int64_t* output_bytes,
                             int64_t freed, const uint8_t** inout_donated,
                             tpu_buffer_t** out_outputs) {
  tpu_device_t* device = executable->device;
  tpui_need_t need = {.temporary = executable->temporary_bytes};
  int count = executable->output_count;
  int64_t risky = atomic_load_explicit(&device->risky_bytes, memory_order_relaxed);
  if (TPU_UNLIKELY(risky != INT64_MAX) && freed > 0 &&
      run_level(executable, output_bytes, false) >= risky) {
    tpu_status_t status = tpui_buffers_reserve(device, count, output_bytes, need, out_outputs);
    if (status == NULL) {
      *inout_donated = NULL;
      return NULL;
    }
    tpu_status_free(status);
  }
  need.freed = freed;
  return tpui_buffers_reserve(device, count, output_bytes, need, out_outputs);
}

/* Learns from a run, before its outputs are given back, how much is too much. */
static void note_level(tpu_executable_t* executable, int64_t freed, tpu_status_t status) {
  tpu_device_t* device = executable->device;
  int64_t level = run_level(executable, NULL, true) + freed;
  int64_t risky = atomic_load_explicit(&device->risky_bytes, memory_order_relaxed);
  if (status == NULL && level >= risky) risky = level + 1;
  if (tpu_status_code(status) == TPU_RESOURCE_EXHAUSTED && level < risky) risky = level;
  atomic_store_explicit(&device->risky_bytes, risky, memory_order_relaxed);
}

static tpu_status_t run_in(tpu_executable_t* executable, int input_count,
                           tpu_buffer_t* const* inputs, const uint8_t* donatable,
                           const uint8_t* donated, const int64_t* output_bytes,
                           tpu_buffer_t** out_outputs, run_space_t* space) {
  int output_count = executable->output_count;
  size_t kept = 0;
  int64_t freed = 0;
  const uint8_t* given = donated;
  TPU_RETURN_IF_ERROR(
      bind_inputs(executable, input_count, inputs, donatable, given, space, &kept, &freed));
  TPU_RETURN_IF_ERROR(check_outputs(executable, output_bytes));
  /* Memory is booked before the run, so that two threads cannot pass the limit together. */
  TPU_RETURN_IF_ERROR(book_run(executable, output_bytes, freed, &given, out_outputs));
  tpu_status_t status = NULL;
  if (TPU_UNLIKELY(given != donated)) {
    status = bind_inputs(executable, input_count, inputs, donatable, NULL, space, &kept, &freed);
  }
  uint64_t run = 1 + atomic_fetch_add_explicit(&executable->device->runs, 1, memory_order_relaxed);
  if (status == NULL) status = execute_once(executable, run, input_count, kept, space);
  if (TPU_UNLIKELY(status != NULL || given != donated)) note_level(executable, freed, status);
  if (TPU_UNLIKELY(status != NULL)) {
    freed -= drop_taken(input_count, inputs, given);
    tpui_buffers_cancel(executable->device, output_count, out_outputs, freed);
    return status;
  }
  for (int i = 0; i < output_count; ++i) {
    out_outputs[i]->pjrt = space->outputs[i];
    out_outputs[i]->run = run;
  }
  for (int i = 0; donated != NULL && i < input_count; ++i) {
    if (donated[i] == 0) continue;
    if (TPU_LIKELY(given == donated)) {
      tpui_buffer_drop_donated(inputs[i]);
    } else {
      tpu_buffer_drop(inputs[i]);
    }
  }
  return NULL;
}

tpu_status_t tpu_executable_run(tpu_executable_t* executable, int input_count,
                                tpu_buffer_t* const* inputs, const uint8_t* donatable,
                                const uint8_t* donated, const int64_t* output_bytes,
                                tpu_buffer_t** out_outputs) {
  for (int i = 0; i < executable->output_count; ++i) out_outputs[i] = NULL;
  if (input_count < 0) return tpu_status_make(TPU_INVALID_ARGUMENT, "negative argument count");
  if (TPU_LIKELY(input_count <= SMALL_RUN && executable->output_count <= SMALL_RUN)) {
    pjrt_buffer_t* input_array[SMALL_RUN];
    pjrt_buffer_t* output_array[SMALL_RUN];
    int64_t kept_array[SMALL_RUN];
    run_space_t space = {.inputs = input_array, .outputs = output_array, .kept = kept_array};
    return run_in(executable, input_count, inputs, donatable, donated, output_bytes, out_outputs,
                  &space);
  }
  run_block_t* block = NULL;
  TPU_RETURN_IF_ERROR(
      acquire_block(executable, (size_t)input_count, (size_t)executable->output_count, &block));
  tpu_status_t status = run_in(executable, input_count, inputs, donatable, donated, output_bytes,
                               out_outputs, &block->space);
  give_back_block(executable, block);
  return status;
}
