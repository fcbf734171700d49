/* Captures and templates: what becomes one, what does not, and that replaying appends the same
 * records for other inputs. */
#include <pthread.h>

#include "engine_support.h"

/* The composite operation of these tests: y = (a + b) * b, then y -= 0.5 * a. */
static tensor_t compose(world_t* w, tensor_t a, tensor_t b) {
  tensor_t sum = world_binary(w, TPU_OP_ADD, a, b), y = world_binary(w, TPU_OP_MUL, sum, b);
  tensor_t half = world_scale(w, TPU_OP_MUL, a, 0.5);
  world_update(w, TPU_OP_SUB, y, half);
  drop(&sum), drop(&half);
  return y;
}

static const char composed[] =
    "%0 = add(ext0, ext1) -> f32[8]\n"
    "%1 = mul(%0, ext1) -> f32[8]\n"
    "%2 = mul(ext0, 0.5) -> f32[8]\n"
    "%3 = sub_(%1, %2) -> f32[8]\n";

static bool begin(world_t* w, int count, const tpu_operand_t* inputs) {
  bool began = false;
  TPU_EXPECT_OK(tpu_engine_capture_begin(w->engine, count, inputs, &began));
  return began;
}

/* Expects no template when `obstacle` is not NULL. */
static tpu_template_t* end(world_t* w, tensor_t result, const char* obstacle) {
  tpu_operand_t operand = operand_of(result);
  tpu_template_t* made = NULL;
  const char* why = NULL;
  TPU_EXPECT_OK(tpu_engine_capture_end(w->engine, "composed", 1, &operand, &made, &why));
  TPU_EXPECT_EQ(made == NULL, obstacle != NULL);
  if (why != NULL || (obstacle != NULL && obstacle[0] != '\0')) {
    TPU_EXPECT_TEXT(why == NULL ? "" : why, obstacle == NULL ? "" : obstacle);
  }
  return made;
}

static tpu_template_t* capture(world_t* w, tensor_t a, tensor_t b) {
  tpu_operand_t inputs[2] = {operand_of(a), operand_of(b)};
  TPU_EXPECT(begin(w, 2, inputs));
  tensor_t y = compose(w, a, b);
  tpu_template_t* made = end(w, y, NULL);
  drop(&y);
  return made;
}

static tensor_t replay(world_t* w, const tpu_template_t* made, tensor_t a, tensor_t b) {
  tpu_operand_t inputs[2] = {operand_of(a), operand_of(b)};
  tpu_result_t result = {0};
  TPU_EXPECT_OK(tpu_engine_replay(w->engine, made, inputs, &result));
  return (tensor_t){result.storage, result.meta, result.offset};
}

TPU_TEST(replay_appends_the_same_records) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 8, 1), b = world_range(&w, 8, 100), c = world_range(&w, 8, 7);
  tpu_template_t* made = capture(&w, a, b);
  TPU_REQUIRE(made != NULL);
  TPU_EXPECT_EQ(tpu_template_record_count(made), 4);
  TPU_EXPECT_EQ(tpu_template_result_count(made), 1);
  EXPECT_WINDOW(&w, composed);
  world_sync(&w);
  // The window is the traced one, dead values included, so that its plan fits.
  tpu_engine_reset_stats(w.engine);
  tensor_t y = replay(&w, made, c, b);
  TPU_EXPECT_EQ(y.view, a.view);
  EXPECT_WINDOW(&w, composed);
  EXPECT_CONTENT(&w, y, 0, 0);
  TPU_EXPECT_EQ(world_stats(&w).records, 4);
  drop(&y);
  // Values of the window are inputs like any other, also of the next replay.
  tensor_t d = world_binary(&w, TPU_OP_ADD, a, a), e = replay(&w, made, d, b);
  tensor_t f = replay(&w, made, b, e);
  EXPECT_WINDOW(&w,
                "%0 = add(ext0, ext0) -> f32[8]\n"
                "%1 = add(%0, ext1) -> f32[8]\n"
                "%2 = mul(%1, ext1) -> f32[8]\n"
                "%3 = mul(%0, 0.5) -> f32[8]\n"
                "%4 = sub_(%2, %3) -> f32[8]\n"
                "%5 = add(ext1, %4) -> f32[8]\n"
                "%6 = mul(%5, %4) -> f32[8]\n"
                "%7 = mul(ext1, 0.5) -> f32[8]\n"
                "%8 = sub_(%6, %7) -> f32[8]\n");
  EXPECT_CONTENT(&w, f, 0, 0);
  drop(&a), drop(&b), drop(&c), drop(&d), drop(&e), drop(&f);
  tpu_template_destroy(made);
  world_close(&w);
}

TPU_TEST(replay_predicts) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 8, 1), b = world_range(&w, 8, 100);
  tpu_template_t* made = capture(&w, a, b);
  TPU_REQUIRE(made != NULL);
  world_sync(&w);
  for (int step = 0; step < 5; ++step) {
    tpu_engine_reset_stats(w.engine);
    tensor_t y = replay(&w, made, a, b);
    EXPECT_CONTENT(&w, y, 0, 0);
    drop(&y);
    if (step < 2) continue;
    TPU_EXPECT_EQ(world_stats(&w).predicted, 4);
    TPU_EXPECT_EQ(world_stats(&w).window_hits, 1);
    TPU_EXPECT_EQ(world_compiles(&w), 0);
  }
  drop(&a), drop(&b);
  tpu_template_destroy(made);
  world_close(&w);
}

/* Parts of an input are read where the new input has them. */
TPU_TEST(replay_follows_offsets) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t base = world_range(&w, 64, 0), other = world_range(&w, 64, 0);
  tensor_t in = view_of(base, 16, 8, 1);
  tpu_operand_t input = operand_of(in);
  TPU_EXPECT(begin(&w, 1, &input));
  tensor_t y = world_binary(&w, TPU_OP_ADD, view_of(in, 1, 3, 2), view_of(in, 0, 3, 1));
  tpu_template_t* made = end(&w, y, NULL);
  TPU_REQUIRE(made != NULL);
  world_sync(&w);
  drop(&y);
  input = operand_of(view_of(other, 40, 8, 1));
  tpu_result_t result = {0};
  TPU_EXPECT_OK(tpu_engine_replay(w.engine, made, &input, &result));
  EXPECT_WINDOW(&w, "%0 = add(ext0[view f32[3]s(2)+41], ext0[view f32[3]+40]) -> f32[3]\n");
  tpu_storage_release(result.storage);
  // A view of another form is another signature.
  input = operand_of(view_of(other, 40, 8, 2));
  TPU_EXPECT_CODE(tpu_engine_replay(w.engine, made, &input, &result), TPU_INVALID_ARGUMENT);
  TPU_EXPECT(result.storage == NULL);
  world_sync(&w);
  drop(&base), drop(&other);
  tpu_template_destroy(made);
  world_close(&w);
}

TPU_TEST(replay_keeps_constants) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 8, 1);
  tpu_operand_t input = operand_of(a);
  TPU_EXPECT(begin(&w, 1, &input));
  tensor_t weights = world_range(&w, 8, 3), y = world_binary(&w, TPU_OP_MUL, a, weights);
  tpu_template_t* made = end(&w, y, NULL);
  TPU_REQUIRE(made != NULL);
  drop(&weights), drop(&y);
  world_sync(&w);
  tpu_result_t result = {0};
  TPU_EXPECT_OK(tpu_engine_replay(w.engine, made, &input, &result));
  EXPECT_WINDOW(&w, "%0 = mul(ext0, ext1) -> f32[8]\n");
  world_sync(&w);
  tpu_storage_release(result.storage);
  drop(&a);
  tpu_template_destroy(made);
  world_close(&w);
}

TPU_TEST(capture_refuses) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 8, 1), outside = world_range(&w, 8, 2);
  tpu_operand_t input = operand_of(a);
  float numbers[8];

  TPU_EXPECT(begin(&w, 1, &input));
  tensor_t y = world_binary(&w, TPU_OP_ADD, a, outside);
  (void)end(&w, y, "it reads a tensor that is not among its arguments");
  drop(&y);

  TPU_EXPECT(begin(&w, 1, &input));
  y = world_binary(&w, TPU_OP_ADD, a, a);
  world_update(&w, TPU_OP_ADD, a, y);
  (void)end(&w, y, "it writes to a tensor that it did not make");
  drop(&y);

  TPU_EXPECT(begin(&w, 1, &input));
  TPU_EXPECT_OK(tpu_storage_resize(outside.storage, 64));
  y = world_binary(&w, TPU_OP_ADD, a, a);
  (void)end(&w, y, "it writes to a tensor that it did not make");
  drop(&y);

  world_sync(&w);
  TPU_EXPECT(begin(&w, 1, &input));
  y = world_binary(&w, TPU_OP_ADD, a, a);
  TPU_EXPECT_OK(world_read(&w, a, numbers));  // is there already: nothing is flushed
  (void)end(&w, y, "it reads a tensor's content on the host");
  drop(&y);

  TPU_EXPECT(begin(&w, 1, &input));
  y = world_binary(&w, TPU_OP_ADD, a, a);
  world_flush(&w);
  (void)end(&w, y, "it waits for the device");
  drop(&y);

  TPU_EXPECT(begin(&w, 1, &input));
  (void)end(&w, a, "it computes nothing");

  TPU_EXPECT(begin(&w, 1, &input));
  y = world_binary(&w, TPU_OP_ADD, a, a);
  (void)end(&w, a, "a result was not computed by it");
  (void)begin(&w, 1, &input);
  tensor_t z = world_binary(&w, TPU_OP_ADD, a, a);
  (void)end(&w, view_of(z, 0, 4, 1), "a result is a part of another tensor");
  drop(&y), drop(&z);

  // Beyond the input's own elements is not the input.
  tpu_operand_t part = operand_of(view_of(a, 0, 4, 1));
  TPU_EXPECT(begin(&w, 1, &part));
  y = world_binary(&w, TPU_OP_ADD, view_of(a, 2, 4, 1), view_of(a, 0, 4, 1));
  (void)end(&w, y, "it reads a tensor that is not among its arguments");
  drop(&y);

  world_sync(&w);
  drop(&a), drop(&outside);
  world_close(&w);
}

TPU_TEST(capture_refuses_random_numbers) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 8, 1), y = {0};
  tpu_op_t random = TPU_OP_INVALID;
  for (int op = 1; op < TPU_OP_COUNT && random == TPU_OP_INVALID; ++op) {
    if ((tpu_op_info((tpu_op_t)op)->flags & TPU_OP_RANDOM) != 0) random = (tpu_op_t)op;
  }
  TPU_REQUIRE(random != TPU_OP_INVALID);
  tpu_operand_t input = operand_of(a);
  TPU_EXPECT(begin(&w, 1, &input));
  TPU_EXPECT_OK(world_try(&w, random, TPU_CALL_FUNCTIONAL, 1, &input, &y));
  (void)end(&w, y, "it draws random numbers");
  drop(&y), drop(&a);
  tpu_engine_destroy(w.engine);  // the record lacks operands: it is not for running
}

/* Strict mode launches the whole operation at once, when traced and when replayed. */
TPU_TEST(capture_puts_off_flushes) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_STRICT));
  tensor_t a = world_range(&w, 8, 1), b = world_range(&w, 8, 100);
  tpu_template_t* made = capture(&w, a, b);
  TPU_REQUIRE(made != NULL);
  TPU_EXPECT_EQ(world_stats(&w).flushes, 1);
  TPU_EXPECT_EQ(world_waiting(&w), 0u);
  tensor_t y = replay(&w, made, a, b);
  TPU_EXPECT_EQ(world_stats(&w).flushes, 2);
  EXPECT_CONTENT(&w, y, 0, 0);
  drop(&a), drop(&b), drop(&y);
  tpu_template_destroy(made);
  world_close(&w);
}

TPU_TEST(capture_cancelled_and_nested) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 8, 1);
  tpu_operand_t input = operand_of(a);
  TPU_EXPECT(begin(&w, 1, &input));
  TPU_EXPECT(!begin(&w, 1, &input));
  tpu_engine_capture_cancel(w.engine);
  TPU_EXPECT(begin(&w, 1, &input));
  tpu_engine_capture_cancel(w.engine);
  drop(&a);
  world_close(&w);
}

static void* record_elsewhere(void* arg) {
  world_t* w = arg;
  tensor_t x = world_range(w, 8, 5), y = world_binary(w, TPU_OP_ADD, x, x);
  drop(&x), drop(&y);
  return NULL;
}

/* Another thread's records are no part of the operation; the next capture is not spoilt. */
TPU_TEST(capture_interrupted) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 8, 1), b = world_range(&w, 8, 2);
  tpu_operand_t inputs[2] = {operand_of(a), operand_of(b)};
  TPU_EXPECT(begin(&w, 2, inputs));
  pthread_t thread;
  TPU_EXPECT_EQ(pthread_create(&thread, NULL, record_elsewhere, &w), 0);
  TPU_EXPECT_EQ(pthread_join(thread, NULL), 0);
  tensor_t y = compose(&w, a, b);
  (void)end(&w, y, "");
  drop(&y);
  tpu_template_t* made = capture(&w, a, b);
  TPU_EXPECT(made != NULL);
  world_sync(&w);
  drop(&a), drop(&b);
  tpu_template_destroy(made);
  world_close(&w);
}

typedef struct sweep_t {
  world_t* w;
  tensor_t a, b;
} sweep_t;

/* Captures and replays; gives everything back, also when memory runs out in between. */
static tpu_status_t capture_and_replay(void* arg) {
  sweep_t* s = arg;
  tpu_operand_t inputs[2] = {operand_of(s->a), operand_of(s->b)};
  bool began = false;
  TPU_RETURN_IF_ERROR(tpu_engine_capture_begin(s->w->engine, 2, inputs, &began));
  tensor_t y = {0};
  tpu_status_t status = world_try(s->w, TPU_OP_ADD, TPU_CALL_FUNCTIONAL, 2, inputs, &y);
  if (status != NULL) {
    tpu_engine_capture_cancel(s->w->engine);
    return status;
  }
  tpu_operand_t result = operand_of(y);
  tpu_template_t* made = NULL;
  const char* why = NULL;
  status = tpu_engine_capture_end(s->w->engine, "add", 1, &result, &made, &why);
  drop(&y);
  tpu_result_t out = {0};
  if (status == NULL) status = tpu_engine_replay(s->w->engine, made, inputs, &out);
  tpu_storage_release(out.storage);
  tpu_template_destroy(made);
  return status;
}

TPU_TEST(capture_and_replay_without_memory) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  sweep_t s = {.w = &w, .a = world_range(&w, 8, 1), .b = world_range(&w, 8, 2)};
  TPU_EXPECT_OK(capture_and_replay(&s));
  TPU_EXPECT(TPU_OOM_SWEEP(capture_and_replay, &s) >= 2);
  world_sync(&w);
  drop(&s.a), drop(&s.b);
  world_close(&w);
}
