#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
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

enum { FORMAT_VERSION = 2, MOST_WRITES_BETWEEN_LOOKS = 64 };
static const char magic[8] = "TPUEXEC";

/* A file is this header and the plugin's bytes. Little endian: no other hosts have plugins. */
typedef struct file_header_t {
  char magic[8];
  uint32_t format_version;
  uint32_t header_size;
  tpu_digest_t key;       // a file that was renamed by hand is refused
  uint64_t size;          // of the bytes after the header
  tpu_digest_t checksum;  // of all of the file but this field
} file_header_t;
_Static_assert(sizeof(file_header_t) == 56, "the header has no padding");

/* --- folder --- */

/* Leaves `out_path` empty when there is no place for a cache. */
static void choose_folder(tpu_strbuf_t* out_path) {
  const char* text = tpu_env_text(TPU_ENV_CACHE_DIR);
  if (text != NULL && text[0] != '\0') {
    if (text[0] == '/') {
      tpu_strbuf_append(out_path, text);
    } else {  // would be another folder, and perhaps another user's, after each chdir
      fprintf(stderr,
              "torch_tpu: compile cache: TORCH_TPU_CACHE_DIR='%s' is not an absolute path; nothing "
              "is cached on disk\n",
              text);
    }
    return;
  }
  const char* cache_home = getenv("XDG_CACHE_HOME");
  const char* home = getenv("HOME");
  if (cache_home != NULL && cache_home[0] == '/') {
    tpu_strbuf_printf(out_path, "%s/torch_tpu", cache_home);
  } else if (home != NULL && home[0] == '/') {
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
  /* "link/" would be followed where "link" is refused. */
  while (path.size > 1 && path.data[path.size - 1] == '/') path.data[--path.size] = '\0';
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

/* False when memory is out; the path is to be freed all the same. */
static bool make_path(const tpui_disk_cache_t* cache, tpu_digest_t key, tpui_disk_path_t* path) {
  *path = (tpui_disk_path_t){0};
  char hex[33];
  tpu_digest_hex(key, hex);
  (void)snprintf(path->file_name, sizeof(path->file_name), "%s.bin", hex);
  tpu_strbuf_append(&path->text, cache->folder);
  path->root_size = path->text.size;
  tpu_strbuf_printf(&path->text, "/%.2s/%s", hex, path->file_name);
  return !path->text.failed;
}

void tpui_disk_append_path(const tpui_disk_cache_t* cache, tpu_digest_t key, tpu_strbuf_t* path) {
  tpui_disk_path_t made;
  if (cache->folder == NULL) return;
  if (make_path(cache, key, &made)) tpu_strbuf_append(path, made.text.data);
  tpu_strbuf_free(&made.text);
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

/* Of the header's fields in front of the checksum and of the bytes after the header. */
static tpu_digest_t file_checksum(const file_header_t* header, const void* bytes) {
  tpu_digest_state_t state;
  tpu_digest_begin(&state);
  tpu_digest_update(&state, header, offsetof(file_header_t, checksum));
  tpu_digest_update(&state, bytes, header->size);
  return tpu_digest_end(&state);
}

static bool same_digest(tpu_digest_t a, tpu_digest_t b) { return a.lo == b.lo && a.hi == b.hi; }

/* A size beyond the whole cache's was not written here: memory for it is not even asked for. */
static bool header_fits(const file_header_t* header, tpu_digest_t key, int64_t file_size,
                        int64_t most) {
  return memcmp(header->magic, magic, sizeof(magic)) == 0 &&
         header->format_version == FORMAT_VERSION && header->header_size == sizeof(*header) &&
         same_digest(header->key, key) && header->size > 0 &&
         file_size >= (int64_t)sizeof(*header) && header->size <= (uint64_t)most &&
         header->size == (uint64_t)file_size - sizeof(*header);
}

static tpui_disk_result_t read_file(int file, tpu_digest_t key, int64_t most, void** out_bytes,
                                    size_t* out_size) {
  struct stat info;
  file_header_t header;
  if (fstat(file, &info) != 0) return TPUI_DISK_MISS;
  if (!read_fully(file, &header, sizeof(header)) ||
      !header_fits(&header, key, info.st_size, most)) {
    return TPUI_DISK_REJECT;
  }
  tpu_status_t status = tpu_calloc(header.size, 1, out_bytes);
  if (status != NULL) {  // no memory for it says nothing about the file
    tpu_status_free(status);
    return TPUI_DISK_MISS;
  }
  *out_size = header.size;
  if (read_fully(file, *out_bytes, header.size) &&
      same_digest(file_checksum(&header, *out_bytes), header.checksum)) {
    (void)futimens(file, NULL);  // last use, for eviction; root's files keep their time
    return TPUI_DISK_HIT;
  }
  tpu_free(*out_bytes);
  *out_bytes = NULL;
  *out_size = 0;
  return TPUI_DISK_REJECT;
}

static tpui_disk_result_t read_entry(int folder, const tpui_disk_path_t* path, tpu_digest_t key,
                                     int64_t most, void** out_bytes, size_t* out_size) {
  int file = -1;
  tpui_disk_open_t opened = tpui_disk_open_file(folder, path, &file);
  if (opened == TPUI_DISK_OPEN_REFUSED) return TPUI_DISK_REJECT;  // compiling will replace it
  if (opened != TPUI_DISK_OPEN_OK) return TPUI_DISK_MISS;
  tpui_disk_result_t result = read_file(file, key, most, out_bytes, out_size);
  (void)close(file);
  if (result == TPUI_DISK_REJECT) {
    tpu_log(TPU_LOG_CACHE, "deleting broken file %s", path->text.data);
    (void)unlinkat(folder, path->file_name, 0);
  }
  return result;
}

tpui_disk_result_t tpui_disk_read(tpui_disk_cache_t* cache, tpu_digest_t key, void** out_bytes,
                                  size_t* out_size) {
  *out_bytes = NULL;
  *out_size = 0;
  if (cache->folder == NULL) return TPUI_DISK_MISS;
  tpui_disk_path_t path;
  int folder = -1;
  tpui_disk_result_t result = TPUI_DISK_MISS;
  if (make_path(cache, key, &path) &&
      tpui_disk_open_folder(&path, false, &folder) == TPUI_DISK_OPEN_OK) {
    result = read_entry(folder, &path, key, cache->limit, out_bytes, out_size);
    (void)close(folder);
  }
  tpu_strbuf_free(&path.text);
  return result;
}

void tpui_disk_remove(tpui_disk_cache_t* cache, tpu_digest_t key) {
  if (cache->folder == NULL) return;
  tpui_disk_path_t path;
  int folder = -1;
  if (make_path(cache, key, &path) &&
      tpui_disk_open_folder(&path, false, &folder) == TPUI_DISK_OPEN_OK) {
    (void)unlinkat(folder, path.file_name, 0);
    (void)close(folder);
  }
  tpu_strbuf_free(&path.text);
}

/* --- writing --- */

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

/* Writes a new file under a name of its own and moves it into place: readers see all or nothing,
 * and whatever had the name before, a link or a pipe, is replaced and not written through. */
static bool write_file(int folder, const char* name, const file_header_t* header,
                       const void* bytes) {
  char temporary[96];
  (void)snprintf(temporary, sizeof(temporary), "%s.tmp.%d.%llx", name, (int)getpid(),
                 (unsigned long long)tpu_clock_ns());
  int file = openat(folder, temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
  if (file < 0) return false;
  bool ok = write_fully(file, header, sizeof(*header)) && write_fully(file, bytes, header->size);
  int error = errno;
  if (close(file) != 0 && ok) {
    ok = false;
    error = errno;
  }
  if (ok && renameat(folder, temporary, folder, name) == 0) return true;
  if (ok) error = errno;
  (void)unlinkat(folder, temporary, 0);
  errno = error;
  return false;
}

/* False with a line on stderr, which the opening wrote when it refused the folder. */
static bool write_entry(tpui_disk_path_t* path, const file_header_t* header, const void* bytes) {
  int folder = -1;
  tpui_disk_open_t opened = tpui_disk_open_folder(path, true, &folder);
  if (opened == TPUI_DISK_OPEN_REFUSED) return false;
  bool written = opened == TPUI_DISK_OPEN_OK && write_file(folder, path->file_name, header, bytes);
  if (!written) warn_once(path->text.data, errno);
  if (folder >= 0) (void)close(folder);
  return written;
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

/* Deletes the oldest files. What fails is tried again at the next look. */
static void look_at_folder(const tpui_disk_cache_t* cache) {
  tpu_status_t status = tpui_disk_evict(cache->folder, cache->limit);
  if (status != NULL) tpu_log(TPU_LOG_CACHE, "%s", tpu_status_message(status));
  tpu_status_free(status);
}

bool tpui_disk_write(tpui_disk_cache_t* cache, tpu_digest_t key, const void* bytes, size_t size) {
  if (cache->folder == NULL || (int64_t)size > cache->limit) return false;
  file_header_t header = {
      .format_version = FORMAT_VERSION, .header_size = sizeof(header), .key = key, .size = size};
  memcpy(header.magic, magic, sizeof(magic));
  header.checksum = file_checksum(&header, bytes);
  tpui_disk_path_t path;
  bool written = make_path(cache, key, &path) && write_entry(&path, &header, bytes);
  tpu_strbuf_free(&path.text);
  if (written && time_to_look(cache, size)) look_at_folder(cache);
  return written;
}
