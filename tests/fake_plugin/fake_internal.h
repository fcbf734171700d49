/* What the files of the fake plugin share. */
#ifndef TPU_TESTS_FAKE_PLUGIN_FAKE_INTERNAL_H_
#define TPU_TESTS_FAKE_PLUGIN_FAKE_INTERNAL_H_

#include "fake_plugin.h"
#include "pjrt/pjrt_abi.h"

#define FAKE_EXPORT __attribute__((visibility("default")))

typedef enum fake_call_t {
#define PJRT_CALL(name, slot, type, last_field) FAKE_CALL_##name,
#include "pjrt/pjrt_calls.def"
#undef PJRT_CALL
  FAKE_CALL_COUNT
} fake_call_t;

/* --- fake_core.c: objects, violations, failures --- */

typedef enum fake_kind_t {
  FAKE_CLIENT,
  FAKE_DEVICE,
  FAKE_BUFFER,
  FAKE_EVENT,
  FAKE_EXECUTABLE,
  FAKE_LOADED,
  FAKE_ERROR,
  FAKE_SERIALIZED,
  FAKE_TOPOLOGY,
  FAKE_KIND_COUNT
} fake_kind_t;

/* Head of all objects. Destroyed ones keep their memory, marked dead: later uses are seen. */
typedef struct fake_object_t {
  uint32_t magic;
  fake_kind_t kind;
  struct fake_object_t* next;  // of all objects ever made
} fake_object_t;

/* A new zeroed object of `size` bytes that begins with a fake_object_t. */
void* fake_new(fake_kind_t kind, size_t size);
/* True when `object` is a live one of this kind; else a violation by `call`. */
bool fake_check(fake_call_t call, const void* object, fake_kind_t kind);
/* Marks as dead. */
void fake_kill(void* object);

void fake_violation(const char* format, ...) __attribute__((format(printf, 1, 2)));
pjrt_error_t* fake_error(int code, const char* format, ...) __attribute__((format(printf, 2, 3)));
const char* fake_error_text(const pjrt_error_t* error);
int fake_error_code(const pjrt_error_t* error);

/* Counts a call, checks its struct and gives the injected error, if it is this call's turn. */
pjrt_error_t* fake_enter(fake_call_t call, const void* args);
const char* fake_call_name(fake_call_t call);

typedef struct fake_settings_t {
  int64_t delay_us, lose_us;
  int fail_outputs;
  int fail_taking;
  int64_t temporary_bytes;
  bool held;
  char refused_option[128];
} fake_settings_t;
fake_settings_t fake_settings(void);
void fake_count(int64_t fake_stats_t_offset);
#define FAKE_COUNT(field) fake_count((int64_t)offsetof(fake_stats_t, field))
int64_t fake_live(fake_kind_t kind);
int64_t fake_now_us(void);

/* --- fake_program.c: the signature of @main --- */

enum { FAKE_MAX_RANK = 32 };
typedef struct fake_type_t {
  int32_t dtype;  // PJRT_Buffer_Type
  size_t rank;
  int64_t dims[FAKE_MAX_RANK];
  bool donor;  // argument may be donated
} fake_type_t;

typedef struct fake_program_t {
  int references;
  char* text;
  size_t text_size;
  fake_type_t* arguments;
  size_t argument_count;
  fake_type_t* results;
  size_t result_count;
  int32_t* result_dtypes;  // in the form that the PJRT calls hand out
  int64_t* result_dims;
  size_t* result_ranks;
} fake_program_t;

/* NULL with a text in `message` when the program cannot be read. */
fake_program_t* fake_program_parse(const char* text, size_t size, char* message,
                                   size_t message_size);
void fake_program_release(fake_program_t* program);
int64_t fake_dtype_bytes(int32_t dtype);  // 0: unknown
int64_t fake_type_bytes(const fake_type_t* type);

/* --- fake_options.c --- */

/* NULL when the CompileOptionsProto is one that a real plugin takes; violations for what would make
 * it abort. */
pjrt_error_t* fake_options_check(const char* bytes, size_t size);

/* --- fake_calls.c, fake_run.c --- */

typedef struct fake_client_t {
  fake_object_t head;
  bool is_cpu;
  fake_object_t* device;
  pjrt_device_t* devices[1];
} fake_client_t;

typedef struct fake_buffer_t {
  fake_object_t head;
  fake_type_t type;
  int64_t bytes;
  void* data;        // NULL once deleted
  int64_t ready_us;  // clock
  int64_t lose_us;
  int error;  // of the run that made it
  bool awaited;
  bool is_cpu;
} fake_buffer_t;

/* A buffer with zeroed content that follows the settings. */
fake_buffer_t* fake_buffer_new(const fake_type_t* type, bool is_cpu);

/* Of a run's end; follows the settings. */
pjrt_event_t* fake_end_event(void);

typedef struct fake_loaded_t {
  fake_object_t head;
  fake_program_t* program;
  bool is_cpu;
} fake_loaded_t;

#define PJRT_CALL(name, slot, type, last_field) pjrt_error_t* fake_##name(void* args);
#include "pjrt/pjrt_calls.def"
#undef PJRT_CALL

#endif  // TPU_TESTS_FAKE_PLUGIN_FAKE_INTERNAL_H_
