/* Host steps and the tiers: new windows run op by op through functions of the user, and are
 * compiled after a number of occurrences that only their structure decides. */
#include <stdlib.h>

#include "base/alloc.h"
#include "base/env.h"
#include "engine_support.h"

/* --- a user of the core whose host functions know one operation, a sum of vectors --- */

static int runs, released, in_place;
static bool refuse;  // runs fail

typedef struct block_t {
  float* numbers;
  int references;
} block_t;

static void release_block(void* owner) {
  block_t* block = owner;
  if (__atomic_sub_fetch(&block->references, 1, __ATOMIC_ACQ_REL) > 0) return;
  free(block->numbers);
  free(block);
  __atomic_add_fetch(&released, 1, __ATOMIC_RELAXED);
}

static void* prepare_add(const tpu_record_t* record) {
  return record->op == TPU_OP_ADD ? &runs : NULL;
}

static bool allow(void) { return true; }

/* Writes into the first operand where it is given away. */
static tpu_status_t run_add(void* prepared, const tpu_host_op_t* op, tpu_host_block_t* out_blocks) {
  (void)prepared;
  if (refuse) return tpu_status_make(TPU_OUT_OF_RANGE, "index 9 is out of range");
  const tpu_meta_t* meta = tpu_meta_get(op->record->results[0]);
  const float *x = op->operands[0]->data, *y = op->operands[1]->data;
  block_t* block;
  if (op->operands[0]->given) {
    block = op->operands[0]->owner;
    __atomic_add_fetch(&block->references, 1, __ATOMIC_RELAXED);
    ++in_place;
  } else {
    block = malloc(sizeof(*block));
    block->references = 1;
    block->numbers = aligned_alloc(64, ((size_t)meta->numel * 4 + 63) / 64 * 64);
  }
  for (int64_t i = 0; i < meta->numel; ++i) block->numbers[i] = x[i] + y[i];
  ++runs;
  out_blocks[0] = (tpu_host_block_t){block->numbers, block, release_block};
  return NULL;
}

static const tpu_host_ops_t host_ops = {prepare_add, allow, run_add};

/* On a real plugin if there is one: the fake one does not compute. */
static bool open_interpreting(world_t* world, tpu_eager_mode_t mode, const char* interpretations) {
  const char* path = getenv("TORCH_TPU_PJRT_PLUGIN");
  bool real = path != NULL && path[0] != '\0';
  if (!(real ? world_open_real(world, mode) : world_open(world, TPU_PLATFORM_CPU, mode))) {
    return false;
  }
  runs = released = in_place = 0;
  refuse = false;
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_INTERPRETATIONS, interpretations));
  TPU_EXPECT_OK(tpu_engine_set_host_ops(world->engine, &host_ops));
  return true;
}

static void close_interpreting(world_t* world) {
  world_close(world);
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_INTERPRETATIONS, NULL));
}

/* Reads; on a real plugin, expects first, first + step, ... */
static void expect_numbers(world_t* world, tensor_t tensor, float first, float step) {
  float out[8];
  TPU_EXPECT_OK(world_read(world, tensor, out));
  for (int i = 0; i < 8 && world->fake == NULL; ++i) TPU_EXPECT(out[i] == first + step * (float)i);
}

/* --- tiers --- */

TPU_TEST(tiers_interpret_first_and_compile_once) {
  world_t w;
  if (!open_interpreting(&w, TPU_MODE_STRICT, "4")) return;
  tensor_t x = world_range(&w, 8, 0), y = world_range(&w, 8, 10);
  for (int i = 0; i < 7; ++i) {
    tensor_t z = world_binary(&w, TPU_OP_ADD, x, y);
    expect_numbers(&w, z, 10, 2);
    drop(&z);
  }
  TPU_EXPECT_EQ(runs, 4);
  TPU_EXPECT_EQ(world_stats(&w).interpretations, 4);
  TPU_EXPECT_EQ(world_compiles(&w), 1);
  TPU_EXPECT_EQ(released, 4);
  drop(&x);
  drop(&y);
  close_interpreting(&w);
}

TPU_TEST(tiers_compile_what_never_comes_again_never) {
  world_t w;
  if (!open_interpreting(&w, TPU_MODE_FUSED, "4")) return;
  tensor_t x = world_range(&w, 8, 0);
  for (int length = 1; length < 12; ++length) {
    tensor_t sum = world_binary(&w, TPU_OP_ADD, x, x);
    for (int i = 1; i < length; ++i) world_update(&w, TPU_OP_ADD, sum, x);
    expect_numbers(&w, sum, 0, length + 1);
    drop(&sum);
  }
  TPU_EXPECT_EQ(world_compiles(&w), 0);
  TPU_EXPECT(in_place > 0);
  drop(&x);
  close_interpreting(&w);
}

TPU_TEST(tiers_that_are_off_compile_at_once) {
  world_t w;
  if (!open_interpreting(&w, TPU_MODE_STRICT, "4")) return;
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_TIERS, "compiled"));
  tensor_t x = world_range(&w, 8, 0), z = world_binary(&w, TPU_OP_ADD, x, x);
  expect_numbers(&w, z, 0, 2);
  TPU_EXPECT_EQ(runs, 0);
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_TIERS, "sometimes"));
  tensor_t never = {0};
  const tpu_operand_t operands[] = {operand_of(x), operand_of(z)};
  TPU_EXPECT_CODE(world_try(&w, TPU_OP_ADD, TPU_CALL_FUNCTIONAL, 2, operands, &never),
                  TPU_INVALID_ARGUMENT);
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_TIERS, NULL));
  world_sync(&w);
  if (never.storage != NULL) drop(&never);
  drop(&x);
  drop(&z);
  close_interpreting(&w);
}

TPU_TEST(tiers_run_ops_without_a_host_form_as_programs) {
  world_t w;
  if (!open_interpreting(&w, TPU_MODE_FUSED, "4")) return;
  tensor_t x = world_range(&w, 8, 0);
  for (int i = 0; i < 3; ++i) {
    tensor_t sum = world_binary(&w, TPU_OP_ADD, x, x);
    tensor_t both = world_binary(&w, TPU_OP_MUL, sum, x);
    world_update(&w, TPU_OP_ADD, both, x);  // from host memory to a program and back
    float out[8];
    TPU_EXPECT_OK(world_read(&w, both, out));
    TPU_EXPECT(w.fake != NULL || out[3] == 2 * 3 * 3 + 3);
    drop(&sum);
    drop(&both);
  }
  TPU_EXPECT_EQ(world_compiles(&w), 1);
  TPU_EXPECT_EQ(runs, 6);
  drop(&x);
  close_interpreting(&w);
}

/* --- records without a lowering --- */

static void* prepare_fallback(const tpu_record_t* record) {
  return record->op == TPU_OP_FALLBACK ? &runs : NULL;
}

static const tpu_host_ops_t fallback_ops = {prepare_fallback, allow, run_add};

static tensor_t record_fallback(world_t* w, tensor_t x, tensor_t y) {
  const tpu_operand_t operands[] = {operand_of(x), operand_of(y)};
  tensor_t made = {0};
  TPU_EXPECT_OK(world_try(w, TPU_OP_FALLBACK, TPU_CALL_FUNCTIONAL, 2, operands, &made));
  return made;
}

static void run_around_a_fallback(world_t* w) {
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_TIERS, "compiled"));
  TPU_EXPECT_OK(tpu_engine_set_host_ops(w->engine, &fallback_ops));
  tensor_t x = world_range(w, 8, 0), sum = world_binary(w, TPU_OP_ADD, x, x);
  tensor_t made = record_fallback(w, sum, x), twice = world_binary(w, TPU_OP_ADD, made, made);
  TPU_EXPECT_EQ(world_stats(w).flushes, 0);
  expect_numbers(w, twice, 0, 6);
  TPU_EXPECT_EQ(world_stats(w).flushes, 1);
  TPU_EXPECT_EQ(world_stats(w).launches, 3);
  TPU_EXPECT_EQ(runs, 1);
  drop(&x);
  drop(&sum);
  drop(&made);
  drop(&twice);
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_TIERS, NULL));
}

TPU_TEST(fallback_runs_in_its_place_in_the_window) {
  world_t w;
  if (!open_interpreting(&w, TPU_MODE_FUSED, "4")) return;
  run_around_a_fallback(&w);
  TPU_EXPECT_EQ(released, 1);
  close_interpreting(&w);
}

TPU_TEST(fallback_copies_where_memory_is_the_devices_own) {
  world_t w;
  if (!world_open(&w, TPU_PLATFORM_TPU, TPU_MODE_FUSED)) return;
  runs = released = in_place = 0;
  refuse = false;
  run_around_a_fallback(&w);
  TPU_EXPECT_EQ(released, 1);
  TPU_EXPECT_EQ(in_place, 0);
  world_close(&w);
}

TPU_TEST(fallback_without_a_function_fails_alone) {
  world_t w;
  if (!world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED)) return;
  tensor_t x = world_range(&w, 8, 0), made = record_fallback(&w, x, x);
  tensor_t sum = world_binary(&w, TPU_OP_ADD, x, x);
  TPU_EXPECT_CODE(tpu_engine_flush(w.engine, true), TPU_UNIMPLEMENTED);
  float out[8];
  TPU_EXPECT_OK(world_read(&w, sum, out));
  drop(&x);
  drop(&made);
  drop(&sum);
  world_close(&w);
}

/* A platform with memory of its own interprets with a program per record, compiled quickly. */
TPU_TEST(tiers_of_other_platforms_interpret_by_programs_per_record) {
  world_t w;
  if (!world_open(&w, TPU_PLATFORM_TPU, TPU_MODE_FUSED)) return;
  runs = 0;
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_INTERPRETATIONS, "4"));
  TPU_EXPECT_OK(tpu_engine_set_host_ops(w.engine, &host_ops));
  tensor_t x = world_range(&w, 8, 0);
  float out[8];
  for (int i = 0; i < 6; ++i) {
    int64_t launches = world_stats(&w).launches;
    tensor_t product = world_binary(&w, TPU_OP_MUL, x, x);
    world_update(&w, TPU_OP_ADD, product, x);
    TPU_EXPECT_OK(world_read(&w, product, out));
    TPU_EXPECT_EQ(world_stats(&w).launches - launches, i < 4 ? 2 : 1);
    drop(&product);
  }
  TPU_EXPECT_EQ(world_stats(&w).interpretations, 4);
  TPU_EXPECT_EQ(runs, 0);
  TPU_EXPECT_EQ(world_compiles(&w), 3);
  drop(&x);
  world_close(&w);
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_INTERPRETATIONS, NULL));
}

/* --- failures --- */

TPU_TEST(host_step_that_fails_leaves_tensors_as_they_were) {
  world_t w;
  if (!open_interpreting(&w, TPU_MODE_FUSED, "4")) return;
  tensor_t x = world_range(&w, 8, 0), y = world_range(&w, 8, 5);
  world_update(&w, TPU_OP_ADD, x, y);
  world_sync(&w);
  refuse = true;
  world_update(&w, TPU_OP_ADD, x, y);
  tensor_t product = world_binary(&w, TPU_OP_MUL, y, y);  // does not depend on it
  TPU_EXPECT_CODE(tpu_engine_flush(w.engine, true), TPU_OUT_OF_RANGE);
  expect_numbers(&w, x, 5, 2);
  float out[8];
  TPU_EXPECT_OK(world_read(&w, product, out));
  TPU_EXPECT(w.fake != NULL || out[1] == 36);
  refuse = false;
  world_update(&w, TPU_OP_ADD, x, y);
  expect_numbers(&w, x, 10, 3);
  drop(&x);
  drop(&y);
  drop(&product);
  close_interpreting(&w);
}

TPU_TEST(host_steps_keep_to_the_memory_limit) {
  world_t w;
  if (!open_interpreting(&w, TPU_MODE_STRICT, "4")) return;
  tensor_t x = world_range(&w, 8, 0);
  tpu_memory_stats_t before, after;
  tpu_device_memory_stats(tpu_engine_device(w.engine), &before);
  tensor_t z = world_binary(&w, TPU_OP_ADD, x, x);
  world_sync(&w);
  tpu_device_memory_stats(tpu_engine_device(w.engine), &after);
  TPU_EXPECT_EQ(after.bytes_in_use - before.bytes_in_use, 32);
  drop(&z);
  tpu_device_memory_stats(tpu_engine_device(w.engine), &after);
  TPU_EXPECT_EQ(after.bytes_in_use, before.bytes_in_use);
  drop(&x);
  close_interpreting(&w);
}

/* --- builds --- */

TPU_TEST(tiers_give_up_builds_when_asked_to) {
  world_t w;
  if (!open_interpreting(&w, TPU_MODE_STRICT, "4")) return;
  tensor_t x = world_range(&w, 8, 0);
  for (int i = 0; i < 3; ++i) world_update(&w, TPU_OP_ADD, x, x);  // the third begins a build
  tpu_engine_stop_builds(w.engine);
  for (int i = 0; i < 3; ++i) world_update(&w, TPU_OP_ADD, x, x);
  expect_numbers(&w, x, 0, 64);
  TPU_EXPECT_EQ(world_stats(&w).interpretations, 4);
  drop(&x);
  close_interpreting(&w);
}

/* --- what recurs --- */

/* A graph of `count` sums, which gives the last one, and the first one too with `both`. */
static tpu_template_t* capture_sums(world_t* w, tensor_t x, int count, bool both) {
  const tpu_capture_options_t options = {.max_records = 100, .recurs = true};
  const tpu_operand_t input = operand_of(x);
  bool began = false;
  TPU_EXPECT_OK(tpu_engine_capture_begin(w->engine, 1, &input, &options, &began));
  TPU_EXPECT(began);
  tensor_t first = world_binary(w, TPU_OP_ADD, x, x), last = first;
  for (int i = 1; i < count; ++i) {
    tensor_t next = world_binary(w, TPU_OP_ADD, last, x);
    if (i > 1) drop(&last);
    last = next;
  }
  const tpu_operand_t results[2] = {operand_of(last), operand_of(first)};
  tpu_template_t* made = NULL;
  const char* obstacle = NULL;
  TPU_EXPECT_OK(tpu_engine_capture_end(w->engine, "sums", both ? 2 : 1, results, &made, &obstacle));
  TPU_EXPECT(made != NULL);
  if (!both) drop(&first);
  TPU_EXPECT_OK(tpu_engine_flush(w->engine, false));
  if (both) drop(&first);
  drop(&last);
  return made;
}

/* Replays and launches; gives how many buffers that made. */
static int64_t replay_sums(world_t* w, const tpu_template_t* made, tensor_t x) {
  tpu_memory_stats_t before, after;
  tpu_device_memory_stats(tpu_engine_device(w->engine), &before);
  const tpu_operand_t input = operand_of(x);
  tpu_result_t results[2] = {{0}};
  TPU_EXPECT_OK(tpu_engine_replay(w->engine, made, &input, NULL, NULL, results));
  TPU_EXPECT_OK(tpu_engine_flush(w->engine, true));
  tpu_device_memory_stats(tpu_engine_device(w->engine), &after);
  for (int k = 0; k < tpu_template_result_count(made); ++k) tpu_storage_release(results[k].storage);
  return after.buffers_total - before.buffers_total;
}

static tpu_window_info_t only_window(world_t* w) {
  tpu_window_info_t *windows = NULL, only;
  size_t count = 0;
  TPU_EXPECT_OK(tpu_engine_windows(w->engine, &windows, &count));
  TPU_EXPECT_EQ(count, 1);
  only = windows[0];
  tpu_free(windows);
  return only;
}

/* Training and inference of a model often record the same and need different results of it. */
static void run_in_turns(bool larger_first) {
  world_t w;
  if (!open_interpreting(&w, TPU_MODE_FUSED, "4")) return;
  tensor_t x = world_range(&w, 8, 0);
  tpu_template_t* graphs[2];
  for (int k = 0; k < 2; ++k) graphs[k] = capture_sums(&w, x, 3, (k == 0) == larger_first);
  for (int turn = 0; turn < 3; ++turn) {
    for (int k = 0; k < 2; ++k) {
      int64_t made = replay_sums(&w, graphs[k], x);
      TPU_EXPECT_EQ(made, tpu_template_result_count(graphs[k]));
    }
  }
  tpu_window_info_t window = only_window(&w);
  TPU_EXPECT_EQ(window.set_count, 2);
  TPU_EXPECT_EQ(window.interpreted, 1);
  for (int k = 0; k < 2; ++k) tpu_template_destroy(graphs[k]);
  drop(&x);
  close_interpreting(&w);
}
TPU_TEST(tiers_give_what_recurs_what_it_needs_and_no_more) { run_in_turns(true); }
TPU_TEST(tiers_run_the_smallest_set_of_programs_that_fits) { run_in_turns(false); }

/* The first call of a long graph builds while it is interpreted, that of a short one does not. */
TPU_TEST(tiers_build_what_recurs_from_its_first_call_on) {
  for (int count = 4; count <= 40; count += 36) {
    world_t w;
    if (!open_interpreting(&w, TPU_MODE_FUSED, "4")) return;
    tensor_t x = world_range(&w, 8, 0);
    tpu_template_t* graph = capture_sums(&w, x, count, false);
    TPU_EXPECT_OK(tpu_engine_await_builds(w.engine));
    int64_t built = world_compiles(&w);
    TPU_EXPECT_EQ(built > 0, count == 40);
    (void)replay_sums(&w, graph, x);
    TPU_EXPECT(count == 40 ? world_compiles(&w) == built : world_compiles(&w) > 0);
    TPU_EXPECT_EQ(only_window(&w).compiled, 1);
    tpu_template_destroy(graph);
    drop(&x);
    close_interpreting(&w);
  }
}

TPU_TEST(tiers_forget_builds_with_the_plans) {
  world_t w;
  if (!open_interpreting(&w, TPU_MODE_STRICT, "4")) return;
  tensor_t x = world_range(&w, 8, 0);
  for (int i = 0; i < 3; ++i) world_update(&w, TPU_OP_ADD, x, x);
  tpu_engine_clear_cache(w.engine);
  world_update(&w, TPU_OP_ADD, x, x);
  expect_numbers(&w, x, 0, 16);
  TPU_EXPECT_EQ(world_stats(&w).interpretations, 4);
  drop(&x);
  close_interpreting(&w);
}
