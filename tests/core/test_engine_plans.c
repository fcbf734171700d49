/* Plan variants, donation and caches, on the fake plugin. */
#include "base/env.h"
#include "engine_support.h"

/* One step of a loop; returns how many programs were compiled for it. */
static int64_t compiles_of(world_t* w, void (*step)(world_t* w, int i), int i) {
  int64_t before = world_compiles(w);
  step(w, i);
  return world_compiles(w) - before;
}

static tensor_t input;

static void scale_step(world_t* w, int i) {
  tensor_t c = world_scale(w, TPU_OP_MUL, input, 0.5 + i);
  EXPECT_CONTENT(w, c, 0, 0);
  drop(&c);
}

/* A number starts as a constant and becomes an argument when a second value is seen. */
TPU_TEST(plan_a_changing_number_becomes_dynamic) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  input = world_range(&w, 8, 1);
  static const int numbers[8] = {0, 0, 1, 2, 0, 3, 4, 1};
  static const int expected[8] = {1, 0, 1, 0, 0, 0, 0, 0};
  for (int i = 0; i < 8; ++i) TPU_EXPECT_EQ(compiles_of(&w, scale_step, numbers[i]), expected[i]);
  TPU_EXPECT_EQ(world_stats(&w).window_plans, 2);
  drop(&input);
  world_close(&w);
}

static void two_numbers_step(world_t* w, int i) {
  tensor_t c = world_scale(w, TPU_OP_MUL, input, 3);
  world_update_by(w, TPU_OP_ADD, c, i);
  EXPECT_CONTENT(w, c, 0, 0);
  drop(&c);
}

/* Only the number that changes is generalised. */
TPU_TEST(plan_other_numbers_stay_constants) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  input = world_range(&w, 8, 1);
  for (int i = 0; i < 5; ++i) TPU_EXPECT_EQ(compiles_of(&w, two_numbers_step, i), i < 2);
  const tpui_plan_t* plan = world_lane(&w)->last_plan;
  TPU_EXPECT_EQ(plan->variant_count, 2);
  TPU_EXPECT_EQ(plan->window.slot_count, 2u);
  TPU_EXPECT(!plan->variants[0]->slot_dynamic[0]);
  TPU_EXPECT(plan->variants[0]->slot_dynamic[1]);
  drop(&input);
  world_close(&w);
}

/* A result that stays alive makes a variant that also gives it; the other way needs none. */
TPU_TEST(plan_live_results_grow) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  input = world_range(&w, 8, 1);
  static const bool keeps[6] = {false, false, true, false, true, false};
  for (int i = 0; i < 6; ++i) {
    tpu_engine_reset_stats(w.engine);
    tensor_t c = world_binary(&w, TPU_OP_ADD, input, input);
    tensor_t d = world_binary(&w, TPU_OP_MUL, c, input);
    if (!keeps[i]) drop(&c);
    EXPECT_CONTENT(&w, d, 0, 0);
    if (keeps[i]) EXPECT_CONTENT(&w, c, 0, 0);
    TPU_EXPECT_EQ(world_stats(&w).window_plans, i == 0 || i == 2);
    TPU_EXPECT_EQ(world_stats(&w).flushes, 1);
    drop(&c), drop(&d);
    // A result that nobody wants is given back at once.
    tpu_memory_stats_t memory;
    tpu_device_memory_stats(tpu_engine_device(w.engine), &memory);
    TPU_EXPECT_EQ(memory.buffers_in_use, 1);
  }
  drop(&input);
  world_close(&w);
}

static tensor_t table;

static void row_step(world_t* w, int i) {
  tensor_t c = world_binary(w, TPU_OP_ADD, view_of(table, 8 * i, 8, 1), input);
  EXPECT_CONTENT(w, c, 0, 0);
  drop(&c);
}

/* Rows of a table: the offset becomes an argument. */
TPU_TEST(plan_view_offsets_become_dynamic) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  input = world_range(&w, 8, 1);
  table = world_range(&w, 80, 1);
  static const int64_t expected[10] = {1, 1};
  for (int i = 0; i < 10; ++i) TPU_EXPECT_EQ(compiles_of(&w, row_step, i), expected[i]);
  drop(&input), drop(&table);
  world_close(&w);
}

static void column_step(world_t* w, int i) {
  tensor_t row = view_of(table, 0, 3, 1);
  row.offset = i;
  tensor_t c = world_scale(w, TPU_OP_ADD, row, 1);
  EXPECT_CONTENT(w, c, 0, 0);
  drop(&c);
}

/* Offsets whose factors differ get programs of their own, and all of them stay right. */
TPU_TEST(plan_view_offsets_of_other_structure) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  table = world_range(&w, 12, 1);
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 10; ++i) {
      int64_t compiles = compiles_of(&w, column_step, i);
      if (round > 0) TPU_EXPECT_EQ(compiles, 0);
    }
  }
  drop(&table);
  world_close(&w);
}

/* More variants than are kept: the oldest goes, nothing breaks. */
TPU_TEST(plan_variants_are_bounded) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  input = world_range(&w, 8, 1);
  enum { RESULTS = 12 };
  for (int round = 0; round < 3; ++round) {
    for (int keep = 0; keep < RESULTS; ++keep) {
      tensor_t made[RESULTS];
      for (int i = 0; i < RESULTS; ++i) made[i] = world_scale(&w, TPU_OP_MUL, input, i);
      for (int i = 0; i < RESULTS; ++i) {
        if (i != keep) drop(&made[i]);
      }
      EXPECT_CONTENT(&w, made[keep], 0, 0);
      drop(&made[keep]);
      TPU_EXPECT(world_lane(&w)->last_plan->variant_count <= TPUI_MAX_VARIANTS);
    }
  }
  drop(&input);
  world_close(&w);
}

TPU_TEST(plan_clear_cache) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  input = world_range(&w, 8, 1);
  for (int i = 0; i < 4; ++i) {
    TPU_EXPECT_EQ(compiles_of(&w, scale_step, 1), i % 2 == 0);
    if (i % 2 == 1) tpu_engine_clear_cache(w.engine);
  }
  // With half a window recorded under a prediction.
  scale_step(&w, 1), scale_step(&w, 1);
  tensor_t c = world_scale(&w, TPU_OP_MUL, input, 1.5);
  tpu_engine_clear_cache(w.engine);
  EXPECT_CONTENT(&w, c, 0, 0);
  drop(&c);
  drop(&input);
  world_close(&w);
}

/* Many different windows: the plan cache drops old ones while predictions point at some. What it
 * keeps is bounded by records, since a plan's memory is its window's. */
TPU_TEST(plan_cache_evicts) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  input = world_range(&w, 2, 1);
  // Windows differ by which of two ops stands where.
  enum { WINDOWS = 9000, BITS = 14, RECORDS = 1 + 6 * BITS, MOST_RECORDS = 1 << 19 };
  for (int i = 0; i < WINDOWS; ++i) {
    tensor_t c = world_binary(&w, TPU_OP_ADD, input, input);
    drop(&c);  // dead: windows without programs plan quickly
    for (int k = 1; k < RECORDS; ++k) {
      c = world_binary(&w, i >> k % BITS & 1 ? TPU_OP_MUL : TPU_OP_SUB, input, input);
      drop(&c);
    }
    world_flush(&w);
    TPU_EXPECT(w.engine->plans.records <= MOST_RECORDS);
  }
  TPU_EXPECT_EQ(world_stats(&w).window_plans, WINDOWS);
  TPU_EXPECT(w.engine->plans.count <= MOST_RECORDS / RECORDS);
  TPU_EXPECT(w.engine->plans.count >= MOST_RECORDS / RECORDS / 3);
  scale_step(&w, 1);
  drop(&input);
  world_close(&w);
}

/* --- donation --- */

static tpu_memory_stats_t memory_of(world_t* w) {
  tpu_memory_stats_t stats;
  tpu_device_memory_stats(tpu_engine_device(w->engine), &stats);
  return stats;
}

/* An in-place op on a tensor that nobody else holds needs no second buffer. */
TPU_TEST(plan_donates_what_nobody_holds) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 1024, 1);
  world_update_by(&w, TPU_OP_ADD, a, 1);
  tpu_device_memory_reset_peak(tpu_engine_device(w.engine));
  world_sync(&w);
  TPU_EXPECT_EQ(memory_of(&w).bytes_peak, 4096);
  EXPECT_CONTENT(&w, a, 0, 0);
  // Many steps: still one buffer.
  for (int i = 0; i < 5; ++i) {
    world_update_by(&w, TPU_OP_ADD, a, 1);
    world_sync(&w);
  }
  TPU_EXPECT_EQ(memory_of(&w).bytes_peak, 4096);
  TPU_EXPECT_EQ(memory_of(&w).buffers_in_use, 1);
  drop(&a);
  world_close(&w);
}

/* What a reader holds, what another storage shares, or what is read later keeps its content. */
TPU_TEST(plan_does_not_donate_what_is_held) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 8, 1);
  // As a program that may take the content: the first time nobody holds it.
  for (int held = 0; held < 2; ++held) {
    tpu_value_t* value = a.storage->value;
    if (held) tpu_value_retain(value);
    world_update_by(&w, TPU_OP_ADD, a, 1);
    world_sync(&w);
    if (!held) continue;
    TPU_EXPECT(tpu_buffer_has_content(value->ready.buffer));
    tpu_value_release(&w.engine->pool, value);
  }
  EXPECT_CONTENT(&w, a, 0, 0);
  drop(&a);
  // Read again by a later op of the window: the last reader takes it.
  tensor_t b = world_range(&w, 8, 1), c = world_binary(&w, TPU_OP_MUL, b, b);
  world_update_by(&w, TPU_OP_ADD, b, 1);
  EXPECT_CONTENT(&w, b, 0, 0);
  EXPECT_CONTENT(&w, c, 0, 0);
  drop(&b), drop(&c);
  world_close(&w);
}

/* A job on its way reads the content before the one that takes it begins, so it holds nothing: how
 * long it runs must not decide whether an in-place op copies. */
TPU_TEST(plan_donates_what_only_jobs_before_it_read) {
  enum { SIZE = 70000, BYTES = SIZE * 4 };  // worth the launch thread
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_STRICT));
  tensor_t a = world_range(&w, SIZE, 1), doubled[2];
  for (int held = 0; held < 2; ++held) {
    w.fake->hold(held);
    tpu_device_memory_reset_peak(tpu_engine_device(w.engine));
    doubled[held] = world_scale(&w, TPU_OP_MUL, a, 2);
    world_update_by(&w, TPU_OP_ADD, a, 1);
    TPU_EXPECT(w.engine->in_flight == 2 || !held);
    w.fake->hold(false);
    world_sync(&w);
    TPU_EXPECT_EQ(memory_of(&w).bytes_peak, (2 + held) * BYTES);
    EXPECT_CONTENT(&w, doubled[held], 0, 0);
  }
  EXPECT_CONTENT(&w, a, 0, 0);
  drop(&a), drop(&doubled[0]), drop(&doubled[1]);
  world_close(&w);
}

TPU_TEST(plan_dead_records_run_nothing) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 8, 1), b = world_binary(&w, TPU_OP_ADD, a, a);
  drop(&b);
  world_sync(&w);
  TPU_EXPECT_EQ(world_stats(&w).launches, 0);
  TPU_EXPECT_EQ(world_stats(&w).flushes, 1);
  drop(&a);
  world_close(&w);
}

/* Compiled programs in memory are bounded: what is used goes on without a compile. */
TPU_TEST(plans_programs_are_bounded) {
  enum { LIMIT = 6 << 20, ROUNDS = 120 };  // a program counts 256 KiB here
  world_t w;
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_PROGRAM_CACHE_BYTES, "6M"));
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_PROGRAM_CACHE_BYTES, NULL));
  tensor_t a = world_range(&w, 8, 1);
  for (int i = 0; i < ROUNDS; ++i) {
    world_update(&w, TPU_OP_ADD, a, a);  // the same in each round
    world_sync(&w);
    tensor_t other = world_range(&w, 16 + i, 1), sum = world_binary(&w, TPU_OP_MUL, other, other);
    world_sync(&w);
    drop(&other), drop(&sum);
    TPU_EXPECT(tpu_device_code_bytes(tpu_engine_device(w.engine)) <= LIMIT + (256 << 10));
  }
  TPU_EXPECT_EQ(world_compiles(&w), 1 + ROUNDS);
  tpu_compile_stats_t stats;
  tpu_engine_compile_stats(w.engine, &stats);
  TPU_EXPECT(stats.memory_drops >= ROUNDS - 30);
  // One of the first is made again when it is needed.
  tensor_t other = world_range(&w, 16, 1), sum = world_binary(&w, TPU_OP_MUL, other, other);
  EXPECT_CONTENT(&w, sum, 0, 0);
  TPU_EXPECT_EQ(world_compiles(&w), 2 + ROUNDS);
  drop(&other), drop(&sum), drop(&a);
  world_close(&w);
}
