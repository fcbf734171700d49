/* What fails, what does not fail with it, and who is told. */
#include "base/env.h"
#include "base/log.h"
#include "engine_support.h"

/* The status has this code and its text names `part`. Takes it. */
static void expect_error(int line, tpu_status_t status, tpu_status_code_t code, const char* part) {
  if (tpu_status_code(status) != code || strstr(tpu_status_message(status), part) == NULL) {
    tpu_test_fail(__FILE__, line, "expected %s with \"%s\", got %s: %s", tpu_status_code_name(code),
                  part, tpu_status_code_name(tpu_status_code(status)), tpu_status_message(status));
  }
  tpu_status_free(status);
}
#define EXPECT_ERROR(status, code, part) expect_error(__LINE__, (status), (code), (part))

static tpu_status_t wait_all(world_t* w) { return tpu_engine_flush(w->engine, true); }

static tpu_status_t read_of(world_t* w, tensor_t tensor) {
  static float numbers[1 << 18];
  return world_read(w, tensor, numbers);
}

/* The code that lowering gives for shapes that do not fit. */
static tpu_status_code_t impossible_code(world_t* w) {
  tensor_t a = world_range(w, 8, 1), c = world_impossible(w, a);
  tpu_status_t status = wait_all(w);
  tpu_status_code_t code = tpu_status_code(status);
  TPU_EXPECT(code != TPU_OK);
  tpu_status_free(status);
  drop(&a), drop(&c);
  return code;
}

/* One op of a window cannot be compiled: it and what depends on it fail, nothing else does. */
TPU_TEST(failure_one_op_does_not_compile) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tpu_status_code_t code = impossible_code(&w);
  for (int round = 0; round < 3; ++round) {
    tensor_t a = world_range(&w, 8, 1), x = world_range(&w, 8, 5);
    tensor_t b = world_binary(&w, TPU_OP_ADD, a, a);
    tensor_t c = world_impossible(&w, a);
    tensor_t d = world_binary(&w, TPU_OP_MUL, c, a), e = world_binary(&w, TPU_OP_SUB, b, a);
    world_update_impossible(&w, x);
    world_flush(&w);
    EXPECT_ERROR(wait_all(&w), code, "div");
    world_sync(&w);  // told once
    for (int twice = 0; twice < 2; ++twice) {
      EXPECT_CONTENT(&w, b, 0, 0);
      EXPECT_CONTENT(&w, e, 0, 0);
      EXPECT_CONTENT(&w, x, 5, 1);  // as before the op
      EXPECT_CONTENT(&w, a, 1, 1);
      EXPECT_ERROR(read_of(&w, c), code, "div");
      EXPECT_ERROR(read_of(&w, d), code, "div");
    }
    // Using what failed says so, and does not record.
    tpu_operand_t operands[2] = {operand_of(c), operand_of(a)};
    tensor_t f;
    EXPECT_ERROR(world_try(&w, TPU_OP_ADD, TPU_CALL_FUNCTIONAL, 2, operands, &f), code,
                 "add reads a tensor whose computation failed");
    TPU_EXPECT_EQ(world_waiting(&w), 0u);
    // Overwriting all of it makes it good again.
    operands[0] = operands[1];
    TPU_EXPECT_OK(world_try(&w, TPU_OP_ADD, TPU_CALL_OUT, 2, operands, &c));
    EXPECT_CONTENT(&w, c, 0, 0);
    drop(&a), drop(&b), drop(&c), drop(&d), drop(&e), drop(&x);
  }
  world_close(&w);
}

/* Reading is one way of being told: the next sync is silent then. */
TPU_TEST(failure_is_told_by_a_read) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tpu_status_code_t code = impossible_code(&w);
  tensor_t a = world_range(&w, 8, 1), c = world_impossible(&w, a);
  EXPECT_ERROR(read_of(&w, c), code, "div");  // flushes
  world_sync(&w);
  drop(&c);
  c = world_impossible(&w, a);
  world_flush(&w);
  EXPECT_ERROR(read_of(&w, c), code, "div");  // had failed before
  world_sync(&w);
  EXPECT_ERROR(read_of(&w, c), code, "div");
  // Reading another failure does not hide this one.
  tensor_t d = world_impossible(&w, a);
  world_flush(&w);
  w.fake->fail_call("LoadedExecutable_Execute", TPU_ABORTED);
  tensor_t e = world_binary(&w, TPU_OP_ADD, a, a);
  EXPECT_ERROR(read_of(&w, e), TPU_ABORTED, "add");
  w.fake->fail_call(NULL, 0);
  EXPECT_ERROR(wait_all(&w), code, "div");
  drop(&a), drop(&c), drop(&d), drop(&e);
  world_close(&w);
}

/* Failures are told one by one also when their texts are the same. */
TPU_TEST(failure_with_the_text_of_another) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tpu_status_code_t code = impossible_code(&w);
  tensor_t a = world_range(&w, 8, 1), first = world_impossible(&w, a);
  world_flush(&w);
  tensor_t second = world_impossible(&w, a);
  EXPECT_ERROR(read_of(&w, second), code, "div");
  tpu_operand_t operands[2] = {operand_of(second), operand_of(a)};
  tensor_t none;
  EXPECT_ERROR(world_try(&w, TPU_OP_ADD, TPU_CALL_FUNCTIONAL, 2, operands, &none), code, "div");
  EXPECT_ERROR(wait_all(&w), code, "div");  // of the first, which nobody was told
  world_sync(&w);
  // What failed with a value of an earlier window is that value's failure.
  drop(&first);
  first = world_impossible(&w, a);
  world_flush(&w);
  operands[0] = operand_of(first);
  EXPECT_ERROR(world_try(&w, TPU_OP_ADD, TPU_CALL_FUNCTIONAL, 2, operands, &none), code, "div");
  world_sync(&w);
  drop(&a), drop(&first), drop(&second);
  world_close(&w);
}

/* Several writes to one tensor: it goes back to before the first that failed. */
TPU_TEST(failure_in_a_chain_of_updates) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 8, 1), b = world_range(&w, 8, 3);
  world_update_by(&w, TPU_OP_ADD, a, 1);  // gives zeros on this plugin
  world_update_impossible(&w, a);
  world_update_by(&w, TPU_OP_MUL, a, 2);  // fails with it
  world_update_impossible(&w, b);
  world_update_by(&w, TPU_OP_MUL, b, 2);
  tpu_status_free(wait_all(&w));
  EXPECT_CONTENT(&w, a, 0, 0);
  EXPECT_CONTENT(&w, b, 3, 1);
  // And it can be worked with.
  world_update_by(&w, TPU_OP_MUL, b, 2);
  EXPECT_CONTENT(&w, b, 0, 0);
  drop(&a), drop(&b);
  world_close(&w);
}

TPU_TEST(failure_of_a_write_through_a_view) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 16, 1);
  world_update_impossible(&w, view_of(a, 1, 8, 1));
  tpu_status_free(wait_all(&w));
  EXPECT_CONTENT(&w, a, 1, 1);
  drop(&a);
  world_close(&w);
}

/* A storage without content before has nothing to go back to. */
TPU_TEST(failure_of_the_first_content) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_empty(&w, 8), b = world_range(&w, 8, 1), other = world_range(&w, 7, 1);
  tpu_operand_t operands[2] = {operand_of(b), operand_of(other)};
  TPU_EXPECT_OK(world_try(&w, TPU_OP_DIV, TPU_CALL_OUT, 2, operands, &a));
  tpu_status_free(wait_all(&w));
  tpu_status_t status = read_of(&w, a);
  TPU_EXPECT(status != NULL);
  tpu_status_free(status);
  drop(&a), drop(&b), drop(&other);
  world_close(&w);
}

TPU_TEST(failure_to_execute) {
  static const tpu_status_code_t codes[2] = {TPU_INTERNAL, TPU_RESOURCE_EXHAUSTED};
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  for (int i = 0; i < 4; ++i) {
    tensor_t a = world_range(&w, 8, 1), x = world_range(&w, 8, 5);
    w.fake->fail_call("LoadedExecutable_Execute", codes[i % 2]);
    tensor_t b = world_binary(&w, TPU_OP_ADD, a, a);
    world_update(&w, TPU_OP_MUL, x, b);
    EXPECT_ERROR(wait_all(&w), codes[i % 2], "add");
    world_sync(&w);
    EXPECT_ERROR(read_of(&w, b), codes[i % 2], "injected failure of LoadedExecutable_Execute");
    EXPECT_CONTENT(&w, x, 5, 1);
    w.fake->fail_call(NULL, 0);
    world_update(&w, TPU_OP_MUL, x, a);
    EXPECT_CONTENT(&w, x, 0, 0);
    drop(&a), drop(&b), drop(&x);
    // The program of both, each op alone for the second try, and the update that follows.
    TPU_EXPECT_EQ(world_compiles(&w), 3);
  }
  world_close(&w);
}

/* Two programs, of which the first takes the old content: any of their calls fails. The tensor
 * holds what was there before the one that failed. */
TPU_TEST(failure_after_a_donation) {
  world_t w;
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_PROGRAM_OPS, "1"));
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_PROGRAM_OPS, NULL));
  int restored = 0, done = 0;
  for (int n = 0; n < 10; ++n) {
    tensor_t a = world_range(&w, 8, 1);
    world_update_by(&w, TPU_OP_ADD, a, 1);
    world_update_by(&w, TPU_OP_MUL, a, 2);
    w.fake->fail_at(n, TPU_INTERNAL);  // not the first time, which compiles
    tpu_status_t failure = wait_all(&w);
    w.fake->fail_at(0, 0);
    float numbers[8];
    TPU_EXPECT_OK(world_read(&w, a, numbers));
    if (numbers[7] == 8) {
      TPU_EXPECT(failure != NULL);
      ++restored;
    } else {
      TPU_EXPECT(numbers[7] == 0);
      ++done;
    }
    tpu_status_free(failure);
    drop(&a);
  }
  TPU_EXPECT(restored > 0 && done > 1);
  world_close(&w);
}

/* The run fails after it took what it was given: the tensor has no content left, and says so. Then
 * such a run gets nothing before it has succeeded, and the next tensor keeps its content. */
TPU_TEST(failure_that_took_a_donation) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  for (int turn = 0; turn < 2; ++turn) {  // the first one compiles
    tensor_t a = world_range(&w, 8, 1), b = world_range(&w, 8, 2);
    world_update_by(&w, TPU_OP_ADD, a, 1);
    w.fake->fail_taking(TPU_RESOURCE_EXHAUSTED);
    TPU_EXPECT_CODE(wait_all(&w), TPU_RESOURCE_EXHAUSTED);
    w.fake->fail_taking(0);
    if (turn == 0) EXPECT_ERROR(read_of(&w, a), TPU_RESOURCE_EXHAUSTED, "is lost too");
    if (turn == 1) EXPECT_CONTENT(&w, a, 1, 1);
    EXPECT_CONTENT(&w, b, 2, 1);
    drop(&a), drop(&b);
  }
  world_close(&w);
}

/* A program that says it needs more than there is: refused before it runs, and run op by op. */
TPU_TEST(failure_of_a_program_that_is_too_large) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_TPU, TPU_MODE_FUSED));
  for (int turn = 0; turn < 2; ++turn) {  // the second time all is compiled
    tensor_t a = world_range(&w, 8, 1), x = world_range(&w, 8, 5);
    world_update(&w, TPU_OP_ADD, x, a);
    tensor_t b = world_binary(&w, TPU_OP_ADD, a, x);
    w.fake->temporaries(INT64_MAX / 2);
    w.fake->fail_taking(TPU_INTERNAL);  // not reached by what is refused
    int64_t launches = world_stats(&w).launches;
    tpu_status_t status = wait_all(&w);
    // The first time the ops too are compiled as too large.
    EXPECT_ERROR(status, TPU_RESOURCE_EXHAUSTED, "of them temporary");
    TPU_EXPECT_EQ(world_stats(&w).launches, launches);
    w.fake->temporaries(0);
    w.fake->fail_taking(0);
    EXPECT_CONTENT(&w, a, 1, 1);
    EXPECT_CONTENT(&w, x, 5, 1);
    EXPECT_ERROR(read_of(&w, b), TPU_RESOURCE_EXHAUSTED, "bytes wanted");
    drop(&a), drop(&b), drop(&x);
  }
  tpu_engine_clear_cache(w.engine);
  world_close(&w);
}

/* Only the op that fails fails: what was written before it in the same program stays. */
TPU_TEST(failure_inside_a_program) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  for (int n = 1; n < 12; ++n) {
    tensor_t a = world_range(&w, 8, 1), x = world_range(&w, 8, 5), y = world_range(&w, 8, 7);
    world_update(&w, TPU_OP_ADD, x, a);  // zeros on this plugin
    world_update(&w, TPU_OP_MUL, y, a);
    world_update(&w, TPU_OP_MUL, y, x);
    tensor_t b = world_binary(&w, TPU_OP_SUB, a, a);
    world_flush(&w);  // compiles
    world_sync(&w);
    drop(&a), drop(&b), drop(&x), drop(&y);
    a = world_range(&w, 8, 1), x = world_range(&w, 8, 5), y = world_range(&w, 8, 7);
    world_update(&w, TPU_OP_ADD, x, a);
    world_update(&w, TPU_OP_MUL, y, a);
    world_update(&w, TPU_OP_MUL, y, x);
    b = world_binary(&w, TPU_OP_SUB, a, a);
    w.fake->fail_at(n, TPU_INTERNAL);
    tpu_status_t status = wait_all(&w);
    tpu_status_free(status);  // of a wait that failed; a run that did is made good
    w.fake->fail_at(0, 0);
    EXPECT_CONTENT(&w, x, 0, 0);
    EXPECT_CONTENT(&w, y, 0, 0);
    EXPECT_CONTENT(&w, b, 0, 0);
    drop(&a), drop(&b), drop(&x), drop(&y);
  }
  world_close(&w);
}

/* Windows that were recorded, and launched, before an earlier one failed: what they write to goes
 * back to before all of them, and what they do besides is done. */
TPU_TEST(failure_before_windows_that_follow) {
  enum { SIZE = 1 << 17 };  // worth the launch thread
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  for (int turn = 0; turn < 6; ++turn) {
    bool fails = turn >= 3;  // before, the windows become known: new ones wait for those in flight
    int later = turn % 3;
    tensor_t a = world_range(&w, SIZE, 1), b = world_range(&w, SIZE, 2);
    tensor_t x = world_range(&w, SIZE, 3);
    w.fake->hold(fails);
    world_update(&w, TPU_OP_ADD, a, b);
    world_flush(&w);
    if (later > 0) {
      world_update(&w, TPU_OP_MUL, a, b);
      world_update(&w, TPU_OP_ADD, x, b);
      world_flush(&w);
    }
    if (later > 1) world_update(&w, TPU_OP_SUB, a, b);  // recorded only
    if (fails) {
      w.fake->fail_at(1, TPU_INTERNAL);
      w.fake->hold(false);
      EXPECT_ERROR(wait_all(&w), TPU_INTERNAL, "add");
    }
    world_sync(&w);
    EXPECT_CONTENT(&w, a, fails ? 1 : 0, fails ? 1 : 0);
    EXPECT_CONTENT(&w, b, 2, 1);
    EXPECT_CONTENT(&w, x, later > 0 ? 0 : 3, later > 0 ? 0 : 1);
    drop(&a), drop(&b), drop(&x);
  }
  world_close(&w);
}

/* Accepted, but the content never came to be. */
TPU_TEST(failure_of_asynchronous_work) {
  static const tpu_platform_kind_t platforms[2] = {TPU_PLATFORM_CPU, TPU_PLATFORM_TPU};
  for (int i = 0; i < 2; ++i) {
    world_t w;
    TPU_REQUIRE(world_open(&w, platforms[i], TPU_MODE_FUSED));
    tensor_t a = world_range(&w, 8, 1);
    w.fake->fail_outputs(TPU_DATA_LOSS);
    tensor_t b = world_binary(&w, TPU_OP_ADD, a, a);
    world_flush(&w);
    w.fake->fail_outputs(0);
    tensor_t c = world_binary(&w, TPU_OP_SUB, a, a);
    EXPECT_ERROR(wait_all(&w), TPU_DATA_LOSS, "");
    world_sync(&w);
    EXPECT_ERROR(read_of(&w, b), TPU_DATA_LOSS, "");
    EXPECT_ERROR(read_of(&w, b), TPU_DATA_LOSS, "");
    EXPECT_CONTENT(&w, c, 0, 0);
    EXPECT_CONTENT(&w, a, 1, 1);
    drop(&a), drop(&b), drop(&c);
    world_close(&w);
  }
}

/* Waiting means waiting: content that comes later is there after a sync. */
TPU_TEST(failure_free_sync_waits_for_content) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_TPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 8, 1);
  w.fake->delay(30000);
  tensor_t b = world_binary(&w, TPU_OP_ADD, a, a);
  int64_t begin = tpu_clock_ns();
  world_flush(&w);
  int64_t flushed = tpu_clock_ns();
  world_sync(&w);
  int64_t synced = tpu_clock_ns();
  TPU_EXPECT(synced - begin >= 30000000);
  TPU_EXPECT(flushed - begin < 30000000);
  begin = tpu_clock_ns();
  world_sync(&w);
  TPU_EXPECT(tpu_clock_ns() - begin < 30000000);  // known to be there
  drop(&a), drop(&b);
  world_close(&w);
}

/* A sync looks at what came since the last one, however many storages there are or were. */
TPU_TEST(failure_free_sync_looks_at_new_content_only) {
  enum { COUNT = 3000 };
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_TPU, TPU_MODE_FUSED));
  static tensor_t tensors[COUNT];
  for (int i = 0; i < COUNT; ++i) tensors[i] = world_range(&w, 4, (float)i);
  world_sync(&w);
  TPU_EXPECT_EQ(world_stats(&w).awaits, COUNT);
  world_sync(&w);
  TPU_EXPECT_EQ(world_stats(&w).awaits, COUNT);
  tensor_t sum = world_binary(&w, TPU_OP_ADD, tensors[0], tensors[1]);
  world_sync(&w);
  TPU_EXPECT_EQ(world_stats(&w).awaits, COUNT + 1);
  // What was read, and what nobody holds any more, need not be waited for.
  tensor_t read = world_range(&w, 4, 1);
  EXPECT_CONTENT(&w, read, 1, 1);
  world_update(&w, TPU_OP_ADD, sum, tensors[0]);
  for (int i = 0; i < COUNT; ++i) drop(&tensors[i]);
  world_sync(&w);
  TPU_EXPECT_EQ(world_stats(&w).awaits, COUNT + 2);
  drop(&sum), drop(&read);
  world_sync(&w);
  TPU_EXPECT_EQ(world_stats(&w).awaits, COUNT + 2);
  world_close(&w);
}

/* Content that comes back after a failed update is waited for like before it. */
TPU_TEST(failure_brings_back_content_that_nobody_waited_for) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_TPU, TPU_MODE_FUSED));
  tpu_status_code_t code = impossible_code(&w);
  tensor_t a = world_range(&w, 8, 1);
  w.fake->fail_outputs(TPU_DATA_LOSS);
  tensor_t x = world_binary(&w, TPU_OP_ADD, a, a);
  world_flush(&w);
  w.fake->fail_outputs(0);
  world_update_impossible(&w, x);
  EXPECT_ERROR(wait_all(&w), code, "div");
  EXPECT_ERROR(read_of(&w, x), TPU_DATA_LOSS, "");
  drop(&x);
  // The same, and told by the sync: the failed update first, as it is the one that is known.
  w.fake->fail_outputs(TPU_DATA_LOSS);
  x = world_binary(&w, TPU_OP_ADD, a, a);
  world_flush(&w);
  w.fake->fail_outputs(0);
  world_update_impossible(&w, x);
  world_flush(&w);
  int64_t before = world_stats(&w).awaits;
  EXPECT_ERROR(wait_all(&w), code, "div");
  TPU_EXPECT_EQ(world_stats(&w).awaits, before + 1);
  world_sync(&w);
  TPU_EXPECT_EQ(world_stats(&w).awaits, before + 1);
  drop(&a), drop(&x);
  world_close(&w);
}

TPU_TEST(failure_arrives_at_the_op_in_debug_and_strict_mode) {
  static const tpu_eager_mode_t modes[2] = {TPU_MODE_DEBUG, TPU_MODE_STRICT};
  for (int i = 0; i < 2; ++i) {
    world_t w;
    TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, modes[i]));
    tensor_t a = world_range(&w, 8, 1), x = world_range(&w, 8, 5), b;
    tpu_operand_t operands[2] = {operand_of(a), operand_of(a)};
    w.fake->fail_call("LoadedExecutable_Execute", TPU_INTERNAL);
    EXPECT_ERROR(world_try(&w, TPU_OP_ADD, TPU_CALL_FUNCTIONAL, 2, operands, &b), TPU_INTERNAL,
                 "add");
    EXPECT_ERROR(world_try(&w, TPU_OP_ADD, TPU_CALL_OUT, 2, operands, &x), TPU_INTERNAL, "add");
    w.fake->fail_call(NULL, 0);
    world_sync(&w);
    EXPECT_CONTENT(&w, x, 5, 1);
    if (modes[i] == TPU_MODE_DEBUG) {
      w.fake->fail_outputs(TPU_DATA_LOSS);
      EXPECT_ERROR(world_try(&w, TPU_OP_SUB, TPU_CALL_FUNCTIONAL, 2, operands, &b), TPU_DATA_LOSS,
                   "");
      w.fake->fail_outputs(0);
    }
    tensor_t c = world_binary(&w, TPU_OP_ADD, a, a);
    EXPECT_CONTENT(&w, c, 0, 0);
    drop(&a), drop(&x), drop(&c);
    world_close(&w);
  }
}

/* A compiler that fails for a while: the window works once it does not. */
TPU_TEST(failure_to_compile_is_not_kept) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 8, 1);
  for (int i = 0; i < 3; ++i) {
    w.fake->fail_call(i < 2 ? "Client_Compile" : NULL, TPU_UNAVAILABLE);
    tensor_t b = world_binary(&w, TPU_OP_ADD, a, a), c = world_binary(&w, TPU_OP_MUL, b, a);
    drop(&b);
    tpu_status_t status = read_of(&w, c);
    TPU_EXPECT_EQ(tpu_status_code(status), i < 2 ? TPU_UNAVAILABLE : TPU_OK);
    tpu_status_free(status);
    drop(&c);
    TPU_EXPECT_EQ(world_lane(&w)->last_plan->variant_count, i + 1);
  }
  // The good variant gives what is needed only.
  const tpui_variant_t* variant = world_lane(&w)->last_plan->variants[0];
  TPU_EXPECT(!variant->single && !variant->live[0] && variant->live[1]);
  drop(&a);
  world_close(&w);
}

/* A window whose fused program fails once runs op by op. */
TPU_TEST(failure_to_fuse_runs_single_ops) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 8, 1);
  tensor_t b = world_binary(&w, TPU_OP_ADD, a, a), c = world_binary(&w, TPU_OP_MUL, b, a);
  world_update(&w, TPU_OP_SUB, a, c);
  w.fake->fail_at(1, TPU_INTERNAL);  // the first call of the flush is the compile
  world_sync(&w);
  TPU_EXPECT(!w.fake->fail_pending());
  TPU_EXPECT_EQ(world_stats(&w).launches, 3);
  EXPECT_CONTENT(&w, a, 0, 0);
  EXPECT_CONTENT(&w, c, 0, 0);
  drop(&a), drop(&b), drop(&c);
  world_close(&w);
}

/* A window behind a failed one, in the queue: its error is the cause's. */
TPU_TEST(failure_travels_through_the_queue) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 70000, 1), x = world_range(&w, 70000, 5);
  w.fake->fail_call("LoadedExecutable_Execute", TPU_INTERNAL);
  tensor_t b = world_binary(&w, TPU_OP_ADD, a, a);
  world_flush(&w);
  tpu_status_t status = NULL;
  tpu_operand_t operands[2] = {operand_of(x), operand_of(b)};
  status = world_try(&w, TPU_OP_MUL, TPU_CALL_IN_PLACE, 2, operands, &x);  // b may have failed
  tpu_status_free(status);
  world_flush(&w);
  status = wait_all(&w);
  if (status != NULL) TPU_EXPECT_EQ(tpu_status_code(status), TPU_INTERNAL);
  tpu_status_free(status);
  w.fake->fail_call(NULL, 0);
  world_sync(&w);
  EXPECT_ERROR(read_of(&w, b), TPU_INTERNAL, "add");
  EXPECT_CONTENT(&w, x, 5, 1);
  drop(&a), drop(&b), drop(&x);
  world_close(&w);
}

/* --- sweeps: one scenario, every failure --- */

static tpu_status_t try_range(tpu_engine_t* engine, int64_t size, tensor_t* out) {
  static float numbers[70000];
  int64_t one = 1;
  *out = (tensor_t){0};
  TPU_RETURN_IF_ERROR(tpu_meta_intern(TPU_F32, 1, &size, &one, &out->view));
  TPU_RETURN_IF_ERROR(tpu_storage_create(engine, size * 4, &out->storage));
  return tpu_engine_write(engine, out->storage, out->view, 0, numbers, size * 4);
}

static tpu_status_t try_scenario(world_t* w, int64_t size, tensor_t* t) {
  TPU_RETURN_IF_ERROR(try_range(w->engine, size, &t[0]));
  TPU_RETURN_IF_ERROR(try_range(w->engine, size, &t[1]));
  tpu_operand_t whole[2] = {operand_of(t[0]), operand_of(t[1])};
  TPU_RETURN_IF_ERROR(world_try(w, TPU_OP_ADD, TPU_CALL_FUNCTIONAL, 2, whole, &t[2]));
  TPU_RETURN_IF_ERROR(world_try(w, TPU_OP_MUL, TPU_CALL_IN_PLACE, 2, whole, &t[0]));
  tensor_t part = view_of(t[1], 1, 4, 2);
  tpu_operand_t parts[2] = {operand_of(part), operand_of(view_of(t[2], 0, 4, 1))};
  TPU_RETURN_IF_ERROR(world_try(w, TPU_OP_SUB, TPU_CALL_IN_PLACE, 2, parts, &part));
  TPU_RETURN_IF_ERROR(tpu_engine_flush(w->engine, false));
  for (int i = 0; i < 2; ++i) {
    tpu_operand_t scaled[2] = {operand_of(t[0]), number_of(i)};
    TPU_RETURN_IF_ERROR(world_try(w, TPU_OP_MUL, TPU_CALL_IN_PLACE, 2, scaled, &t[0]));
    TPU_RETURN_IF_ERROR(tpu_engine_flush(w->engine, i == 1));
  }
  TPU_RETURN_IF_ERROR(tpu_storage_resize(t[2].storage, size * 8));
  float numbers[4];
  TPU_RETURN_IF_ERROR(world_read(w, part, numbers));
  TPU_RETURN_IF_ERROR(world_read(w, view_of(t[2], 0, 4, 1), numbers));
  return world_read(w, view_of(t[0], 0, 4, 1), numbers);
}

static tpu_status_t run_scenario(world_t* w, int64_t size) {
  tensor_t t[3] = {0};
  tpu_status_t status = try_scenario(w, size, t);
  for (int i = 0; i < 3; ++i) drop(&t[i]);
  return status;
}

/* What remains of a failed run must not disturb the next. */
static void expect_works(int line, world_t* w, int64_t size) {
  tpu_status_free(tpu_engine_flush(w->engine, true));
  tpu_status_t status = run_scenario(w, size);
  if (status != NULL) {
    tpu_test_fail(__FILE__, line, "the next run failed: %s", tpu_status_message(status));
  }
  tpu_status_free(status);
}

static void sweep_calls(tpu_platform_kind_t platform, tpu_eager_mode_t mode, int64_t size) {
  int failures = 0;
  for (int n = 1; n < 2000; ++n) {
    world_t w;
    TPU_REQUIRE(world_open(&w, platform, mode));
    w.fake->fail_at(n, TPU_INTERNAL);
    tpu_status_t status = run_scenario(&w, size);
    tpu_status_t late = tpu_engine_flush(w.engine, true);
    bool struck = !w.fake->fail_pending();
    w.fake->fail_at(0, 0);
    if (!struck) TPU_EXPECT(status == NULL && late == NULL);
    failures += status != NULL || late != NULL;
    tpu_status_code_t code = tpu_status_code(status != NULL ? status : late);
    TPU_EXPECT(code == TPU_OK || code == TPU_INTERNAL);
    tpu_status_free(status);
    tpu_status_free(late);
    expect_works(__LINE__, &w, size);
    world_close(&w);
    if (!struck) {
      TPU_EXPECT(n > 10 && failures > 5);
      return;
    }
  }
  tpu_test_fail(__FILE__, __LINE__, "the sweep does not end");
}

TPU_TEST(failure_of_every_call_fused) { sweep_calls(TPU_PLATFORM_CPU, TPU_MODE_FUSED, 8); }
TPU_TEST(failure_of_every_call_strict) { sweep_calls(TPU_PLATFORM_CPU, TPU_MODE_STRICT, 8); }
TPU_TEST(failure_of_every_call_debug) { sweep_calls(TPU_PLATFORM_CPU, TPU_MODE_DEBUG, 8); }
TPU_TEST(failure_of_every_call_queued) { sweep_calls(TPU_PLATFORM_CPU, TPU_MODE_FUSED, 70000); }
TPU_TEST(failure_of_every_call_tpu) { sweep_calls(TPU_PLATFORM_TPU, TPU_MODE_FUSED, 8); }

typedef struct sweep_t {
  tpu_eager_mode_t mode;
  int64_t size;
} sweep_t;

/* With an engine of its own, since an engine keeps what it learns. */
static tpu_status_t whole_life(void* arg) {
  const sweep_t* sweep = arg;
  world_t w = {.fake = fake_plugin_control()};
  tpu_device_options_t options = {.plugin_path = fake_plugin_path()};
  TPU_RETURN_IF_ERROR(tpu_engine_create(&options, &w.engine));
  tpu_status_t status = tpu_engine_set_mode(w.engine, sweep->mode);
  if (status == NULL) status = run_scenario(&w, sweep->size);
  tpu_status_t late = tpu_engine_flush(w.engine, true);
  tpu_alloc_fail_at(tpu_alloc_fail_pending() ? INT64_MAX : 0);  // keeps "pending" as it is
  expect_works(__LINE__, &w, sweep->size);
  tpu_engine_destroy(w.engine);
  if (status == NULL) return late;
  tpu_status_free(late);
  return status;
}

static void sweep_memory(tpu_eager_mode_t mode, int64_t size) {
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_CACHE, "0"));
  const fake_control_t* fake = fake_plugin_control();
  TPU_REQUIRE(fake != NULL);
  fake->reset();
  sweep_t sweep = {mode, size};
  TPU_REQUIRE_OK(whole_life(&sweep));
  TPU_EXPECT(TPU_OOM_SWEEP(whole_life, &sweep) > 100);
  fake_stats_t stats;
  fake->stats(&stats);
  TPU_EXPECT_EQ(stats.violations, 0);
  TPU_EXPECT_EQ(fake->live(), 0);
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_CACHE, NULL));
}

TPU_TEST(failure_of_every_allocation_fused) { sweep_memory(TPU_MODE_FUSED, 8); }
TPU_TEST(failure_of_every_allocation_strict) { sweep_memory(TPU_MODE_STRICT, 8); }
TPU_TEST(failure_of_every_allocation_queued) { sweep_memory(TPU_MODE_FUSED, 70000); }
