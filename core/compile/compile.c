#define _GNU_SOURCE  // memmem
#include "compile/compile.h"

#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/env.h"
#include "base/log.h"
#include "compile/compile_internal.h"

/* More threads gain little: programs of a window are few, and the compiler has threads as well. */
#define MAX_THREADS 16

/* --- create and destroy --- */

static tpu_status_t fill_keys(tpu_compiler_t* compiler) {
  for (int small = 0; small < TPUI_MODE_COUNT; ++small) {
    /* The options as wished, also if the plugin refuses some: its version is in the key. */
    tpu_strbuf_t options = {0};
    tpui_options_encode(tpu_device_platform(compiler->device), small != 0, 0, &options);
    tpu_status_t status = tpu_strbuf_status(&options);
    if (status == NULL) {
      tpui_key_begin(&compiler->keys[small]);
      tpui_key_add_machine(&compiler->keys[small], compiler->device);
      tpui_key_add(&compiler->keys[small], "options", options.data, options.size);
    }
    tpu_strbuf_free(&options);
    TPU_RETURN_IF_ERROR(status);
  }
  return NULL;
}

static tpu_status_t fill_compiler(tpu_compiler_t* compiler, tpu_device_t* device) {
  compiler->device = device;
  if (pthread_mutex_init(&compiler->mutex, NULL) != 0) {
    return tpu_status_make(TPU_RESOURCE_EXHAUSTED, "cannot make a mutex");
  }
  TPU_RETURN_IF_ERROR(tpui_memory_create(&compiler->memory));
  TPU_RETURN_IF_ERROR(tpui_disk_create(&compiler->disk));
  return fill_keys(compiler);
}

tpu_status_t tpu_compiler_create(tpu_device_t* device, tpu_compiler_t** out_compiler) {
  *out_compiler = NULL;
  void* memory = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc(1, sizeof(tpu_compiler_t), &memory));
  tpu_status_t status = fill_compiler(memory, device);
  if (status != NULL) {
    tpu_compiler_destroy(memory);
    return status;
  }
  *out_compiler = memory;
  return NULL;
}

void tpu_compiler_destroy(tpu_compiler_t* compiler) {
  if (compiler == NULL) return;
  tpui_memory_destroy(&compiler->memory);
  tpui_disk_destroy(&compiler->disk);
  tpu_free(compiler);
}

/* --- asking --- */

/* XLA:CPU emits a scatter only inside a fusion, and the small mode makes none. */
static bool needs_fusion(const char* text, size_t text_size) {
  static const char scatter[] = "stablehlo.scatter";
  return memmem(text, text_size, scatter, sizeof(scatter) - 1) != NULL;
}

static tpu_status_t check_text(const tpu_compile_request_t* wanted) {
  if (wanted->text != NULL && wanted->text_size > 0) return NULL;
  return tpu_status_make(TPU_INVALID_ARGUMENT, "empty program text");
}

static void fill_request(tpu_compiler_t* compiler, tpu_compile_request_t* wanted,
                         tpui_request_t* request) {
  wanted->executable = NULL;
  wanted->status = check_text(wanted);
  *request = (tpui_request_t){.compiler = compiler, .wanted = wanted};
  if (wanted->status != NULL) return;
  request->small = wanted->options.small &&
                   tpu_device_platform(compiler->device)->fast_compile_small &&
                   !needs_fusion(wanted->text, wanted->text_size);
  tpui_key_t key = compiler->keys[request->small];
  tpui_key_add(&key, "text", wanted->text, wanted->text_size);
  request->key = tpui_key_end(&key);
  tpu_digest_hex(request->key, request->hex);
  tpui_compiler_count(compiler, &compiler->stats.requests, NULL, 0);
}

static bool is_done(const tpui_request_t* request) {
  return request->wanted->executable != NULL || request->wanted->status != NULL;
}

/* Asks the cache in memory. Without an executable afterwards, the program is ours to make
 * (`entry`), or, if `wait` is false, being made by somebody. */
static void find_in_memory(tpui_request_t* request, bool wait) {
  tpu_compiler_t* compiler = request->compiler;
  tpu_compile_request_t* wanted = request->wanted;
  wanted->status =
      tpui_memory_find(&compiler->memory, request->key, wait, &wanted->executable, &request->entry);
  if (wanted->executable == NULL) return;
  tpui_compiler_count(compiler, &compiler->stats.memory_hits, NULL, 0);
}

static void make_one(tpui_request_t* request) {
  tpu_compile_request_t* wanted = request->wanted;
  wanted->status = tpui_make_executable(request, &wanted->executable);
  tpui_memory_finish(&request->compiler->memory, request->entry, wanted->executable,
                     wanted->status);
  request->entry = NULL;
}

/* --- side by side --- */

typedef struct crew_t {
  tpui_request_t* requests;
  size_t count;
  atomic_size_t next;
} crew_t;

/* Makes what the requests own, beside other threads that do the same. */
static void* work_in_crew(void* pointer) {
  crew_t* crew = pointer;
  for (;;) {
    size_t i = atomic_fetch_add(&crew->next, 1);
    if (i >= crew->count) return NULL;
    if (crew->requests[i].entry != NULL) make_one(&crew->requests[i]);
  }
}

static size_t thread_count(const tpui_request_t* requests, size_t count) {
  size_t owned = 0;
  for (size_t i = 0; i < count; ++i) owned += requests[i].entry != NULL;
  int64_t most = tpu_env_int(TPU_ENV_COMPILE_THREADS);
  if (most <= 0) most = sysconf(_SC_NPROCESSORS_ONLN);
  most = most < 1 ? 1 : most > MAX_THREADS ? MAX_THREADS : most;
  return owned < (size_t)most ? owned : (size_t)most;
}

static void make_owned(tpui_request_t* requests, size_t count) {
  crew_t crew = {.requests = requests, .count = count};
  atomic_init(&crew.next, 0);
  pthread_t threads[MAX_THREADS];
  size_t started = 0, wanted = thread_count(requests, count);
  while (started + 1 < wanted &&
         pthread_create(&threads[started], NULL, work_in_crew, &crew) == 0) {
    ++started;  // where no thread can be had, fewer do the work
  }
  (void)work_in_crew(&crew);
  for (size_t i = 0; i < started; ++i) (void)pthread_join(threads[i], NULL);
}

/* What the same program failed with, so that it is not tried once more. */
static tpu_status_t earlier_failure(const tpui_request_t* requests, size_t count,
                                    tpu_digest_t key) {
  for (size_t i = 0; i < count; ++i) {
    const tpui_request_t* r = &requests[i];
    if (r->wanted->status != NULL && r->key.lo == key.lo && r->key.hi == key.hi) {
      return tpu_status_copy(r->wanted->status);
    }
  }
  return NULL;
}

/* Nothing is waited for before all that is ours is made: two callers never wait for each other. */
static void get_all(tpui_request_t* requests, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (!is_done(&requests[i])) find_in_memory(&requests[i], false);
  }
  make_owned(requests, count);
  for (size_t i = 0; i < count; ++i) {
    tpui_request_t* request = &requests[i];
    if (is_done(request)) continue;
    request->wanted->status = earlier_failure(requests, count, request->key);
    if (request->wanted->status != NULL) continue;
    find_in_memory(request, true);
    if (request->entry != NULL) make_one(request);
  }
}

tpu_status_t tpu_compiler_get_all(tpu_compiler_t* compiler, size_t count,
                                  tpu_compile_request_t* wanted) {
  tpui_request_t* requests = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc(count + 1, sizeof(*requests), (void**)&requests));
  for (size_t i = 0; i < count; ++i) fill_request(compiler, &wanted[i], &requests[i]);
  get_all(requests, count);
  tpu_free(requests);
  return NULL;
}

tpu_status_t tpu_compiler_get(tpu_compiler_t* compiler, const char* text, size_t text_size,
                              const tpu_compile_options_t* options,
                              tpu_executable_t** out_executable) {
  tpu_compile_request_t wanted = {.text = text, .text_size = text_size};
  if (options != NULL) wanted.options = *options;
  tpui_request_t request;
  fill_request(compiler, &wanted, &request);
  get_all(&request, 1);
  *out_executable = wanted.executable;
  return wanted.status;
}

/* --- numbers --- */

void tpui_compiler_count(tpu_compiler_t* compiler, int64_t* counter, double* seconds,
                         int64_t start_ns) {
  tpu_mutex_lock(&compiler->mutex);
  *counter += 1;
  if (seconds != NULL) *seconds += (double)(tpu_clock_ns() - start_ns) * 1e-9;
  tpu_mutex_unlock(&compiler->mutex);
}

const char* tpu_compiler_folder(const tpu_compiler_t* compiler) { return compiler->disk.folder; }

tpu_status_t tpu_compiler_files(tpu_compiler_t* compiler, tpu_strbuf_t* out_lines) {
  tpu_digest_t* keys = NULL;
  size_t count = 0;
  if (compiler->disk.folder == NULL) return NULL;
  TPU_RETURN_IF_ERROR(tpui_memory_keys(&compiler->memory, &keys, &count));
  for (size_t i = 0; i < count; ++i) {
    tpui_disk_append_path(&compiler->disk, keys[i], out_lines);
    tpu_strbuf_append(out_lines, "\n");
  }
  tpu_free(keys);
  return tpu_strbuf_status(out_lines);
}

void tpu_compiler_stats(tpu_compiler_t* compiler, tpu_compile_stats_t* out_stats) {
  tpu_mutex_lock(&compiler->mutex);
  *out_stats = compiler->stats;
  tpu_mutex_unlock(&compiler->mutex);
}

void tpu_compiler_reset_stats(tpu_compiler_t* compiler) {
  tpu_mutex_lock(&compiler->mutex);
  compiler->stats = (tpu_compile_stats_t){0};
  tpu_mutex_unlock(&compiler->mutex);
}

void tpu_compiler_refuse(tpu_compiler_t* compiler, bool refuse) {
  atomic_store_explicit(&compiler->refuses, refuse, memory_order_relaxed);
}

void tpu_compiler_clear_memory(tpu_compiler_t* compiler) { tpui_memory_clear(&compiler->memory); }

void tpu_compiler_trim_memory(tpu_compiler_t* compiler, int64_t bytes) {
  while (tpu_device_code_bytes(compiler->device) > bytes &&
         tpui_memory_drop_oldest(&compiler->memory)) {
    tpui_compiler_count(compiler, &compiler->stats.memory_drops, NULL, 0);
  }
}
