/* Loading a PJRT plugin, and the one way to call it. Internal to core/.
 *
 * A plugin is loaded once per path and never unloaded: its threads and registries outlive clients.
 */
#ifndef TPU_PJRT_PLUGIN_H_
#define TPU_PJRT_PLUGIN_H_

#include "base/status.h"
#include "pjrt/pjrt_abi.h"

/* PJRT_CALL_Client_Create and so on. */
typedef enum tpu_pjrt_call_t {
#define PJRT_CALL(name, slot, type, last_field) PJRT_CALL_##name,
#include "pjrt/pjrt_calls.def"
#undef PJRT_CALL
  PJRT_CALL_COUNT
} tpu_pjrt_call_t;

/* struct_size of each call's arguments, as constants: PJRT_SIZE_Client_Create and so on. */
enum {
#define PJRT_CALL(name, slot, type, last_field) \
  PJRT_SIZE_##name = PJRT_STRUCT_SIZE(type, last_field),
#include "pjrt/pjrt_calls.def"
#undef PJRT_CALL
  PJRT_SIZE_program = PJRT_STRUCT_SIZE(pjrt_program_t, format_size),
  PJRT_SIZE_named_value = PJRT_STRUCT_SIZE(pjrt_named_value_t, value_size),
  PJRT_SIZE_memory_layout = PJRT_STRUCT_SIZE(pjrt_memory_layout_t, type),
  PJRT_SIZE_memory_layout_tiled = PJRT_STRUCT_SIZE(pjrt_memory_layout_tiled_t, num_tiles),
  PJRT_SIZE_execute_options = PJRT_STRUCT_SIZE(pjrt_execute_options_t, num_hlo_output_callbacks),
};

typedef struct tpu_plugin_t {
  const pjrt_api_t* api;
  /* NULL where the plugin's table ends earlier or holds NULL. */
  pjrt_function_t functions[PJRT_CALL_COUNT];
  char* path;            // owned
  uint64_t fingerprint;  // of the file: tells builds apart that report one version
} tpu_plugin_t;

/* Loads the library at `path` and initializes the plugin, or returns the one loaded before. Errors
 * name the path: TPU_NOT_FOUND (no such file), TPU_INVALID_ARGUMENT (not a library, no GetPjrtApi),
 * TPU_FAILED_PRECONDITION (another major version, too old). Thread-safe. `*out_plugin` lives until
 * the process ends. */
TPU_MUST_USE tpu_status_t tpu_plugin_load(const char* path, const tpu_plugin_t** out_plugin);

/* The first extension of this type, or NULL. */
const pjrt_extension_base_t* tpu_plugin_extension(const tpu_plugin_t* plugin, int32_t type);

/* Turns an error into a status with the call's name in front, and frees it. NULL gives NULL. */
TPU_MUST_USE tpu_status_t tpu_pjrt_status(const tpu_plugin_t* plugin, tpu_pjrt_call_t call,
                                          pjrt_error_t* error);

/* The same for calls of extensions, which are not in the table. */
TPU_MUST_USE tpu_status_t tpu_pjrt_named_status(const tpu_plugin_t* plugin, const char* call,
                                                pjrt_error_t* error);

/* The status for a call that the plugin does not have. */
TPU_MUST_USE tpu_status_t tpu_pjrt_missing(const tpu_plugin_t* plugin, tpu_pjrt_call_t call);

/* Makes a call. `args` is the call's zero-initialised struct; its size is set here. */
TPU_MUST_USE static inline tpu_status_t tpu_pjrt_invoke(const tpu_plugin_t* plugin,
                                                        tpu_pjrt_call_t call, size_t size,
                                                        void* args) {
  *(size_t*)args = size;  // struct_size is the first field of all of them
  pjrt_function_t function = plugin->functions[call];
  if (TPU_UNLIKELY(function == NULL)) return tpu_pjrt_missing(plugin, call);
  pjrt_error_t* error = function(args);
  return TPU_LIKELY(error == NULL) ? NULL : tpu_pjrt_status(plugin, call, error);
}

/* tpu_pjrt_call(plugin, Client_Create, &args) */
#define tpu_pjrt_call(plugin, name, args) \
  tpu_pjrt_invoke((plugin), PJRT_CALL_##name, PJRT_SIZE_##name, (args))

#endif  // TPU_PJRT_PLUGIN_H_
