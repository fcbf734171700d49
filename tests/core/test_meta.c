#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "test.h"
#include "types/meta.h"

TPU_TEST(dtype_table_is_consistent) {
  for (int d = 1; d < TPU_DTYPE_COUNT; ++d) {
    tpu_dtype_t dtype = (tpu_dtype_t)d;
    TPU_EXPECT_EQ(tpu_dtype_from_torch(tpu_dtype_torch(dtype)), dtype);
    TPU_EXPECT_EQ(tpu_dtype_from_pjrt(tpu_dtype_pjrt(dtype)), dtype);
    TPU_EXPECT(tpu_dtype_bytes(dtype) > 0);
    TPU_EXPECT(tpu_dtype_hlo(dtype)[0] != '\0');
  }
}

TPU_TEST(dtype_rows_and_invalid) {
  TPU_EXPECT_TEXT(tpu_dtype_name(TPU_BF16), "bfloat16");
  TPU_EXPECT_TEXT(tpu_dtype_hlo(TPU_C64), "complex<f32>");
  TPU_EXPECT_EQ(tpu_dtype_bytes(TPU_C128), 16);
  TPU_EXPECT(tpu_dtype_is_float(TPU_F8E5M2));
  TPU_EXPECT(!tpu_dtype_is_float(TPU_C64));
  TPU_EXPECT(tpu_dtype_is_integral(TPU_BOOL));
  TPU_EXPECT(!tpu_dtype_is_integral(TPU_F16));
  for (int bad = -1; bad <= TPU_DTYPE_COUNT; bad += TPU_DTYPE_COUNT + 1) {
    TPU_EXPECT_TEXT(tpu_dtype_name((tpu_dtype_t)bad), "invalid");
    TPU_EXPECT_EQ(tpu_dtype_bytes((tpu_dtype_t)bad), 0);
  }
  TPU_EXPECT_EQ(tpu_dtype_torch(TPU_DTYPE_INVALID), -1);
  TPU_EXPECT_EQ(tpu_dtype_from_torch(99), TPU_DTYPE_INVALID);
  TPU_EXPECT_EQ(tpu_dtype_from_pjrt(-1), TPU_DTYPE_INVALID);
}

/* The bit patterns next to the edge, low and high half of complex numbers alike. */
TPU_TEST(dtype_finds_nonfinite_numbers) {
  const float floats[4] = {1.0f, 3.4028235e38f, -INFINITY, 0.0f};
  TPU_EXPECT(tpu_dtype_all_finite(TPU_F32, floats, 8));
  TPU_EXPECT(!tpu_dtype_all_finite(TPU_F32, floats, sizeof(floats)));
  TPU_EXPECT(!tpu_dtype_all_finite(TPU_C64, floats, sizeof(floats)));
  TPU_EXPECT(!tpu_dtype_all_finite(TPU_C64, (const float[2]){0.0f, NAN}, 8));
  TPU_EXPECT(!tpu_dtype_all_finite(TPU_F64, (const double[2]){1e308, (double)NAN}, 16));
  TPU_EXPECT(tpu_dtype_all_finite(TPU_F64, (const double[2]){1e308, -1e308}, 16));
  const uint16_t halves[4] = {0x7bff, 0xfbff, 0x7c00, 0x7e00};
  TPU_EXPECT(tpu_dtype_all_finite(TPU_F16, halves, 4));
  TPU_EXPECT(!tpu_dtype_all_finite(TPU_F16, halves, 6));
  TPU_EXPECT(tpu_dtype_all_finite(TPU_BF16, (const uint16_t[2]){0x7f7f, 0xff7f}, 4));
  TPU_EXPECT(!tpu_dtype_all_finite(TPU_BF16, (const uint16_t[1]){0xff80}, 2));
  TPU_EXPECT(tpu_dtype_all_finite(TPU_F8E4M3FN, (const uint8_t[2]){0x7e, 0xfe}, 2));
  TPU_EXPECT(!tpu_dtype_all_finite(TPU_F8E4M3FN, (const uint8_t[1]){0xff}, 1));
  TPU_EXPECT(!tpu_dtype_all_finite(TPU_F8E5M2, (const uint8_t[1]){0x7c}, 1));
  TPU_EXPECT(tpu_dtype_all_finite(TPU_I64, (const int64_t[2]){-1, INT64_MAX}, 16));
  TPU_EXPECT(tpu_dtype_all_finite(TPU_F32, floats, 0));
}

static tpu_meta_id_t intern(int rank, const int64_t* sizes, const int64_t* strides) {
  tpu_meta_id_t id;
  TPU_EXPECT_OK(tpu_meta_intern(TPU_F32, rank, sizes, strides, &id));
  return id;
}
#define INTERN(rank, sizes, strides) intern(rank, (int64_t[])sizes, (int64_t[])strides)
#define D(...) {__VA_ARGS__}

TPU_TEST(meta_equal_means_same_id) {
  tpu_meta_id_t a = INTERN(2, D(3, 4), D(4, 1));
  TPU_EXPECT(a != 0);
  TPU_EXPECT_EQ(a, INTERN(2, D(3, 4), D(4, 1)));
  TPU_EXPECT(a != INTERN(2, D(4, 3), D(4, 1)));
  TPU_EXPECT(a != INTERN(2, D(3, 4), D(1, 3)));
  tpu_meta_id_t b;
  TPU_EXPECT_OK(tpu_meta_intern(TPU_F64, 2, (int64_t[]){3, 4}, (int64_t[]){4, 1}, &b));
  TPU_EXPECT(a != b);
  TPU_EXPECT_OK(tpu_meta_intern_contiguous(TPU_F32, 2, (int64_t[]){3, 4}, &b));
  TPU_EXPECT_EQ(a, b);
}

TPU_TEST(meta_facts) {
  const tpu_meta_t* m = tpu_meta_get(INTERN(2, D(3, 4), D(4, 1)));
  TPU_EXPECT(m->contiguous && m->row_major && m->dense);
  TPU_EXPECT_EQ(m->numel, 12);
  TPU_EXPECT_EQ(m->span, 12);
  TPU_EXPECT_EQ(tpu_meta_bytes(m), 48);
  m = tpu_meta_get(INTERN(2, D(4, 3), D(1, 4)));
  TPU_EXPECT(!m->contiguous && m->dense);
  m = tpu_meta_get(INTERN(2, D(4, 3), D(6, 2)));
  TPU_EXPECT(!m->contiguous && !m->dense);
  TPU_EXPECT_EQ(m->span, 1 + 18 + 4);
  m = tpu_meta_get(INTERN(2, D(1, 3), D(7, 1)));
  TPU_EXPECT(m->contiguous && !m->row_major && m->dense);
  m = tpu_meta_get(INTERN(2, D(0, 3), D(1, 4)));
  TPU_EXPECT(m->contiguous && !m->row_major && m->dense);
  m = tpu_meta_get(INTERN(2, D(0, 3), D(3, 1)));
  TPU_EXPECT(m->row_major);
  m = tpu_meta_get(INTERN(2, D(4, 3), D(0, 1)));
  TPU_EXPECT(!m->dense);
  TPU_EXPECT_EQ(m->span, 3);
  m = tpu_meta_get(INTERN(3, D(1, 5, 1), D(99, 1, 7)));  // strides of size-1 dimensions are free
  TPU_EXPECT(m->contiguous && m->dense);
  TPU_EXPECT_EQ(m->strides[0], 99);
  m = tpu_meta_get(INTERN(2, D(5, 0), D(7, 7)));
  TPU_EXPECT(m->contiguous && m->dense);
  TPU_EXPECT_EQ(m->numel, 0);
  TPU_EXPECT_EQ(m->span, 0);
  m = tpu_meta_get(intern(0, NULL, NULL));
  TPU_EXPECT(m->contiguous && m->dense);
  TPU_EXPECT_EQ(m->numel, 1);
  m = tpu_meta_get(INTERN(2, D(2, 2), D(1, 1)));  // overlaps
  TPU_EXPECT(!m->dense);
}

TPU_TEST(meta_refuses_what_it_cannot_hold) {
  tpu_meta_id_t id = 7;
  int64_t ones[TPU_MAX_RANK + 1];
  for (int i = 0; i <= TPU_MAX_RANK; ++i) ones[i] = 1;
  TPU_EXPECT_OK(tpu_meta_intern(TPU_F32, TPU_MAX_RANK, ones, ones, &id));
  TPU_EXPECT(id != 0);
  TPU_EXPECT_CODE(tpu_meta_intern(TPU_F32, TPU_MAX_RANK + 1, ones, ones, &id),
                  TPU_INVALID_ARGUMENT);
  TPU_EXPECT_EQ(id, 0);
  TPU_EXPECT_CODE(tpu_meta_intern_contiguous(TPU_F32, TPU_MAX_RANK + 1, ones, &id),
                  TPU_INVALID_ARGUMENT);
  TPU_EXPECT_CODE(tpu_meta_intern(TPU_F32, -1, ones, ones, &id), TPU_INVALID_ARGUMENT);
  TPU_EXPECT_CODE(tpu_meta_intern_contiguous(TPU_F32, -1, ones, &id), TPU_INVALID_ARGUMENT);
  TPU_EXPECT_CODE(tpu_meta_intern(TPU_DTYPE_INVALID, 1, ones, ones, &id), TPU_INVALID_ARGUMENT);
  int64_t negative[] = {-1};
  TPU_EXPECT_CODE(tpu_meta_intern(TPU_F32, 1, negative, ones, &id), TPU_INVALID_ARGUMENT);
  TPU_EXPECT_CODE(tpu_meta_intern(TPU_F32, 1, ones, negative, &id), TPU_INVALID_ARGUMENT);
  TPU_EXPECT_CODE(tpu_meta_intern_contiguous(TPU_F32, 1, negative, &id), TPU_INVALID_ARGUMENT);
}

TPU_TEST(meta_refuses_overflow) {
  tpu_meta_id_t id;
  int64_t huge[] = {1ll << 40, 1ll << 40}, bytes[] = {1ll << 62}, empty[] = {1ll << 40, 0};
  int64_t one[] = {1, 1}, far[] = {1ll << 61, 1}, two[] = {2, 2};
  TPU_EXPECT_CODE(tpu_meta_intern_contiguous(TPU_F32, 2, huge, &id), TPU_INVALID_ARGUMENT);
  TPU_EXPECT_CODE(tpu_meta_intern(TPU_F32, 2, huge, one, &id), TPU_INVALID_ARGUMENT);
  TPU_EXPECT_CODE(tpu_meta_intern(TPU_F32, 1, bytes, one, &id), TPU_INVALID_ARGUMENT);
  TPU_EXPECT_CODE(tpu_meta_intern(TPU_F64, 2, two, far, &id), TPU_INVALID_ARGUMENT);
  TPU_EXPECT_OK(tpu_meta_intern(TPU_U8, 1, bytes, one, &id));
  TPU_EXPECT_OK(tpu_meta_intern_contiguous(TPU_F32, 2, empty, &id));
  TPU_EXPECT_EQ(tpu_meta_get(id)->numel, 0);
}

TPU_TEST(meta_get_of_unknown_ids) {
  TPU_EXPECT(tpu_meta_get(0) == NULL);
  TPU_EXPECT(tpu_meta_get(1u << 30) == NULL);
  TPU_EXPECT(tpu_meta_get(UINT32_MAX) == NULL);
}

// Through several growths of the table and several chunks.
TPU_TEST(meta_many) {
  enum { COUNT = 30000 };
  static tpu_meta_id_t ids[COUNT];
  for (int64_t i = 0; i < COUNT; ++i) ids[i] = INTERN(2, D(i + 1, 3), D(3, 1));
  for (int64_t i = 0; i < COUNT; ++i) {
    const tpu_meta_t* meta = tpu_meta_get(ids[i]);
    TPU_REQUIRE(meta != NULL && meta->sizes[0] == i + 1);
    TPU_REQUIRE(ids[i] == INTERN(2, D(i + 1, 3), D(3, 1)));
  }
}

static void* intern_from_thread(void* arg) {
  tpu_meta_id_t* ids = arg;
  for (int64_t i = 0; i < 5000; ++i) {
    int64_t sizes[] = {i % 2500 + 1, 17, 2};
    if (tpu_meta_intern_contiguous(TPU_I16, 3, sizes, &ids[i]) != NULL) ids[i] = 0;
    const tpu_meta_t* meta = tpu_meta_get(ids[i]);
    if (meta == NULL || meta->sizes[0] != i % 2500 + 1 || meta->numel != sizes[0] * 34) ids[i] = 0;
  }
  return NULL;
}

TPU_TEST(meta_threads_agree) {
  enum { THREADS = 4 };
  static tpu_meta_id_t ids[THREADS][5000];
  pthread_t threads[THREADS];
  for (int t = 0; t < THREADS; ++t) {
    TPU_REQUIRE(pthread_create(&threads[t], NULL, intern_from_thread, ids[t]) == 0);
  }
  for (int t = 0; t < THREADS; ++t) pthread_join(threads[t], NULL);
  for (int t = 0; t < THREADS; ++t) {
    for (int i = 0; i < 5000; ++i) TPU_REQUIRE(ids[t][i] != 0 && ids[t][i] == ids[0][i % 2500]);
  }
}

// Interned items stay, so each run takes new sizes and the balance is checked by hand: a failed run
// must not leave anything but table memory behind, and the id must come out right afterwards.
TPU_TEST(meta_survives_every_lost_allocation) {
  int64_t failures = 0;
  for (int64_t size = 100000; size < 103000; ++size) {
    tpu_meta_id_t id;
    tpu_alloc_fail_at(1);
    tpu_status_t status = tpu_meta_intern_contiguous(TPU_I8, 1, &size, &id);
    tpu_alloc_fail_at(0);
    failures += status != NULL;
    TPU_EXPECT_EQ(id, 0);
    TPU_EXPECT_CODE(status, TPU_RESOURCE_EXHAUSTED);
    int64_t live = tpu_alloc_live_count();
    TPU_EXPECT_OK(tpu_meta_intern_contiguous(TPU_I8, 1, &size, &id));
    TPU_EXPECT(tpu_alloc_live_count() - live <= 3);  // the item; now and then a chunk and a table
    TPU_EXPECT_EQ(tpu_meta_get(id)->sizes[0], size);
  }
  TPU_EXPECT_EQ(failures, 3000);
}

TPU_TEST(meta_hit_costs_little) {
  int64_t sizes[] = {8, 128, 768}, strides[] = {128 * 768, 768, 1};
  enum { ROUNDS = 200000 };
  uint64_t sum = 0;
  int64_t best = INT64_MAX;
  for (int repeat = 0; repeat < 5; ++repeat) {
    int64_t begin = tpu_clock_ns();
    for (int i = 0; i < ROUNDS; ++i) {
      tpu_meta_id_t id;
      TPU_REQUIRE(tpu_meta_intern(TPU_F32, 3, sizes, strides, &id) == NULL);
      sum += id;
    }
    int64_t took = tpu_clock_ns() - begin;
    best = took < best ? took : best;
  }
  printf("  %.1f ns per hit\n", (double)best / ROUNDS);
  TPU_EXPECT(sum > 0);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  TPU_EXPECT(best / ROUNDS < 200);  // 8 to 10 ns on an idle machine
#endif
}
