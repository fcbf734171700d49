#include "like_internal.h"

/* --- what libtpu does not compile --- */

/* Targets that libtpu knows or that XLA takes away before a compiler sees them. */
static const char* const known_calls[] = {
    "Sharding",
    "SPMDFullToShardShape",
    "SPMDShardToFullShape",
    "tpu_custom_call",
    "Qr",
    "Eigh",
    "ProductOfElementaryHouseholderReflectors",
    "LuDecomposition",
    "ApproxTopK",
    "TopK",
};

static bool line_has(const char* line, size_t size, const char* text) {
  return memmem(line, size, text, strlen(text)) != NULL;
}

static pjrt_error_t* refuse_call(const char* line, size_t size) {
  const char* at = memmem(line, size, "call_target_name = \"", 20);
  const char* name = at != NULL ? at + 20 : memmem(line, size, "@", 1);
  if (name == NULL) return NULL;
  if (*name == '@') ++name;
  size_t length = strcspn(name, "\"( ");
  for (size_t i = 0; i < sizeof(known_calls) / sizeof(known_calls[0]); ++i) {
    if (strlen(known_calls[i]) == length && memcmp(known_calls[i], name, length) == 0) return NULL;
  }
  return like_error(3, "Custom emitter for %.*s not found", (int)length, name);
}

static pjrt_error_t* refuse_line(const char* line, size_t size) {
  if (line_has(line, size, "stablehlo.custom_call")) return refuse_call(line, size);
  bool product = line_has(line, size, "stablehlo.dot_general") ||
                 line_has(line, size, "stablehlo.convolution");
  if (product && line_has(line, size, "i64>) -> ")) {
    return like_error(12,
                      "While rewriting computation to not contain X64 element types, XLA "
                      "encountered an HLO for which this rewriting is not implemented: %.*s",
                      (int)size, line);
  }
  return NULL;
}

static pjrt_error_t* refuse(const char* text, size_t size) {
  for (size_t at = 0; at < size;) {
    const char* next = memchr(text + at, '\n', size - at);
    size_t length = next != NULL ? (size_t)(next - text) - at : size - at;
    pjrt_error_t* error = refuse_line(text + at, length);
    if (error != NULL) return error;
    at += length + 1;
  }
  return NULL;
}

/* --- programs --- */

like_program_t* like_program_retain(like_program_t* program) {
  like_lock();
  program->references += 1;
  like_unlock();
  return program;
}

void like_program_release(like_program_t* program) {
  like_lock();
  bool last = --program->references == 0;
  like_unlock();
  if (!last) return;
  pjrt_loaded_executable_destroy_args_t args = {.executable = program->real};
  like_error_free(LIKE_REAL(LoadedExecutable_Destroy, &args));
  fake_program_release(program->signature);
  free(program);
}

/* The executable behind a loaded one, to ask the CPU plugin about it. */
typedef struct like_executable_t {
  pjrt_executable_t* real;
  like_program_t* program;
} like_executable_t;

static pjrt_error_t* get_real(pjrt_loaded_executable_t* loaded, pjrt_executable_t** out_real) {
  pjrt_loaded_executable_get_executable_args_t args = {.loaded_executable = loaded};
  pjrt_error_t* error = LIKE_REAL(LoadedExecutable_GetExecutable, &args);
  *out_real = args.executable;
  return error;
}

static void read_temporaries(like_program_t* program) {
  pjrt_executable_get_compiled_memory_stats_args_t stats = {0};
  pjrt_error_t* error = get_real(program->real, &stats.executable);
  if (error == NULL) {
    error = LIKE_REAL(Executable_GetCompiledMemoryStats, &stats);
    program->temporary = error == NULL ? stats.temp_size_in_bytes : 0;
    pjrt_executable_destroy_args_t destroy = {.executable = stats.executable};
    like_error_free(LIKE_REAL(Executable_Destroy, &destroy));
  }
  like_error_free(error);
}

static pjrt_loaded_executable_t* wrap(like_client_t* client, pjrt_loaded_executable_t* real,
                                      fake_program_t* signature) {
  like_program_t* program = like_new(sizeof(*program));
  *program =
      (like_program_t){.references = 1, .real = real, .client = client, .signature = signature};
  for (size_t i = 0; i < signature->result_count; ++i) {
    if (!like_layout_is_row_major(&signature->results[i])) like_add(LIKE_other_layouts, 1);
  }
  read_temporaries(program);
  return (pjrt_loaded_executable_t*)program;
}

/* Options that a TPU's programs come without, since libtpu needs none for them: by default XLA:CPU
 * loses NaN in a maximum and keeps more bits of bfloat16 than there are. Entries of the map
 * CompileOptionsProto.env_option_overrides, {key: {string_field: "False"}} each. */
static const char cpu_options[] =
    "\072\046\012\033xla_cpu_enable_fast_min_max\022\007\012\005False"
    "\072\045\012\032xla_allow_excess_precision\022\007\012\005False";

static char* add_options(const char* options, size_t size, size_t* out_size) {
  *out_size = size + sizeof(cpu_options) - 1;
  char* all = like_new(*out_size);
  memcpy(all, options, size);
  memcpy(all + size, cpu_options, sizeof(cpu_options) - 1);
  return all;
}

pjrt_error_t* like_Client_Compile(void* pointer) {
  pjrt_client_compile_args_t* args = pointer;
  like_client_t* client = (like_client_t*)args->client;
  char message[256];
  fake_program_t* signature =
      fake_program_parse(args->program->code, args->program->code_size, message, sizeof(message));
  if (signature == NULL) return like_error(2, "%s", message);
  pjrt_error_t* error = refuse(args->program->code, args->program->code_size);
  pjrt_program_t program = *args->program;
  char* text =
      error == NULL ? like_layout_write(program.code, program.code_size, &program.code_size) : NULL;
  if (text != NULL) program.code = text;
  pjrt_client_compile_args_t real = *args;
  real.client = client->real;
  real.program = &program;
  char* options =
      add_options(args->compile_options, args->compile_options_size, &real.compile_options_size);
  real.compile_options = options;
  if (error == NULL) error = LIKE_REAL(Client_Compile, &real);
  free(options);
  free(text);
  if (error != NULL) {
    fake_program_release(signature);
    return error;
  }
  like_add(LIKE_compiles, 1);
  args->executable = wrap(client, real.executable, signature);
  return NULL;
}

pjrt_error_t* like_LoadedExecutable_Destroy(void* pointer) {
  pjrt_loaded_executable_destroy_args_t* args = pointer;
  like_program_release((like_program_t*)args->executable);
  return NULL;
}

pjrt_error_t* like_LoadedExecutable_GetExecutable(void* pointer) {
  pjrt_loaded_executable_get_executable_args_t* args = pointer;
  like_program_t* program = (like_program_t*)args->loaded_executable;
  like_executable_t* executable = like_new(sizeof(*executable));
  pjrt_error_t* error = get_real(program->real, &executable->real);
  if (error != NULL) {
    free(executable);
    return error;
  }
  executable->program = like_program_retain(program);
  args->executable = (pjrt_executable_t*)executable;
  return NULL;
}

pjrt_error_t* like_Executable_Destroy(void* pointer) {
  pjrt_executable_destroy_args_t* args = pointer;
  like_executable_t* executable = (like_executable_t*)args->executable;
  pjrt_executable_destroy_args_t real = {.executable = executable->real};
  pjrt_error_t* error = LIKE_REAL(Executable_Destroy, &real);
  like_program_release(executable->program);
  free(executable);
  return error;
}

/* Calls that ask about an executable, their first argument. */
static pjrt_error_t* ask(fake_call_t call, void* pointer) {
  struct {
    PJRT_ARGS_HEAD;
    void* object;
  }* args = pointer;
  void* ours = args->object;
  args->object = ((like_executable_t*)ours)->real;
  pjrt_error_t* error = like_real(call, pointer);
  args->object = ours;
  return error;
}

pjrt_error_t* like_Executable_NumOutputs(void* pointer) {
  return ask(FAKE_CALL_Executable_NumOutputs, pointer);
}
pjrt_error_t* like_Executable_OutputElementTypes(void* pointer) {
  return ask(FAKE_CALL_Executable_OutputElementTypes, pointer);
}
pjrt_error_t* like_Executable_OutputDimensions(void* pointer) {
  return ask(FAKE_CALL_Executable_OutputDimensions, pointer);
}

static int64_t tiled_bytes(const fake_type_t* types, size_t count) {
  int64_t bytes = 0;
  for (size_t i = 0; i < count; ++i) bytes += like_layout_bytes(&types[i]);
  return bytes;
}

pjrt_error_t* like_Executable_GetCompiledMemoryStats(void* pointer) {
  pjrt_executable_get_compiled_memory_stats_args_t* args = pointer;
  const fake_program_t* signature = ((like_executable_t*)args->executable)->program->signature;
  pjrt_error_t* error = ask(FAKE_CALL_Executable_GetCompiledMemoryStats, pointer);
  if (error != NULL) return error;
  args->argument_size_in_bytes = tiled_bytes(signature->arguments, signature->argument_count);
  args->output_size_in_bytes = tiled_bytes(signature->results, signature->result_count);
  return NULL;
}

pjrt_error_t* like_Executable_GetCostAnalysis(void* pointer) {
  return ask(FAKE_CALL_Executable_GetCostAnalysis, pointer);
}

pjrt_error_t* like_Executable_OptimizedProgram(void* pointer) {
  return ask(FAKE_CALL_Executable_OptimizedProgram, pointer);
}

/* --- compiling without a client: libtpu's own work --- */

pjrt_error_t* like_TopologyDescription_Create(void* pointer) {
  (void)pointer;
  return like_error(12, "tpu_like has no topologies");
}
pjrt_error_t* like_TopologyDescription_Destroy(void* pointer) {
  (void)pointer;
  return NULL;
}
pjrt_error_t* like_Compile(void* pointer) {
  (void)pointer;
  return like_error(12, "tpu_like compiles for its own devices only");
}

/* --- files: the CPU plugin's bytes behind the text, which says the signature --- */

typedef struct like_file_t {
  size_t size;
  char bytes[];
} like_file_t;

static void free_file(pjrt_serialized_executable_t* object) { free(object); }

pjrt_error_t* like_Executable_Serialize(void* pointer) {
  pjrt_executable_serialize_args_t* args = pointer;
  const like_executable_t* executable = (const like_executable_t*)args->executable;
  pjrt_executable_serialize_args_t real = {.executable = executable->real};
  pjrt_error_t* error = LIKE_REAL(Executable_Serialize, &real);
  if (error != NULL) return error;
  const fake_program_t* signature = executable->program->signature;
  size_t size = sizeof(size_t) + signature->text_size + real.serialized_bytes_size;
  char* file = like_new(size);
  memcpy(file, &signature->text_size, sizeof(size_t));
  memcpy(file + sizeof(size_t), signature->text, signature->text_size);
  memcpy(file + sizeof(size_t) + signature->text_size, real.serialized_bytes,
         real.serialized_bytes_size);
  real.serialized_executable_deleter(real.serialized_executable);
  args->serialized_bytes = file;
  args->serialized_bytes_size = size;
  args->serialized_executable = (pjrt_serialized_executable_t*)file;
  args->serialized_executable_deleter = free_file;
  return NULL;
}

pjrt_error_t* like_Executable_DeserializeAndLoad(void* pointer) {
  pjrt_executable_deserialize_and_load_args_t* args = pointer;
  size_t text_size = 0;
  if (args->serialized_executable_size >= sizeof(size_t)) {
    memcpy(&text_size, args->serialized_executable, sizeof(size_t));
  }
  size_t head = sizeof(size_t) + text_size;
  if (text_size == 0 || head > args->serialized_executable_size) {
    return like_error(3, "not a serialized program");
  }
  char message[256];
  fake_program_t* signature = fake_program_parse(args->serialized_executable + sizeof(size_t),
                                                 text_size, message, sizeof(message));
  if (signature == NULL) return like_error(3, "%s", message);
  pjrt_executable_deserialize_and_load_args_t real = *args;
  like_client_t* client = (like_client_t*)args->client;
  real.client = client->real;
  real.serialized_executable += head;
  real.serialized_executable_size -= head;
  pjrt_error_t* error = LIKE_REAL(Executable_DeserializeAndLoad, &real);
  if (error != NULL) {
    fake_program_release(signature);
    return error;
  }
  args->loaded_executable = wrap(client, real.loaded_executable, signature);
  return NULL;
}
