#include <pthread.h>
#include <stdarg.h>
#include <time.h>

#include "fake_internal.h"

enum { LIVE = 0x4c495645, DEAD = 0x44454144 };

typedef struct fake_error_object_t {
  fake_object_t head;
  int code;
  char text[512];
} fake_error_object_t;

typedef struct call_info_t {
  const char* name;
  size_t slot, size;
} call_info_t;

static const call_info_t infos[FAKE_CALL_COUNT] = {
#define PJRT_CALL(name, slot, type, last_field) {#name, slot, PJRT_STRUCT_SIZE(type, last_field)},
#include "pjrt/pjrt_calls.def"
#undef PJRT_CALL
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;  // guards everything below
static fake_object_t* objects;
static int64_t live[FAKE_KIND_COUNT];
static fake_stats_t counters;
static fake_settings_t settings;
static int64_t fail_countdown;
static int fail_at_code;
static char failing_call[64];
static int failing_call_code;

const char* fake_call_name(fake_call_t call) { return infos[call].name; }

int64_t fake_now_us(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

/* --- objects --- */

void* fake_new(fake_kind_t kind, size_t size) {
  fake_object_t* object = calloc(1, size);
  if (object == NULL) {
    fprintf(stderr, "fake_plugin: out of memory\n");
    _exit(98);
  }
  object->magic = LIVE;
  object->kind = kind;
  pthread_mutex_lock(&mutex);
  object->next = objects;
  objects = object;
  live[kind] += 1;
  pthread_mutex_unlock(&mutex);
  return object;
}

bool fake_check(fake_call_t call, const void* pointer, fake_kind_t kind) {
  const fake_object_t* object = pointer;
  if (object == NULL) {
    fake_violation("%s: NULL handle", infos[call].name);
    return false;
  }
  pthread_mutex_lock(&mutex);
  uint32_t magic = object->magic;
  pthread_mutex_unlock(&mutex);
  if (magic == LIVE && object->kind == kind) return true;
  fake_violation("%s: %s", infos[call].name,
                 magic == DEAD   ? "handle was destroyed before"
                 : magic == LIVE ? "handle of another kind"
                                 : "not a handle");
  return false;
}

void fake_kill(void* pointer) {
  fake_object_t* object = pointer;
  pthread_mutex_lock(&mutex);
  object->magic = DEAD;
  live[object->kind] -= 1;
  pthread_mutex_unlock(&mutex);
}

int64_t fake_live(fake_kind_t kind) {
  pthread_mutex_lock(&mutex);
  int64_t count = live[kind];
  pthread_mutex_unlock(&mutex);
  return count;
}

/* --- violations and errors --- */

void fake_violation(const char* format, ...) {
  va_list args;
  va_start(args, format);
  fprintf(stderr, "fake_plugin: VIOLATION: ");
  vfprintf(stderr, format, args);
  fprintf(stderr, "\n");
  va_end(args);
  pthread_mutex_lock(&mutex);
  counters.violations += 1;
  pthread_mutex_unlock(&mutex);
}

pjrt_error_t* fake_error(int code, const char* format, ...) {
  fake_error_object_t* error = fake_new(FAKE_ERROR, sizeof(*error));
  error->code = code;
  va_list args;
  va_start(args, format);
  (void)vsnprintf(error->text, sizeof(error->text), format, args);
  va_end(args);
  return (pjrt_error_t*)error;
}

const char* fake_error_text(const pjrt_error_t* error) {
  return ((const fake_error_object_t*)error)->text;
}
int fake_error_code(const pjrt_error_t* error) { return ((const fake_error_object_t*)error)->code; }

/* --- entering a call --- */

static int injected_code(fake_call_t call) {
  /* Reading and freeing errors is not counted: the sweep would make every failure two. */
  bool counted = call > FAKE_CALL_Error_GetCode;
  pthread_mutex_lock(&mutex);
  int code = 0;
  if (counted) {
    counters.calls += 1;
    if (fail_countdown > 0 && --fail_countdown == 0) code = fail_at_code;
  }
  if (strcmp(failing_call, infos[call].name) == 0) code = failing_call_code;
  pthread_mutex_unlock(&mutex);
  return code;
}

pjrt_error_t* fake_enter(fake_call_t call, const void* args) {
  const struct {
    PJRT_ARGS_HEAD;
  }* head = args;
  if (head->struct_size != infos[call].size) {
    fake_violation("%s: struct_size is %zu, not %zu", infos[call].name, head->struct_size,
                   infos[call].size);
  }
  if (head->extension_start != NULL) fake_violation("%s: has an extension", infos[call].name);
  int code = injected_code(call);
  return code == 0 ? NULL : fake_error(code, "injected failure of %s", infos[call].name);
}

fake_settings_t fake_settings(void) {
  pthread_mutex_lock(&mutex);
  fake_settings_t copy = settings;
  pthread_mutex_unlock(&mutex);
  return copy;
}

void fake_count(int64_t offset) {
  pthread_mutex_lock(&mutex);
  *(int64_t*)((char*)&counters + offset) += 1;
  pthread_mutex_unlock(&mutex);
}

/* --- the table --- */

static pjrt_api_t api;

static void fill_api(int major, int minor, size_t struct_size) {
  memset(&api, 0, sizeof(api));
  api.struct_size = struct_size;
  api.version.struct_size = sizeof(api.version);
  api.version.major_version = major;
  api.version.minor_version = minor;
#define PJRT_CALL(name, slot, type, last_field) api.slots[slot] = fake_##name;
#include "pjrt/pjrt_calls.def"
#undef PJRT_CALL
}

FAKE_EXPORT const pjrt_api_t* GetPjrtApi(void);
const pjrt_api_t* GetPjrtApi(void) {
  if (api.struct_size == 0) fill_api(0, 114, sizeof(api));
  return &api;
}

/* --- control --- */

static void control_reset(void) {
  pthread_mutex_lock(&mutex);
  memset(&counters, 0, sizeof(counters));
  memset(&settings, 0, sizeof(settings));
  fail_countdown = 0;
  failing_call[0] = '\0';
  pthread_mutex_unlock(&mutex);
  fill_api(0, 114, sizeof(api));
}

static void control_stats(fake_stats_t* out_stats) {
  pthread_mutex_lock(&mutex);
  *out_stats = counters;
  out_stats->live_clients = live[FAKE_CLIENT];
  out_stats->live_buffers = live[FAKE_BUFFER];
  out_stats->live_events = live[FAKE_EVENT];
  out_stats->live_executables = live[FAKE_EXECUTABLE];
  out_stats->live_loaded = live[FAKE_LOADED];
  out_stats->live_errors = live[FAKE_ERROR];
  out_stats->live_serialized = live[FAKE_SERIALIZED];
  pthread_mutex_unlock(&mutex);
}

static int64_t control_live(void) {
  int64_t sum = 0;
  for (int i = 0; i < FAKE_KIND_COUNT; ++i) sum += fake_live((fake_kind_t)i);
  return sum;
}

static void control_fail_at(int64_t n, int code) {
  pthread_mutex_lock(&mutex);
  fail_countdown = n;
  fail_at_code = code;
  pthread_mutex_unlock(&mutex);
}

static bool control_fail_pending(void) {
  pthread_mutex_lock(&mutex);
  bool pending = fail_countdown > 0;
  pthread_mutex_unlock(&mutex);
  return pending;
}

static void control_fail_call(const char* name, int code) {
  pthread_mutex_lock(&mutex);
  (void)snprintf(failing_call, sizeof(failing_call), "%s", name != NULL ? name : "");
  failing_call_code = code;
  pthread_mutex_unlock(&mutex);
}

static void control_delay(int64_t microseconds) {
  pthread_mutex_lock(&mutex);
  settings.delay_us = microseconds;
  pthread_mutex_unlock(&mutex);
}

static void control_lose(int64_t microseconds) {
  pthread_mutex_lock(&mutex);
  settings.lose_us = microseconds;
  pthread_mutex_unlock(&mutex);
}

static void control_fail_outputs(int code) {
  pthread_mutex_lock(&mutex);
  settings.fail_outputs = code;
  pthread_mutex_unlock(&mutex);
}

static void control_fail_taking(int code) {
  pthread_mutex_lock(&mutex);
  settings.fail_taking = code;
  pthread_mutex_unlock(&mutex);
}

static void control_temporaries(int64_t bytes) {
  pthread_mutex_lock(&mutex);
  settings.temporary_bytes = bytes;
  pthread_mutex_unlock(&mutex);
}

static void control_hold(bool on) {
  pthread_mutex_lock(&mutex);
  settings.held = on;
  pthread_mutex_unlock(&mutex);
}

static void control_refuse_option(const char* name) {
  pthread_mutex_lock(&mutex);
  (void)snprintf(settings.refused_option, sizeof(settings.refused_option), "%s",
                 name != NULL ? name : "");
  pthread_mutex_unlock(&mutex);
}

FAKE_EXPORT const fake_control_t* fake_plugin_get_control(void) {
  static const fake_control_t control = {
      .reset = control_reset,
      .stats = control_stats,
      .live = control_live,
      .fail_at = control_fail_at,
      .fail_pending = control_fail_pending,
      .fail_call = control_fail_call,
      .delay = control_delay,
      .lose = control_lose,
      .fail_outputs = control_fail_outputs,
      .fail_taking = control_fail_taking,
      .temporaries = control_temporaries,
      .hold = control_hold,
      .refuse_option = control_refuse_option,
      .set_version = fill_api,
  };
  return &control;
}

__attribute__((constructor)) static void read_environment(void) {
  const char* text = getenv("FAKE_PLUGIN_FAIL_AT");
  if (text != NULL) control_fail_at(strtoll(text, NULL, 10), 13);
  text = getenv("FAKE_PLUGIN_FAIL_CALL");
  if (text != NULL) control_fail_call(text, 13);
  text = getenv("FAKE_PLUGIN_DELAY_US");
  if (text != NULL) control_delay(strtoll(text, NULL, 10));
}

__attribute__((destructor)) static void report(void) {
  const char* leaks = getenv("FAKE_PLUGIN_CHECK_LEAKS");
  if (leaks != NULL && leaks[0] == '1' && control_live() != 0) {
    fake_violation("%lld objects are alive at the end", (long long)control_live());
  }
  if (counters.violations == 0) return;
  fprintf(stderr, "fake_plugin: %lld violations\n", (long long)counters.violations);
  fflush(NULL);
  _exit(97);
}
