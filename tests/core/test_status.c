#include <string.h>

#include "base/status.h"
#include "test.h"

TPU_TEST(status_success_is_null) {
  TPU_EXPECT_EQ(tpu_status_code(NULL), TPU_OK);
  TPU_EXPECT_TEXT(tpu_status_message(NULL), "");
  TPU_EXPECT(tpu_status_annotate(NULL, "context") == NULL);
  TPU_EXPECT(tpu_status_copy(NULL) == NULL);
  TPU_EXPECT(tpu_status_join(NULL, NULL) == NULL);
  tpu_status_free(NULL);
}

TPU_TEST(status_make_keeps_code_and_text) {
  tpu_status_t status = tpu_status_make(TPU_NOT_FOUND, "no %s in %d files", "x", 3);
  TPU_EXPECT_EQ(tpu_status_code(status), TPU_NOT_FOUND);
  TPU_EXPECT_TEXT(tpu_status_message(status), "no x in 3 files");
  tpu_status_free(status);
}

TPU_TEST(status_make_never_makes_success) {
  TPU_EXPECT_CODE(tpu_status_make(TPU_OK, "a mistake"), TPU_INTERNAL);
}

TPU_TEST(status_annotate_puts_context_in_front) {
  tpu_status_t status = tpu_status_make(TPU_INTERNAL, "inner");
  status = tpu_status_annotate(status, "outer %d", 1);
  TPU_EXPECT_TEXT(tpu_status_message(status), "outer 1: inner");
  TPU_EXPECT_EQ(tpu_status_code(status), TPU_INTERNAL);
  tpu_status_free(status);
}

TPU_TEST(status_long_texts_are_whole) {
  char text[5000];
  memset(text, 'a', sizeof(text) - 1);
  text[sizeof(text) - 1] = '\0';
  tpu_status_t status = tpu_status_make(TPU_INTERNAL, "%s", text);
  TPU_EXPECT_TEXT(tpu_status_message(status), text);
  tpu_status_free(status);
}

TPU_TEST(status_join_keeps_the_first_code_and_both_texts) {
  tpu_status_t status =
      tpu_status_join(tpu_status_make(TPU_ABORTED, "one"), tpu_status_make(TPU_NOT_FOUND, "two"));
  TPU_EXPECT_TEXT(tpu_status_message(status), "one; then NOT_FOUND: two");
  TPU_EXPECT_CODE(status, TPU_ABORTED);
  TPU_EXPECT_CODE(tpu_status_join(NULL, tpu_status_make(TPU_ABORTED, "one")), TPU_ABORTED);
  TPU_EXPECT_CODE(tpu_status_join(tpu_status_make(TPU_ABORTED, "one"), NULL), TPU_ABORTED);
}

TPU_TEST(status_copy_is_independent) {
  tpu_status_t first = tpu_status_make(TPU_DATA_LOSS, "text");
  tpu_status_t second = tpu_status_copy(first);
  tpu_status_free(first);
  TPU_EXPECT_TEXT(tpu_status_message(second), "text");
  TPU_EXPECT_CODE(second, TPU_DATA_LOSS);
}

TPU_TEST(status_code_names) {
  TPU_EXPECT_TEXT(tpu_status_code_name(TPU_OK), "OK");
  TPU_EXPECT_TEXT(tpu_status_code_name(TPU_INVALID_ARGUMENT), "INVALID_ARGUMENT");
  TPU_EXPECT_TEXT(tpu_status_code_name(TPU_UNAUTHENTICATED), "UNAUTHENTICATED");
  TPU_EXPECT_TEXT(tpu_status_code_name((tpu_status_code_t)-1), "UNKNOWN");
  TPU_EXPECT_TEXT(tpu_status_code_name((tpu_status_code_t)17), "UNKNOWN");
}

TPU_TEST(status_without_memory_is_static) {
  int64_t live = tpu_alloc_live_count();
  tpu_alloc_fail_at(1);
  tpu_status_t status = tpu_status_make(TPU_NOT_FOUND, "lost");
  TPU_EXPECT_EQ(tpu_status_code(status), TPU_RESOURCE_EXHAUSTED);
  status = tpu_status_annotate(status, "still");  // memory is back
  TPU_EXPECT(strncmp(tpu_status_message(status), "still: out of", 13) == 0);
  tpu_status_free(status);
  TPU_EXPECT_EQ(tpu_alloc_live_count(), live);
}

// Everything that can go wrong with memory, in one body; the code that matters must survive.
static tpu_status_t make_join_annotate(void* arg) {
  tpu_status_code_t* seen = arg;
  tpu_status_t first = tpu_status_make(TPU_ABORTED, "one %d", 1);
  tpu_status_t joined = tpu_status_join(first, tpu_status_make(TPU_NOT_FOUND, "two"));
  joined = tpu_status_annotate(joined, "context");
  tpu_status_t copy = tpu_status_copy(joined);
  *seen = tpu_status_code(joined);
  tpu_status_free(joined);
  tpu_status_free(copy);
  return NULL;
}

TPU_TEST(status_survives_every_lost_allocation) {
  tpu_status_code_t seen;
  TPU_EXPECT(TPU_OOM_SWEEP(make_join_annotate, &seen) >= 5);
  TPU_EXPECT_EQ(seen, TPU_ABORTED);
  // Losing the join, the annotation or the copy keeps the first code.
  for (int n = 2; n <= 5; ++n) {
    tpu_alloc_fail_at(n);
    (void)make_join_annotate(&seen);
    TPU_EXPECT_EQ(seen, TPU_ABORTED);
  }
}
