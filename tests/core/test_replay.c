/* Templates: which parts of inputs they follow, prediction, and what is refused; the rest is in
 * test_engine_replay.c. */
#include "engine_support.h"

static const tpu_capture_options_t strict = {.max_records = 2};

static bool begin(world_t* w, int count, const tpu_operand_t* inputs) {
  bool began = false;
  TPU_EXPECT_OK(tpu_engine_capture_begin(w->engine, count, inputs, &strict, &began));
  return began;
}

/* NULL, for the reason `obstacle`, unless that is NULL. */
static tpu_template_t* end(world_t* w, tensor_t result, const char* obstacle) {
  tpu_operand_t operand = operand_of(result);
  tpu_template_t* made = NULL;
  const char* why = NULL;
  TPU_EXPECT_OK(tpu_engine_capture_end(w->engine, "composed", 1, &operand, &made, &why));
  TPU_EXPECT_EQ(made == NULL, obstacle != NULL);
  TPU_EXPECT_TEXT(why == NULL ? "" : why, obstacle == NULL ? "" : obstacle);
  return made;
}

TPU_TEST(template_is_predicted) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 8, 1), b = world_range(&w, 8, 100);
  tpu_operand_t inputs[2] = {operand_of(a), operand_of(b)};
  TPU_EXPECT(begin(&w, 2, inputs));
  tensor_t c = world_binary(&w, TPU_OP_ADD, a, b), d = world_binary(&w, TPU_OP_MUL, c, b);
  tpu_template_t* made = end(&w, d, NULL);
  TPU_REQUIRE(made != NULL);
  world_sync(&w);
  drop(&c), drop(&d);
  for (int step = 0; step < 5; ++step) {
    tpu_engine_reset_stats(w.engine);
    tpu_result_t result;
    TPU_EXPECT_OK(tpu_engine_replay(w.engine, made, inputs, NULL, NULL, &result));
    tensor_t y = {result.storage, result.meta, result.offset};
    EXPECT_CONTENT(&w, y, 0, 0);
    drop(&y);
    if (step < 2) continue;
    TPU_EXPECT_EQ(world_stats(&w).predicted, 2);
    TPU_EXPECT_EQ(world_stats(&w).window_hits, 1);
    TPU_EXPECT_EQ(world_compiles(&w), 0);
  }
  drop(&a), drop(&b);
  tpu_template_destroy(made);
  world_close(&w);
}

/* Parts of an input are read where the new input has them. */
TPU_TEST(template_follows_offsets) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t base = world_range(&w, 64, 0), other = world_range(&w, 64, 0);
  tensor_t in = view_of(base, 16, 8, 1);
  tpu_operand_t input = operand_of(in);
  TPU_EXPECT(begin(&w, 1, &input));
  tensor_t y = world_binary(&w, TPU_OP_ADD, view_of(in, 1, 3, 2), view_of(in, 0, 3, 2));
  tpu_template_t* made = end(&w, y, NULL);
  TPU_REQUIRE(made != NULL);
  world_sync(&w);
  drop(&y);
  input = operand_of(view_of(other, 40, 8, 1));
  tpu_result_t result;
  TPU_EXPECT_OK(tpu_engine_replay(w.engine, made, &input, NULL, NULL, &result));
  EXPECT_WINDOW(&w, "%0 = add(ext0[view f32[3]s(2)+41], ext0[view f32[3]s(2)+40]) -> f32[3]\n");
  tpu_storage_release(result.storage);
  world_sync(&w);
  drop(&base), drop(&other);
  tpu_template_destroy(made);
  world_close(&w);
}

/* A result may be a whole storage whose value is laid out another way: f32[2,4] over f32[8]. */
TPU_TEST(template_result_has_its_view) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 8, 1);
  tpu_operand_t input = operand_of(a);
  TPU_EXPECT(begin(&w, 1, &input));
  tensor_t y = world_binary(&w, TPU_OP_ADD, a, a), shaped = y;
  shaped.view = meta_of(TPU_F32, 2, (const int64_t[]){2, 4}, NULL);
  tpu_template_t* made = end(&w, shaped, NULL);
  TPU_REQUIRE(made != NULL);
  tpu_result_t result;
  TPU_EXPECT_OK(tpu_engine_replay(w.engine, made, &input, NULL, NULL, &result));
  TPU_EXPECT_EQ(result.meta, shaped.view);
  tensor_t again = {result.storage, result.meta, result.offset};
  EXPECT_CONTENT(&w, again, 0, 0);
  drop(&a), drop(&y), drop(&again);
  tpu_template_destroy(made);
  world_close(&w);
}

TPU_TEST(template_refuses) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 8, 1), outside = world_range(&w, 8, 2);
  tpu_operand_t input = operand_of(a), part = operand_of(view_of(a, 0, 4, 1));
  TPU_EXPECT(begin(&w, 1, &input));
  TPU_EXPECT_OK(tpu_storage_resize(outside.storage, 64));
  tensor_t y = world_binary(&w, TPU_OP_ADD, a, a);
  (void)end(&w, y, "it writes to a tensor that it did not make");
  drop(&y);
  // Beyond the input's own elements is not the input.
  TPU_EXPECT(begin(&w, 1, &part));
  y = world_binary(&w, TPU_OP_ADD, view_of(a, 2, 4, 1), view_of(a, 0, 4, 1));
  (void)end(&w, y, "it reads a tensor that is not among its arguments");
  drop(&y);
  // Nor is an input's memory as elements of a wider dtype, which may not fit another time.
  tensor_t wide = a;
  wide.view = meta_of(TPU_F64, 1, (const int64_t[]){4}, NULL);
  TPU_EXPECT(begin(&w, 1, &input));
  y = world_binary(&w, TPU_OP_ADD, wide, wide);
  (void)end(&w, y, "it reads a tensor that is not among its arguments");
  drop(&y);
  TPU_EXPECT(begin(&w, 1, &input));
  y = world_binary(&w, TPU_OP_ADD, a, a);
  for (int i = 0; i < 2100; ++i) world_update(&w, TPU_OP_MUL, y, a);
  (void)end(&w, y, "it takes too many steps");
  drop(&y), drop(&a), drop(&outside);
  world_close(&w);
}

TPU_TEST(template_refuses_random_numbers) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 8, 1), y = {0};
  tpu_op_t random = 1;
  while (random < TPU_OP_COUNT && !(tpu_op_info(random)->flags & TPU_OP_RANDOM)) ++random;
  TPU_REQUIRE(random < TPU_OP_COUNT);
  tpu_operand_t input = operand_of(a);
  TPU_EXPECT(begin(&w, 1, &input));
  TPU_EXPECT_OK(world_try(&w, random, TPU_CALL_FUNCTIONAL, 1, &input, &y));
  (void)end(&w, y, "it draws random numbers");
  drop(&y), drop(&a);
  world_close(&w);  // the record lacks operands, but nobody wants it
}
