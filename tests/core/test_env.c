#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "base/log.h"
#include "test.h"

// A fresh look at the process environment.
static void set_environment(tpu_env_t id, const char* text) {
  if (text == NULL) unsetenv(tpu_env_name(id));
  if (text != NULL) setenv(tpu_env_name(id), text, 1);
  TPU_EXPECT_OK(tpu_env_override(id, NULL));
}

TPU_TEST(env_defaults) {
  set_environment(TPU_ENV_EAGER_MODE, NULL);
  set_environment(TPU_ENV_CACHE_SIZE, NULL);
  set_environment(TPU_ENV_PLATFORM, NULL);
  TPU_EXPECT_TEXT(tpu_env_text(TPU_ENV_EAGER_MODE), "fused");
  TPU_EXPECT_TEXT(tpu_env_source(TPU_ENV_EAGER_MODE), "default");
  TPU_EXPECT_EQ(tpu_env_int(TPU_ENV_CACHE_SIZE), 2ll << 30);
  TPU_EXPECT(tpu_env_text(TPU_ENV_PLATFORM) == NULL);
  TPU_EXPECT(tpu_env_text(TPU_ENV_COUNT) == NULL);
}

TPU_TEST(env_every_default_can_be_parsed) {
  // An override with the default's own text goes through the same parser as a user's.
  static const char* const defaults[] = {
#define TPU_ENV(id, name, kind, default_text, doc) default_text,
#include "base/env_table.def"
#undef TPU_ENV
  };
  for (int id = 0; id < TPU_ENV_COUNT; ++id) {
    TPU_EXPECT_OK(tpu_env_override((tpu_env_t)id, defaults[id]));
    TPU_EXPECT_OK(tpu_env_override((tpu_env_t)id, NULL));
  }
}

TPU_TEST(env_environment_and_override) {
  set_environment(TPU_ENV_WINDOW_OPS, "3k");
  TPU_EXPECT_EQ(tpu_env_int(TPU_ENV_WINDOW_OPS), 3 * 1024);
  TPU_EXPECT_TEXT(tpu_env_text(TPU_ENV_WINDOW_OPS), "3k");
  TPU_EXPECT_TEXT(tpu_env_source(TPU_ENV_WINDOW_OPS), "environment");
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_WINDOW_OPS, "-5"));
  TPU_EXPECT_EQ(tpu_env_int(TPU_ENV_WINDOW_OPS), -5);
  TPU_EXPECT_TEXT(tpu_env_source(TPU_ENV_WINDOW_OPS), "override");
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_WINDOW_OPS, NULL));
  TPU_EXPECT_EQ(tpu_env_int(TPU_ENV_WINDOW_OPS), 3 * 1024);
  set_environment(TPU_ENV_WINDOW_OPS, NULL);
  TPU_EXPECT_EQ(tpu_env_int(TPU_ENV_WINDOW_OPS), 20000);
}

TPU_TEST(env_bad_values_keep_the_default) {
  set_environment(TPU_ENV_WINDOW_OPS, "many");  // reports on stderr
  TPU_EXPECT_EQ(tpu_env_int(TPU_ENV_WINDOW_OPS), 20000);
  TPU_EXPECT_TEXT(tpu_env_source(TPU_ENV_WINDOW_OPS), "default");
  set_environment(TPU_ENV_WINDOW_OPS, NULL);
  static const char* const bad[] = {"x", "1x", "1KK", "99999999999999999999", "9999999999999G",
                                    "K"};
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); ++i) {
    TPU_EXPECT_CODE(tpu_env_override(TPU_ENV_WINDOW_OPS, bad[i]), TPU_INVALID_ARGUMENT);
  }
  TPU_EXPECT_EQ(tpu_env_int(TPU_ENV_WINDOW_OPS), 20000);
  TPU_EXPECT_CODE(tpu_env_override(TPU_ENV_COUNT, "1"), TPU_INVALID_ARGUMENT);
}

TPU_TEST(env_truth_values) {
  static const char* const yes[] = {"1", "true", "ON", "Yes"};
  static const char* const no[] = {"0", "FALSE", "off", "no"};
  for (int i = 0; i < 4; ++i) {
    TPU_EXPECT_OK(tpu_env_override(TPU_ENV_CACHE, no[i]));
    TPU_EXPECT(!tpu_env_bool(TPU_ENV_CACHE));
    TPU_EXPECT_OK(tpu_env_override(TPU_ENV_CACHE, yes[i]));
    TPU_EXPECT(tpu_env_bool(TPU_ENV_CACHE));
  }
  TPU_EXPECT_CODE(tpu_env_override(TPU_ENV_CACHE, "2"), TPU_INVALID_ARGUMENT);
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_CACHE, NULL));
}

TPU_TEST(env_find_by_name) {
  TPU_EXPECT_EQ(tpu_env_find("TORCH_TPU_CACHE_DIR"), TPU_ENV_CACHE_DIR);
  TPU_EXPECT_EQ(tpu_env_find("NO_SUCH_NAME"), TPU_ENV_COUNT);
  for (int id = 0; id < TPU_ENV_COUNT; ++id) {
    TPU_EXPECT_EQ(tpu_env_find(tpu_env_name((tpu_env_t)id)), id);
  }
}

TPU_TEST(env_texts_live_on) {
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_DUMP_DIR, "/first"));
  const char* first = tpu_env_text(TPU_ENV_DUMP_DIR);
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_DUMP_DIR, "/second"));
  TPU_EXPECT_TEXT(first, "/first");
  int64_t live = tpu_alloc_live_count();
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_DUMP_DIR, "/first"));
  TPU_EXPECT(tpu_env_text(TPU_ENV_DUMP_DIR) == first);
  TPU_EXPECT_EQ(tpu_alloc_live_count(), live);
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_DUMP_DIR, NULL));
}

TPU_TEST(env_override_without_memory_changes_nothing) {
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_DUMP_DIR, "/before"));
  tpu_alloc_fail_at(1);
  TPU_EXPECT_CODE(tpu_env_override(TPU_ENV_DUMP_DIR, "/a text not seen before"),
                  TPU_RESOURCE_EXHAUSTED);
  tpu_alloc_fail_at(0);
  TPU_EXPECT_TEXT(tpu_env_text(TPU_ENV_DUMP_DIR), "/before");
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_DUMP_DIR, NULL));
}

TPU_TEST(log_topics_follow_the_table) {
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_LOG, "cache, trace"));
  TPU_EXPECT(tpu_log_enabled(TPU_LOG_CACHE));
  TPU_EXPECT(tpu_log_enabled(TPU_LOG_TRACE));
  TPU_EXPECT(!tpu_log_enabled(TPU_LOG_FLUSH));
  TPU_EXPECT(!tpu_log_enabled(TPU_LOG_TOPIC_COUNT));
  tpu_log(TPU_LOG_CACHE, "a test's line: %d", 42);
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_LOG, "flush"));
  TPU_EXPECT(!tpu_log_enabled(TPU_LOG_CACHE));
  TPU_EXPECT(tpu_log_enabled(TPU_LOG_FLUSH));
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_LOG, NULL));
  TPU_EXPECT(!tpu_log_enabled(TPU_LOG_FLUSH));
}

TPU_TEST(log_clock_goes_forward) {
  int64_t before = tpu_clock_ns();
  TPU_EXPECT(before > 0);
  TPU_EXPECT(tpu_clock_ns() >= before);
}
