#include "fake_internal.h"

#define ENTER(name, type)                                         \
  type* args = pointer;                                           \
  pjrt_error_t* injected = fake_enter(FAKE_CALL_##name, pointer); \
  if (injected != NULL) return injected

#define CHECK(name, object, kind) \
  if (!fake_check(FAKE_CALL_##name, object, kind)) return fake_error(3, "bad handle")

/* Serialized form: these bytes, then the program's text. */
static const char blob_magic[8] = "FAKEEXE";

typedef struct fake_executable_t {
  fake_object_t head;
  fake_program_t* program;
} fake_executable_t;

typedef struct fake_serialized_t {
  fake_object_t head;
  char* bytes;
} fake_serialized_t;

/* --- compiling --- */

static pjrt_loaded_executable_t* new_loaded(fake_program_t* program, bool is_cpu) {
  fake_loaded_t* loaded = fake_new(FAKE_LOADED, sizeof(*loaded));
  loaded->program = program;
  loaded->is_cpu = is_cpu;
  return (pjrt_loaded_executable_t*)loaded;
}

static pjrt_error_t* parse_program(const pjrt_program_t* program, const char* options,
                                   size_t options_size, fake_program_t** out_parsed) {
  if (program->struct_size != PJRT_STRUCT_SIZE(pjrt_program_t, format_size)) {
    fake_violation("Compile: the program has struct_size %zu", program->struct_size);
  }
  if (program->format_size != 4 || memcmp(program->format, "mlir", 4) != 0) {
    return fake_error(3, "unknown program format");
  }
  pjrt_error_t* error = fake_options_check(options, options_size);
  if (error != NULL) return error;
  char message[256] = "";
  *out_parsed = fake_program_parse(program->code, program->code_size, message, sizeof(message));
  return *out_parsed == NULL ? fake_error(2, "%s", message) : NULL;
}

pjrt_error_t* fake_Client_Compile(void* pointer) {
  ENTER(Client_Compile, pjrt_client_compile_args_t);
  CHECK(Client_Compile, args->client, FAKE_CLIENT);
  fake_program_t* parsed = NULL;
  pjrt_error_t* error =
      parse_program(args->program, args->compile_options, args->compile_options_size, &parsed);
  if (error != NULL) return error;
  args->executable = new_loaded(parsed, ((fake_client_t*)args->client)->is_cpu);
  FAKE_COUNT(compiles);
  return NULL;
}

/* --- compiling without a client --- */

pjrt_error_t* fake_TopologyDescription_Create(void* pointer) {
  ENTER(TopologyDescription_Create, pjrt_topology_description_create_args_t);
  if (args->topology_name_size != 8 || memcmp(args->topology_name, "fake:1x1", 8) != 0) {
    return fake_error(3, "unknown topology %.*s", (int)args->topology_name_size,
                      args->topology_name);
  }
  args->topology = fake_new(FAKE_TOPOLOGY, sizeof(fake_object_t));
  return NULL;
}

pjrt_error_t* fake_TopologyDescription_Destroy(void* pointer) {
  pjrt_topology_description_destroy_args_t* args = pointer;
  pjrt_error_t* injected = fake_enter(FAKE_CALL_TopologyDescription_Destroy, pointer);
  if (fake_check(FAKE_CALL_TopologyDescription_Destroy, args->topology, FAKE_TOPOLOGY)) {
    fake_kill(args->topology);
  }
  return injected;
}

pjrt_error_t* fake_Compile(void* pointer) {
  ENTER(Compile, pjrt_compile_args_t);
  CHECK(Compile, args->topology, FAKE_TOPOLOGY);
  fake_program_t* parsed = NULL;
  pjrt_error_t* error =
      parse_program(args->program, args->compile_options, args->compile_options_size, &parsed);
  if (error != NULL) return error;
  fake_executable_t* executable = fake_new(FAKE_EXECUTABLE, sizeof(*executable));
  executable->program = parsed;
  args->executable = (pjrt_executable_t*)executable;
  return NULL;
}

pjrt_error_t* fake_Executable_DeserializeAndLoad(void* pointer) {
  ENTER(Executable_DeserializeAndLoad, pjrt_executable_deserialize_and_load_args_t);
  CHECK(Executable_DeserializeAndLoad, args->client, FAKE_CLIENT);
  if (args->serialized_executable_size < sizeof(blob_magic) ||
      memcmp(args->serialized_executable, blob_magic, sizeof(blob_magic)) != 0) {
    return fake_error(13, "not a serialized executable");
  }
  char message[256] = "";
  fake_program_t* parsed = fake_program_parse(args->serialized_executable + sizeof(blob_magic),
                                              args->serialized_executable_size - sizeof(blob_magic),
                                              message, sizeof(message));
  if (parsed == NULL) return fake_error(13, "%s", message);
  args->loaded_executable = new_loaded(parsed, ((fake_client_t*)args->client)->is_cpu);
  FAKE_COUNT(loads);
  return NULL;
}

pjrt_error_t* fake_LoadedExecutable_Destroy(void* pointer) {
  pjrt_loaded_executable_destroy_args_t* args = pointer;
  pjrt_error_t* injected = fake_enter(FAKE_CALL_LoadedExecutable_Destroy, pointer);
  if (!fake_check(FAKE_CALL_LoadedExecutable_Destroy, args->executable, FAKE_LOADED)) {
    return injected;
  }
  fake_program_release(((fake_loaded_t*)args->executable)->program);
  fake_kill(args->executable);
  return injected;
}

pjrt_error_t* fake_LoadedExecutable_GetExecutable(void* pointer) {
  ENTER(LoadedExecutable_GetExecutable, pjrt_loaded_executable_get_executable_args_t);
  CHECK(LoadedExecutable_GetExecutable, args->loaded_executable, FAKE_LOADED);
  fake_executable_t* executable = fake_new(FAKE_EXECUTABLE, sizeof(*executable));
  executable->program = ((fake_loaded_t*)args->loaded_executable)->program;
  (void)__atomic_add_fetch(&executable->program->references, 1, __ATOMIC_RELAXED);
  args->executable = (pjrt_executable_t*)executable;
  return NULL;
}

pjrt_error_t* fake_Executable_Destroy(void* pointer) {
  pjrt_executable_destroy_args_t* args = pointer;
  pjrt_error_t* injected = fake_enter(FAKE_CALL_Executable_Destroy, pointer);
  if (!fake_check(FAKE_CALL_Executable_Destroy, args->executable, FAKE_EXECUTABLE)) return injected;
  fake_program_release(((fake_executable_t*)args->executable)->program);
  fake_kill(args->executable);
  return injected;
}

static const fake_program_t* program_of(const void* executable) {
  return ((const fake_executable_t*)executable)->program;
}

pjrt_error_t* fake_Executable_NumOutputs(void* pointer) {
  ENTER(Executable_NumOutputs, pjrt_executable_num_outputs_args_t);
  CHECK(Executable_NumOutputs, args->executable, FAKE_EXECUTABLE);
  args->num_outputs = program_of(args->executable)->result_count;
  return NULL;
}

pjrt_error_t* fake_Executable_OutputElementTypes(void* pointer) {
  ENTER(Executable_OutputElementTypes, pjrt_executable_output_element_types_args_t);
  CHECK(Executable_OutputElementTypes, args->executable, FAKE_EXECUTABLE);
  args->output_types = program_of(args->executable)->result_dtypes;
  args->num_output_types = program_of(args->executable)->result_count;
  return NULL;
}

pjrt_error_t* fake_Executable_OutputDimensions(void* pointer) {
  ENTER(Executable_OutputDimensions, pjrt_executable_output_dimensions_args_t);
  CHECK(Executable_OutputDimensions, args->executable, FAKE_EXECUTABLE);
  args->num_outputs = program_of(args->executable)->result_count;
  args->dims = program_of(args->executable)->result_dims;
  args->dim_sizes = program_of(args->executable)->result_ranks;
  return NULL;
}

pjrt_error_t* fake_Executable_GetCompiledMemoryStats(void* pointer) {
  ENTER(Executable_GetCompiledMemoryStats, pjrt_executable_get_compiled_memory_stats_args_t);
  CHECK(Executable_GetCompiledMemoryStats, args->executable, FAKE_EXECUTABLE);
  args->temp_size_in_bytes = fake_settings().temporary_bytes;
  return NULL;
}

pjrt_error_t* fake_Executable_GetCostAnalysis(void* pointer) {
  ENTER(Executable_GetCostAnalysis, pjrt_executable_get_cost_analysis_args_t);
  CHECK(Executable_GetCostAnalysis, args->executable, FAKE_EXECUTABLE);
  static const pjrt_named_value_t flops = {.name = "flops",
                                           .name_size = 5,
                                           .type = PJRT_NAMED_FLOAT,
                                           .value = {.float_value = 12},
                                           .value_size = 1};
  args->num_properties = 1;
  args->properties = &flops;
  return NULL;
}

pjrt_error_t* fake_Executable_OptimizedProgram(void* pointer) {
  ENTER(Executable_OptimizedProgram, pjrt_executable_optimized_program_args_t);
  CHECK(Executable_OptimizedProgram, args->executable, FAKE_EXECUTABLE);
  const fake_program_t* program = program_of(args->executable);
  if (args->program->code != NULL) {
    union {
      const char* in;
      char* out;
    } code = {.in = args->program->code};
    memcpy(code.out, program->text, program->text_size);
  }
  args->program->code_size = program->text_size;
  return NULL;
}

static void delete_serialized(pjrt_serialized_executable_t* object) {
  if (!fake_check(FAKE_CALL_Executable_Serialize, object, FAKE_SERIALIZED)) return;
  free(((fake_serialized_t*)object)->bytes);
  fake_kill(object);
}

pjrt_error_t* fake_Executable_Serialize(void* pointer) {
  ENTER(Executable_Serialize, pjrt_executable_serialize_args_t);
  CHECK(Executable_Serialize, args->executable, FAKE_EXECUTABLE);
  const fake_program_t* program = program_of(args->executable);
  fake_serialized_t* serialized = fake_new(FAKE_SERIALIZED, sizeof(*serialized));
  args->serialized_bytes_size = sizeof(blob_magic) + program->text_size;
  serialized->bytes = malloc(args->serialized_bytes_size);
  if (serialized->bytes == NULL) _exit(98);
  memcpy(serialized->bytes, blob_magic, sizeof(blob_magic));
  memcpy(serialized->bytes + sizeof(blob_magic), program->text, program->text_size);
  args->serialized_bytes = serialized->bytes;
  args->serialized_executable = (pjrt_serialized_executable_t*)serialized;
  args->serialized_executable_deleter = delete_serialized;
  return NULL;
}

/* --- running --- */

static bool is_donated(const fake_program_t* program, const pjrt_execute_options_t* options,
                       size_t argument) {
  if (!program->arguments[argument].donor) return false;
  for (size_t i = 0; i < options->num_non_donatable_input_indices; ++i) {
    if (options->non_donatable_input_indices[i] == (int64_t)argument) return false;
  }
  return true;
}

static bool same_type(const fake_type_t* a, const fake_type_t* b) {
  return a->dtype == b->dtype && a->rank == b->rank &&
         memcmp(a->dims, b->dims, a->rank * sizeof(int64_t)) == 0;
}

static pjrt_error_t* check_arguments(const fake_program_t* program,
                                     const pjrt_execute_options_t* options,
                                     pjrt_buffer_t* const* arguments) {
  for (size_t i = 0; i < program->argument_count; ++i) {
    CHECK(LoadedExecutable_Execute, arguments[i], FAKE_BUFFER);
    const fake_buffer_t* buffer = (const fake_buffer_t*)arguments[i];
    if (buffer->data == NULL) return fake_error(3, "argument %zu was donated before", i);
    if (buffer->bytes != fake_type_bytes(&program->arguments[i])) {
      return fake_error(3, "argument %zu has %lld bytes", i, (long long)buffer->bytes);
    }
    if (!same_type(&buffer->type, &program->arguments[i])) FAKE_COUNT(other_shapes);
    for (size_t k = 0; k < program->argument_count; ++k) {
      if (k != i && arguments[k] == arguments[i] && is_donated(program, options, i)) {
        return fake_error(3, "argument %zu is donated and used twice", i);
      }
    }
  }
  return NULL;
}

static pjrt_error_t* check_execute(const pjrt_loaded_executable_execute_args_t* args) {
  const fake_program_t* program = ((fake_loaded_t*)args->executable)->program;
  const pjrt_execute_options_t* options = args->options;
  if (options->struct_size != PJRT_STRUCT_SIZE(pjrt_execute_options_t, num_hlo_output_callbacks)) {
    fake_violation("Execute: options have struct_size %zu", options->struct_size);
  }
  if (args->num_devices != 1 || args->execute_device != NULL) {
    return fake_error(3, "one device and no execute_device expected");
  }
  if (args->num_args != program->argument_count) {
    return fake_error(3, "%zu arguments given, %zu declared", args->num_args,
                      program->argument_count);
  }
  for (size_t i = 0; i < options->num_non_donatable_input_indices; ++i) {
    int64_t index = options->non_donatable_input_indices[i];
    if (index < 0 || (size_t)index >= args->num_args) {
      fake_violation("Execute: non-donatable index %lld", (long long)index);
    }
  }
  return check_arguments(program, options, args->argument_lists[0]);
}

pjrt_error_t* fake_LoadedExecutable_Execute(void* pointer) {
  while (fake_settings().held) (void)usleep(50);
  ENTER(LoadedExecutable_Execute, pjrt_loaded_executable_execute_args_t);
  CHECK(LoadedExecutable_Execute, args->executable, FAKE_LOADED);
  pjrt_error_t* error = check_execute(args);
  if (error != NULL) return error;
  const fake_loaded_t* loaded = (const fake_loaded_t*)args->executable;
  const fake_program_t* program = loaded->program;
  for (size_t i = 0; i < program->argument_count; ++i) {
    fake_buffer_t* input = (fake_buffer_t*)args->argument_lists[0][i];
    if (!is_donated(program, args->options, i)) continue;
    free(input->data);
    input->data = NULL;
  }
  int taking = fake_settings().fail_taking;
  if (taking != 0) return fake_error(taking, "Out of memory in the middle of a run");
  for (size_t i = 0; i < program->result_count; ++i) {
    fake_buffer_t* output = fake_buffer_new(&program->results[i], loaded->is_cpu);
    output->error = fake_settings().fail_outputs;
    args->output_lists[0][i] = (pjrt_buffer_t*)output;
  }
  if (args->device_complete_events != NULL) args->device_complete_events[0] = fake_end_event();
  FAKE_COUNT(executions);
  return NULL;
}
