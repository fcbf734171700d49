/* Files of the compile cache that were damaged, exchanged or made up: what is read is exactly what
 * was written, or nothing is. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/env.h"
#include "compile/compile_internal.h"
#include "test.h"

enum { ROUNDS = 3000, EXCHANGES = 120, MAX_SIZE = 300, HEADER_SIZE = 56, KEYS = 2 };

typedef struct entry_t {
  tpu_digest_t key;
  char path[128];
  uint8_t content[MAX_SIZE];
  size_t size;
} entry_t;

typedef struct fixture_t {
  char folder[64];
  tpui_disk_cache_t disk;
  entry_t entries[KEYS];
} fixture_t;

static uint64_t state;

static int64_t pick(int64_t low, int64_t high) { return tpu_test_random_range(&state, low, high); }

static void write_entry(fixture_t* f, int k) {
  entry_t* e = &f->entries[k];
  e->size = (size_t)pick(1, MAX_SIZE);
  for (size_t i = 0; i < e->size; ++i) e->content[i] = (uint8_t)pick(0, 255);
  TPU_EXPECT(tpui_disk_write(&f->disk, e->key, e->content, e->size));
}

static bool begin(fixture_t* f) {
  memset(f, 0, sizeof(*f));
  (void)snprintf(f->folder, sizeof(f->folder), "/tmp/tpu_fuzz_disk_XXXXXX");
  if (mkdtemp(f->folder) == NULL) return false;
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_CACHE, "1"));
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_CACHE_DIR, f->folder));
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_CACHE_SIZE, "64M"));
  TPU_EXPECT_OK(tpui_disk_create(&f->disk));
  for (int k = 0; k < KEYS; ++k) {
    entry_t* e = &f->entries[k];
    char hex[33];
    e->key = (tpu_digest_t){.lo = (uint64_t)k + 1, .hi = 9};
    tpu_digest_hex(e->key, hex);
    (void)snprintf(e->path, sizeof(e->path), "%s/%.2s/%s.bin", f->folder, hex, hex);
    write_entry(f, k);
  }
  return true;
}

static void end(fixture_t* f) {
  char command[96];
  tpui_disk_destroy(&f->disk);
  (void)snprintf(command, sizeof(command), "rm -rf '%s'", f->folder);
  TPU_EXPECT_EQ(system(command), 0);
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_CACHE, NULL));
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_CACHE_DIR, NULL));
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_CACHE_SIZE, NULL));
}

/* Reads a key. A hit must give the content that was written under it. */
static tpui_disk_result_t read_entry(fixture_t* f, int k) {
  const entry_t* e = &f->entries[k];
  void* bytes = NULL;
  size_t size = 0;
  tpui_disk_result_t result = tpui_disk_read(&f->disk, e->key, &bytes, &size);
  bool right = bytes != NULL && size == e->size && memcmp(bytes, e->content, size) == 0;
  bool nothing = bytes == NULL && size == 0;
  TPU_EXPECT(result == TPUI_DISK_HIT ? right : nothing);
  tpu_free(bytes);
  return result;
}

/* --- damages; each leaves a file that differs from what was written --- */

static void flip_bits(int file, size_t size) {
  for (int64_t n = pick(1, 4); n > 0; --n) {
    uint8_t byte = 0;
    off_t at = (off_t)pick(0, pick(0, 1) == 0 ? HEADER_SIZE - 1 : (int64_t)size - 1);
    TPU_EXPECT_EQ(pread(file, &byte, 1, at), 1);
    byte ^= (uint8_t)(1 << pick(0, 7));  // twice the same bit is possible, see damage_entry
    TPU_EXPECT_EQ(pwrite(file, &byte, 1, at), 1);
  }
}

/* A field of the header gets another number: sizes beyond the file, negative ones, zero. */
static void change_field(int file) {
  static const struct {
    off_t at;
    size_t size;
  } fields[] = {{8, 4}, {12, 4}, {32, 8}};  // version, header size, content size
  static const int64_t numbers[] = {0,  -1,        1,         55,        56,
                                    57, INT64_MAX, INT64_MIN, 1LL << 32, 1LL << 40};
  size_t field = (size_t)pick(0, 2);
  int64_t number = numbers[pick(0, 9)];
  TPU_EXPECT_EQ(pwrite(file, &number, fields[field].size, fields[field].at),
                (int64_t)fields[field].size);
}

static void write_noise(int file, size_t size) {
  uint8_t noise[HEADER_SIZE + MAX_SIZE];
  for (size_t i = 0; i < size; ++i) noise[i] = (uint8_t)pick(0, 255);
  TPU_EXPECT_EQ(pwrite(file, noise, size, 0), (int64_t)size);
}

static void append_bytes(int file, size_t size) {
  uint8_t more[8] = {0};
  TPU_EXPECT(pwrite(file, more, (size_t)pick(1, 8), (off_t)size) > 0);
}

/* Longer with a size that says so, and a hole that reads as zeros. */
static void grow_with_header(int file) {
  int64_t size = pick(MAX_SIZE + 1, 1 << 16);
  TPU_EXPECT_EQ(ftruncate(file, HEADER_SIZE + size), 0);
  TPU_EXPECT_EQ(pwrite(file, &size, 8, 32), 8);
}

static void damage_file(const char* path, size_t size) {
  int file = open(path, O_RDWR);
  TPU_REQUIRE(file >= 0);
  switch (pick(0, 5)) {
    case 0: flip_bits(file, size); break;
    case 1: change_field(file); break;
    case 2: TPU_EXPECT_EQ(ftruncate(file, (off_t)pick(0, (int64_t)size - 1)), 0); break;
    case 3: append_bytes(file, size); break;
    case 4: write_noise(file, size); break;
    default: grow_with_header(file); break;
  }
  (void)close(file);
}

/* The bytes of a file; gives how many, at most `room`. */
static size_t load_file(const char* path, uint8_t* bytes, size_t room) {
  FILE* file = fopen(path, "rb");
  if (file == NULL) return 0;
  size_t size = fread(bytes, 1, room, file);
  (void)fclose(file);
  return size;
}

/* Damages the file of a key; false when it came out as it was. */
static bool damage_entry(const entry_t* e) {
  uint8_t before[HEADER_SIZE + MAX_SIZE + 16], after[sizeof before];
  size_t size = load_file(e->path, before, sizeof before);
  TPU_EXPECT_EQ(size, HEADER_SIZE + e->size);
  damage_file(e->path, size);
  return load_file(e->path, after, sizeof after) != size || memcmp(before, after, size) != 0;
}

TPU_TEST(fuzz_disk_damaged_files) {
  fixture_t f;
  state = tpu_test_seed();
  if (!begin(&f)) return;
  for (int n = 0; n < ROUNDS && !tpu_test_failed(); ++n) {
    int k = (int)pick(0, KEYS - 1);
    if (damage_entry(&f.entries[k])) {
      TPU_EXPECT_EQ(read_entry(&f, k), TPUI_DISK_REJECT);
      TPU_EXPECT_EQ(read_entry(&f, k), TPUI_DISK_MISS);  // it was deleted
      write_entry(&f, k);
    }
    TPU_EXPECT_EQ(read_entry(&f, k), TPUI_DISK_HIT);
    if (tpu_test_failed()) printf("round %d\n", n);
  }
  end(&f);
}

/* A good file in another's place, its content under another's header, and mixtures of both. */
TPU_TEST(fuzz_disk_exchanged_files) {
  fixture_t f;
  state = tpu_test_seed();
  if (!begin(&f)) return;
  for (int n = 0; n < EXCHANGES && !tpu_test_failed(); ++n) {
    uint8_t bytes[2][HEADER_SIZE + MAX_SIZE];
    size_t sizes[2];
    for (int k = 0; k < 2; ++k) {
      write_entry(&f, k);
      sizes[k] = load_file(f.entries[k].path, bytes[k], sizeof(bytes[k]));
    }
    size_t cut = (size_t)pick(0, pick(0, 1) == 0 ? HEADER_SIZE : (int64_t)sizes[0]);
    FILE* file = fopen(f.entries[0].path, "wb");
    TPU_REQUIRE(file != NULL);
    (void)fwrite(bytes[0], 1, cut, file);
    if (cut < sizes[1]) (void)fwrite(bytes[1] + cut, 1, sizes[1] - cut, file);
    (void)fclose(file);
    bool whole = cut == sizes[0] && sizes[1] <= cut;
    TPU_EXPECT_EQ(read_entry(&f, 0), (whole ? TPUI_DISK_HIT : TPUI_DISK_REJECT));
    TPU_EXPECT_EQ(read_entry(&f, 1), TPUI_DISK_HIT);
  }
  end(&f);
}

/* A hole of a terabyte with a header that fits it: refused before memory is asked for. */
TPU_TEST(fuzz_disk_huge_file) {
  fixture_t f;
  state = tpu_test_seed();
  if (!begin(&f)) return;
  for (int shift = 30; shift <= 40; shift += 5) {
    uint64_t size = (uint64_t)1 << shift;
    int file = open(f.entries[0].path, O_RDWR);
    TPU_REQUIRE(file >= 0);
    bool made =
        ftruncate(file, (off_t)(HEADER_SIZE + size)) == 0 && pwrite(file, &size, 8, 32) == 8;
    (void)close(file);
    int64_t allocated = tpu_alloc_total_count();
    if (made) TPU_EXPECT_EQ(read_entry(&f, 0), TPUI_DISK_REJECT);
    TPU_EXPECT(tpu_alloc_total_count() - allocated < 8);
    write_entry(&f, 0);
  }
  end(&f);
}
