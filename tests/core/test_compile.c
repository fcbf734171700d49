/* The compiler's caches, keys and options, on the fake plugin. */
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "../fake_plugin/fake_plugin.h"
#include "base/env.h"
#include "compile/compile.h"
#include "compile/compile_internal.h"
#include "test.h"

typedef struct fixture_t {
  const fake_control_t* fake;
  char folder[64];
  tpu_device_t* device;
  tpu_compiler_t* compiler;
} fixture_t;

static void remove_tree(const char* path) {
  char command[256];
  (void)snprintf(command, sizeof(command), "rm -rf '%s'", path);
  if (system(command) != 0) tpu_test_fail(__FILE__, __LINE__, "cannot delete %s", path);
}

static tpu_status_t open_compiler(fixture_t* f) {
  tpu_device_options_t options = {.plugin_path = fake_plugin_path()};
  TPU_RETURN_IF_ERROR(tpu_device_create(&options, &f->device));
  return tpu_compiler_create(f->device, &f->compiler);
}

static void close_compiler(fixture_t* f) {
  tpu_compiler_destroy(f->compiler);
  tpu_device_destroy(f->device);
  f->compiler = NULL;
  f->device = NULL;
}

/* A compiler with an empty cache folder of its own. `size` is the folder's bound. */
static bool begin(fixture_t* f, const char* size) {
  memset(f, 0, sizeof(*f));
  f->fake = fake_plugin_control();
  if (f->fake == NULL) {
    tpu_test_fail(__FILE__, __LINE__, "no fake plugin at '%s'", fake_plugin_path());
    return false;
  }
  f->fake->reset();
  (void)snprintf(f->folder, sizeof(f->folder), "/tmp/tpu_test_compile_XXXXXX");
  if (mkdtemp(f->folder) == NULL) return false;
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_CACHE, "1"));
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_CACHE_DIR, f->folder));
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_CACHE_SIZE, size));
  tpu_status_t status = open_compiler(f);
  bool ok = status == NULL;
  TPU_EXPECT_OK(status);
  return ok;
}

static void end(fixture_t* f) {
  close_compiler(f);
  fake_stats_t stats;
  f->fake->stats(&stats);
  TPU_EXPECT_EQ(stats.violations, 0);
  TPU_EXPECT_EQ(f->fake->live(), 0);
  f->fake->reset();
  remove_tree(f->folder);
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_CACHE, NULL));
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_CACHE_DIR, NULL));
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_CACHE_SIZE, NULL));
}

/* A program of its own for each number; `padding` bytes longer than needed. */
static tpu_status_t get_padded(tpu_compiler_t* compiler, int number, int padding, bool small) {
  char* text = NULL;
  int size = asprintf(&text,
                      "module @m%d { func.func public @main(%%a: tensor<%dxf32>) -> tensor<%dxf32> "
                      "{ return %%a : tensor<%dxf32> } }%*s",
                      number, number, number, number, padding, "");
  if (size < 0) return tpu_status_make(TPU_RESOURCE_EXHAUSTED, "asprintf");
  tpu_executable_t* executable = NULL;
  tpu_compile_options_t options = {.small = small};
  tpu_status_t status = tpu_compiler_get(compiler, text, (size_t)size, &options, &executable);
  tpu_executable_release(executable);
  free(text);
  return status;
}

static tpu_status_t get(tpu_compiler_t* compiler, int number) {
  return get_padded(compiler, number, 0, false);
}

static tpu_compile_stats_t stats_of(fixture_t* f) {
  tpu_compile_stats_t stats;
  tpu_compiler_stats(f->compiler, &stats);
  return stats;
}

/* --- options --- */

static tpu_platform_t platform_of(tpu_platform_kind_t kind) {
  return (tpu_platform_t){.kind = kind};
}

TPU_TEST(compile_options_bytes) {
  tpu_strbuf_t bytes = {0};
  tpu_platform_t platform = platform_of(TPU_PLATFORM_TPU);
  tpui_options_encode(&platform, true, 0, &bytes);
  TPU_EXPECT_OK(tpu_strbuf_status(&bytes));
  static const unsigned char plain[] = {0x1a, 0x0f, 0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
                                        0xff, 0xff, 0xff, 0x01, 0x20, 0x01, 0x28, 0x01};
  TPU_EXPECT_EQ(bytes.size, sizeof(plain));
  TPU_EXPECT(memcmp(bytes.data, plain, sizeof(plain)) == 0);
  tpu_strbuf_clear(&bytes);
  platform = platform_of(TPU_PLATFORM_CPU);
  tpui_options_encode(&platform, false, ~UINT32_C(1), &bytes);  // the first override alone
  static const char override[] =
      "\x3a\x26\x0a\x1bxla_cpu_enable_fast_min_max\x12\x07\x0a\x05"
      "False";
  TPU_EXPECT_EQ(bytes.size, sizeof(plain) + sizeof(override) - 1);
  TPU_EXPECT(memcmp(bytes.data + sizeof(plain), override, sizeof(override) - 1) == 0);
  tpu_strbuf_free(&bytes);
}

/* Rewrites that change numbers (docs/decisions/011-no-algebraic-simplifier.md) are off however a
 * program is compiled; one pass list is sent per program, so it has to name all of them. */
TPU_TEST(compile_options_switch_the_simplifier_off) {
  tpu_platform_t platform = platform_of(TPU_PLATFORM_CPU);
  for (int small = 0; small < 2; ++small) {
    tpu_strbuf_t bytes = {0};
    tpui_options_encode(&platform, small != 0, 0, &bytes);
    TPU_EXPECT_OK(tpu_strbuf_status(&bytes));
    static const char name[] = "xla_disable_hlo_passes", pass[] = "algsimp";
    const char* first = memmem(bytes.data, bytes.size, name, sizeof(name) - 1);
    TPU_REQUIRE(first != NULL);
    size_t rest = bytes.size - (size_t)(first + 1 - bytes.data);
    TPU_EXPECT(memmem(first + 1, rest, pass, sizeof(pass) - 1) != NULL);
    TPU_EXPECT(memmem(first + 1, rest, name, sizeof(name) - 1) == NULL);
    tpu_strbuf_free(&bytes);
  }
}

static void refuse_option(const char* name) {
  fixture_t f;
  if (!begin(&f, "1M")) return;
  f.fake->refuse_option(name);
  TPU_EXPECT_OK(get(f.compiler, 1));
  TPU_EXPECT_OK(get(f.compiler, 2));
  fake_stats_t stats;
  f.fake->stats(&stats);
  TPU_EXPECT_EQ(stats.compiles, 2);
  TPU_EXPECT_EQ(stats_of(&f).compiles, 2);
  end(&f);
}

TPU_TEST(compile_refused_option_is_left_out) {
  refuse_option("xla_allow_excess_precision");
  refuse_option("xla_disable_hlo_passes");  // stands in two rows
}

/* --- memory --- */

TPU_TEST(compile_memory_cache) {
  fixture_t f;
  if (!begin(&f, "1M")) return;
  for (int round = 0; round < 3; ++round) {
    for (int i = 1; i <= 600; ++i) TPU_EXPECT_OK(get(f.compiler, i));  // more than one table size
  }
  tpu_compile_stats_t stats = stats_of(&f);
  TPU_EXPECT_EQ(stats.requests, 1800);
  TPU_EXPECT_EQ(stats.memory_hits, 1200);
  TPU_EXPECT_EQ(stats.compiles, 600);
  TPU_EXPECT_EQ(stats.disk_writes, 600);
  TPU_EXPECT(stats.compile_seconds > 0);
  /* `small` is part of the key. */
  TPU_EXPECT_OK(get_padded(f.compiler, 1, 0, true));
  TPU_EXPECT_EQ(stats_of(&f).compiles, 601);
  tpu_compiler_reset_stats(f.compiler);
  tpu_compiler_clear_memory(f.compiler);
  TPU_EXPECT_OK(get(f.compiler, 1));
  TPU_EXPECT_EQ(stats_of(&f).memory_hits, 0);
  TPU_EXPECT_EQ(stats_of(&f).disk_hits, 1);
  end(&f);
}

TPU_TEST(compile_executable_outlives_the_cache) {
  fixture_t f;
  if (!begin(&f, "1M")) return;
  static const char text[] =
      "module { func.func public @main(%a: tensor<f32>) -> tensor<f32> { return %a : tensor<f32> } "
      "}";
  tpu_executable_t* executable = NULL;
  TPU_EXPECT_OK(tpu_compiler_get(f.compiler, text, sizeof(text) - 1, NULL, &executable));
  tpu_compiler_clear_memory(f.compiler);
  TPU_EXPECT_EQ(tpu_executable_output_count(executable), 1);
  tpu_executable_release(executable);
  end(&f);
}

TPU_TEST(compile_error_names_the_program) {
  fixture_t f;
  if (!begin(&f, "1M")) return;
  tpu_executable_t* executable = NULL;
  tpu_status_t status = tpu_compiler_get(f.compiler, "module {", 8, NULL, &executable);
  TPU_EXPECT(strstr(tpu_status_message(status), "TORCH_TPU_DUMP_DIR") != NULL);
  TPU_EXPECT_CODE(status, TPU_UNKNOWN);
  TPU_EXPECT_CODE(tpu_compiler_get(f.compiler, "", 0, NULL, &executable), TPU_INVALID_ARGUMENT);
  TPU_EXPECT(executable == NULL);
  /* Failures are not remembered. */
  f.fake->fail_call("Client_Compile", 14);
  TPU_EXPECT_CODE(get(f.compiler, 1), TPU_UNAVAILABLE);
  f.fake->fail_call(NULL, 0);
  TPU_EXPECT_OK(get(f.compiler, 1));
  end(&f);
}

enum { THREADS = 6, PROGRAMS = 40 };
typedef struct racer_t {
  tpu_compiler_t* compiler;
  pthread_barrier_t* barrier;
  tpu_status_code_t expected;
} racer_t;

static void* race(void* argument) {
  racer_t* racer = argument;
  for (int i = 1; i <= PROGRAMS; ++i) {
    (void)pthread_barrier_wait(racer->barrier);
    TPU_EXPECT_CODE(get(racer->compiler, i), racer->expected);
  }
  return NULL;
}

static void run_race(fixture_t* f, tpu_status_code_t expected) {
  pthread_barrier_t barrier;
  TPU_REQUIRE(pthread_barrier_init(&barrier, NULL, THREADS) == 0);
  racer_t racer = {.compiler = f->compiler, .barrier = &barrier, .expected = expected};
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; ++i) {
    TPU_REQUIRE(pthread_create(&threads[i], NULL, race, &racer) == 0);
  }
  for (int i = 0; i < THREADS; ++i) TPU_REQUIRE(pthread_join(threads[i], NULL) == 0);
  (void)pthread_barrier_destroy(&barrier);
}

TPU_TEST(compile_same_key_compiles_once) {
  fixture_t f;
  if (!begin(&f, "1M")) return;
  f.fake->fail_call("Client_Compile", 14);
  run_race(&f, TPU_UNAVAILABLE);
  f.fake->fail_call(NULL, 0);
  run_race(&f, TPU_OK);
  TPU_EXPECT_EQ(stats_of(&f).compiles, PROGRAMS);
  TPU_EXPECT_EQ(stats_of(&f).memory_hits, (THREADS - 1) * PROGRAMS);
  end(&f);
}

/* --- several at once --- */

enum { BATCH = 8 };  // programs 1, 2, 3, 1, 2, 3, 1 and one without text

static void fill_batch(tpu_compile_request_t* batch, char texts[3][128]) {
  for (int i = 0; i < 3; ++i) {
    (void)snprintf(texts[i], 128,
                   "module @m%d { func.func public @main(%%a: tensor<%dxf32>) -> tensor<%dxf32> "
                   "{ return %%a : tensor<%dxf32> } }",
                   i + 1, i + 1, i + 1, i + 1);
  }
  memset(batch, 0, BATCH * sizeof(*batch));
  for (int i = 0; i + 1 < BATCH; ++i) {
    batch[i].text = texts[i % 3];
    batch[i].text_size = strlen(texts[i % 3]);
  }
}

/* Expects `code` of each request with text, and lets everything go. */
static void end_batch(tpu_compile_request_t* batch, tpu_status_code_t code) {
  for (int i = 0; i < BATCH; ++i) {
    TPU_EXPECT_EQ((batch[i].executable != NULL), (batch[i].status == NULL));
    TPU_EXPECT_CODE(batch[i].status, i + 1 < BATCH ? code : TPU_INVALID_ARGUMENT);
    tpu_executable_release(batch[i].executable);
  }
}

static void get_batch(fixture_t* f, tpu_status_code_t code) {
  tpu_compile_request_t batch[BATCH];
  char texts[3][128];
  fill_batch(batch, texts);
  TPU_EXPECT_OK(tpu_compiler_get_all(f->compiler, BATCH, batch));
  end_batch(batch, code);
}

TPU_TEST(compile_many_at_once) {
  for (int threads = 0; threads < 4; ++threads) {
    fixture_t f;
    char number[8];
    if (!begin(&f, "1M")) return;
    (void)snprintf(number, sizeof(number), "%d", threads);
    TPU_EXPECT_OK(tpu_env_override(TPU_ENV_COMPILE_THREADS, number));
    f.fake->fail_call("Client_Compile", 14);
    get_batch(&f, TPU_UNAVAILABLE);
    TPU_EXPECT_EQ(stats_of(&f).compiles, 0);
    f.fake->fail_call(NULL, 0);
    get_batch(&f, TPU_OK);
    TPU_EXPECT_EQ(stats_of(&f).compiles, 3);
    TPU_EXPECT_EQ(stats_of(&f).memory_hits, 4);
    get_batch(&f, TPU_OK);
    TPU_EXPECT_EQ(stats_of(&f).memory_hits, 11);
    tpu_compiler_clear_memory(f.compiler);
    get_batch(&f, TPU_OK);
    TPU_EXPECT_EQ(stats_of(&f).disk_hits, 3);
    TPU_EXPECT_EQ(stats_of(&f).compiles, 3);
    TPU_EXPECT_OK(tpu_compiler_get_all(f.compiler, 0, NULL));
    TPU_EXPECT_OK(tpu_env_override(TPU_ENV_COMPILE_THREADS, NULL));
    end(&f);
  }
}

static void* batch_again_and_again(void* pointer) {
  for (int i = 0; i < 50; ++i) {
    get_batch(pointer, TPU_OK);
    if (i % 8 == 0) tpu_compiler_clear_memory(((fixture_t*)pointer)->compiler);
  }
  return NULL;
}

/* Callers that want the same programs make some each, and wait for the other's: never in a ring. */
TPU_TEST(compile_many_at_once_from_many_threads) {
  fixture_t f;
  if (!begin(&f, "1M")) return;
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_COMPILE_THREADS, "2"));
  pthread_t threads[4];
  for (int i = 0; i < 4; ++i) {
    TPU_REQUIRE(pthread_create(&threads[i], NULL, batch_again_and_again, &f) == 0);
  }
  for (int i = 0; i < 4; ++i) TPU_REQUIRE(pthread_join(threads[i], NULL) == 0);
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_COMPILE_THREADS, NULL));
  end(&f);
}

/* --- disk --- */

TPU_TEST(compile_disk_cache_survives_the_process) {
  fixture_t f;
  if (!begin(&f, "1M")) return;
  TPU_EXPECT_OK(get(f.compiler, 1));
  TPU_EXPECT_OK(get(f.compiler, 2));
  close_compiler(&f);
  TPU_REQUIRE_OK(open_compiler(&f));
  TPU_EXPECT_OK(get(f.compiler, 1));
  TPU_EXPECT_OK(get(f.compiler, 3));
  tpu_compile_stats_t stats = stats_of(&f);
  TPU_EXPECT_EQ(stats.disk_hits, 1);
  TPU_EXPECT_EQ(stats.compiles, 1);
  TPU_EXPECT(stats.disk_load_seconds > 0);
  end(&f);
}

TPU_TEST(compile_disk_cache_can_be_off) {
  fixture_t f;
  if (!begin(&f, "1M")) return;
  close_compiler(&f);
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_CACHE, "0"));
  TPU_REQUIRE_OK(open_compiler(&f));
  TPU_EXPECT_OK(get(f.compiler, 1));
  TPU_EXPECT_EQ(stats_of(&f).disk_writes, 0);
  DIR* listing = opendir(f.folder);
  TPU_REQUIRE(listing != NULL);
  struct dirent* entry;
  while ((entry = readdir(listing)) != NULL) TPU_EXPECT(entry->d_name[0] == '.');
  (void)closedir(listing);
  end(&f);
}

/* The path of the only file in the cache. */
static bool only_file(const fixture_t* f, char* out_path, size_t size) {
  char command[128];
  (void)snprintf(command, sizeof(command), "find %s -type f", f->folder);
  FILE* pipe = popen(command, "r");
  if (pipe == NULL) return false;
  bool ok = fgets(out_path, (int)size, pipe) != NULL;
  out_path[strcspn(out_path, "\n")] = '\0';
  char more[256];
  ok = ok && fgets(more, sizeof(more), pipe) == NULL;
  return pclose(pipe) == 0 && ok;
}

typedef enum damage_t { TRUNCATE_HEADER, TRUNCATE, EMPTY, FLIP, VERSION, MAGIC, LONGER } damage_t;

static void damage_file(const char* path, damage_t damage) {
  int file = open(path, O_RDWR);
  TPU_REQUIRE(file >= 0);
  off_t size = lseek(file, 0, SEEK_END);
  char byte = 0;
  /* FLIP hits the digit in "module @m1", so that only the checksum can notice. */
  off_t place = damage == MAGIC ? 0 : damage == VERSION ? 8 : 56 + 8 + (off_t)strlen("module @m");
  ssize_t done = 1;
  switch (damage) {
    case TRUNCATE_HEADER: done = ftruncate(file, 20) == 0; break;
    case TRUNCATE: done = ftruncate(file, size - 1) == 0; break;
    case EMPTY: done = ftruncate(file, 0) == 0; break;
    case LONGER: done = ftruncate(file, size + 1) == 0; break;
    default:
      done = pread(file, &byte, 1, place);
      byte = (char)(byte ^ 1);
      done = done == 1 ? pwrite(file, &byte, 1, place) : done;
  }
  TPU_EXPECT_EQ(done, 1);
  (void)close(file);
}

TPU_TEST(compile_broken_files_are_replaced) {
  fixture_t f;
  if (!begin(&f, "1M")) return;
  TPU_EXPECT_OK(get(f.compiler, 1));
  char path[256];
  for (int damage = TRUNCATE_HEADER; damage <= LONGER; ++damage) {
    TPU_REQUIRE(only_file(&f, path, sizeof(path)));
    damage_file(path, (damage_t)damage);
    tpu_compiler_clear_memory(f.compiler);
    tpu_compiler_reset_stats(f.compiler);
    TPU_EXPECT_OK(get(f.compiler, 1));
    tpu_compile_stats_t stats = stats_of(&f);
    TPU_EXPECT_EQ(stats.disk_rejects, 1);
    TPU_EXPECT_EQ(stats.compiles, 1);
    TPU_EXPECT_EQ(stats.disk_writes, 1);
    tpu_compiler_clear_memory(f.compiler);
    TPU_EXPECT_OK(get(f.compiler, 1));
    TPU_EXPECT_EQ(stats_of(&f).disk_hits, 1);
  }
  end(&f);
}

/* Good checksum, but the plugin does not want the content. */
TPU_TEST(compile_files_the_plugin_refuses_are_replaced) {
  fixture_t f;
  if (!begin(&f, "1M")) return;
  TPU_EXPECT_OK(get(f.compiler, 1));
  tpu_compiler_clear_memory(f.compiler);
  f.fake->fail_call("Executable_DeserializeAndLoad", 3);
  TPU_EXPECT_OK(get(f.compiler, 1));
  TPU_EXPECT_EQ(stats_of(&f).disk_rejects, 1);
  TPU_EXPECT_EQ(stats_of(&f).compiles, 2);
  TPU_EXPECT_EQ(stats_of(&f).disk_hits, 0);
  end(&f);
}

TPU_TEST(compile_renamed_file_is_refused) {
  fixture_t f;
  if (!begin(&f, "1M")) return;
  tpui_disk_cache_t disk = {0};
  TPU_REQUIRE_OK(tpui_disk_create(&disk));
  tpu_digest_t first = {.lo = 1, .hi = 2}, second = {.lo = 1, .hi = 3};
  TPU_EXPECT(tpui_disk_write(&disk, first, "content", 7));
  char hex[2][33], from[256], to[256];
  tpu_digest_hex(first, hex[0]);
  tpu_digest_hex(second, hex[1]);
  (void)snprintf(from, sizeof(from), "%s/%.2s/%s.bin", f.folder, hex[0], hex[0]);
  (void)snprintf(to, sizeof(to), "%s/%.2s", f.folder, hex[1]);
  (void)mkdir(to, 0700);
  (void)snprintf(to, sizeof(to), "%s/%.2s/%s.bin", f.folder, hex[1], hex[1]);
  TPU_EXPECT_EQ(rename(from, to), 0);
  void* bytes = NULL;
  size_t size = 0;
  TPU_EXPECT_EQ(tpui_disk_read(&disk, second, &bytes, &size), TPUI_DISK_REJECT);
  TPU_EXPECT_EQ(tpui_disk_read(&disk, second, &bytes, &size), TPUI_DISK_MISS);
  TPU_EXPECT(bytes == NULL);
  tpui_disk_destroy(&disk);
  end(&f);
}

static int64_t folder_bytes(const fixture_t* f) {
  char command[160];
  (void)snprintf(command, sizeof(command),
                 "find %s -type f -printf '%%s\\n' | awk '{ s += $1 } END { print s + 0 }'",
                 f->folder);
  FILE* pipe = popen(command, "r");
  if (pipe == NULL) return -1;
  long long bytes = -1;
  if (fscanf(pipe, "%lld", &bytes) != 1) bytes = -1;
  (void)pclose(pipe);
  return bytes;
}

/* Files are a bit over 4 KB; 64 KB hold 15 of them. */
TPU_TEST(compile_disk_cache_is_bounded) {
  fixture_t f;
  if (!begin(&f, "64K")) return;
  enum { PADDING = 4000 };
  struct timespec pause = {.tv_nsec = 12000000};  // file times have a coarse clock
  for (int i = 1; i <= 12; ++i) TPU_EXPECT_OK(get_padded(f.compiler, i, PADDING, false));
  (void)nanosleep(&pause, NULL);
  tpu_compiler_clear_memory(f.compiler);
  TPU_EXPECT_OK(get_padded(f.compiler, 1, PADDING, false));  // used again: the youngest now
  TPU_EXPECT_EQ(stats_of(&f).disk_hits, 1);
  (void)nanosleep(&pause, NULL);
  for (int i = 13; i <= 22; ++i) TPU_EXPECT_OK(get_padded(f.compiler, i, PADDING, false));
  int64_t bytes = folder_bytes(&f);
  TPU_EXPECT(bytes > 16 * 1024 && bytes <= 64 * 1024);
  tpu_compiler_clear_memory(f.compiler);
  tpu_compiler_reset_stats(f.compiler);
  TPU_EXPECT_OK(get_padded(f.compiler, 1, PADDING, false));
  TPU_EXPECT_OK(get_padded(f.compiler, 22, PADDING, false));
  TPU_EXPECT_EQ(stats_of(&f).disk_hits, 2);
  TPU_EXPECT_OK(get_padded(f.compiler, 2, PADDING, false));  // the oldest is gone
  TPU_EXPECT_EQ(stats_of(&f).disk_hits, 2);
  /* What is larger than the whole cache is not written. */
  TPU_EXPECT_OK(get_padded(f.compiler, 30, 70 * 1024, false));
  TPU_EXPECT_EQ(stats_of(&f).disk_writes, 1);
  end(&f);
}

TPU_TEST(compile_eviction_leaves_foreign_files) {
  fixture_t f;
  if (!begin(&f, "64K")) return;
  char path[256];
  (void)snprintf(path, sizeof(path), "%s/README", f.folder);
  FILE* file = fopen(path, "w");
  TPU_REQUIRE(file != NULL);
  (void)fputs("mine", file);
  (void)fclose(file);
  /* A temporary file of a process that died a day ago. */
  (void)snprintf(path, sizeof(path), "%s/ab", f.folder);
  (void)mkdir(path, 0700);
  (void)snprintf(path, sizeof(path), "%s/ab/abababababababababababababababab.bin.tmp.1.2",
                 f.folder);
  file = fopen(path, "w");
  TPU_REQUIRE(file != NULL);
  (void)fclose(file);
  struct timespec old[2] = {{.tv_sec = time(NULL) - 86400}, {.tv_sec = time(NULL) - 86400}};
  TPU_EXPECT_EQ(utimensat(AT_FDCWD, path, old, 0), 0);
  TPU_EXPECT_OK(get(f.compiler, 1));
  TPU_EXPECT_OK(tpui_disk_evict(f.folder, 0));
  TPU_EXPECT(access(path, F_OK) != 0);
  (void)snprintf(path, sizeof(path), "%s/README", f.folder);
  TPU_EXPECT(access(path, F_OK) == 0);
  TPU_EXPECT_EQ(folder_bytes(&f), 4);
  TPU_EXPECT_CODE(tpui_disk_evict("/nonexistent", 0), TPU_UNAVAILABLE);
  end(&f);
}

TPU_TEST(compile_unwritable_folder_does_not_fail_the_run) {
  fixture_t f;
  if (!begin(&f, "1M")) return;
  close_compiler(&f);
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_CACHE_DIR, "/proc/self/no/such/folder"));
  TPU_REQUIRE_OK(open_compiler(&f));
  TPU_EXPECT_OK(get(f.compiler, 1));
  TPU_EXPECT_OK(get(f.compiler, 2));
  TPU_EXPECT_EQ(stats_of(&f).compiles, 2);
  TPU_EXPECT_EQ(stats_of(&f).disk_writes, 0);
  end(&f);
}

/* Several processes with one folder: every file is whole, nothing is refused. */
TPU_TEST(compile_many_processes) {
  fixture_t f;
  if (!begin(&f, "64K")) return;  // small: eviction runs all the time
  close_compiler(&f);
  enum { PROCESSES = 4 };
  pid_t children[PROCESSES];
  for (int p = 0; p < PROCESSES; ++p) {
    children[p] = fork();
    TPU_REQUIRE(children[p] >= 0);
    if (children[p] != 0) continue;
    bool ok = tpu_status_code(open_compiler(&f)) == TPU_OK;
    for (int round = 0; ok && round < 5; ++round) {
      for (int i = 1; ok && i <= 30; ++i) {
        tpu_status_t status = get_padded(f.compiler, i, 3000, false);
        ok = status == NULL;
        tpu_status_free(status);
      }
      tpu_compiler_clear_memory(f.compiler);
    }
    ok = ok && stats_of(&f).disk_rejects == 0 && stats_of(&f).disk_hits > 0;
    close_compiler(&f);
    _exit(ok && f.fake->live() == 0 ? 0 : 1);
  }
  for (int p = 0; p < PROCESSES; ++p) {
    int status = -1;
    TPU_EXPECT_EQ(waitpid(children[p], &status, 0), children[p]);
    TPU_EXPECT_EQ(status, 0);
  }
  TPU_EXPECT(folder_bytes(&f) <= 64 * 1024 + 4 * 4096);
  end(&f);
}

/* --- keys and dumps --- */

static tpu_digest_t key_of(const char* first, const char* second) {
  tpui_key_t key;
  tpui_key_begin(&key);
  tpui_key_add(&key, "a", first, strlen(first));
  tpui_key_add(&key, "b", second, strlen(second));
  return tpui_key_end(&key);
}

TPU_TEST(compile_key_keeps_parts_apart) {
  tpu_digest_t base = key_of("xb", "z");
  tpu_digest_t same = key_of("xb", "z");
  tpu_digest_t moved = key_of("x", "bz");  // the same bytes in a row: "a" "x" "b" "bz"
  TPU_EXPECT(base.lo == same.lo && base.hi == same.hi);
  TPU_EXPECT(base.lo != moved.lo || base.hi != moved.hi);
}

TPU_TEST(compile_key_follows_compiler_flags) {
  fixture_t f;
  if (!begin(&f, "1M")) return;
  TPU_EXPECT_OK(get(f.compiler, 1));
  close_compiler(&f);
  (void)setenv("XLA_FLAGS", "--xla_cpu_max_isa=AVX2", 1);
  TPU_REQUIRE_OK(open_compiler(&f));
  TPU_EXPECT_OK(get(f.compiler, 1));
  (void)unsetenv("XLA_FLAGS");
  TPU_EXPECT_EQ(stats_of(&f).disk_hits, 0);
  TPU_EXPECT_EQ(stats_of(&f).compiles, 1);
  end(&f);
}

TPU_TEST(compile_dumps_text) {
  fixture_t f;
  if (!begin(&f, "1M")) return;
  char dumps[128], command[200];
  (void)snprintf(dumps, sizeof(dumps), "%s/dumps", f.folder);
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_DUMP_DIR, dumps));
  TPU_EXPECT_OK(get(f.compiler, 1));
  (void)snprintf(command, sizeof(command), "grep -q 'module @m1 ' %s/*.mlir", dumps);
  TPU_EXPECT_EQ(system(command), 0);
  tpu_executable_t* executable = NULL;
  tpu_status_t status = tpu_compiler_get(f.compiler, "module {", 8, NULL, &executable);
  TPU_EXPECT(strstr(tpu_status_message(status), dumps) != NULL);  // says where the text is
  TPU_EXPECT_CODE(status, TPU_UNKNOWN);
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_DUMP_DIR, "/proc/self/nowhere"));
  TPU_EXPECT_OK(get(f.compiler, 2));  // a failed dump does not stop the run
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_DUMP_DIR, NULL));
  end(&f);
}

/* --- everything fails once --- */

static tpu_status_t whole_life(void* argument) {
  fixture_t* f = argument;
  tpu_status_t status = open_compiler(f);
  if (status == NULL) status = get(f->compiler, 1);
  if (status == NULL) status = get(f->compiler, 1);
  if (status == NULL) {
    tpu_compiler_clear_memory(f->compiler);
    status = get(f->compiler, 1);
  }
  close_compiler(f);
  return status;
}

TPU_TEST(compile_every_allocation_may_fail) {
  fixture_t f;
  if (!begin(&f, "1M")) return;
  close_compiler(&f);
  TPU_EXPECT_OK(whole_life(&f));
  TPU_EXPECT(TPU_OOM_SWEEP(whole_life, &f) > 20);  // programs come from disk
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_CACHE_DIR, "/proc/self/no"));
  TPU_EXPECT(TPU_OOM_SWEEP(whole_life, &f) > 20);  // programs are compiled
  TPU_EXPECT_EQ(f.fake->live(), 0);
  end(&f);
}

TPU_TEST(compile_every_pjrt_call_may_fail) {
  fixture_t f;
  if (!begin(&f, "1M")) return;
  close_compiler(&f);
  for (int64_t n = 1; n < 1000; ++n) {
    remove_tree(f.folder);
    f.fake->fail_at(n, 13);
    tpu_status_t status = whole_life(&f);
    bool done = f.fake->fail_pending();
    TPU_EXPECT(status == NULL || strstr(tpu_status_message(status), "injected failure") != NULL);
    tpu_status_free(status);
    TPU_EXPECT_EQ(f.fake->live(), 0);
    f.fake->fail_at(0, 0);
    if (done) {
      TPU_EXPECT(n > 20);
      break;
    }
  }
  end(&f);
}

/* --- a real CPU plugin --- */

/* max(1, NaN) and max(NaN, 1) through both compile modes: our default options must keep the NaN. */
static void expect_nan(tpu_device_t* device, tpu_compiler_t* compiler, bool small) {
  static const char text[] =
      "module { func.func public @main(%a: tensor<2xf32>, %b: tensor<2xf32>) -> tensor<2xf32> {"
      " %0 = stablehlo.maximum %a, %b : tensor<2xf32>\n return %0 : tensor<2xf32> } }";
  tpu_compile_options_t options = {.small = small};
  tpu_executable_t* executable = NULL;
  TPU_REQUIRE_OK(tpu_compiler_get(compiler, text, sizeof(text) - 1, &options, &executable));
  float left[2] = {1, NAN}, right[2] = {NAN, 1}, result[2] = {0, 0};
  int64_t size = 2, bytes = 8;
  tpu_buffer_t *inputs[2] = {NULL, NULL}, *output = NULL;
  TPU_EXPECT_OK(tpu_buffer_from_host(device, left, TPU_F32, 1, &size, &inputs[0]));
  TPU_EXPECT_OK(tpu_buffer_from_host(device, right, TPU_F32, 1, &size, &inputs[1]));
  TPU_EXPECT_OK(tpu_executable_run(executable, 2, inputs, NULL, NULL, &bytes, &output));
  TPU_EXPECT_OK(tpu_buffer_read(output, 0, result, 8));
  TPU_EXPECT(isnan(result[0]) && isnan(result[1]));
  tpu_buffer_release(output);
  tpu_buffer_release(inputs[0]);
  tpu_buffer_release(inputs[1]);
  tpu_executable_release(executable);
}

TPU_TEST(compile_real_cpu_plugin) {
  const char* path = getenv("TORCH_TPU_PJRT_PLUGIN");
  if (path == NULL) {
    tpu_test_skip("TORCH_TPU_PJRT_PLUGIN is not set");
    return;
  }
  char folder[] = "/tmp/tpu_test_compile_XXXXXX";
  TPU_REQUIRE(mkdtemp(folder) != NULL);
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_CACHE_DIR, folder));
  tpu_device_options_t options = {.plugin_path = path};
  for (int life = 0; life < 2; ++life) {  // compiled, then loaded from disk
    tpu_device_t* device = NULL;
    tpu_compiler_t* compiler = NULL;
    TPU_REQUIRE_OK(tpu_device_create(&options, &device));
    TPU_REQUIRE_OK(tpu_compiler_create(device, &compiler));
    expect_nan(device, compiler, false);
    expect_nan(device, compiler, true);
    tpu_compile_stats_t stats;
    tpu_compiler_stats(compiler, &stats);
    TPU_EXPECT_EQ(stats.compiles, life == 0 ? 2 : 0);
    TPU_EXPECT_EQ(stats.disk_hits, life == 0 ? 0 : 2);
    tpu_compiler_destroy(compiler);
    tpu_device_destroy(device);
  }
  remove_tree(folder);
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_CACHE_DIR, NULL));
}
