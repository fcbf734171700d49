/* What the files of core/compile/ share. Other folders use compile.h. */
#ifndef TPU_COMPILE_COMPILE_INTERNAL_H_
#define TPU_COMPILE_COMPILE_INTERNAL_H_

#include "base/hash.h"
#include "base/strbuf.h"
#include "base/thread.h"
#include "compile/compile.h"

/* --- options.c: the CompileOptionsProto --- */

/* Appends the serialized options for one device. Rows of the override table whose bit is set in
 * `refused` are left out. */
void tpui_options_encode(const tpu_platform_t* platform, bool small, uint32_t refused,
                         tpu_strbuf_t* out_bytes);

/* Bits of the overrides that this compiler error complains about, 0 if it is about others. */
uint32_t tpui_options_refused(const char* error_text);

/* --- key.c --- */

/* A digest over named parts; with TORCH_TPU_LOG=cache each part's own digest is printed. */
typedef struct tpui_key_t {
  tpu_digest_state_t state;
} tpui_key_t;

void tpui_key_begin(tpui_key_t* key);
void tpui_key_add(tpui_key_t* key, const char* name, const void* data, size_t size);
tpu_digest_t tpui_key_end(const tpui_key_t* key);  // `key` may be extended further

/* The parts that do not depend on the program. */
void tpui_key_add_machine(tpui_key_t* key, const tpu_device_t* device);

/* --- memory.c: executables by digest --- */

typedef struct tpui_memory_entry_t tpui_memory_entry_t;

typedef struct tpui_memory_cache_t {
  tpu_mutex_t mutex;  // guards the rest
  pthread_cond_t changed;
  tpui_memory_entry_t** slots;  // chains, slot_count is a power of two
  size_t slot_count;
  size_t entry_count;
  uint64_t clock;  // of entries' uses
} tpui_memory_cache_t;

TPU_MUST_USE tpu_status_t tpui_memory_create(tpui_memory_cache_t* cache);
void tpui_memory_destroy(tpui_memory_cache_t* cache);  // accepts a zeroed cache
void tpui_memory_clear(tpui_memory_cache_t* cache);

/* The keys of what is there, in no order; free the array with tpu_free. */
TPU_MUST_USE tpu_status_t tpui_memory_keys(tpui_memory_cache_t* cache, tpu_digest_t** out_keys,
                                           size_t* out_count);

/* Drops the entry used longest ago whose executable nobody else holds; false when there is none. */
bool tpui_memory_drop_oldest(tpui_memory_cache_t* cache);

/* Looks a key up. Success sets one of the two out-parameters: a new reference to the executable, or
 * an entry that the caller must finish. What another thread is making is waited for, and its
 * failure returned to all that waited; without `wait`, both out-parameters stay NULL instead. */
TPU_MUST_USE tpu_status_t tpui_memory_find(tpui_memory_cache_t* cache, tpu_digest_t key, bool wait,
                                           tpu_executable_t** out_executable,
                                           tpui_memory_entry_t** out_entry);

/* Ends the making of an entry: keeps its own reference to `executable`, or, when that is NULL,
 * forgets the entry and hands copies of `status` to the waiting threads. */
void tpui_memory_finish(tpui_memory_cache_t* cache, tpui_memory_entry_t* entry,
                        tpu_executable_t* executable, tpu_status_t status);

/* --- disk.c, disk_evict.c, disk_open.c: serialized executables in files --- */

typedef struct tpui_disk_cache_t {
  char* folder;       // owned; NULL: the cache is off
  int64_t limit;      // bytes
  tpu_mutex_t mutex;  // guards the rest
  int64_t written;    // bytes since the last look at the whole folder
  int writes_left;    // writes until the next look
} tpui_disk_cache_t;

typedef enum tpui_disk_result_t {
  TPUI_DISK_MISS,
  TPUI_DISK_HIT,
  TPUI_DISK_REJECT,  // the file was broken and has been deleted, or others may have written it
} tpui_disk_result_t;

/* Appends the path of this key's file; nothing when the cache is off. */
void tpui_disk_append_path(const tpui_disk_cache_t* cache, tpu_digest_t key, tpu_strbuf_t* path);

/* Reads TORCH_TPU_CACHE, _DIR and _SIZE. */
TPU_MUST_USE tpu_status_t tpui_disk_create(tpui_disk_cache_t* cache);
void tpui_disk_destroy(tpui_disk_cache_t* cache);
/* On a hit `*out_bytes` is to be freed with tpu_free. */
tpui_disk_result_t tpui_disk_read(tpui_disk_cache_t* cache, tpu_digest_t key, void** out_bytes,
                                  size_t* out_size);
/* True when the file was written. The first failure in a process is reported on stderr. */
bool tpui_disk_write(tpui_disk_cache_t* cache, tpu_digest_t key, const void* bytes, size_t size);
/* Deletes a file whose content the plugin refused. */
void tpui_disk_remove(tpui_disk_cache_t* cache, tpu_digest_t key);

/* Deletes the files used longest ago until `folder` holds at most `limit` bytes, with some room to
 * spare. Safe while other processes read, write and delete. */
TPU_MUST_USE tpu_status_t tpui_disk_evict(const char* folder, int64_t limit);

/* Where the file of a key is. */
typedef struct tpui_disk_path_t {
  tpu_strbuf_t text;   // "<folder>/<2 hex>/<key>.bin", owned
  size_t root_size;    // bytes of "<folder>"
  char file_name[40];  // "<key>.bin"
} tpui_disk_path_t;

typedef enum tpui_disk_open_t {
  TPUI_DISK_OPEN_OK,
  TPUI_DISK_OPEN_FAILED,   // errno says why; often nothing is there
  TPUI_DISK_OPEN_REFUSED,  // somebody else may have written it; the first in a process is reported
} tpui_disk_open_t;

/* Open for reading, if only the user (or root) can have written it: owner, mode, no symbolic link,
 * no pipe or device. The descriptor is the caller's, -1 unless OK. */
tpui_disk_open_t tpui_disk_open_root(const char* folder, int* out_folder);
/* "<folder>/<2 hex>", made first with `create`. */
tpui_disk_open_t tpui_disk_open_folder(tpui_disk_path_t* path, bool create, int* out_folder);
/* The file itself; `folder` is what tpui_disk_open_folder gave. */
tpui_disk_open_t tpui_disk_open_file(int folder, const tpui_disk_path_t* path, int* out_file);

/* --- compile.c, make.c --- */

enum { TPUI_MODE_COUNT = 2 };  // index: tpu_compile_options_t.small

struct tpu_compiler_t {
  tpu_device_t* device;  // borrowed
  tpui_memory_cache_t memory;
  tpui_disk_cache_t disk;
  tpui_key_t keys[TPUI_MODE_COUNT];  // everything but the program's text
  _Atomic bool refuses;              // compiles nothing; see tpu_compiler_refuse
  _Atomic uint32_t refused;          // overrides that this plugin does not know
  _Atomic bool dump_failed;
  tpu_mutex_t mutex;  // guards `stats`
  tpu_compile_stats_t stats;
};

/* A request on its way through the caches. */
typedef struct tpui_request_t {
  tpu_compiler_t* compiler;
  tpu_compile_request_t* wanted;
  bool small;
  tpu_digest_t key;
  char hex[33];
  tpui_memory_entry_t* entry;  // not NULL: this request makes the program
} tpui_request_t;

/* Loads the program from disk, or compiles and saves it. */
TPU_MUST_USE tpu_status_t tpui_make_executable(const tpui_request_t* request,
                                               tpu_executable_t** out_executable);
/* Adds 1 to a counter of `stats`, and the time since `start_ns` to `seconds` if that is given. */
void tpui_compiler_count(tpu_compiler_t* compiler, int64_t* counter, double* seconds,
                         int64_t start_ns);

#endif  // TPU_COMPILE_COMPILE_INTERNAL_H_
