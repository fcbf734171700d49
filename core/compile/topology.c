#include "compile/topology.h"

#include <string.h>

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

tpu_status_t tpu_topology_compile(const char* plugin_path, tpu_platform_kind_t platform,
                                  const char* target, const char* text, size_t text_size,
                                  tpu_program_bytes_t* out_bytes) {
  memset(out_bytes, 0, sizeof(*out_bytes));
  const tpu_platform_t* facts = tpu_platform_get(platform);
  if (facts == NULL || target == NULL || text == NULL || text_size == 0) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "a platform, a target and a program are needed");
  }
  tpu_strbuf_t options = {0};
  tpui_options_encode(facts, false, 0, &options);
  session_t session = {0};
  tpu_status_t status = open_target(&session, plugin_path, target);
  if (status == NULL) status = compile_text(&session, text, text_size, &options);
  if (status == NULL) status = read_bytes(&session, out_bytes);
  tpu_strbuf_free(&options);
  return close_session(&session, status);
}
