#include "compile/topology.h"

#include <string.h>

#include "base/alloc.h"
#include "compile/compile_internal.h"
#include "pjrt/plugin.h"

/* What is alive while one program is compiled. */
typedef struct session_t {
  const tpu_plugin_t* plugin;
  pjrt_topology_t* topology;
  pjrt_executable_t* executable;
} session_t;

static tpu_status_t close_session(session_t* s, tpu_status_t status) {
  if (s->executable != NULL) {
    pjrt_executable_destroy_args_t args = {.executable = s->executable};
    status = tpu_status_join(status, tpu_pjrt_call(s->plugin, Executable_Destroy, &args));
  }
  if (s->topology != NULL) {
    pjrt_topology_description_destroy_args_t args = {.topology = s->topology};
    status = tpu_status_join(status, tpu_pjrt_call(s->plugin, TopologyDescription_Destroy, &args));
  }
  return status;
}

static tpu_status_t open_target(session_t* s, const char* plugin_path, const char* target) {
  TPU_RETURN_IF_ERROR(tpu_plugin_load(plugin_path, &s->plugin));
  pjrt_topology_description_create_args_t args = {.topology_name = target,
                                                  .topology_name_size = strlen(target)};
  TPU_RETURN_IF_ERROR(tpu_pjrt_call(s->plugin, TopologyDescription_Create, &args));
  s->topology = args.topology;
  return NULL;
}

static tpu_status_t compile_text(session_t* s, const char* text, size_t text_size,
                                 tpu_strbuf_t* options) {
  TPU_RETURN_IF_ERROR(tpu_strbuf_status(options));
  pjrt_program_t program = {.struct_size = PJRT_SIZE_program,
                            .code = text,
                            .code_size = text_size,
                            .format = "mlir",
                            .format_size = 4};
  pjrt_compile_args_t args = {.topology = s->topology,
                              .program = &program,
                              .compile_options = tpu_strbuf_text(options),
                              .compile_options_size = options->size};
  TPU_RETURN_IF_ERROR(tpu_pjrt_call(s->plugin, Compile, &args));
  s->executable = args.executable;
  return NULL;
}

static tpu_status_t read_bytes(const session_t* s, tpu_program_bytes_t* out_bytes) {
  pjrt_executable_get_compiled_memory_stats_args_t args = {.executable = s->executable};
  TPU_RETURN_IF_ERROR(tpu_pjrt_call(s->plugin, Executable_GetCompiledMemoryStats, &args));
  *out_bytes = (tpu_program_bytes_t){
      .code = args.generated_code_size_in_bytes,
      .arguments = args.argument_size_in_bytes,
      .outputs = args.output_size_in_bytes,
      .aliased = args.alias_size_in_bytes,
      .temporaries = args.temp_size_in_bytes,
      .peak = args.peak_memory_in_bytes,
  };
  return NULL;
}

static double cost_of(const pjrt_named_value_t* properties, size_t count, const char* name) {
  for (size_t i = 0; i < count; ++i) {
    const pjrt_named_value_t* at = &properties[i];
    bool same = at->name_size == strlen(name) && memcmp(at->name, name, at->name_size) == 0;
    if (same && at->type == PJRT_NAMED_FLOAT) return (double)at->value.float_value;
  }
  return -1;
}

/* Plugins need not know. */
static tpu_status_t read_cost(const session_t* s, tpu_program_cost_t* out_cost) {
  pjrt_executable_get_cost_analysis_args_t args = {.executable = s->executable};
  tpu_status_t status = tpu_pjrt_call(s->plugin, Executable_GetCostAnalysis, &args);
  if (status != NULL && tpu_status_code(status) != TPU_UNIMPLEMENTED) return status;
  size_t count = status == NULL ? args.num_properties : 0;
  tpu_status_free(status);
  out_cost->flops = cost_of(args.properties, count, "flops");
  out_cost->bytes = cost_of(args.properties, count, "bytes accessed");
  out_cost->transcendentals = cost_of(args.properties, count, "transcendentals");
  return NULL;
}

static tpu_status_t read_optimized(const session_t* s, tpu_strbuf_t* out_bytes) {
  pjrt_program_t program = {.struct_size = PJRT_SIZE_program};
  pjrt_executable_optimized_program_args_t args = {.executable = s->executable,
                                                   .program = &program};
  TPU_RETURN_IF_ERROR(tpu_pjrt_call(s->plugin, Executable_OptimizedProgram, &args));
  void* memory = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc(program.code_size + 1, 1, &memory));
  program.code = memory;
  tpu_status_t status = tpu_pjrt_call(s->plugin, Executable_OptimizedProgram, &args);
  if (status == NULL) tpu_strbuf_append_bytes(out_bytes, memory, program.code_size);
  tpu_free(memory);
  return status != NULL ? status : tpu_strbuf_status(out_bytes);
}

void tpu_compiled_free(tpu_compiled_t* compiled) { tpu_strbuf_free(&compiled->optimized); }

tpu_status_t tpu_topology_compile(const char* plugin_path, tpu_platform_kind_t platform,
                                  const char* target, const char* text, size_t text_size,
                                  bool wants_optimized, tpu_compiled_t* out_compiled) {
  memset(out_compiled, 0, sizeof(*out_compiled));
  const tpu_platform_t* facts = tpu_platform_get(platform);
  if (facts == NULL || target == NULL || text == NULL || text_size == 0) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "a platform, a target and a program are needed");
  }
  tpu_strbuf_t options = {0};
  tpui_options_encode(facts, false, 0, &options);
  session_t session = {0};
  tpu_status_t status = open_target(&session, plugin_path, target);
  if (status == NULL) status = compile_text(&session, text, text_size, &options);
  if (status == NULL) status = read_bytes(&session, &out_compiled->bytes);
  if (status == NULL) status = read_cost(&session, &out_compiled->cost);
  if (status == NULL && wants_optimized) {
    status = read_optimized(&session, &out_compiled->optimized);
  }
  tpu_strbuf_free(&options);
  return close_session(&session, status);
}
