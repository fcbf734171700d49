#define _GNU_SOURCE  // memmem
#include "compile/compile.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/env.h"
#include "base/log.h"
#include "compile/compile_internal.h"

enum { MODE_COUNT = 2 };  // index: tpu_compile_options_t.small

struct tpu_compiler_t {
  tpu_device_t* device;  // borrowed
  tpui_memory_cache_t memory;
  tpui_disk_cache_t disk;
  tpui_key_t keys[MODE_COUNT];  // everything but the program's text
  _Atomic uint32_t refused;     // overrides that this plugin does not know
  _Atomic bool dump_failed;
  tpu_mutex_t mutex;  // guards `stats`
  tpu_compile_stats_t stats;
};

/* --- create and destroy --- */

static tpu_status_t fill_keys(tpu_compiler_t* compiler) {
  for (int small = 0; small < MODE_COUNT; ++small) {
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

/* --- dumping --- */

static void append_dump_path(tpu_strbuf_t* path, tpu_digest_t key) {
  char hex[33];
  tpu_digest_hex(key, hex);
  tpu_strbuf_printf(path, "%s/%s.mlir", tpu_env_text(TPU_ENV_DUMP_DIR), hex);
}

static bool dump_wanted(void) {
  const char* folder = tpu_env_text(TPU_ENV_DUMP_DIR);
  return folder != NULL && folder[0] != '\0';
}

static bool write_text(const char* path, const char* text, size_t size) {
  FILE* file = fopen(path, "we");
  if (file == NULL && errno == ENOENT) {
    (void)mkdir(tpu_env_text(TPU_ENV_DUMP_DIR), 0777);  // if it fails, so does the next line
    file = fopen(path, "we");
  }
  if (file == NULL) return false;
  bool ok = fwrite(text, 1, size, file) == size;
  return fclose(file) == 0 && ok;
}

/* A dump that fails is reported once and does not stop the run. */
static void dump_text(tpu_compiler_t* compiler, tpu_digest_t key, const char* text, size_t size) {
  if (!dump_wanted()) return;
  tpu_strbuf_t path = {0};
  append_dump_path(&path, key);
  if (path.failed || !write_text(path.data, text, size)) {
    if (!atomic_exchange(&compiler->dump_failed, true)) {
      fprintf(stderr, "torch_tpu: TORCH_TPU_DUMP_DIR: cannot write '%s': %s\n",
              tpu_strbuf_text(&path), strerror(errno));
    }
  }
  tpu_strbuf_free(&path);
}

/* --- making an executable --- */

typedef struct request_t {
  tpu_compiler_t* compiler;
  const char* text;
  size_t text_size;
  bool small;
  tpu_digest_t key;
  char hex[33];
} request_t;

static void count(tpu_compiler_t* compiler, int64_t* counter, double* seconds, int64_t start_ns) {
  tpu_mutex_lock(&compiler->mutex);
  *counter += 1;
  if (seconds != NULL) *seconds += (double)(tpu_clock_ns() - start_ns) * 1e-9;
  tpu_mutex_unlock(&compiler->mutex);
}

/* NULL result: not on disk, or not usable. */
static tpu_executable_t* load_from_disk(const request_t* request) {
  tpu_compiler_t* compiler = request->compiler;
  int64_t start = tpu_clock_ns();
  void* bytes = NULL;
  size_t size = 0;
  tpu_executable_t* executable = NULL;
  tpui_disk_result_t result = tpui_disk_read(&compiler->disk, request->key, &bytes, &size);
  if (result == TPUI_DISK_HIT) {
    tpu_status_t status =
        tpu_executable_deserialize(compiler->device, bytes, size, NULL, 0, &executable);
    if (status != NULL) {
      /* Whatever the reason, compiling is the way out; a good file is simply written again. */
      tpu_log(TPU_LOG_CACHE, "%s refused: %s", request->hex, tpu_status_message(status));
      tpu_status_free(status);
      tpui_disk_remove(&compiler->disk, request->key);
      result = TPUI_DISK_REJECT;
    }
  }
  tpu_free(bytes);
  if (result == TPUI_DISK_REJECT) count(compiler, &compiler->stats.disk_rejects, NULL, 0);
  if (executable == NULL) return NULL;
  count(compiler, &compiler->stats.disk_hits, &compiler->stats.disk_load_seconds, start);
  tpu_log(TPU_LOG_COMPILE, "%s from disk, %zu bytes, %.2f ms", request->hex, size,
          (double)(tpu_clock_ns() - start) * 1e-6);
  return executable;
}

static tpu_status_t compile_once(const request_t* request, uint32_t refused,
                                 tpu_executable_t** out_executable) {
  tpu_compiler_t* compiler = request->compiler;
  tpu_strbuf_t options = {0};
  tpui_options_encode(tpu_device_platform(compiler->device), request->small, refused, &options);
  tpu_status_t status = tpu_strbuf_status(&options);
  if (status == NULL) {
    status = tpu_executable_compile(compiler->device, request->text, request->text_size,
                                    options.data, options.size, out_executable);
  }
  tpu_strbuf_free(&options);
  return status;
}

/* Compiles; overrides that the plugin does not know are dropped for good, one per attempt. */
static tpu_status_t compile_program(const request_t* request, tpu_executable_t** out_executable) {
  tpu_compiler_t* compiler = request->compiler;
  for (;;) {
    uint32_t refused = atomic_load(&compiler->refused);
    tpu_status_t status = compile_once(request, refused, out_executable);
    uint32_t unknown = tpui_options_refused(tpu_status_message(status));
    if (status == NULL || (unknown & ~refused) == 0) return status;
    tpu_log(TPU_LOG_COMPILE, "left out from now on: %s", tpu_status_message(status));
    tpu_status_free(status);
    atomic_fetch_or(&compiler->refused, unknown);
  }
}

static void save_to_disk(const request_t* request, tpu_executable_t* executable) {
  tpu_compiler_t* compiler = request->compiler;
  if (compiler->disk.folder == NULL) return;
  void* bytes = NULL;
  size_t size = 0;
  tpu_status_t status = tpu_executable_serialize(executable, &bytes, &size);
  if (status != NULL) {  // the program runs all the same; the plugin may not serialize at all
    tpu_log(TPU_LOG_CACHE, "%s not saved: %s", request->hex, tpu_status_message(status));
    tpu_status_free(status);
    return;
  }
  if (size > 0 && tpui_disk_write(&compiler->disk, request->key, bytes, size)) {
    count(compiler, &compiler->stats.disk_writes, NULL, 0);
  }
  tpu_free(bytes);
}

/* Tells where the program's text is, or how to get it. */
static tpu_status_t explain(const request_t* request, tpu_status_t status) {
  if (!dump_wanted()) {
    return tpu_status_annotate(status, "program %s (set TORCH_TPU_DUMP_DIR to see its text)",
                               request->hex);
  }
  tpu_strbuf_t path = {0};
  append_dump_path(&path, request->key);
  status = tpu_status_annotate(status, "program %s", tpu_strbuf_text(&path));
  tpu_strbuf_free(&path);
  return status;
}

static tpu_status_t make_executable(const request_t* request, tpu_executable_t** out_executable) {
  tpu_compiler_t* compiler = request->compiler;
  dump_text(compiler, request->key, request->text, request->text_size);
  *out_executable = load_from_disk(request);
  if (*out_executable != NULL) return NULL;
  int64_t start = tpu_clock_ns();
  tpu_status_t status = compile_program(request, out_executable);
  if (status != NULL) return explain(request, status);
  count(compiler, &compiler->stats.compiles, &compiler->stats.compile_seconds, start);
  tpu_log(TPU_LOG_COMPILE, "%s compiled%s, %zu bytes of text, %.2f ms", request->hex,
          request->small ? " small" : "", request->text_size,
          (double)(tpu_clock_ns() - start) * 1e-6);
  save_to_disk(request, *out_executable);
  return NULL;
}

/* XLA:CPU emits a scatter only inside a fusion, and the small mode makes none. */
static bool needs_fusion(const char* text, size_t text_size) {
  static const char scatter[] = "stablehlo.scatter";
  return memmem(text, text_size, scatter, sizeof(scatter) - 1) != NULL;
}

tpu_status_t tpu_compiler_get(tpu_compiler_t* compiler, const char* text, size_t text_size,
                              const tpu_compile_options_t* options,
                              tpu_executable_t** out_executable) {
  *out_executable = NULL;
  if (text == NULL || text_size == 0) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "empty program text");
  }
  const tpu_platform_t* platform = tpu_device_platform(compiler->device);
  request_t request = {
      .compiler = compiler,
      .text = text,
      .text_size = text_size,
      .small = options != NULL && options->small && platform->fast_compile_small &&
               !needs_fusion(text, text_size),
  };
  tpui_key_t key = compiler->keys[request.small];
  tpui_key_add(&key, "text", text, text_size);
  request.key = tpui_key_end(&key);
  tpu_digest_hex(request.key, request.hex);
  count(compiler, &compiler->stats.requests, NULL, 0);
  tpui_memory_entry_t* entry = NULL;
  TPU_RETURN_IF_ERROR(tpui_memory_find(&compiler->memory, request.key, out_executable, &entry));
  if (*out_executable != NULL) {
    count(compiler, &compiler->stats.memory_hits, NULL, 0);
    return NULL;
  }
  tpu_status_t status = make_executable(&request, out_executable);
  tpui_memory_finish(&compiler->memory, entry, *out_executable, status);
  return status;
}

/* --- numbers --- */

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

void tpu_compiler_clear_memory(tpu_compiler_t* compiler) { tpui_memory_clear(&compiler->memory); }
