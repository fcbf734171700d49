/* Opening what lies in the cache folder. The plugin runs the content as native code, so a folder or
 * a file counts only if nobody but its user, or root, can have written it. Everything is opened
 * relative to its folder and judged by the open descriptor: a swap in between changes nothing. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "compile/compile_internal.h"

/* One line per process: the folder of a job with many programs would fill the screen. */
static void warn_refused(const char* path, const char* why) {
  static atomic_flag warned = ATOMIC_FLAG_INIT;
  if (atomic_flag_test_and_set(&warned)) return;
  fprintf(stderr,
          "torch_tpu: compile cache: '%s' is not used, because %s; what lies there is run as code "
          "(choose a folder of your own with TORCH_TPU_CACHE_DIR, or set TORCH_TPU_CACHE=0)\n",
          path, why);
}

/* NULL: nobody else can have written it. */
static const char* find_fault(const struct stat* info) {
  if (info->st_uid != geteuid() && info->st_uid != 0) return "it belongs to another user";
  if ((info->st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return "other users may write to it (chmod go-w takes that right away)";
  }
  return NULL;
}

static tpui_disk_open_t refuse_file(int* file, const char* path, const char* why) {
  if (*file >= 0) (void)close(*file);
  *file = -1;
  warn_refused(path, why);
  return TPUI_DISK_OPEN_REFUSED;
}

/* Why `name` could not be opened; errno stays. */
static tpui_disk_open_t explain_failure(int folder, const char* name, const char* path,
                                        int* out_file) {
  int error = errno;
  struct stat info;
  bool is_link = fstatat(folder, name, &info, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(info.st_mode);
  if (is_link) return refuse_file(out_file, path, "it is a symbolic link");
  errno = error;
  return TPUI_DISK_OPEN_FAILED;
}

static tpui_disk_open_t open_checked(int folder, const char* name, int flags, mode_t kind,
                                     const char* path, int* out_file) {
  /* O_NONBLOCK: a named pipe would keep us waiting for a writer. */
  *out_file = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | flags);
  if (*out_file < 0) return explain_failure(folder, name, path, out_file);
  struct stat info;
  if (fstat(*out_file, &info) != 0) return refuse_file(out_file, path, "its owner is unknown");
  if ((info.st_mode & S_IFMT) != kind) return refuse_file(out_file, path, "it is no regular file");
  const char* fault = find_fault(&info);
  return fault != NULL ? refuse_file(out_file, path, fault) : TPUI_DISK_OPEN_OK;
}

tpui_disk_open_t tpui_disk_open_root(const char* folder, int* out_folder) {
  return open_checked(AT_FDCWD, folder, O_DIRECTORY, S_IFDIR, folder, out_folder);
}

/* Makes a folder and its parents, for the user alone. */
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

/* The folder of a key below the open cache folder. */
static tpui_disk_open_t open_below(int root, tpui_disk_path_t* path, bool create, int* out_folder) {
  char name[3] = {path->file_name[0], path->file_name[1], '\0'};
  if (create && mkdirat(root, name, 0700) != 0 && errno != EEXIST) return TPUI_DISK_OPEN_FAILED;
  path->text.data[path->root_size + 3] = '\0';
  tpui_disk_open_t result =
      open_checked(root, name, O_DIRECTORY, S_IFDIR, path->text.data, out_folder);
  path->text.data[path->root_size + 3] = '/';
  return result;
}

tpui_disk_open_t tpui_disk_open_folder(tpui_disk_path_t* path, bool create, int* out_folder) {
  *out_folder = -1;
  path->text.data[path->root_size] = '\0';
  int root = -1;
  tpui_disk_open_t result = TPUI_DISK_OPEN_FAILED;
  if (!create || make_folders(path->text.data)) {
    result = tpui_disk_open_root(path->text.data, &root);
  }
  path->text.data[path->root_size] = '/';
  if (result != TPUI_DISK_OPEN_OK) return result;
  result = open_below(root, path, create, out_folder);
  int error = errno;
  (void)close(root);
  errno = error;
  return result;
}

tpui_disk_open_t tpui_disk_open_file(int folder, const tpui_disk_path_t* path, int* out_file) {
  return open_checked(folder, path->file_name, 0, S_IFREG, path->text.data, out_file);
}
