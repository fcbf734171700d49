/* Recording ahead of time, on the fake plugin: programs come out, and nothing has happened. */
#include "base/alloc_hooks.h"
#include "engine/ahead.h"
#include "engine_support.h"

static tpu_ahead_t* end(world_t* w) {
  tpu_ahead_t* made = NULL;
  TPU_EXPECT_OK(tpu_engine_ahead_end(w->engine, TPU_PLATFORM_TPU, &made));
  return made;
}

TPU_TEST(ahead_gives_programs_and_forgets) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t x = world_range(&w, 8, 1), empty = world_empty(&w, 8);
  world_sync(&w);
  int64_t launches = world_stats(&w).launches, compiles = world_compiles(&w);
  TPU_EXPECT_OK(tpu_engine_ahead_begin(w.engine));
  TPU_EXPECT_CODE(tpu_engine_ahead_begin(w.engine), TPU_FAILED_PRECONDITION);
  tensor_t y = world_binary(&w, TPU_OP_ADD, x, empty);
  world_update(&w, TPU_OP_MUL, x, y);
  world_update(&w, TPU_OP_MUL, x, y);
  float content[8];
  TPU_EXPECT_CODE(world_read(&w, y, content), TPU_FAILED_PRECONDITION);
  world_sync(&w);  // there is nothing to wait for
  tpu_ahead_t* made = end(&w);
  TPU_REQUIRE(made != NULL && made->launch_count == 1);
  const tpu_ahead_launch_t* launch = &made->launches[0];
  TPU_EXPECT(strstr(launch->text, "stablehlo.multiply") != NULL);
  TPU_EXPECT_EQ(launch->input_count, 2);
  TPU_EXPECT(launch->inputs[0].external && launch->inputs[0].given);
  TPU_EXPECT(launch->inputs[1].external && !launch->inputs[1].given);
  TPU_EXPECT_EQ(launch->output_count, 2);
  TPU_EXPECT_EQ(made->external_count, 2);
  tpu_ahead_free(made);
  TPU_EXPECT_EQ(world_stats(&w).launches, launches);
  TPU_EXPECT_EQ(world_compiles(&w), compiles);
  TPU_EXPECT_CODE(tpu_engine_ahead_end(w.engine, TPU_PLATFORM_TPU, &made), TPU_FAILED_PRECONDITION);
  EXPECT_CONTENT(&w, x, 1, 1);
  EXPECT_CONTENT(&w, y, 0, 0);
  EXPECT_CONTENT(&w, empty, 0, 0);
  drop(&x), drop(&y), drop(&empty);
  world_close(&w);
}

/* Written tensors that are dropped before the end, and memory that fails at each place in turn. */
TPU_TEST(ahead_ends_whatever_fails) {
  for (int64_t n = 0; n < 40; ++n) {
    world_t w;
    TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_STRICT));
    tensor_t x = world_range(&w, 8, 1), empty = world_empty(&w, 4);
    world_sync(&w);
    TPU_EXPECT_OK(tpu_engine_ahead_begin(w.engine));
    tensor_t y = world_binary(&w, TPU_OP_ADD, x, x), gone = world_range(&w, 8, 3);
    world_update(&w, TPU_OP_ADD, gone, y);
    world_update(&w, TPU_OP_ADD, empty, empty);
    drop(&gone);
    tpu_alloc_fail_at(n);
    tpu_ahead_t* made = NULL;
    tpu_status_t status = tpu_engine_ahead_end(w.engine, TPU_PLATFORM_TPU, &made);
    tpu_alloc_fail_at(0);
    TPU_EXPECT_EQ(status == NULL, made != NULL);
    tpu_status_free(status);
    tpu_ahead_free(made);
    EXPECT_CONTENT(&w, x, 1, 1);
    EXPECT_CONTENT(&w, y, 0, 0);
    drop(&x), drop(&y), drop(&empty);
    world_close(&w);
  }
}

TPU_TEST(ahead_writes_for_other_platforms_or_fails) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t x = world_range(&w, 8, 1);
  TPU_EXPECT_OK(tpu_engine_ahead_begin(w.engine));
  tensor_t bad = world_impossible(&w, x);
  tpu_ahead_t* made = NULL;
  tpu_status_t status = tpu_engine_ahead_end(w.engine, TPU_PLATFORM_TPU, &made);
  TPU_EXPECT(status != NULL && made == NULL);
  tpu_status_free(status);
  drop(&bad);
  TPU_EXPECT_OK(tpu_engine_ahead_begin(w.engine));
  TPU_EXPECT_CODE(tpu_engine_ahead_end(w.engine, (tpu_platform_kind_t)99, &made),
                  TPU_INVALID_ARGUMENT);
  tpu_engine_ahead_cancel(w.engine);  // has ended: nothing happens
  EXPECT_CONTENT(&w, x, 1, 1);
  drop(&x);
  world_close(&w);
}
