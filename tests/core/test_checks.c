/* Checks of data in programs: what they call wrong, who is told and how often. */
#include "base/env.h"
#include "engine_support.h"
#include "launch/launch.h"

/* The status has this code and this text. Takes it. */
static void expect_told(int line, tpu_status_t status, tpu_status_code_t code, const char* text) {
  if (tpu_status_code(status) != code || strcmp(tpu_status_message(status), text) != 0) {
    tpu_test_fail(__FILE__, line, "expected %s \"%s\", got %s \"%s\"", tpu_status_code_name(code),
                  text, tpu_status_code_name(tpu_status_code(status)), tpu_status_message(status));
  }
  tpu_status_free(status);
}
#define EXPECT_TOLD(status, code, text) expect_told(__LINE__, (status), (code), (text))

TPU_TEST(checks_find_numbers_on_both_sides) {
  tpu_checks_t* checks = NULL;
  const tpu_check_t from_zero = {
      .op = TPU_OP_GATHER, .dim = 1, .span = 4, .code = TPU_OUT_OF_RANGE};
  const tpu_check_t wraps = {
      .op = TPU_OP_TAKE, .dim = -1, .lowest = -4, .span = 8, .code = TPU_OUT_OF_RANGE};
  TPU_REQUIRE_OK(tpu_checks_add(&checks, &from_zero));
  TPU_REQUIRE_OK(tpu_checks_add(&checks, &wraps));
  static const struct {
    int64_t numbers[2];  // as programs give them: less the lowest
    int failed;          // row, or -1
    int64_t number;
  } rows[] = {
      {{0, 0}, -1, 0},
      {{3, 7}, -1, 0},
      {{4, 0}, 0, 4},
      {{-1, 9}, 0, -1},  // the first one
      {{0, 8}, 1, 4},
      {{0, -1}, 1, -5},
      {{INT64_MIN, 0}, 0, INT64_MIN},
      {{0, INT64_MAX}, 1, INT64_MAX - 4},
  };
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
    int64_t number = 0;
    const tpu_check_t* failed = tpu_checks_failed(checks, rows[i].numbers, &number);
    TPU_EXPECT(failed == (rows[i].failed < 0 ? NULL : &checks->rows[rows[i].failed]));
    TPU_EXPECT_EQ(number, rows[i].number);
  }
  EXPECT_TOLD(tpu_check_error(&checks->rows[0], 9, "op 3 of window 5"), TPU_OUT_OF_RANGE,
              "gather: index 9 is out of range for size 4 (dimension 1, op 3 of window 5)");
  EXPECT_TOLD(tpu_check_error(&checks->rows[1], -5, "here"), TPU_OUT_OF_RANGE,
              "take: index -5 is out of range for size 4 (here)");
  tpu_checks_retain(checks);
  tpu_checks_release(checks);
  tpu_checks_release(checks);
}

/* i64[size] with this number everywhere. */
static tensor_t indices_of(world_t* w, int64_t size, int64_t number) {
  int64_t numbers[64];
  for (int64_t i = 0; i < size; ++i) numbers[i] = number;
  tensor_t made = {.view = meta_of(TPU_I64, 1, &size, NULL)};
  TPU_EXPECT_OK(tpu_storage_create(w->engine, size * 8, &made.storage));
  TPU_EXPECT_OK(tpu_engine_write(w->engine, made.storage, made.view, 0, numbers, size * 8));
  return made;
}

static tpu_status_t wait_all(world_t* w) { return tpu_engine_flush(w->engine, true); }

TPU_TEST(checks_tell_once_and_leave_all_else) {
  world_t w;
  TPU_REQUIRE_OK(tpu_env_override(TPU_ENV_TRACE_STACKS, "1"));
  bool opened = world_open_real(&w, TPU_MODE_FUSED);
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_TRACE_STACKS, NULL));
  if (!opened) return;
  tpu_location_t here = 0;
  TPU_EXPECT_OK(tpu_location_intern("program.py:12", &here));
  tensor_t x = world_range(&w, 8, 1), good = indices_of(&w, 8, 7), bad = indices_of(&w, 8, 9);
  tpu_location_set(here);
  tensor_t y = world_binary(&w, TPU_OP_EMBEDDING, x, good);
  tensor_t z = world_binary(&w, TPU_OP_EMBEDDING, x, bad);
  tpu_location_set(0);
  const char* text =
      "embedding: index 9 is out of range for size 8 (dimension 0, op 1 of window 1, recorded at "
      "program.py:12)";
  EXPECT_TOLD(wait_all(&w), TPU_OUT_OF_RANGE, text);
  world_sync(&w);  // told once
  EXPECT_CONTENT(&w, y, 8, 0);
  EXPECT_CONTENT(&w, z, 8, 0);  // the last valid place
  // Nobody reads the result, and it is told all the same; by a read of something else, too.
  drop(&z);
  z = world_binary(&w, TPU_OP_EMBEDDING, x, bad);
  drop(&z);
  tensor_t sum = world_binary(&w, TPU_OP_ADD, x, y);
  float numbers[8];
  EXPECT_TOLD(world_read(&w, sum, numbers), TPU_OUT_OF_RANGE,
              "embedding: index 9 is out of range for size 8 (dimension 0, op 0 of window 2)");
  world_sync(&w);
  EXPECT_CONTENT(&w, sum, 9, 1);
  drop(&x), drop(&y), drop(&sum), drop(&good), drop(&bad);
  world_close(&w);
}

/* A run that fails later fails its checks as well: one error, also when nobody kept the result. */
TPU_TEST(checks_of_a_failed_run_add_no_error) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t x = world_range(&w, 8, 1), index = indices_of(&w, 8, 0);
  world_sync(&w);
  w.fake->fail_outputs(TPU_ABORTED);
  tensor_t y = world_binary(&w, TPU_OP_EMBEDDING, x, index);
  world_flush(&w);
  w.fake->fail_outputs(0);
  TPU_EXPECT_CODE(wait_all(&w), TPU_ABORTED);
  world_sync(&w);
  drop(&y);
  w.fake->fail_outputs(TPU_ABORTED);
  y = world_binary(&w, TPU_OP_EMBEDDING, x, index);
  drop(&y);
  world_flush(&w);
  w.fake->fail_outputs(0);
  TPU_EXPECT_CODE(wait_all(&w), TPU_ABORTED);
  world_sync(&w);
  drop(&x), drop(&index);
  world_close(&w);
}

/* What nobody waits for does not pile up, and goes away with the engine. */
TPU_TEST(checks_that_nobody_waits_for) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_STRICT));
  tensor_t x = world_range(&w, 8, 1), index = indices_of(&w, 8, 0);
  fake_stats_t stats;
  int64_t most = 0;
  for (int i = 0; i < 1000; ++i) {
    tensor_t y = world_binary(&w, TPU_OP_EMBEDDING, x, index);
    drop(&y);
    w.fake->stats(&stats);
    if (stats.live_buffers > most) most = stats.live_buffers;
  }
  TPU_EXPECT(most > 3 && most < 300);
  drop(&x), drop(&index);
  world_close(&w);
}
