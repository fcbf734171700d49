/* StableHLO text -> executable, through two caches: memory, then disk, then the compiler.
 *
 * The key is a 128-bit digest over a named list of parts: program text, compile options, our
 * version, plugin version, platform, and for the CPU platform the CPU model with its feature flags
 * (a blob built for other features would be run anyway by the plugin). TORCH_TPU_LOG=cache prints
 * each part's digest, so that a miss can be explained.
 */
#ifndef TPU_COMPILE_COMPILE_H_
#define TPU_COMPILE_COMPILE_H_

#include "base/strbuf.h"
#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tpu_compiler_t tpu_compiler_t;

typedef struct tpu_compile_stats_t {
  int64_t requests;  // programs asked for (window hits ask for nothing)
  int64_t memory_hits;
  int64_t memory_drops;  // programs dropped to keep the bound
  int64_t disk_hits;
  int64_t compiles;
  int64_t disk_writes;
  int64_t disk_rejects;  // files refused: wrong checksum, version or size
  double compile_seconds;
  double disk_load_seconds;
} tpu_compile_stats_t;

typedef struct tpu_compile_options_t {
  bool small;  // few ops on small tensors: compile quickly rather than well
} tpu_compile_options_t;

TPU_MUST_USE tpu_status_t tpu_compiler_create(tpu_device_t* device, tpu_compiler_t** out_compiler);
void tpu_compiler_destroy(tpu_compiler_t* compiler);

/* Gives a new reference to the executable for this text. Errors of the compiler carry the program's
 * digest; the text is dumped first when TORCH_TPU_DUMP_DIR is set. Thread-safe; two callers with
 * the same key compile once. */
TPU_MUST_USE tpu_status_t tpu_compiler_get(tpu_compiler_t* compiler, const char* text,
                                           size_t text_size, const tpu_compile_options_t* options,
                                           tpu_executable_t** out_executable);

/* One of several programs that are asked for together. */
typedef struct tpu_compile_request_t {
  const char* text;  // borrowed
  size_t text_size;
  tpu_compile_options_t options;
  tpu_executable_t* executable;  // out: a new reference, or NULL
  tpu_status_t status;           // out: why it is NULL; owned by the caller
} tpu_compile_request_t;

/* The same for `count` programs; those that are not in memory are loaded or compiled side by side,
 * by at most TORCH_TPU_COMPILE_THREADS threads. Fails only when nothing was tried. */
TPU_MUST_USE tpu_status_t tpu_compiler_get_all(tpu_compiler_t* compiler, size_t count,
                                               tpu_compile_request_t* requests);

/* While set, what would have to be compiled fails with TPU_CANCELLED. Caches still answer. */
void tpu_compiler_refuse(tpu_compiler_t* compiler, bool refuse);

/* The folder of the cache on disk, borrowed; NULL when there is none. */
const char* tpu_compiler_folder(const tpu_compiler_t* compiler);
/* Appends a line with the path of the file for each program in memory, whether it is there or not;
 * nothing without a cache on disk. */
TPU_MUST_USE tpu_status_t tpu_compiler_files(tpu_compiler_t* compiler, tpu_strbuf_t* out_lines);

void tpu_compiler_stats(tpu_compiler_t* compiler, tpu_compile_stats_t* out_stats);
void tpu_compiler_reset_stats(tpu_compiler_t* compiler);
/* Drops programs that nobody else holds from the memory cache, those asked for longest ago first,
 * until the device's programs take at most `bytes`. */
void tpu_compiler_trim_memory(tpu_compiler_t* compiler, int64_t bytes);
/* Drops the memory cache (executables in use stay alive). */
void tpu_compiler_clear_memory(tpu_compiler_t* compiler);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_COMPILE_COMPILE_H_
