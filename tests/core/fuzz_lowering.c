/* Lowerings go on after an error, with values that mean nothing, and must come to an end: each
 * golden window is lowered with allocations that fail. In builds with AddressSanitizer every
 * operation that is written allocates, so that each may be the one that fails. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "golden_file.h"
#include "test.h"

enum { TRIES = 6 };  // failures per window; all of them with TORCH_TPU_TEST_ALL=1

static uint64_t state;

/* Lowers with the n-th allocation failing. False when there were fewer. */
static bool lower_failing(const golden_window_t* window, const golden_platform_t* platform,
                          int64_t n) {
  tpu_strbuf_t text = {0};
  int64_t live = tpu_alloc_live_count();
  tpu_alloc_fail_at(n);
  tpu_status_t status = golden_lower(window, platform, GOLDEN_FULL, &text);
  bool failed = !tpu_alloc_fail_pending();
  tpu_alloc_fail_at(0);
  if (failed && status == NULL) {
    TPU_EXPECT(strstr(tpu_strbuf_text(&text), "error: RESOURCE_EXHAUSTED") != NULL);
  }
  TPU_EXPECT_EQ(tpu_status_code(status),
                (failed && status != NULL ? TPU_RESOURCE_EXHAUSTED : TPU_OK));
  tpu_status_free(status);
  tpu_strbuf_free(&text);
  TPU_EXPECT_EQ(tpu_alloc_live_count(), live);
  if (tpu_test_failed()) printf("allocation %lld failed\n", (long long)n);
  return failed;
}

/* Allocations that a lowering takes once it has interned what it needs. */
static int64_t count_allocations(const golden_window_t* window, const golden_platform_t* platform) {
  int64_t before = 0;
  for (int run = 0; run < 2; ++run) {
    tpu_strbuf_t text = {0};
    before = tpu_alloc_total_count();
    TPU_EXPECT_OK(golden_lower(window, platform, GOLDEN_FULL, &text));
    tpu_strbuf_free(&text);
  }
  return tpu_alloc_total_count() - before;
}

static void fail_case(const golden_case_t* one, bool all) {
  golden_window_t window;
  TPU_EXPECT_OK(golden_window_read(one->window, &window));
  for (int p = 0; p < GOLDEN_PLATFORM_COUNT && !tpu_test_failed(); ++p) {
    golden_platform_t platform = golden_platform(p);
    int64_t count = count_allocations(&window, &platform);
    for (int64_t k = 1; k <= (all ? count : TRIES) && !tpu_test_failed(); ++k) {
      int64_t n = all ? k : tpu_test_random_range(&state, 1, count);
      TPU_EXPECT(lower_failing(&window, &platform, n));
    }
  }
  golden_window_free(&window);
}

TPU_TEST(fuzz_lowering_out_of_memory) {
  char** paths = NULL;
  size_t count = 0;
  bool all = getenv("TORCH_TPU_TEST_ALL") != NULL;
  state = tpu_test_seed();
  TPU_REQUIRE_OK(golden_list(TPU_GOLDEN_FOLDER, &paths, &count));
  for (size_t i = 0; i < count && !tpu_test_failed(); ++i) {
    golden_file_t file;
    TPU_EXPECT_OK(golden_file_read(paths[i], &file));
    for (size_t k = 0; k < file.count && !tpu_test_failed(); ++k) {
      fail_case(&file.cases[k], all);
      if (tpu_test_failed()) tpu_test_fail(file.path, file.cases[k].line, "%s", file.cases[k].name);
    }
    golden_file_free(&file);
  }
  golden_list_free(paths, count);
}
