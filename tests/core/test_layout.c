/* Several arrays in one allocation: places, copies, refused sizes. */
#include <string.h>

#include "base/layout.h"
#include "test.h"

typedef struct odd_t {
  char text[3];
} odd_t;
typedef struct wide_t {
  int64_t numbers[3];
} wide_t;

TPU_TEST(layout_fields_are_aligned_and_apart) {
  uint64_t seed = 7;
  for (int round = 0; round < 200; ++round) {
    size_t counts[6];
    for (int k = 0; k < 6; ++k) counts[k] = (size_t)tpu_test_random_range(&seed, 0, 9);
    char* bytes = NULL;
    uint16_t* shorts = NULL;
    odd_t* odds = NULL;
    wide_t* wides = NULL;
    void** pointers = NULL;
    long double* longs = NULL;
    tpu_layout_t layout;
    tpu_layout_init(&layout);
    TPU_LAYOUT_ADD(&layout, bytes, counts[0]);
    TPU_LAYOUT_ADD(&layout, wides, counts[1]);
    TPU_LAYOUT_ADD(&layout, odds, counts[2]);
    TPU_LAYOUT_ADD(&layout, shorts, counts[3]);
    TPU_LAYOUT_ADD(&layout, longs, counts[4]);
    TPU_LAYOUT_ADD(&layout, pointers, counts[5]);
    void* memory = NULL;
    TPU_REQUIRE_OK(tpu_layout_allocate(&layout, &memory));
    TPU_REQUIRE(bytes && wides && odds && shorts && longs && pointers);
    TPU_EXPECT_EQ((uintptr_t)wides % _Alignof(wide_t), 0);
    TPU_EXPECT_EQ((uintptr_t)shorts % _Alignof(uint16_t), 0);
    TPU_EXPECT_EQ((uintptr_t)longs % _Alignof(long double), 0);
    TPU_EXPECT_EQ((uintptr_t)pointers % _Alignof(void*), 0);
    // Each array is filled with its own byte; none reaches into another (or out: AddressSanitizer).
    void* at[6] = {bytes, wides, odds, shorts, longs, pointers};
    size_t sizes[6] = {1, sizeof(wide_t), 3, 2, sizeof(long double), sizeof(void*)};
    for (int k = 0; k < 6; ++k) {
      for (size_t i = 0; i < counts[k] * sizes[k]; ++i) TPU_EXPECT_EQ(((char*)at[k])[i], 0);
      memset(at[k], k + 1, counts[k] * sizes[k]);
    }
    for (int k = 0; k < 6; ++k) {
      for (size_t i = 0; i < counts[k] * sizes[k]; ++i) TPU_EXPECT_EQ(((char*)at[k])[i], k + 1);
    }
    tpu_free(memory);
  }
}

TPU_TEST(layout_copies) {
  static const uint32_t given[3] = {7, 8, 9};
  const uint32_t *copy = NULL, *none = NULL;
  const char* text = NULL;
  tpu_layout_t layout;
  tpu_layout_init(&layout);
  TPU_LAYOUT_COPY(&layout, text, "name", 5);
  TPU_LAYOUT_COPY(&layout, copy, given, 3);
  TPU_LAYOUT_COPY(&layout, none, NULL, 0);
  void* memory = NULL;
  TPU_REQUIRE_OK(tpu_layout_allocate(&layout, &memory));
  TPU_EXPECT(copy != given && memcmp(copy, given, sizeof(given)) == 0);
  TPU_EXPECT_TEXT(text, "name");
  TPU_EXPECT(none != NULL);
  tpu_free(memory);
}

TPU_TEST(layout_of_nothing) {
  tpu_layout_t layout;
  tpu_layout_init(&layout);
  int* none = NULL;
  TPU_LAYOUT_ADD(&layout, none, 0);
  void* memory = NULL;
  TPU_EXPECT_OK(tpu_layout_allocate(&layout, &memory));
  TPU_EXPECT(memory != NULL && (void*)none == memory);
  tpu_free(memory);
}

TPU_TEST(layout_refuses_what_does_not_fit) {
  // count and size of two fields: a product, the sum with what came before, the rounding of that.
  static const struct {
    size_t count[2], size[2];
  } cases[] = {
      {{1, SIZE_MAX / 8 + 1}, {1, 8}},
      {{SIZE_MAX / 2, SIZE_MAX / 2}, {1, 3}},
      {{SIZE_MAX / 2 + 1, SIZE_MAX / 2 + 1}, {1, 1}},
      {{SIZE_MAX - 4, 1}, {1, 4}},
      {{SIZE_MAX - 3, 1}, {1, 16}},
      {{SIZE_MAX, 1}, {1, 1}},
      {{SIZE_MAX, 0}, {1, 16}},
  };
  int64_t live = tpu_alloc_live_count();
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
    char mark, *first = &mark, *second = &mark;
    tpu_layout_t layout;
    tpu_layout_init(&layout);
    tpu_layout_add(&layout, &first, NULL, cases[i].count[0], cases[i].size[0]);
    tpu_layout_add(&layout, &second, NULL, cases[i].count[1], cases[i].size[1]);
    TPU_LAYOUT_ADD(&layout, second, 1);  // does not make it good
    void* memory = &mark;
    TPU_EXPECT_CODE(tpu_layout_allocate(&layout, &memory), TPU_RESOURCE_EXHAUSTED);
    TPU_EXPECT(memory == NULL && first == &mark && second == &mark);
    size_t capacity = 0;
    TPU_EXPECT_CODE(tpu_layout_reuse(&layout, &memory, &capacity), TPU_RESOURCE_EXHAUSTED);
    TPU_EXPECT(memory == NULL && capacity == 0);
  }
  // It can be counted, but there is no memory.
  char mark, *all = &mark;
  tpu_layout_t layout;
  tpu_layout_init(&layout);
  TPU_LAYOUT_ADD(&layout, all, 100);
  void* memory = &mark;
  tpu_alloc_fail_at(1);
  TPU_EXPECT_CODE(tpu_layout_allocate(&layout, &memory), TPU_RESOURCE_EXHAUSTED);
  TPU_EXPECT(memory == NULL && all == &mark);
  TPU_EXPECT_EQ(tpu_alloc_live_count(), live);
}

TPU_TEST(layout_refuses_too_many_fields) {
  int* numbers = NULL;
  tpu_layout_t layout;
  tpu_layout_init(&layout);
  for (int i = 0; i <= TPU_LAYOUT_MAX_FIELDS; ++i) TPU_LAYOUT_ADD(&layout, numbers, 1);
  void* memory = NULL;
  TPU_EXPECT_CODE(tpu_layout_allocate(&layout, &memory), TPU_INTERNAL);
  TPU_EXPECT(numbers == NULL);
}

TPU_TEST(layout_memory_is_kept_from_use_to_use) {
  void* memory = NULL;
  size_t capacity = 0;
  int64_t live = tpu_alloc_live_count();
  for (size_t round = 1; round < 100; ++round) {
    static const int64_t source[2] = {1, 2};
    char* text = NULL;
    int64_t* numbers = NULL;
    tpu_layout_t layout;
    tpu_layout_init(&layout);
    TPU_LAYOUT_ADD(&layout, text, round * 7);
    TPU_LAYOUT_COPY(&layout, numbers, source, 2);
    TPU_REQUIRE_OK(tpu_layout_reuse(&layout, &memory, &capacity));
    memset(text, 0x5a, round * 7);
    TPU_EXPECT(numbers[0] == 1 && numbers[1] == 2);
    TPU_EXPECT_EQ(tpu_alloc_live_count(), live + 1);
  }
  tpu_free(memory);
}
