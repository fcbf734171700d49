#include <stdio.h>
#include <string.h>

#include "base/strbuf.h"
#include "test.h"

TPU_TEST(strbuf_appends) {
  tpu_strbuf_t buffer = {0};
  TPU_EXPECT_TEXT(tpu_strbuf_text(&buffer), "");
  tpu_strbuf_append(&buffer, "ab");
  tpu_strbuf_append_bytes(&buffer, "cdef", 2);
  tpu_strbuf_append_bytes(&buffer, NULL, 0);
  tpu_strbuf_printf(&buffer, "-%d-%s", 7, "x");
  tpu_strbuf_append_int(&buffer, -12);
  TPU_EXPECT_TEXT(tpu_strbuf_text(&buffer), "abcd-7-x-12");
  TPU_EXPECT_EQ(buffer.size, 11);
  TPU_EXPECT_OK(tpu_strbuf_status(&buffer));
  tpu_strbuf_clear(&buffer);
  TPU_EXPECT_TEXT(tpu_strbuf_text(&buffer), "");
  TPU_EXPECT_EQ(buffer.size, 0);
  tpu_strbuf_free(&buffer);
  TPU_EXPECT_TEXT(tpu_strbuf_text(&buffer), "");
}

TPU_TEST(strbuf_integers_equal_printf) {
  static const int64_t numbers[] = {0, 1, -1, 9, 10, 99, 100, -100, INT64_MAX, INT64_MIN};
  for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); ++i) {
    tpu_strbuf_t buffer = {0};
    char expected[32];
    snprintf(expected, sizeof(expected), "%lld", (long long)numbers[i]);
    tpu_strbuf_append_int(&buffer, numbers[i]);
    TPU_EXPECT_TEXT(tpu_strbuf_text(&buffer), expected);
    tpu_strbuf_free(&buffer);
  }
}

TPU_TEST(strbuf_printf_of_any_length) {
  static char text[3000];
  for (size_t length = 0; length < sizeof(text); length += 37) {
    memset(text, 'x', length);
    text[length] = '\0';
    tpu_strbuf_t buffer = {0};
    tpu_strbuf_append(&buffer, "ab");
    tpu_strbuf_printf(&buffer, "%s", text);
    tpu_strbuf_append(&buffer, "c");
    TPU_EXPECT_EQ(buffer.size, length + 3);
    TPU_EXPECT_EQ(strlen(buffer.data), length + 3);
    tpu_strbuf_free(&buffer);
  }
}

TPU_TEST(strbuf_latches_the_first_failure) {
  tpu_strbuf_t buffer = {0};
  tpu_strbuf_append(&buffer, "kept");
  tpu_alloc_fail_at(1);
  tpu_strbuf_printf(&buffer, "%0200d", 1);
  tpu_alloc_fail_at(0);
  tpu_strbuf_append(&buffer, "dropped");
  TPU_EXPECT_TEXT(tpu_strbuf_text(&buffer), "kept");
  TPU_EXPECT_CODE(tpu_strbuf_status(&buffer), TPU_RESOURCE_EXHAUSTED);
  tpu_strbuf_clear(&buffer);
  TPU_EXPECT_OK(tpu_strbuf_status(&buffer));
  tpu_strbuf_free(&buffer);
}

static tpu_status_t build(void* arg) {
  (void)arg;
  tpu_strbuf_t buffer = {0};
  for (int i = 0; i < 50; ++i) {
    tpu_strbuf_append(&buffer, "some text, ");
    tpu_strbuf_printf(&buffer, "%d %0100d", i, i);
    tpu_strbuf_append_int(&buffer, i);
  }
  tpu_status_t status = tpu_strbuf_status(&buffer);
  tpu_strbuf_free(&buffer);
  return status;
}

TPU_TEST(strbuf_survives_every_lost_allocation) { TPU_EXPECT(TPU_OOM_SWEEP(build, NULL) > 4); }
