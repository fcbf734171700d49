#include <dlfcn.h>

#include "like_internal.h"

static int64_t values[LIKE_VALUE_COUNT];
static const char* const value_names[LIKE_VALUE_COUNT] = {
#define TPU_LIKE_VALUE(name, initial) #name,
#include "tpu_like_values.def"
#undef TPU_LIKE_VALUE
};

int64_t like_value(like_value_t value) { return __atomic_load_n(&values[value], __ATOMIC_SEQ_CST); }
void like_add(like_value_t value, int64_t amount) {
  (void)__atomic_fetch_add(&values[value], amount, __ATOMIC_SEQ_CST);
}

static int64_t* find_value(const char* name) {
  for (int i = 0; i < LIKE_VALUE_COUNT; ++i) {
    if (strcmp(value_names[i], name) == 0) return &values[i];
  }
  return NULL;
}

FAKE_EXPORT int64_t tpu_like_get(const char* name) {
  int64_t* value = find_value(name);
  return value != NULL ? __atomic_load_n(value, __ATOMIC_SEQ_CST) : -1;
}

FAKE_EXPORT int64_t tpu_like_set(const char* name, int64_t value) {
  int64_t* place = find_value(name);
  return place != NULL ? __atomic_exchange_n(place, value, __ATOMIC_SEQ_CST) : -1;
}

static void set_from_environment(like_value_t value, int64_t initial) {
  char name[64] = "TPU_LIKE_";
  for (size_t i = 0; value_names[value][i] != '\0'; ++i) {
    name[9 + i] = (char)(value_names[value][i] - (value_names[value][i] >= 'a' ? 32 : 0));
  }
  const char* text = getenv(name);
  values[value] = text != NULL ? strtoll(text, NULL, 10) : initial;
}

static void read_environment(void) {
#define TPU_LIKE_VALUE(name, initial) set_from_environment(LIKE_##name, initial);
#include "tpu_like_values.def"
#undef TPU_LIKE_VALUE
}

/* --- calls of the CPU plugin --- */

static const pjrt_api_t* real_api;

static const struct {
  const char* name;
  size_t slot, size;
} infos[FAKE_CALL_COUNT] = {
#define PJRT_CALL(name, slot, type, last_field) {#name, slot, PJRT_STRUCT_SIZE(type, last_field)},
#include "pjrt/pjrt_calls.def"
#undef PJRT_CALL
};

static pjrt_error_t* convert(pjrt_error_t* error) {
  pjrt_error_message_args_t text = {.struct_size = infos[FAKE_CALL_Error_Message].size,
                                    .error = error};
  ((pjrt_void_function_t)(void (*)(void))real_api->slots[1])(&text);
  pjrt_error_get_code_args_t code = {.struct_size = infos[FAKE_CALL_Error_GetCode].size,
                                     .error = error};
  (void)real_api->slots[2](&code);
  pjrt_error_t* copy = like_error(code.code, "%.*s", (int)text.message_size, text.message);
  pjrt_error_destroy_args_t destroy = {.struct_size = infos[FAKE_CALL_Error_Destroy].size,
                                       .error = error};
  ((pjrt_void_function_t)(void (*)(void))real_api->slots[0])(&destroy);
  return copy;
}

pjrt_error_t* like_real(fake_call_t call, void* args) {
  *(size_t*)args = infos[call].size;
  pjrt_error_t* error = real_api->slots[infos[call].slot](args);
  return error != NULL ? convert(error) : NULL;
}

/* --- our table --- */

/* What a struct must have at least. Memory statistics grew with 0.113. */
static size_t least_size(fake_call_t call) {
  if (call == FAKE_CALL_Device_MemoryStats && like_value(LIKE_minor) < 113) {
    return PJRT_STRUCT_SIZE(pjrt_device_memory_stats_args_t, peak_pool_bytes_is_set);
  }
  return infos[call].size;
}

static pjrt_error_t* enter(fake_call_t call, const void* args, pjrt_function_t function) {
  size_t size = *(const size_t*)args;
  if (size < least_size(call)) {
    return like_error(3, "Unexpected PJRT_%s_Args size: expected %zu, got %zu", infos[call].name,
                      least_size(call), size);
  }
  union {
    const void* in;
    void* out;
  } pointer = {.in = args};
  return function(pointer.out);
}

#define PJRT_CALL(name, slot, type, last_field)        \
  static pjrt_error_t* enter_##name(void* args) {      \
    return enter(FAKE_CALL_##name, args, like_##name); \
  }
#include "pjrt/pjrt_calls.def"
#undef PJRT_CALL

static bool open_real(void) {
  const char* path = getenv("TPU_LIKE_PLUGIN");
  void* library = path != NULL ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  if (library == NULL) {
    fprintf(stderr, "tpu_like: TPU_LIKE_PLUGIN=%s is not a PJRT plugin for CPUs\n",
            path != NULL ? path : "");
    return false;
  }
  const pjrt_api_t* (*get_api)(void) = NULL;
  *(void**)&get_api = dlsym(library, "GetPjrtApi");
  real_api = get_api != NULL ? get_api() : NULL;
  return real_api != NULL;
}

FAKE_EXPORT const pjrt_api_t* GetPjrtApi(void);
const pjrt_api_t* GetPjrtApi(void) {
  static pjrt_api_t api;
  if (api.struct_size != 0) return &api;
  if (!open_real()) return NULL;
  read_environment();
  api.struct_size = sizeof(api);
  api.version.struct_size = sizeof(api.version);
  api.version.minor_version = (int)like_value(LIKE_minor);
#define PJRT_CALL(name, slot, type, last_field) api.slots[slot] = enter_##name;
#include "pjrt/pjrt_calls.def"
#undef PJRT_CALL
  return &api;
}
