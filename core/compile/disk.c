#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/env.h"
#include "base/log.h"
#include "compile/compile_internal.h"

enum { FORMAT_VERSION = 1, MOST_WRITES_BETWEEN_LOOKS = 64 };
static const char magic[8] = "TPUEXEC";

/* A file is this header and the plugin's bytes. Little endian: no other hosts have plugins. */
typedef struct file_header_t {
  char magic[8];
  uint32_t format_version;
  uint32_t header_size;
  tpu_digest_t key;       // a file that was renamed by hand is refused
  uint64_t size;          // of the bytes after the header
  tpu_digest_t checksum;  // of the bytes after the header
} file_header_t;
_Static_assert(sizeof(file_header_t) == 56, "the header has no padding");

/* --- folder --- */

static void choose_folder(tpu_strbuf_t* out_path) {
  const char* text = tpu_env_text(TPU_ENV_CACHE_DIR);
  if (text != NULL && text[0] != '\0') {
    tpu_strbuf_append(out_path, text);
    return;
  }
  const char* cache_home = getenv("XDG_CACHE_HOME");
  const char* home = getenv("HOME");
  if (cache_home != NULL && cache_home[0] == '/') {
    tpu_strbuf_printf(out_path, "%s/torch_tpu", cache_home);
  } else if (home != NULL && home[0] != '\0') {
    tpu_strbuf_printf(out_path, "%s/.cache/torch_tpu", home);
  }
}

/* Pseudo-random, so that many short processes together look often enough. */
static int first_look(void) {
  uint64_t mixed = tpu_hash_mix((uint64_t)tpu_clock_ns(), (uint64_t)getpid());
  return 1 + (int)(mixed % MOST_WRITES_BETWEEN_LOOKS);
}

tpu_status_t tpui_disk_create(tpui_disk_cache_t* cache) {
  if (pthread_mutex_init(&cache->mutex, NULL) != 0) {
    return tpu_status_make(TPU_RESOURCE_EXHAUSTED, "cannot make a mutex");
  }
  cache->limit = tpu_env_int(TPU_ENV_CACHE_SIZE);
  cache->writes_left = first_look();
  if (!tpu_env_bool(TPU_ENV_CACHE) || cache->limit <= 0) return NULL;
  tpu_strbuf_t path = {0};
  choose_folder(&path);
  tpu_status_t status = tpu_strbuf_status(&path);
  void* copy = NULL;
  if (status == NULL && path.size > 0) status = tpu_calloc(path.size + 1, 1, &copy);
  if (copy != NULL) memcpy(copy, path.data, path.size);
  cache->folder = copy;
  tpu_strbuf_free(&path);
  return status;
}

void tpui_disk_destroy(tpui_disk_cache_t* cache) {
  tpu_free(cache->folder);
  cache->folder = NULL;
}

/* "<folder>/<2 hex>/<key>.bin"; the length of the part up to "<2 hex>" goes to `out_parent`. */
static void append_path(const tpui_disk_cache_t* cache, tpu_digest_t key, tpu_strbuf_t* out_path,
                        size_t* out_parent) {
  char hex[33];
  tpu_digest_hex(key, hex);
  tpu_strbuf_printf(out_path, "%s/%.2s", cache->folder, hex);
  *out_parent = out_path->size;
  tpu_strbuf_printf(out_path, "/%s.bin", hex);
}

/* One line per process, whatever the log topics: a cache that does not work costs minutes. */
static void warn_once(const char* path, int error) {
  static atomic_flag warned = ATOMIC_FLAG_INIT;
  if (atomic_flag_test_and_set(&warned)) return;
  fprintf(stderr,
          "torch_tpu: compile cache: cannot write '%s': %s; programs will be compiled again "
          "(set TORCH_TPU_CACHE_DIR, or TORCH_TPU_CACHE=0)\n",
          path, strerror(error));
}

/* --- reading --- */

static bool read_fully(int file, void* data, size_t size) {
  char* next = data;
  while (size > 0) {
    ssize_t count = read(file, next, size);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    next += count;
    size -= (size_t)count;
  }
  return true;
}

static tpu_digest_t checksum(const void* bytes, size_t size) {
  tpu_digest_state_t state;
  tpu_digest_begin(&state);
  tpu_digest_update(&state, bytes, size);
  return tpu_digest_end(&state);
}

static bool same_digest(tpu_digest_t a, tpu_digest_t b) { return a.lo == b.lo && a.hi == b.hi; }

static bool header_fits(const file_header_t* header, tpu_digest_t key, int64_t file_size) {
  return memcmp(header->magic, magic, sizeof(magic)) == 0 &&
         header->format_version == FORMAT_VERSION && header->header_size == sizeof(*header) &&
         same_digest(header->key, key) && header->size > 0 &&
         file_size >= (int64_t)sizeof(*header) &&
         header->size == (uint64_t)file_size - sizeof(*header);
}

static tpui_disk_result_t read_file(int file, tpu_digest_t key, void** out_bytes,
                                    size_t* out_size) {
  struct stat info;
  file_header_t header;
  if (fstat(file, &info) != 0) return TPUI_DISK_MISS;
  if (!read_fully(file, &header, sizeof(header)) || !header_fits(&header, key, info.st_size)) {
    return TPUI_DISK_REJECT;
  }
  tpu_status_t status = tpu_calloc(header.size, 1, out_bytes);
  if (status != NULL) {  // no memory for it says nothing about the file
    tpu_status_free(status);
    return TPUI_DISK_MISS;
  }
  *out_size = header.size;
  if (read_fully(file, *out_bytes, header.size) &&
      same_digest(checksum(*out_bytes, header.size), header.checksum)) {
    (void)futimens(file, NULL);  // last use, for eviction; other users' files keep their time
    return TPUI_DISK_HIT;
  }
  tpu_free(*out_bytes);
  *out_bytes = NULL;
  *out_size = 0;
  return TPUI_DISK_REJECT;
}

tpui_disk_result_t tpui_disk_read(tpui_disk_cache_t* cache, tpu_digest_t key, void** out_bytes,
                                  size_t* out_size) {
  *out_bytes = NULL;
  *out_size = 0;
  if (cache->folder == NULL) return TPUI_DISK_MISS;
  tpu_strbuf_t path = {0};
  size_t parent;
  append_path(cache, key, &path, &parent);
  int file = path.failed ? -1 : open(path.data, O_RDONLY | O_CLOEXEC);
  tpui_disk_result_t result = TPUI_DISK_MISS;
  if (file >= 0) {
    result = read_file(file, key, out_bytes, out_size);
    (void)close(file);
  }
  if (result == TPUI_DISK_REJECT) {
    tpu_log(TPU_LOG_CACHE, "deleting broken file %s", path.data);
    (void)unlink(path.data);
  }
  tpu_strbuf_free(&path);
  return result;
}

void tpui_disk_remove(tpui_disk_cache_t* cache, tpu_digest_t key) {
  if (cache->folder == NULL) return;
  tpu_strbuf_t path = {0};
  size_t parent;
  append_path(cache, key, &path, &parent);
  if (!path.failed) (void)unlink(path.data);
  tpu_strbuf_free(&path);
}

/* --- writing --- */

/* Makes a folder and its parents, readable by the user alone: what lies there is code. */
static bool make_folders(char* path) {
  if (mkdir(path, 0700) == 0 || errno == EEXIST) return true;
  for (char* slash = strchr(path + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
    *slash = '\0';
    bool ok = mkdir(path, 0700) == 0 || errno == EEXIST;
    *slash = '/';
    if (!ok) return false;
  }
  return mkdir(path, 0700) == 0 || errno == EEXIST;
}

static bool write_fully(int file, const void* data, size_t size) {
  const char* next = data;
  while (size > 0) {
    ssize_t count = write(file, next, size);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    next += count;
    size -= (size_t)count;
  }
  return true;
}

/* Writes a new file under a name of its own and moves it into place: readers see all or nothing. */
static bool write_file(const char* temporary, const char* path, const file_header_t* header,
                       const void* bytes) {
  int file = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) return false;
  bool ok = write_fully(file, header, sizeof(*header)) && write_fully(file, bytes, header->size);
  int error = errno;
  if (close(file) != 0 && ok) {
    ok = false;
    error = errno;
  }
  if (ok && rename(temporary, path) == 0) return true;
  if (ok) error = errno;
  (void)unlink(temporary);
  errno = error;
  return false;
}

/* Counts a write; true when it is time to look at the whole folder. */
static bool time_to_look(tpui_disk_cache_t* cache, size_t size) {
  tpu_mutex_lock(&cache->mutex);
  cache->written += (int64_t)(size + sizeof(file_header_t));
  cache->writes_left -= 1;
  bool look = cache->writes_left <= 0 || cache->written > cache->limit / 16;
  if (look) {
    cache->writes_left = MOST_WRITES_BETWEEN_LOOKS;
    cache->written = 0;
  }
  tpu_mutex_unlock(&cache->mutex);
  return look;
}

bool tpui_disk_write(tpui_disk_cache_t* cache, tpu_digest_t key, const void* bytes, size_t size) {
  if (cache->folder == NULL || (int64_t)size > cache->limit) return false;
  tpu_strbuf_t path = {0};
  tpu_strbuf_t temporary = {0};
  size_t parent;
  append_path(cache, key, &path, &parent);
  tpu_strbuf_printf(&temporary, "%s.tmp.%d.%llx", tpu_strbuf_text(&path), (int)getpid(),
                    (unsigned long long)tpu_clock_ns());
  bool written = false;
  if (!path.failed && !temporary.failed) {
    file_header_t header = {.format_version = FORMAT_VERSION,
                            .header_size = sizeof(header),
                            .key = key,
                            .size = size,
                            .checksum = checksum(bytes, size)};
    memcpy(header.magic, magic, sizeof(magic));
    path.data[parent] = '\0';
    bool folders = make_folders(path.data);
    path.data[parent] = '/';
    written = folders && write_file(temporary.data, path.data, &header, bytes);
    if (!written) warn_once(path.data, errno);
  }
  tpu_strbuf_free(&temporary);
  tpu_strbuf_free(&path);
  if (written && time_to_look(cache, size)) {
    tpu_status_t status = tpui_disk_evict(cache->folder, cache->limit);
    if (status != NULL) tpu_log(TPU_LOG_CACHE, "%s", tpu_status_message(status));
    tpu_status_free(status);  // the next look tries again
  }
  return written;
}
