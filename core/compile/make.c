/* Making an executable that no cache in memory has: from disk, or by the plugin's compiler. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/env.h"
#include "base/events.h"
#include "base/log.h"
#include "compile/compile_internal.h"

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

/* --- making --- */

/* NULL result: not on disk, or not usable. */
static tpu_executable_t* load_from_disk(const tpui_request_t* request) {
  tpu_compiler_t* compiler = request->compiler;
  int64_t start = tpu_clock_ns(), event = tpu_event_begin();
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
  if (result == TPUI_DISK_REJECT)
    tpui_compiler_count(compiler, &compiler->stats.disk_rejects, NULL, 0);
  if (executable == NULL) return NULL;
  tpui_compiler_count(compiler, &compiler->stats.disk_hits, &compiler->stats.disk_load_seconds,
                      start);
  tpu_event_end(TPU_EVENT_LOAD, event, request->hex, (int64_t)size);
  tpu_log(TPU_LOG_COMPILE, "%s from disk, %zu bytes, %.2f ms", request->hex, size,
          (double)(tpu_clock_ns() - start) * 1e-6);
  return executable;
}

static tpu_status_t compile_once(const tpui_request_t* request, uint32_t refused,
                                 tpu_executable_t** out_executable) {
  tpu_compiler_t* compiler = request->compiler;
  tpu_strbuf_t options = {0};
  tpui_options_encode(tpu_device_platform(compiler->device), request->small, refused, &options);
  tpu_status_t status = tpu_strbuf_status(&options);
  if (status == NULL) {
    status =
        tpu_executable_compile(compiler->device, request->wanted->text, request->wanted->text_size,
                               options.data, options.size, out_executable);
  }
  tpu_strbuf_free(&options);
  return status;
}

/* Compiles; overrides that the plugin does not know are dropped for good, one per attempt. */
static tpu_status_t compile_program(const tpui_request_t* request,
                                    tpu_executable_t** out_executable) {
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

static void save_to_disk(const tpui_request_t* request, tpu_executable_t* executable) {
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
    tpui_compiler_count(compiler, &compiler->stats.disk_writes, NULL, 0);
  }
  tpu_free(bytes);
}

/* Tells where the program's text is, or how to get it. */
static tpu_status_t explain_failure(const tpui_request_t* request, tpu_status_t status) {
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

tpu_status_t tpui_make_executable(const tpui_request_t* request,
                                  tpu_executable_t** out_executable) {
  tpu_compiler_t* compiler = request->compiler;
  dump_text(compiler, request->key, request->wanted->text, request->wanted->text_size);
  *out_executable = load_from_disk(request);
  if (*out_executable != NULL) return NULL;
  if (atomic_load_explicit(&compiler->refuses, memory_order_relaxed)) {
    return tpu_status_make(TPU_CANCELLED, "nothing is compiled any more");
  }
  int64_t start = tpu_clock_ns(), event = tpu_event_begin();
  tpu_status_t status = compile_program(request, out_executable);
  tpu_event_end(TPU_EVENT_COMPILE, event, request->hex, (int64_t)request->wanted->text_size);
  if (status != NULL) return explain_failure(request, status);
  tpui_compiler_count(compiler, &compiler->stats.compiles, &compiler->stats.compile_seconds, start);
  tpu_log(TPU_LOG_COMPILE, "%s compiled%s, %zu bytes of text, %.2f ms", request->hex,
          request->small ? " small" : "", request->wanted->text_size,
          (double)(tpu_clock_ns() - start) * 1e-6);
  save_to_disk(request, *out_executable);
  return NULL;
}
