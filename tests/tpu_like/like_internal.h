/* What the files of the TPU-like plugin share. `real` is always the CPU plugin's object. */
#ifndef TPU_TESTS_TPU_LIKE_LIKE_INTERNAL_H_
#define TPU_TESTS_TPU_LIKE_LIKE_INTERNAL_H_

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_plugin/fake_internal.h"  // fake_program_t: the signature of @main
#include "pjrt/pjrt_abi.h"
#include "tpu_like.h"

enum { LIKE_MAX_DEVICES = 8 };

/* --- like_table.c --- */

typedef enum like_value_t {
#define TPU_LIKE_VALUE(name, initial) LIKE_##name,
#include "tpu_like_values.def"
#undef TPU_LIKE_VALUE
  LIKE_VALUE_COUNT
} like_value_t;
int64_t like_value(like_value_t value);
void like_add(like_value_t value, int64_t amount);
/* Makes a call of the CPU plugin, whose error becomes one of ours. */
pjrt_error_t* like_real(fake_call_t call, void* args);
#define LIKE_REAL(name, args) like_real(FAKE_CALL_##name, (args))

/* --- like_event.c: errors, events, queues --- */

pjrt_error_t* like_error(int code, const char* format, ...) __attribute__((format(printf, 2, 3)));
pjrt_error_t* like_error_copy(const pjrt_error_t* error);
void like_error_free(pjrt_error_t* error);

typedef struct like_event_t like_event_t;
like_event_t* like_event_new(void);
like_event_t* like_event_retain(like_event_t* event);
void like_event_release(like_event_t* event);
/* Takes the error; NULL: all went well. */
void like_event_set(like_event_t* event, pjrt_error_t* error);
/* Waits; a copy of the error. */
pjrt_error_t* like_event_wait(like_event_t* event);

/* Jobs run one after the other on a thread of the queue, after the delay. */
typedef struct like_queue_t {
  pthread_t thread;
  struct like_job_t *first, *last;
  bool ends;
} like_queue_t;
void like_queue_begin(like_queue_t* queue);
void like_queue_push(like_queue_t* queue, void (*run)(void* data), void* data);
void like_queue_end(like_queue_t* queue);  // after the jobs that are in it

void* like_new(size_t size);  // zeroed; ends the process without memory
void like_lock(void);         // the one lock of events, queues, memory counts and references
void like_unlock(void);

/* --- like_layout.c --- */

/* The dimensions, minor first, as libtpu orders them in memory: those two that fill the tiles best
 * come first. */
void like_layout_choose(const fake_type_t* type, int64_t* out_minor_to_major);
bool like_layout_is_row_major(const fake_type_t* type);
/* Bytes in whole tiles. */
int64_t like_layout_bytes(const fake_type_t* type);
/* The program with the layout of each argument and result written into the signature of @main. */
char* like_layout_write(const char* text, size_t size, size_t* out_size);

/* --- like_device.c --- */

typedef struct like_device_t {
  pjrt_device_t* real;
  struct like_client_t* client;
  like_queue_t programs;
  int64_t in_use, peak;
} like_device_t;

typedef struct like_client_t {
  pjrt_client_t* real;
  like_queue_t transfers;
  int count;
  like_device_t devices[LIKE_MAX_DEVICES];
  pjrt_device_t* list[LIKE_MAX_DEVICES];
} like_client_t;

/* Books bytes of device memory if there are as many, `freed` of those in use becoming free. */
bool like_memory_take(like_device_t* device, int64_t bytes, int64_t temporary, int64_t freed);
void like_memory_give(like_device_t* device, int64_t bytes);

/* --- like_buffer.c --- */

typedef struct like_buffer_t {
  int references;  // of the handle and of jobs
  like_device_t* device;
  pjrt_buffer_t* real;  // NULL until made, or if that failed
  fake_type_t type;
  int64_t bytes;  // booked; 0 once deleted
  bool deleted;
  like_event_t* made;
} like_buffer_t;

/* One reference; its bytes are booked already. */
like_buffer_t* like_buffer_new(like_device_t* device, const fake_type_t* type);
like_buffer_t* like_buffer_retain(like_buffer_t* buffer);
void like_buffer_release(like_buffer_t* buffer);
/* The content belongs to a program or is given up. */
void like_buffer_delete(like_buffer_t* buffer);

/* --- like_program.c --- */

typedef struct like_program_t {
  int references;  // of handles and of runs
  pjrt_loaded_executable_t* real;
  like_client_t* client;
  fake_program_t* signature;
  int64_t temporary;
} like_program_t;

/* A pjrt_loaded_executable_t is one of these. */
like_program_t* like_program_retain(like_program_t* program);
void like_program_release(like_program_t* program);

#define PJRT_CALL(name, slot, type, last_field) pjrt_error_t* like_##name(void* args);
#include "pjrt/pjrt_calls.def"
#undef PJRT_CALL

#endif  // TPU_TESTS_TPU_LIKE_LIKE_INTERNAL_H_
