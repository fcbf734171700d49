/* The address space: ranges by size class, reuse, owners of interior pointers. */
#include <stdlib.h>
#include <string.h>

#include "test.h"
#include "trace/address.h"

static int owners[8];

static void* take(tpu_address_space_t* space, int64_t size, void* owner) {
  void* address = NULL;
  TPU_EXPECT_OK(tpu_address_take(space, size, owner, &address));
  return address;
}

static bool overlap(const char* a, int64_t a_size, const char* b, int64_t b_size) {
  return a < b + b_size && b < a + a_size;
}

TPU_TEST(address_ranges_do_not_overlap) {
  tpu_address_space_t* space = NULL;
  TPU_REQUIRE_OK(tpu_address_space_create(&space));
  static const int64_t sizes[] = {1,       255,     256,           257,       4096,      4097,
                                  1 << 20, 1 << 24, (1 << 24) + 1, 3ll << 30, 1ll << 34, 100};
  enum { COUNT = sizeof(sizes) / sizeof(sizes[0]) };
  char* addresses[COUNT];
  for (int i = 0; i < COUNT; ++i) {
    addresses[i] = take(space, sizes[i], &owners[i % 8]);
    TPU_EXPECT(addresses[i] != NULL);
    TPU_EXPECT_EQ((uintptr_t)addresses[i] % 256, 0u);
  }
  for (int a = 0; a < COUNT; ++a) {
    for (int b = 0; b < a; ++b) {
      TPU_EXPECT(!overlap(addresses[a], sizes[a], addresses[b], sizes[b]));
    }
  }
  tpu_address_space_destroy(space);
}

TPU_TEST(address_owner_of_interior_pointers) {
  tpu_address_space_t* space = NULL;
  TPU_REQUIRE_OK(tpu_address_space_create(&space));
  static const int64_t sizes[] = {300, 300, 1 << 20, 1 << 24, (5ll << 24) + 7};
  char* addresses[5];
  for (int i = 0; i < 5; ++i) addresses[i] = take(space, sizes[i], &owners[i]);
  for (int i = 0; i < 5; ++i) {
    TPU_EXPECT(tpu_address_owner(space, addresses[i]) == &owners[i]);
    TPU_EXPECT(tpu_address_owner(space, addresses[i] + sizes[i] / 2) == &owners[i]);
    TPU_EXPECT(tpu_address_owner(space, addresses[i] + sizes[i] - 1) == &owners[i]);
  }
  TPU_EXPECT(tpu_address_owner(space, NULL) == NULL);
  TPU_EXPECT(tpu_address_owner(space, &owners[0]) == NULL);
  TPU_EXPECT(tpu_address_owner(space, addresses[4] + (1ll << 40)) == NULL);
  for (int i = 0; i < 5; ++i) {
    tpu_address_give(space, addresses[i]);
    TPU_EXPECT(tpu_address_owner(space, addresses[i]) == NULL);
    TPU_EXPECT(tpu_address_owner(space, addresses[i] + sizes[i] - 1) == NULL);
  }
  tpu_address_give(space, NULL);
  tpu_address_give(space, &owners[0]);  // not from here: ignored
  tpu_address_space_destroy(space);
}

TPU_TEST(address_ranges_are_reused) {
  tpu_address_space_t* space = NULL;
  TPU_REQUIRE_OK(tpu_address_space_create(&space));
  void* small = take(space, 1000, &owners[0]);
  void* large = take(space, 100ll << 20, &owners[1]);
  tpu_address_give(space, small);
  tpu_address_give(space, large);
  TPU_EXPECT(take(space, 1024, &owners[2]) == small);  // the same class
  TPU_EXPECT(take(space, 128ll << 20, &owners[3]) == large);
  TPU_EXPECT(tpu_address_owner(space, small) == &owners[2]);
  TPU_EXPECT(tpu_address_owner(space, (char*)large + (127 << 20)) == &owners[3]);
  TPU_EXPECT(take(space, 1025, &owners[4]) != small);
  tpu_address_space_destroy(space);
}

/* Random takes and gives against a list. */
TPU_TEST(address_random_traffic) {
  tpu_address_space_t* space = NULL;
  TPU_REQUIRE_OK(tpu_address_space_create(&space));
  enum { LIVE = 200 };
  struct {
    char* address;
    int64_t size;
  } live[LIVE] = {0};
  uint64_t random = 3;
  for (int round = 0; round < 20000; ++round) {
    int i = (int)tpu_test_random_range(&random, 0, LIVE - 1);
    if (live[i].address != NULL) {
      int64_t at = tpu_test_random_range(&random, 0, live[i].size - 1);
      TPU_EXPECT(tpu_address_owner(space, live[i].address + at) == &live[i]);
      tpu_address_give(space, live[i].address);
      live[i].address = NULL;
    } else {
      int64_t bits = tpu_test_random_range(&random, 0, 30);
      live[i].size = tpu_test_random_range(&random, 1, 1ll << bits);
      live[i].address = take(space, live[i].size, &live[i]);
    }
  }
  tpu_address_space_destroy(space);
}

/* More ranges of one class than a superblock holds, all given back: none may be lost. */
TPU_TEST(address_many_ranges_come_back) {
  tpu_address_space_t* space = NULL;
  TPU_REQUIRE_OK(tpu_address_space_create(&space));
  enum { COUNT = 3 * 65536 + 17 };
  void** addresses = malloc(COUNT * sizeof(void*));
  TPU_REQUIRE(addresses != NULL);
  for (int i = 0; i < COUNT; ++i) addresses[i] = take(space, 256, &owners[0]);
  void* last = addresses[COUNT - 1];
  // Giving back needs no memory: the next allocation would fail.
  tpu_alloc_fail_at(1);
  for (int i = 0; i < COUNT; ++i) tpu_address_give(space, addresses[i]);
  TPU_EXPECT(tpu_alloc_fail_pending());
  for (int i = 0; i < COUNT; ++i) {
    if (take(space, 200, &owners[1]) == last) last = NULL;
  }
  TPU_EXPECT(tpu_alloc_fail_pending());
  tpu_alloc_fail_at(0);
  TPU_EXPECT(last == NULL);
  free(addresses);
  tpu_address_space_destroy(space);
}

TPU_TEST(address_exhaustion_says_so) {
#if defined(__SANITIZE_THREAD__)
  tpu_test_skip("under ThreadSanitizer there is no room for terabytes of addresses");
  return;
#endif
  tpu_address_space_t* space = NULL;
  TPU_REQUIRE_OK(tpu_address_space_create(&space));
  void* address = &owners[0];
  tpu_status_t status = tpu_address_take(space, INT64_MAX, &owners[0], &address);
  TPU_EXPECT_EQ(tpu_status_code(status), TPU_RESOURCE_EXHAUSTED);
  TPU_EXPECT_TEXT(tpu_status_message(status),
                  "a storage of 9223372036854775807 bytes is too large");
  TPU_EXPECT(address == NULL);
  tpu_status_free(status);
  // Terabyte ranges until the reservation is full; small ones fail then as well, in words.
  void* first = NULL;
  int count = 0;
  status = NULL;
  for (; count < 100 && status == NULL; ++count) {
    status = tpu_address_take(space, 1ll << 40, &owners[1], &address);
    if (first == NULL) first = address;
  }
  TPU_EXPECT(count > 1 && count < 100);
  TPU_EXPECT_EQ(tpu_status_code(status), TPU_RESOURCE_EXHAUSTED);
  TPU_EXPECT(status != NULL && strstr(tpu_status_message(status), "free tensors first") != NULL);
  tpu_status_free(status);
  tpu_address_give(space, first);
  TPU_EXPECT(take(space, 1ll << 40, &owners[2]) == first);
  tpu_address_space_destroy(space);
}

static tpu_status_t use_space(void* arg) {
  (void)arg;
  tpu_address_space_t* space = NULL;
  tpu_status_t status = tpu_address_space_create(&space);
  for (int i = 0; i < 4 && status == NULL; ++i) {
    void* address = NULL;
    status = tpu_address_take(space, 256ll << (6 * i), &owners[i], &address);
    if (status == NULL && tpu_address_owner(space, address) != &owners[i]) {
      status = tpu_status_make(TPU_INTERNAL, "wrong owner");
    }
  }
  tpu_address_space_destroy(space);
  return status;
}

TPU_TEST(address_out_of_memory) { TPU_EXPECT(TPU_OOM_SWEEP(use_space, NULL) > 5); }

/* A failure to open a superblock leaves the space as it was. */
TPU_TEST(address_take_after_failure) {
  tpu_address_space_t* space = NULL;
  TPU_REQUIRE_OK(tpu_address_space_create(&space));
  static const int failing[3] = {1, 2, 2};  // the second try has room for superblocks already
  for (int i = 0; i < 3; ++i) {
    void* address = NULL;
    tpu_alloc_fail_at(failing[i]);
    TPU_EXPECT_CODE(tpu_address_take(space, 5000, &owners[0], &address), TPU_RESOURCE_EXHAUSTED);
    tpu_alloc_fail_at(0);
    TPU_EXPECT(address == NULL);
  }
  void* address = take(space, 5000, &owners[0]);
  TPU_EXPECT(tpu_address_owner(space, address) == &owners[0]);
  tpu_address_space_destroy(space);
}
