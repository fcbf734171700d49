#include <string.h>

#include "base/alloc.h"
#include "test.h"

TPU_TEST(alloc_calloc_gives_zeros) {
  void* memory;
  TPU_REQUIRE_OK(tpu_calloc(100, 8, &memory));
  static const char zeros[800];
  TPU_EXPECT(memcmp(memory, zeros, sizeof(zeros)) == 0);
  tpu_free(memory);
}

TPU_TEST(alloc_zero_bytes_are_null) {
  void* memory = &memory;
  TPU_EXPECT_OK(tpu_calloc(0, 8, &memory));
  TPU_EXPECT(memory == NULL);
  TPU_EXPECT_OK(tpu_calloc(8, 0, &memory));
  TPU_EXPECT(memory == NULL);
  TPU_EXPECT(tpui_alloc(0) == NULL);
}

TPU_TEST(alloc_products_are_checked) {
  void* memory = &memory;
  TPU_EXPECT_CODE(tpu_calloc(SIZE_MAX / 2, 3, &memory), TPU_RESOURCE_EXHAUSTED);
  TPU_EXPECT(memory == NULL);
  size_t capacity = 0;
  memory = NULL;
  TPU_EXPECT_CODE(tpu_grow(&memory, &capacity, SIZE_MAX / 4, 8), TPU_RESOURCE_EXHAUSTED);
  TPU_EXPECT_CODE(tpu_grow(&memory, &capacity, SIZE_MAX, 1), TPU_RESOURCE_EXHAUSTED);
  TPU_EXPECT(memory == NULL);
  TPU_EXPECT_EQ(capacity, 0);
}

TPU_TEST(alloc_grow_keeps_content_and_doubles) {
  void* memory = NULL;
  size_t capacity = 0;
  int64_t live = tpu_alloc_live_count();
  int64_t total = tpu_alloc_total_count();
  for (int64_t i = 0; i < 1000; ++i) {
    TPU_REQUIRE_OK(tpu_grow(&memory, &capacity, (size_t)i + 1, sizeof(i)));
    ((int64_t*)memory)[i] = i;
  }
  for (int64_t i = 0; i < 1000; ++i) TPU_EXPECT_EQ(((int64_t*)memory)[i], i);
  TPU_EXPECT(capacity >= 1000);
  TPU_EXPECT(tpu_alloc_total_count() - total < 12);
  TPU_EXPECT_EQ(tpu_alloc_live_count(), live + 1);
  tpu_free(memory);
  TPU_EXPECT_EQ(tpu_alloc_live_count(), live);
}

TPU_TEST(alloc_fail_at_fails_the_nth_once) {
  void *first, *second, *third;
  tpu_alloc_fail_at(2);
  TPU_EXPECT_OK(tpu_calloc(1, 1, &first));
  TPU_EXPECT(tpu_alloc_fail_pending());
  TPU_EXPECT_CODE(tpu_calloc(1, 1, &second), TPU_RESOURCE_EXHAUSTED);
  TPU_EXPECT(!tpu_alloc_fail_pending());
  TPU_EXPECT_OK(tpu_calloc(1, 1, &third));
  TPU_EXPECT(second == NULL);
  tpu_free(first);
  tpu_free(third);
  tpu_free(NULL);
}

static tpu_status_t grow_twice(void* arg) {
  (void)arg;
  void* memory = NULL;
  size_t capacity = 0;
  tpu_status_t status = tpu_grow(&memory, &capacity, 10, 4);
  size_t before = capacity;
  if (status == NULL) status = tpu_grow(&memory, &capacity, 100, 4);
  if (status != NULL && capacity != before) {
    status = tpu_status_join(tpu_status_make(TPU_INTERNAL, "capacity changed"), status);
  }
  tpu_free(memory);
  return status;
}

TPU_TEST(alloc_grow_survives_every_lost_allocation) {
  TPU_EXPECT_EQ(TPU_OOM_SWEEP(grow_twice, NULL), 2);
}
