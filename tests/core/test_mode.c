/* Eager modes: names, and which one the environment asks for. */
#include <string.h>

#include "base/env.h"
#include "engine/mode.h"
#include "engine_support.h"
#include "test.h"

TPU_TEST(mode_names_are_read_in_any_case) {
  static const struct {
    const char* text;
    tpu_eager_mode_t mode;
  } cases[] = {
      {"debug", TPU_MODE_DEBUG},        {"Strict", TPU_MODE_STRICT},
      {"FUSED", TPU_MODE_FUSED},        {"DEFER_NEVER_AND_LAUNCH_BLOCKING", TPU_MODE_DEBUG},
      {"DEFER_NEVER", TPU_MODE_STRICT}, {"defer_and_fuse", TPU_MODE_FUSED},
  };
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); ++i) {
    tpu_eager_mode_t mode;
    TPU_EXPECT_OK(tpu_eager_mode_parse(cases[i].text, &mode));
    TPU_EXPECT_EQ(mode, cases[i].mode);
  }
}

TPU_TEST(mode_published_names_read_back) {
  for (int m = TPU_MODE_DEBUG; m <= TPU_MODE_FUSED; ++m) {
    tpu_eager_mode_t mode;
    TPU_EXPECT_OK(tpu_eager_mode_parse(tpu_eager_mode_name((tpu_eager_mode_t)m), &mode));
    TPU_EXPECT_EQ(mode, m);
  }
  TPU_EXPECT(tpu_eager_mode_name((tpu_eager_mode_t)3) == NULL);
  TPU_EXPECT(tpu_eager_mode_name((tpu_eager_mode_t)-1) == NULL);
}

TPU_TEST(mode_other_words_are_refused_with_the_accepted_ones) {
  static const char* const texts[] = {"", "quick", "strict ", "DEFER", "2"};
  for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); ++i) {
    tpu_eager_mode_t mode;
    TPU_EXPECT_CODE(tpu_eager_mode_parse(texts[i], &mode), TPU_INVALID_ARGUMENT);
  }
  tpu_eager_mode_t mode;
  tpu_status_t status = tpu_eager_mode_parse("quick", &mode);
  TPU_EXPECT_TEXT(tpu_status_message(status),
                  "'quick' is no eager mode: use debug (DEFER_NEVER_AND_LAUNCH_BLOCKING), "
                  "strict (DEFER_NEVER) or fused (DEFER_AND_FUSE)");
  tpu_status_free(status);
}

static void set_sources(const char* mode, const char* blocking, const char* fuse) {
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_EAGER_MODE, mode));
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_LAUNCH_BLOCKING, blocking));
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_DEFER_AND_FUSE, fuse));
}

static void expect_default(tpu_eager_mode_t expected) {
  tpu_eager_mode_t mode;
  TPU_EXPECT_OK(tpu_eager_mode_default(&mode));
  TPU_EXPECT_EQ(mode, expected);
}

TPU_TEST(mode_sources_have_an_order) {
  set_sources(NULL, NULL, NULL);
  expect_default(TPU_MODE_FUSED);
  set_sources(NULL, NULL, "0");
  expect_default(TPU_MODE_STRICT);
  set_sources("Fused", NULL, "0");
  expect_default(TPU_MODE_FUSED);
  set_sources("strict", "0", "1");
  expect_default(TPU_MODE_STRICT);
  set_sources("strict", "1", "1");
  expect_default(TPU_MODE_DEBUG);
  set_sources(NULL, "1", NULL);
  expect_default(TPU_MODE_DEBUG);
  set_sources(NULL, NULL, NULL);
}

TPU_TEST(mode_that_does_not_exist_keeps_the_engine_from_starting) {
  static const char* const blocking[] = {NULL, "1"};
  for (int i = 0; i < 2; ++i) {
    set_sources("eager", blocking[i], NULL);
    tpu_eager_mode_t mode;
    tpu_status_t status = tpu_eager_mode_default(&mode);
    const char* begin = "TORCH_TPU_EAGER_MODE: 'eager' is no eager mode: use debug";
    TPU_EXPECT(strncmp(tpu_status_message(status), begin, strlen(begin)) == 0);
    TPU_EXPECT_CODE(status, TPU_INVALID_ARGUMENT);
    tpu_device_options_t options = {.plugin_path = fake_plugin_path()};
    tpu_engine_t* engine = NULL;
    TPU_EXPECT_CODE(tpu_engine_create(&options, &engine), TPU_INVALID_ARGUMENT);
    TPU_EXPECT(engine == NULL);
  }
  set_sources(NULL, NULL, NULL);
}

TPU_TEST(mode_of_a_new_engine_is_the_default) {
  tpu_device_options_t options = {.plugin_path = fake_plugin_path()};
  static const char* const texts[3] = {"Debug", "DEFER_NEVER", "fused"};
  for (int m = 0; m < 3; ++m) {
    set_sources(texts[m], NULL, NULL);
    tpu_engine_t* engine = NULL;
    TPU_REQUIRE_OK(tpu_engine_create(&options, &engine));
    TPU_EXPECT_EQ(tpu_engine_mode(engine), m);
    TPU_EXPECT_CODE(tpu_engine_set_mode(engine, (tpu_eager_mode_t)3), TPU_INVALID_ARGUMENT);
    TPU_EXPECT_EQ(tpu_engine_mode(engine), m);
    tpu_engine_destroy(engine);
  }
  set_sources(NULL, NULL, NULL);
}
