/* The disk cache runs what it reads as native code: files and folders that somebody else can have
 * written are not used. Foreign owners need root to set up; the other cases run as any user. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/env.h"
#include "compile/compile_internal.h"
#include "test.h"

enum { FOREIGN = 65534 };

static const tpu_digest_t key = {.lo = 1, .hi = 2};

typedef struct fixture_t {
  char base[64];                // removed at the end
  char root[96];                // the cache's folder, below `base`
  char folder[128], file[192];  // "<root>/<2 hex>" and the file of `key`
  char aside[128];              // a place for what is moved away
  tpui_disk_cache_t disk;
} fixture_t;

/* A cache that holds a good file under `key`. */
static bool begin(fixture_t* f) {
  memset(f, 0, sizeof(*f));
  (void)snprintf(f->base, sizeof(f->base), "/tmp/tpu_test_trust_XXXXXX");
  if (mkdtemp(f->base) == NULL) return false;
  (void)snprintf(f->root, sizeof(f->root), "%s/deep/cache", f->base);
  (void)snprintf(f->aside, sizeof(f->aside), "%s/aside", f->base);
  char hex[33];
  tpu_digest_hex(key, hex);
  (void)snprintf(f->folder, sizeof(f->folder), "%s/%.2s", f->root, hex);
  (void)snprintf(f->file, sizeof(f->file), "%s/%s.bin", f->folder, hex);
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_CACHE, "1"));
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_CACHE_DIR, f->root));
  TPU_EXPECT_OK(tpui_disk_create(&f->disk));
  return tpui_disk_write(&f->disk, key, "content", 7);
}

static void end(fixture_t* f) {
  tpui_disk_destroy(&f->disk);
  char command[96];
  (void)snprintf(command, sizeof(command), "rm -rf '%s'", f->base);
  TPU_EXPECT_EQ(system(command), 0);
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_CACHE, NULL));
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_CACHE_DIR, NULL));
}

static tpui_disk_result_t read_entry(fixture_t* f) {
  void* bytes = NULL;
  size_t size = 0;
  tpui_disk_result_t result = tpui_disk_read(&f->disk, key, &bytes, &size);
  TPU_EXPECT_EQ((bytes != NULL), (result == TPUI_DISK_HIT));
  tpu_free(bytes);
  return result;
}

static unsigned mode_of(const char* path) {
  struct stat info;
  return lstat(path, &info) == 0 ? (unsigned)info.st_mode : 0;
}

typedef enum fault_t {
  FOREIGN_OWNER,
  GROUP_WRITES,
  OTHERS_WRITE,
  LINK,
  PIPE,
  WRONG_KIND,
  FAULT_COUNT,
} fault_t;

/* A file where a folder belongs, and the reverse. */
static bool plant_wrong_kind(const char* path, bool is_folder) {
  if (!is_folder) return mkdir(path, 0700) == 0;
  int file = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
  return file >= 0 && close(file) == 0;
}

/* Spoils a good file or folder. False: this user cannot. */
static bool spoil(fixture_t* f, const char* path, fault_t fault) {
  bool is_folder = S_ISDIR(mode_of(path));
  switch (fault) {
    case FOREIGN_OWNER: return chown(path, FOREIGN, FOREIGN) == 0;
    case GROUP_WRITES: return chmod(path, is_folder ? 0770 : 0620) == 0;
    case OTHERS_WRITE: return chmod(path, is_folder ? 01777 : 0602) == 0;
    case LINK: return rename(path, f->aside) == 0 && symlink(f->aside, path) == 0;
    case PIPE: return rename(path, f->aside) == 0 && mkfifo(path, 0600) == 0;
    default: return rename(path, f->aside) == 0 && plant_wrong_kind(path, is_folder);
  }
}

/* A file that is not ours alone is never loaded, and a compile puts a good one in its place. */
static void check_file(fault_t fault) {
  fixture_t f;
  TPU_REQUIRE(begin(&f));
  TPU_EXPECT_EQ(read_entry(&f), TPUI_DISK_HIT);
  if (spoil(&f, f.file, fault)) {
    TPU_EXPECT_EQ(read_entry(&f), TPUI_DISK_REJECT);
    bool replaced = fault != WRONG_KIND;  // no file takes a folder's place
    TPU_EXPECT_EQ(tpui_disk_write(&f.disk, key, "fresh", 5), replaced);
    TPU_EXPECT_EQ(read_entry(&f), replaced ? TPUI_DISK_HIT : TPUI_DISK_REJECT);
    if (replaced) TPU_EXPECT_EQ(mode_of(f.file), S_IFREG | 0600);
  } else {
    TPU_EXPECT(fault == FOREIGN_OWNER && geteuid() != 0);
  }
  end(&f);
}

/* In a folder that is not ours alone nothing is read and nothing is written. */
static void check_folder(fault_t fault, bool is_root) {
  fixture_t f;
  TPU_REQUIRE(begin(&f));
  if (spoil(&f, is_root ? f.root : f.folder, fault)) {
    TPU_EXPECT_EQ(read_entry(&f), TPUI_DISK_MISS);
    TPU_EXPECT(!tpui_disk_write(&f.disk, key, "fresh", 5));
    TPU_EXPECT_EQ(read_entry(&f), TPUI_DISK_MISS);
    if (is_root) TPU_EXPECT_CODE(tpui_disk_evict(f.root, 0), TPU_UNAVAILABLE);
    tpui_disk_remove(&f.disk, key);  // reaches nothing either
    if (fault == LINK && !is_root) {
      char* kept = strrchr(f.file, '/');
      char path[192];
      (void)snprintf(path, sizeof(path), "%s%s", f.aside, kept);
      TPU_EXPECT(S_ISREG(mode_of(path)));
    }
  } else {
    TPU_EXPECT(fault == FOREIGN_OWNER && geteuid() != 0);
  }
  end(&f);
}

/* In a child of its own: without the checks a named pipe keeps the reader waiting forever. */
static void run_apart(void (*check)(fault_t fault, bool is_root), fault_t fault, bool is_root) {
  pid_t pid = fork();
  TPU_REQUIRE(pid >= 0);
  if (pid == 0) {
    (void)alarm(20);
    TPU_REQUIRE(freopen("/dev/null", "w", stderr) != NULL);  // warnings are expected
    check(fault, is_root);
    (void)fflush(NULL);
    _exit(tpu_test_failed() ? 1 : 0);
  }
  int status = -1;
  TPU_EXPECT_EQ(waitpid(pid, &status, 0), pid);
  if (status != 0) tpu_test_fail(__FILE__, __LINE__, "fault %d ended with %d", fault, status);
}

static void check_file_apart(fault_t fault, bool is_root) {
  (void)is_root;
  check_file(fault);
}

TPU_TEST(disk_foreign_files_are_not_loaded) {
  for (int fault = 0; fault < FAULT_COUNT; ++fault) run_apart(check_file_apart, fault, false);
}

TPU_TEST(disk_foreign_folders_are_not_used) {
  for (int fault = 0; fault < FAULT_COUNT; ++fault) {
    run_apart(check_folder, fault, false);
    run_apart(check_folder, fault, true);
  }
}

TPU_TEST(disk_creates_for_the_user_alone) {
  mode_t before = umask(0);
  fixture_t f;
  bool ok = begin(&f);
  (void)umask(before);
  TPU_REQUIRE(ok);
  TPU_EXPECT_EQ(mode_of(f.root), S_IFDIR | 0700);
  TPU_EXPECT_EQ(mode_of(f.folder), S_IFDIR | 0700);
  TPU_EXPECT_EQ(mode_of(f.file), S_IFREG | 0600);
  end(&f);
}

TPU_TEST(disk_folder_is_absolute) {
  fixture_t f;
  TPU_REQUIRE(begin(&f));
  static const char* const names[] = {"cache", "./cache", "../cache"};
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); ++i) {
    TPU_EXPECT_OK(tpu_env_override(TPU_ENV_CACHE_DIR, names[i]));
    tpui_disk_cache_t disk = {0};
    TPU_EXPECT_OK(tpui_disk_create(&disk));
    TPU_EXPECT(disk.folder == NULL);
    tpui_disk_destroy(&disk);
  }
  /* A slash at the end does not lead through a link. */
  char name[128];
  (void)snprintf(name, sizeof(name), "%s//", f.root);
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_CACHE_DIR, name));
  tpui_disk_cache_t disk = {0};
  TPU_EXPECT_OK(tpui_disk_create(&disk));
  TPU_EXPECT_TEXT(disk.folder, f.root);
  tpui_disk_destroy(&disk);
  end(&f);
}

/* Two refusals, one line that says why. */
static void refuse_twice(fault_t fault, bool is_root) {
  fixture_t f;
  TPU_REQUIRE(begin(&f));
  char log[128];
  (void)snprintf(log, sizeof(log), "%s/log", f.base);
  TPU_REQUIRE(spoil(&f, is_root ? f.root : f.file, fault));
  TPU_REQUIRE(freopen(log, "w", stderr) != NULL);
  (void)read_entry(&f);
  (void)read_entry(&f);
  (void)fflush(stderr);
  char command[400];
  (void)snprintf(command, sizeof(command),
                 "test $(wc -l < %s) = 1 && grep -q 'is not used, because other users may' %s", log,
                 log);
  if (system(command) != 0) tpu_test_fail(__FILE__, __LINE__, "not one line with the reason");
  end(&f);
}

TPU_TEST(disk_refusal_is_said_once) {
  run_apart(refuse_twice, OTHERS_WRITE, false);
  run_apart(refuse_twice, GROUP_WRITES, true);
}
