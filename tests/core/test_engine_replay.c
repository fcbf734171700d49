/* Captures and their replay, and loops that never ask for a result; on the fake plugin. */
#include <stdatomic.h>

#include "engine_support.h"

static const tpu_capture_options_t strict = {.max_records = 100};

static bool begin(world_t* w, int count, const tensor_t* inputs) {
  tpu_operand_t operands[4];
  for (int i = 0; i < count; ++i) operands[i] = operand_of(inputs[i]);
  bool began = false;
  TPU_EXPECT_OK(tpu_engine_capture_begin(w->engine, count, operands, &strict, &began));
  return began;
}

/* Ends the capture; NULL when no template came of it, and then `part` must be in the reason. */
static tpu_template_t* end(world_t* w, int count, const tensor_t* results, const char* part) {
  tpu_operand_t operands[4];
  for (int i = 0; i < count; ++i) operands[i] = operand_of(results[i]);
  tpu_template_t* made = NULL;
  const char* obstacle = NULL;
  TPU_EXPECT_OK(tpu_engine_capture_end(w->engine, "composite", count, operands, &made, &obstacle));
  TPU_EXPECT_EQ(made == NULL, part != NULL);
  if (part != NULL && (obstacle == NULL || strstr(obstacle, part) == NULL)) {
    tpu_test_fail(__FILE__, __LINE__, "expected an obstacle with \"%s\", got \"%s\"", part,
                  obstacle != NULL ? obstacle : "(none)");
  }
  return made;
}

static tensor_t replay(world_t* w, const tpu_template_t* made, tensor_t a, tensor_t b) {
  tpu_operand_t operands[2] = {operand_of(a), operand_of(b)};
  tpu_result_t result;
  TPU_EXPECT_OK(tpu_engine_replay(w->engine, made, operands, NULL, NULL, &result));
  return (tensor_t){result.storage, result.meta, result.offset};
}

/* (a + b) * 0.5 with a host constant added and the first half updated in place. */
static tensor_t composite(world_t* w, tensor_t a, tensor_t b) {
  tensor_t c = world_binary(w, TPU_OP_ADD, a, b), constant = world_range(w, 8, 3);
  tensor_t d = world_binary(w, TPU_OP_SUB, c, constant);
  world_update_by(w, TPU_OP_MUL, view_of(d, 0, 4, 1), 0.5);
  drop(&c), drop(&constant);
  return d;
}

static const char* const composite_text =
    "%0 = add(ext0, ext1) -> f32[8]\n"
    "%1 = sub(%0, ext2) -> f32[8]\n"
    "%2 = mul_(%1[view f32[4]s(1)+0], 0.5) -> f32[4]\n"
    "%3 = view_write(%1, %2, [view f32[4]s(1)+0]) -> f32[8]\n";

TPU_TEST(replay_records_what_was_captured) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t inputs[2] = {world_range(&w, 8, 1), world_range(&w, 8, 2)};
  TPU_REQUIRE(begin(&w, 2, inputs));
  TPU_EXPECT(!begin(&w, 2, inputs));  // one at a time
  tensor_t result = composite(&w, inputs[0], inputs[1]);
  tpu_template_t* made = end(&w, 1, &result, NULL);
  TPU_REQUIRE(made != NULL);
  TPU_EXPECT_EQ(tpu_template_result_count(made), 1);
  TPU_EXPECT_EQ(tpu_template_record_count(made), 4);
  EXPECT_WINDOW(&w, composite_text);
  EXPECT_CONTENT(&w, result, 0, 0);
  // The same records for other tensors: even the same program.
  int64_t compiles = world_compiles(&w);
  tensor_t others[2] = {world_range(&w, 8, 5), world_range(&w, 8, 6)};
  tensor_t again = replay(&w, made, others[0], others[1]);
  EXPECT_WINDOW(&w, composite_text);
  TPU_EXPECT_EQ(again.view, result.view);
  EXPECT_CONTENT(&w, again, 0, 0);
  TPU_EXPECT_EQ(world_compiles(&w), compiles);
  // For tensors at other places, in front of which something is recorded already.
  tensor_t table = world_range(&w, 32, 0), sum = world_binary(&w, TPU_OP_ADD, others[0], others[1]);
  tensor_t third = replay(&w, made, view_of(table, 8, 8, 1), sum);
  EXPECT_WINDOW(&w,
                "%0 = add(ext0, ext1) -> f32[8]\n"
                "%1 = add(ext2[view f32[8]s(1)+8], %0) -> f32[8]\n"
                "%2 = sub(%1, ext3) -> f32[8]\n"
                "%3 = mul_(%2[view f32[4]s(1)+0], 0.5) -> f32[4]\n"
                "%4 = view_write(%2, %3, [view f32[4]s(1)+0]) -> f32[8]\n");
  EXPECT_CONTENT(&w, third, 0, 0);
  // Other shapes are refused.
  tpu_operand_t wrong[2] = {operand_of(table), operand_of(sum)};
  tpu_result_t none;
  TPU_EXPECT_CODE(tpu_engine_replay(w.engine, made, wrong, NULL, NULL, &none),
                  TPU_INVALID_ARGUMENT);
  TPU_EXPECT(none.storage == NULL);
  tpu_template_destroy(made);
  tpu_template_destroy(NULL);
  drop(&inputs[0]), drop(&inputs[1]), drop(&others[0]), drop(&others[1]);
  drop(&result), drop(&again), drop(&table), drop(&sum), drop(&third);
  world_close(&w);
}

TPU_TEST(replay_in_every_mode) {
  static const tpu_eager_mode_t modes[3] = {TPU_MODE_DEBUG, TPU_MODE_STRICT, TPU_MODE_FUSED};
  for (int i = 0; i < 3; ++i) {
    world_t w;
    TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, modes[i]));
    tensor_t inputs[2] = {world_range(&w, 8, 1), world_empty(&w, 8)};
    TPU_REQUIRE(begin(&w, 2, inputs));
    tensor_t result = composite(&w, inputs[0], inputs[1]);
    tpu_template_t* made = end(&w, 1, &result, NULL);
    TPU_EXPECT_EQ(world_waiting(&w) == 0, modes[i] != TPU_MODE_FUSED);
    tensor_t again = replay(&w, made, inputs[1], inputs[0]);
    TPU_EXPECT_EQ(world_waiting(&w) == 0, modes[i] != TPU_MODE_FUSED);
    EXPECT_CONTENT(&w, result, 0, 0);
    EXPECT_CONTENT(&w, again, 0, 0);
    tpu_template_destroy(made);
    drop(&inputs[0]), drop(&inputs[1]), drop(&result), drop(&again);
    world_close(&w);
  }
}

/* What makes a template impossible, one by one. */
TPU_TEST(replay_obstacles) {
  static const char* const reasons[] = {
      "reads a tensor's content on the host",    "waits for the device",
      "writes to a tensor that it did not make", "not among its arguments",
      "a result was not computed by it",         "computes nothing"};
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t inputs[2] = {world_range(&w, 8, 1), world_range(&w, 8, 2)};
  tensor_t other = world_range(&w, 8, 3);
  float numbers[8];
  for (int i = 0; i < 6; ++i) {
    TPU_REQUIRE(begin(&w, 2, inputs));
    tensor_t c = i == 5 ? world_empty(&w, 8) : world_binary(&w, TPU_OP_ADD, inputs[0], inputs[1]);
    tensor_t shown = c;
    if (i == 0) TPU_EXPECT_OK(world_read(&w, inputs[0], numbers));
    if (i == 1) world_flush(&w);
    if (i == 2) world_update_by(&w, TPU_OP_ADD, inputs[0], 1);
    if (i == 3) world_update(&w, TPU_OP_ADD, c, other);
    if (i == 4) shown = other;
    if (i == 5) shown = inputs[0];
    TPU_EXPECT(end(&w, 1, &shown, reasons[i]) == NULL);
    EXPECT_CONTENT(&w, c, 0, 0);  // the op itself is none the worse
    drop(&c);
  }
  // A cancelled capture leaves room for the next.
  TPU_REQUIRE(begin(&w, 2, inputs));
  tpu_engine_capture_cancel(w.engine);
  TPU_REQUIRE(begin(&w, 2, inputs));
  tpu_engine_capture_cancel(w.engine);
  drop(&inputs[0]), drop(&inputs[1]), drop(&other);
  world_close(&w);
}

/* A template's constants live as long as it does, also when its inputs have failed. */
TPU_TEST(replay_of_failed_inputs) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t inputs[2] = {world_range(&w, 8, 1), world_range(&w, 8, 2)};
  TPU_REQUIRE(begin(&w, 2, inputs));
  tensor_t result = composite(&w, inputs[0], inputs[1]);
  tpu_template_t* made = end(&w, 1, &result, NULL);
  TPU_REQUIRE(made != NULL);
  tensor_t bad = world_impossible(&w, inputs[0]);
  tpu_status_free(tpu_engine_flush(w.engine, true));
  tpu_operand_t operands[2] = {operand_of(inputs[0]), operand_of(bad)};
  tpu_result_t none;
  tpu_status_t status = tpu_engine_replay(w.engine, made, operands, NULL, NULL, &none);
  TPU_EXPECT(strstr(tpu_status_message(status), "composite reads a tensor whose") != NULL);
  tpu_status_free(status);
  TPU_EXPECT_EQ(world_waiting(&w), 0u);
  tpu_template_destroy(made);
  drop(&inputs[0]), drop(&inputs[1]), drop(&result), drop(&bad);
  world_close(&w);
}

static tpu_status_t try_replay(void* arg) {
  (void)arg;
  world_t w = {.fake = fake_plugin_control()};
  tpu_device_options_t options = {.plugin_path = fake_plugin_path()};
  TPU_RETURN_IF_ERROR(tpu_engine_create(&options, &w.engine));
  tensor_t a = {.view = vector_of(8)}, c = {0};
  tpu_result_t result = {0};
  tpu_template_t* made = NULL;
  bool began = false;
  const char* obstacle;
  tpu_status_t status = tpu_storage_create(w.engine, 32, &a.storage);
  tpu_operand_t operands[2] = {operand_of(a), operand_of(a)};
  if (status == NULL) status = tpu_engine_capture_begin(w.engine, 2, operands, &strict, &began);
  if (status == NULL) status = world_try(&w, TPU_OP_ADD, TPU_CALL_FUNCTIONAL, 2, operands, &c);
  if (began && status != NULL) {
    tpu_engine_capture_cancel(w.engine);
  } else if (began) {
    tpu_operand_t shown = operand_of(c);
    status = tpu_engine_capture_end(w.engine, "composite", 1, &shown, &made, &obstacle);
  }
  if (made != NULL) status = tpu_engine_replay(w.engine, made, operands, NULL, NULL, &result);
  float numbers[8];
  if (status == NULL) status = world_read(&w, c, numbers);
  tpu_template_destroy(made);
  tpu_storage_release(result.storage);
  drop(&a), drop(&c);
  tpu_engine_destroy(w.engine);
  return status;
}

TPU_TEST(replay_out_of_memory) {
  world_t w;  // for the settings, and to have everything loaded
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  TPU_REQUIRE_OK(try_replay(NULL));
  TPU_EXPECT(TPU_OOM_SWEEP(try_replay, NULL) > 50);
  world_close(&w);
}

static void* record_elsewhere(void* pointer) {
  world_t w = *(world_t*)pointer;
  tensor_t a = world_range(&w, 8, 1), b = world_scale(&w, TPU_OP_MUL, a, 2);
  drop(&a), drop(&b);
  return NULL;
}

static void* wait_elsewhere(void* pointer) {
  world_sync(pointer);
  return NULL;
}

/* Another thread that records in between does not matter; one that waits for everything makes the
 * capture void, this time. */

TPU_TEST(replay_interrupted_capture) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t inputs[2] = {world_range(&w, 8, 1), world_range(&w, 8, 2)};
  for (int round = 0; round < 3; ++round) {
    bool interrupted = round == 1;
    TPU_REQUIRE(begin(&w, 2, inputs));
    tensor_t c = world_binary(&w, TPU_OP_ADD, inputs[0], inputs[1]);
    pthread_t thread;
    void* (*disturb)(void*) = interrupted ? wait_elsewhere : record_elsewhere;
    TPU_REQUIRE(pthread_create(&thread, NULL, disturb, &w) == 0);
    (void)pthread_join(thread, NULL);
    tpu_operand_t shown = operand_of(c);
    tpu_template_t* made = NULL;
    const char* obstacle = "";
    TPU_EXPECT_OK(tpu_engine_capture_end(w.engine, "composite", 1, &shown, &made, &obstacle));
    TPU_EXPECT(obstacle == NULL);
    TPU_EXPECT_EQ(made == NULL, interrupted);
    tpu_template_destroy(made);
    EXPECT_CONTENT(&w, c, 0, 0);
    drop(&c);
  }
  drop(&inputs[0]), drop(&inputs[1]);
  world_close(&w);
}

/* Threads that capture, replay and flush at once. */
typedef struct worker_t {
  world_t world;
  atomic_int* templates;
} worker_t;

static void* capture_and_replay(void* pointer) {
  worker_t* worker = pointer;
  world_t* w = &worker->world;
  tpu_template_t* made = NULL;
  tensor_t inputs[2] = {world_range(w, 8, 1), world_range(w, 8, 2)};
  for (int round = 0; round < 60; ++round) {
    tpu_operand_t operands[2] = {operand_of(inputs[0]), operand_of(inputs[1])};
    bool began = false;
    TPU_EXPECT_OK(tpu_engine_capture_begin(w->engine, 2, operands, &strict, &began));
    tensor_t result = composite(w, inputs[0], inputs[1]);
    if (began) {
      tpu_template_t* next = NULL;
      const char* obstacle;
      tpu_operand_t shown = operand_of(result);
      TPU_EXPECT_OK(tpu_engine_capture_end(w->engine, "composite", 1, &shown, &next, &obstacle));
      if (next != NULL) {
        atomic_fetch_add(worker->templates, 1);
        tpu_template_destroy(made);
        made = next;
      }
    }
    if (made != NULL) {
      tensor_t again = replay(w, made, inputs[1], result);
      EXPECT_CONTENT(w, again, 0, 0);
      drop(&again);
    }
    EXPECT_CONTENT(w, result, 0, 0);
    drop(&result);
  }
  tpu_template_destroy(made);
  drop(&inputs[0]), drop(&inputs[1]);
  return NULL;
}

TPU_TEST(replay_threads) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  static worker_t workers[3];
  static atomic_int templates;
  pthread_t threads[3];
  for (int i = 0; i < 3; ++i) {
    workers[i] = (worker_t){w, &templates};
    TPU_REQUIRE(pthread_create(&threads[i], NULL, capture_and_replay, &workers[i]) == 0);
  }
  for (int i = 0; i < 3; ++i) (void)pthread_join(threads[i], NULL);
  TPU_EXPECT(atomic_load(&templates) > 0);
  world_close(&w);
}

/* --- loops --- */

/* A loop of 8 ops that never asks for a result: found, launched in equal windows, then expected. */
TPU_TEST(loop_is_launched_turn_by_turn) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 8, 1), b = world_range(&w, 8, 2);
  tpu_engine_stats_t before = {0};
  enum { TURNS = 3000, OPS = 8 };
  for (int turn = 0; turn < TURNS; ++turn) {
    for (int i = 0; i < OPS; ++i) world_update(&w, i % 3 ? TPU_OP_ADD : TPU_OP_MUL, a, b);
    if (turn == TURNS / 2) before = world_stats(&w);
    TPU_EXPECT(world_waiting(&w) <= TPUI_LOOP_CHECK);
  }
  tpu_engine_stats_t stats = world_stats(&w);
  TPU_EXPECT_EQ(world_lane(&w)->loop_length, TPUI_LOOP_MIN);
  TPU_EXPECT_EQ(stats.window_plans, before.window_plans);  // the steady state plans nothing
  TPU_EXPECT(stats.flushes - before.flushes >= TURNS / 2 * OPS / TPUI_LOOP_MIN - 1);
  TPU_EXPECT(stats.predicted - before.predicted > TURNS / 2 * OPS - 2 * TPUI_LOOP_MIN);
  EXPECT_CONTENT(&w, a, 0, 0);
  drop(&a), drop(&b);
  world_close(&w);
}

/* A long window without a pattern waits until something is needed. */
TPU_TEST(loop_is_not_seen_where_there_is_none) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  static const tpu_op_t ops[4] = {TPU_OP_ADD, TPU_OP_SUB, TPU_OP_MUL, TPU_OP_MAXIMUM};
  tensor_t a = world_range(&w, 8, 1), b = world_range(&w, 8, 2);
  uint64_t random = 9;
  for (int i = 0; i < TPUI_LOOP_CHECK + 100; ++i) {
    tensor_t c = world_binary(&w, ops[tpu_test_random(&random) >> 62], a, b);
    drop(&c);  // dead: this is about recording
  }
  TPU_EXPECT_EQ(world_stats(&w).flushes, 0);
  TPU_EXPECT_EQ(world_lane(&w)->loop_length, 0u);
  world_sync(&w);
  drop(&a), drop(&b);
  world_close(&w);
}

/* Values that a loop's windows hand on stay right when the loop changes and ends. */
TPU_TEST(loop_that_changes) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 8, 1), b = world_range(&w, 8, 2), kept[3];
  for (int phase = 0; phase < 3; ++phase) {
    for (int i = 0; i < 9000; ++i) {
      world_update(&w, i % (2 + phase) ? TPU_OP_ADD : TPU_OP_MUL, a, b);
    }
    kept[phase] = world_binary(&w, TPU_OP_SUB, a, b);
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_CONTENT(&w, kept[i], 0, 0);
    drop(&kept[i]);
  }
  EXPECT_CONTENT(&w, b, 2, 1);
  drop(&a), drop(&b);
  world_close(&w);
}
