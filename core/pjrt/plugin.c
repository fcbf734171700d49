#include "pjrt/plugin.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "base/thread.h"

/* 0.81 (November 2025) is the oldest plugin that the tests run; nothing we call is younger. */
enum { MAJOR_VERSION = 0, OLDEST_MINOR_VERSION = 81 };
enum { MAX_PLUGINS = 16 };

typedef struct call_info_t {
  const char* name;
  size_t slot;
} call_info_t;

static const call_info_t call_infos[PJRT_CALL_COUNT] = {
#define PJRT_CALL(name, slot, type, last_field) {"PJRT_" #name, slot},
#include "pjrt/pjrt_calls.def"
#undef PJRT_CALL
};

static tpu_mutex_t plugins_mutex = TPU_MUTEX_INIT;
static tpu_plugin_t* plugins[MAX_PLUGINS];  // guarded by plugins_mutex; entries are never freed
static int plugin_count;

tpu_status_t tpu_pjrt_missing(const tpu_plugin_t* plugin, tpu_pjrt_call_t call) {
  return tpu_status_make(TPU_UNIMPLEMENTED,
                         "%s: the plugin '%s' (PJRT %d.%d) does not have this call",
                         call_infos[call].name, plugin->path, plugin->api->version.major_version,
                         plugin->api->version.minor_version);
}

/* For the two calls that return nothing. The step over void(*)(void) tells the compiler that the
 * change of type is meant. */
static void invoke_void(const tpu_plugin_t* plugin, tpu_pjrt_call_t call, void* args) {
  ((pjrt_void_function_t)(void (*)(void))plugin->functions[call])(args);
}

static void destroy_error(const tpu_plugin_t* plugin, pjrt_error_t* error) {
  pjrt_error_destroy_args_t args = {.struct_size = PJRT_SIZE_Error_Destroy, .error = error};
  invoke_void(plugin, PJRT_CALL_Error_Destroy, &args);
}

tpu_status_t tpu_pjrt_named_status(const tpu_plugin_t* plugin, const char* call,
                                   pjrt_error_t* error) {
  if (error == NULL) return NULL;
  pjrt_error_message_args_t text = {.struct_size = PJRT_SIZE_Error_Message, .error = error};
  invoke_void(plugin, PJRT_CALL_Error_Message, &text);
  pjrt_error_get_code_args_t code = {.struct_size = PJRT_SIZE_Error_GetCode, .error = error};
  pjrt_error_t* second = plugin->functions[PJRT_CALL_Error_GetCode](&code);
  if (second != NULL) {
    destroy_error(plugin, second);
    code.code = TPU_UNKNOWN;
  }
  if (code.code < TPU_CANCELLED || code.code > TPU_UNAUTHENTICATED) code.code = TPU_UNKNOWN;
  tpu_status_t status =
      tpu_status_make((tpu_status_code_t)code.code, "%s: %.*s", call,
                      (int)(text.message_size > 65536 ? 65536 : text.message_size),
                      text.message != NULL ? text.message : "");
  destroy_error(plugin, error);
  return status;
}

tpu_status_t tpu_pjrt_status(const tpu_plugin_t* plugin, tpu_pjrt_call_t call,
                             pjrt_error_t* error) {
  return tpu_pjrt_named_status(plugin, call_infos[call].name, error);
}

const pjrt_extension_base_t* tpu_plugin_extension(const tpu_plugin_t* plugin, int32_t type) {
  const pjrt_extension_base_t* extension = plugin->api->extension_start;
  while (extension != NULL && extension->type != type) extension = extension->next;
  return extension;
}

/* A stand-in for a build id: the file's size and its first bytes, which hold the ELF headers and
 * (with all linkers in use) the build-id note and the symbol hash table. */
static uint64_t file_fingerprint(const char* path) {
  enum { PREFIX = 64 * 1024 };
  uint64_t hash = 0;
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  struct stat info;
  void* bytes = NULL;
  tpu_status_t status = tpu_calloc(1, PREFIX, &bytes);
  if (status == NULL && fstat(file, &info) == 0) {
    ssize_t size = pread(file, bytes, PREFIX, 0);
    if (size > 0) {
      uint64_t file_size = (uint64_t)info.st_size;
      tpu_digest_state_t state;
      tpu_digest_begin(&state);
      tpu_digest_update(&state, &file_size, sizeof(file_size));
      tpu_digest_update(&state, bytes, (size_t)size);
      tpu_digest_t digest = tpu_digest_end(&state);
      hash = digest.lo ^ digest.hi;
    }
  }
  tpu_status_free(status);  // without a fingerprint the version text alone tells builds apart
  tpu_free(bytes);
  (void)close(file);
  return hash;
}

/* Opens the library and finds its table. The handle is deliberately dropped: see the header. */
static tpu_status_t open_library(const char* path, const pjrt_api_t** out_api) {
  struct stat info;
  if (stat(path, &info) != 0) {
    return tpu_status_make(
        errno == ENOENT || errno == ENOTDIR ? TPU_NOT_FOUND : TPU_INVALID_ARGUMENT,
        "PJRT plugin '%s': %s", path, strerror(errno));
  }
  /* LOCAL: two plugins carry their own copies of LLVM and protobuf. */
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    const char* reason = dlerror();
    return tpu_status_make(TPU_INVALID_ARGUMENT, "PJRT plugin '%s' cannot be loaded: %s", path,
                           reason != NULL ? reason : "unknown reason");
  }
  const pjrt_api_t* (*get_api)(void) = NULL;
  *(void**)&get_api = dlsym(library, "GetPjrtApi");
  if (get_api == NULL) {
    return tpu_status_make(TPU_INVALID_ARGUMENT,
                           "'%s' is not a PJRT plugin: it has no symbol GetPjrtApi", path);
  }
  *out_api = get_api();
  if (*out_api == NULL) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "PJRT plugin '%s': GetPjrtApi returned NULL",
                           path);
  }
  return NULL;
}

/* Keeps the functions whose whole pointer lies inside the plugin's table. */
static void resolve_functions(tpu_plugin_t* plugin) {
  for (int i = 0; i < PJRT_CALL_COUNT; ++i) {
    size_t end = offsetof(pjrt_api_t, slots) + (call_infos[i].slot + 1) * sizeof(pjrt_function_t);
    plugin->functions[i] =
        end <= plugin->api->struct_size ? plugin->api->slots[call_infos[i].slot] : NULL;
  }
}

static tpu_status_t check_version(const tpu_plugin_t* plugin) {
  const pjrt_api_version_t* version = &plugin->api->version;
  if (plugin->api->struct_size < offsetof(pjrt_api_t, slots) ||
      version->major_version != MAJOR_VERSION || version->minor_version < OLDEST_MINOR_VERSION) {
    return tpu_status_make(
        TPU_FAILED_PRECONDITION,
        "PJRT plugin '%s' has API version %d.%d; %d.%d or a newer %d.x is needed", plugin->path,
        version->major_version, version->minor_version, MAJOR_VERSION, OLDEST_MINOR_VERSION,
        MAJOR_VERSION);
  }
  return NULL;
}

static tpu_status_t initialize_plugin(tpu_plugin_t* plugin) {
  TPU_RETURN_IF_ERROR(check_version(plugin));
  resolve_functions(plugin);
  for (int i = PJRT_CALL_Error_Destroy; i <= PJRT_CALL_Error_GetCode; ++i) {
    if (plugin->functions[i] == NULL) {
      return tpu_status_make(TPU_FAILED_PRECONDITION, "PJRT plugin '%s' has no %s", plugin->path,
                             call_infos[i].name);
    }
  }
  pjrt_plugin_initialize_args_t args = {0};
  return tpu_status_annotate(tpu_pjrt_call(plugin, Plugin_Initialize, &args), "PJRT plugin '%s'",
                             plugin->path);
}

static tpu_status_t make_plugin(const char* path, tpu_plugin_t** out_plugin) {
  const pjrt_api_t* api = NULL;
  TPU_RETURN_IF_ERROR(open_library(path, &api));
  void* memory = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc(1, sizeof(tpu_plugin_t), &memory));
  tpu_plugin_t* plugin = memory;
  plugin->api = api;
  void* path_copy = NULL;
  tpu_status_t status = tpu_calloc(strlen(path) + 1, 1, &path_copy);
  if (status == NULL) {
    memcpy(path_copy, path, strlen(path));
    plugin->path = path_copy;
    plugin->fingerprint = file_fingerprint(path);
    status = initialize_plugin(plugin);
  }
  if (status != NULL) {
    tpu_free(path_copy);
    tpu_free(plugin);
    return status;
  }
  *out_plugin = plugin;
  return NULL;
}

static tpu_status_t find_or_make(const char* path, const tpu_plugin_t** out_plugin) {
  for (int i = 0; i < plugin_count; ++i) {
    if (strcmp(plugins[i]->path, path) == 0) {
      *out_plugin = plugins[i];
      return NULL;
    }
  }
  if (plugin_count == MAX_PLUGINS) {
    return tpu_status_make(TPU_RESOURCE_EXHAUSTED,
                           "PJRT plugin '%s': %d plugins are loaded already", path, MAX_PLUGINS);
  }
  tpu_plugin_t* plugin = NULL;
  TPU_RETURN_IF_ERROR(make_plugin(path, &plugin));
  plugins[plugin_count++] = plugin;
  *out_plugin = plugin;
  return NULL;
}

tpu_status_t tpu_plugin_load(const char* path, const tpu_plugin_t** out_plugin) {
  *out_plugin = NULL;
  if (path == NULL || path[0] == '\0') {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "no PJRT plugin path was given");
  }
  tpu_mutex_lock(&plugins_mutex);
  tpu_status_t status = find_or_make(path, out_plugin);
  tpu_mutex_unlock(&plugins_mutex);
  return status;
}
