#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/log.h"
#include "compile/compile_internal.h"

/* A temporary file this old belongs to a process that died while writing. */
enum { STALE_SECONDS = 3600, NAME_SIZE = 40 };

typedef struct found_file_t {
  char name[NAME_SIZE];  // "<2 hex>/<32 hex>.bin"
  int64_t used_ns;       // last use: modification time
  int64_t size;
} found_file_t;

typedef struct found_files_t {
  found_file_t* files;
  size_t count, capacity;
  int64_t total;
} found_files_t;

static bool is_two_hex(const char* name) {
  return strlen(name) == 2 && strspn(name, "0123456789abcdef") == 2;
}

static tpu_status_t add_file(found_files_t* found, const char* folder, const char* name,
                             const struct stat* info) {
  void* files = found->files;
  tpu_status_t status = tpu_grow(&files, &found->capacity, found->count + 1, sizeof(found_file_t));
  found->files = files;
  TPU_RETURN_IF_ERROR(status);
  found_file_t* file = &found->files[found->count++];
  memcpy(file->name, folder, 2);
  file->name[2] = '/';
  memcpy(file->name + 3, name, strlen(name) + 1);
  file->used_ns = (int64_t)info->st_mtim.tv_sec * 1000000000 + info->st_mtim.tv_nsec;
  file->size = info->st_size;
  found->total += info->st_size;
  return NULL;
}

/* Looks at one entry of a "<2 hex>" folder. Foreign files are left alone. */
static tpu_status_t visit_file(found_files_t* found, int folder, const char* folder_name,
                               const char* name) {
  struct stat info;
  size_t key_size = strspn(name, "0123456789abcdef");
  if (key_size != 32 || strncmp(name + 32, ".bin", 4) != 0) return NULL;
  if (fstatat(folder, name, &info, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(info.st_mode)) return NULL;
  if (name[36] == '\0') return add_file(found, folder_name, name, &info);
  if (strncmp(name + 36, ".tmp.", 5) == 0 && info.st_mtim.tv_sec + STALE_SECONDS < time(NULL)) {
    (void)unlinkat(folder, name, 0);
  }
  return NULL;
}

static tpu_status_t visit_folder(found_files_t* found, int root, const char* name) {
  int folder = openat(root, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  DIR* listing = folder >= 0 ? fdopendir(folder) : NULL;
  if (listing == NULL) {
    if (folder >= 0) (void)close(folder);
    return NULL;  // deleted meanwhile, or not ours to read
  }
  tpu_status_t status = NULL;
  struct dirent* entry;
  while (status == NULL && (entry = readdir(listing)) != NULL) {
    status = visit_file(found, folder, name, entry->d_name);
  }
  (void)closedir(listing);
  return status;
}

static int by_last_use(const void* left, const void* right) {
  int64_t a = ((const found_file_t*)left)->used_ns;
  int64_t b = ((const found_file_t*)right)->used_ns;
  return (a > b) - (a < b);
}

/* Down to 7/8 of the limit, so that a full cache is not sorted at every write. */
static void delete_oldest(found_files_t* found, int root, int64_t limit) {
  if (found->total <= limit) return;
  qsort(found->files, found->count, sizeof(found_file_t), by_last_use);
  size_t deleted = 0;
  for (size_t i = 0; i < found->count && found->total > limit - limit / 8; ++i) {
    if (unlinkat(root, found->files[i].name, 0) != 0 && errno != ENOENT) continue;
    found->total -= found->files[i].size;
    deleted += 1;
  }
  tpu_log(TPU_LOG_CACHE, "deleted %zu files, %lld bytes stay", deleted, (long long)found->total);
}

tpu_status_t tpui_disk_evict(const char* folder, int64_t limit) {
  int root = -1;
  tpui_disk_open_t opened = tpui_disk_open_root(folder, &root);
  if (opened != TPUI_DISK_OPEN_OK) {
    return tpu_status_make(
        TPU_UNAVAILABLE, "cannot list '%s': %s", folder,
        opened == TPUI_DISK_OPEN_REFUSED ? "it is not ours alone" : strerror(errno));
  }
  int listed = dup(root);
  DIR* listing = listed >= 0 ? fdopendir(listed) : NULL;
  found_files_t found = {0};
  tpu_status_t status = NULL;
  struct dirent* entry;
  while (listing != NULL && status == NULL && (entry = readdir(listing)) != NULL) {
    if (is_two_hex(entry->d_name)) status = visit_folder(&found, root, entry->d_name);
  }
  if (status == NULL) delete_oldest(&found, root, limit);
  tpu_free(found.files);
  if (listing != NULL) (void)closedir(listing);
  if (listing == NULL && listed >= 0) (void)close(listed);
  (void)close(root);
  return status;
}
