/* Templates of whole graphs: inputs that are written, results that are views, random numbers; on
 * the fake plugin. */
#include "engine_support.h"

static const tpu_random_state_t drawn = {.seed = 7, .offset = 100};
static const tpu_capture_options_t lenient = {.max_records = 100, .writes = true, .random = &drawn};

static bool begin(world_t* w, int count, const tpu_operand_t* inputs) {
  bool began = false;
  TPU_EXPECT_OK(tpu_engine_capture_begin(w->engine, count, inputs, &lenient, &began));
  return began;
}

static tpu_template_t* end(world_t* w, int count, const tpu_operand_t* results,
                           const char* obstacle) {
  tpu_template_t* made = NULL;
  const char* why = NULL;
  TPU_EXPECT_OK(tpu_engine_capture_end(w->engine, "graph", count, results, &made, &why));
  TPU_EXPECT_EQ(made == NULL, obstacle != NULL);
  TPU_EXPECT_TEXT(why == NULL ? "" : why, obstacle == NULL ? "" : obstacle);
  return made;
}

static tensor_t tensor_of(const tpu_result_t* result) {
  return (tensor_t){result->storage, result->meta, result->offset};
}

TPU_TEST(graph_writes_its_inputs) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t cache = world_range(&w, 8, 0), x = world_range(&w, 8, 1);
  tpu_operand_t inputs[2] = {operand_of(cache), operand_of(x)};
  TPU_REQUIRE(begin(&w, 2, inputs));
  world_update(&w, TPU_OP_ADD, cache, x);
  tensor_t y = world_binary(&w, TPU_OP_MUL, cache, x);
  tpu_operand_t shown = operand_of(y);
  tpu_template_t* made = end(&w, 1, &shown, NULL);
  TPU_REQUIRE(made != NULL);
  TPU_EXPECT(tpu_template_writes(made, 0) && !tpu_template_writes(made, 1));
  world_sync(&w);
  tensor_t other = world_range(&w, 8, 0);
  inputs[0] = operand_of(other);
  for (int turn = 0; turn < 3; ++turn) {
    tpu_result_t result;
    TPU_EXPECT_OK(tpu_engine_replay(w.engine, made, inputs, NULL, NULL, &result));
    EXPECT_WINDOW(&w,
                  "%0 = add_(ext0, ext1) -> f32[8]\n"
                  "%1 = mul(%0, ext1) -> f32[8]\n");
    tpu_storage_release(result.storage);
    EXPECT_CONTENT(&w, other, 0, 0);
  }
  // A part of a storage is nothing that could be replaced.
  tensor_t large = world_range(&w, 16, 0);
  inputs[0] = operand_of(view_of(large, 8, 8, 1));
  tpu_result_t none;
  TPU_EXPECT_CODE(tpu_engine_replay(w.engine, made, inputs, NULL, NULL, &none),
                  TPU_INVALID_ARGUMENT);
  tpu_template_destroy(made);
  drop(&cache), drop(&x), drop(&y), drop(&other), drop(&large);
  world_close(&w);
}

TPU_TEST(graph_results_are_views_of_one_storage) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t x = world_range(&w, 8, 1);
  tpu_operand_t input = operand_of(x);
  TPU_REQUIRE(begin(&w, 1, &input));
  tensor_t y = world_binary(&w, TPU_OP_ADD, x, x), z = world_binary(&w, TPU_OP_MUL, x, x);
  tensor_t part = view_of(y, 2, 3, 2);
  tpu_operand_t shown[3] = {operand_of(part), operand_of(z), operand_of(y)};
  tpu_template_t* made = end(&w, 3, shown, NULL);
  TPU_REQUIRE(made != NULL);
  world_sync(&w);
  tpu_result_t results[3];
  TPU_EXPECT_OK(tpu_engine_replay(w.engine, made, &input, NULL, NULL, results));
  TPU_EXPECT(results[0].storage == results[2].storage && results[0].storage != results[1].storage);
  TPU_EXPECT_EQ(results[0].meta, part.view);
  TPU_EXPECT_EQ(results[0].offset, 2);
  TPU_EXPECT_EQ(tpu_storage_nbytes(results[0].storage), 32);
  tensor_t whole = tensor_of(&results[2]);
  world_update_by(&w, TPU_OP_ADD, whole, 1);
  world_sync(&w);
  for (int k = 0; k < 3; ++k) tpu_storage_release(results[k].storage);
  tpu_template_destroy(made);
  drop(&x), drop(&y), drop(&z);
  world_close(&w);
}

/* An op that draws, with whatever operands it wants and its state last. */
static void draw(world_t* w, tensor_t x, int64_t seed, int64_t offset, tensor_t* y) {
  tpu_op_t op = 1;
  while (op < TPU_OP_COUNT && !(tpu_op_info(op)->flags & TPU_OP_RANDOM)) ++op;
  TPU_EXPECT(op < TPU_OP_COUNT);
  tpu_operand_t operands[3] = {operand_of(x), number_of(0), number_of(0)};
  for (int k = 1; k < 3; ++k) {
    operands[k].scalar_dtype = TPU_I64;
    operands[k].number_int = k == 1 ? seed : offset;
  }
  TPU_EXPECT_OK(world_try(w, op, TPU_CALL_FUNCTIONAL, 3, operands, y));
}

TPU_TEST(graph_draws_from_where_the_generator_stands) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t x = world_range(&w, 8, 1), y = {0}, z = {0};
  tpu_operand_t input = operand_of(x);
  TPU_REQUIRE(begin(&w, 1, &input));
  draw(&w, x, drawn.seed, drawn.offset, &y);
  draw(&w, y, drawn.seed, drawn.offset + 2, &z);
  tpu_operand_t shown = operand_of(z);
  tpu_template_t* made = end(&w, 1, &shown, NULL);
  TPU_REQUIRE(made != NULL);
  drop(&y), drop(&z);
  size_t before = world_lane(&w)->recorder.slot_count;
  tpu_random_state_t now = {.seed = 8, .offset = 5000};
  tpu_result_t result;
  TPU_EXPECT_CODE(tpu_engine_replay(w.engine, made, &input, NULL, NULL, &result),
                  TPU_INVALID_ARGUMENT);
  TPU_EXPECT_OK(tpu_engine_replay(w.engine, made, &input, &now, NULL, &result));
  const tpu_slot_t* slots = world_lane(&w)->recorder.slots + before;
  TPU_EXPECT_EQ(slots[0].as_int, 8);
  TPU_EXPECT_EQ(slots[1].as_int, 5000);
  TPU_EXPECT_EQ(slots[2].as_int, 8);
  TPU_EXPECT_EQ(slots[3].as_int, 5002);
  tpu_storage_release(result.storage);
  tpu_template_destroy(made);
  drop(&x);
  world_close(&w);  // these records could not be lowered, but nobody wants them
}

static void* draw_elsewhere(void* pointer) {
  world_t* w = pointer;
  tensor_t x = world_range(w, 8, 1), y = {0};
  draw(w, x, drawn.seed, drawn.offset, &y);
  drop(&x), drop(&y);
  return NULL;
}

/* Another thread takes numbers of the generator meanwhile: the graph's own have a gap this time. */
TPU_TEST(graph_void_when_others_draw) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t x = world_range(&w, 8, 1), y = {0};
  tpu_operand_t input = operand_of(x);
  TPU_REQUIRE(begin(&w, 1, &input));
  pthread_t thread;
  TPU_REQUIRE(pthread_create(&thread, NULL, draw_elsewhere, &w) == 0);
  (void)pthread_join(thread, NULL);
  draw(&w, x, drawn.seed, drawn.offset + 2, &y);
  tpu_operand_t shown = operand_of(y);
  tpu_template_t* made = NULL;
  const char* why = "";
  TPU_EXPECT_OK(tpu_engine_capture_end(w.engine, "graph", 1, &shown, &made, &why));
  TPU_EXPECT(made == NULL && why == NULL);
  drop(&x), drop(&y);
  world_close(&w);
}

/* Attention without dropout has a place for the state of a generator and none in it. */
TPU_TEST(graph_with_an_op_that_could_draw) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t x = world_range(&w, 8, 1), y = {0};
  tpu_op_t op = 1;
  while (op < TPU_OP_COUNT && !(tpu_op_info(op)->flags & TPU_OP_RANDOM)) ++op;
  TPU_REQUIRE(op < TPU_OP_COUNT);
  tpu_operand_t operands[4] = {operand_of(x), number_of(0.5)};
  TPU_REQUIRE(begin(&w, 1, operands));
  TPU_EXPECT_OK(world_try(&w, op, TPU_CALL_FUNCTIONAL, 4, operands, &y));
  tpu_operand_t shown = operand_of(y);
  tpu_template_t* made = end(&w, 1, &shown, NULL);
  TPU_REQUIRE(made != NULL);
  tpu_result_t result;
  TPU_EXPECT_OK(tpu_engine_replay(w.engine, made, operands, NULL, NULL, &result));
  tpu_storage_release(result.storage);
  tpu_template_destroy(made);
  drop(&x), drop(&y);
  world_close(&w);  // these records could not be lowered, but nobody wants them
}

TPU_TEST(graph_refuses) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  static const char* const reasons[] = {
      "it writes to one of two arguments that share memory",
      "it writes to an argument from the host",
      "it writes to a tensor that it did not make",
      "it resizes an argument",
      "it draws random numbers from another generator, or sets its state",
      "a result was not computed by it"};
  for (int i = 0; i < 6; ++i) {
    tensor_t x = world_range(&w, 8, 1), outside = world_range(&w, 8, 1);
    tpu_operand_t inputs[2] = {operand_of(x), operand_of(i == 0 ? view_of(x, 4, 4, 1) : outside)};
    TPU_REQUIRE(begin(&w, i == 2 ? 1 : 2, inputs));
    tensor_t y = world_binary(&w, TPU_OP_ADD, x, x), z = {0};
    float numbers[8] = {0};
    if (i == 0) world_update_by(&w, TPU_OP_MUL, x, 2);
    if (i == 1) TPU_EXPECT_OK(tpu_engine_write(w.engine, x.storage, x.view, 0, numbers, 32));
    if (i == 2) world_update_by(&w, TPU_OP_MUL, outside, 2);
    if (i == 3) TPU_EXPECT_OK(tpu_storage_resize(x.storage, 64));
    if (i == 4) draw(&w, x, drawn.seed + 1, drawn.offset, &z);
    if (i == 5) world_update_by(&w, TPU_OP_MUL, x, 2);
    tpu_operand_t shown = operand_of(i == 5 ? x : y);
    (void)end(&w, 1, &shown, reasons[i]);
    if (i == 4) drop(&z);
    drop(&y), drop(&x), drop(&outside);
  }
  world_close(&w);
}

/* --- numbers of the call --- */

/* x + a + b, or x + b + b with `twice`. */
static tpu_template_t* capture_numbers(world_t* w, tensor_t x, double a, double b, bool twice) {
  tpu_operand_t input = operand_of(x);
  TPU_EXPECT(begin(w, 1, &input));
  tensor_t y = {0}, z = {0};
  tpu_operand_t first[2] = {operand_of(x), number_of(twice ? b : a)};
  TPU_EXPECT_OK(world_try(w, TPU_OP_ADD, TPU_CALL_FUNCTIONAL, 2, first, &y));
  tpu_operand_t second[2] = {operand_of(y), number_of(b)};
  TPU_EXPECT_OK(world_try(w, TPU_OP_ADD, TPU_CALL_FUNCTIONAL, 2, second, &z));
  tpu_operand_t shown = operand_of(z);
  tpu_template_t* made = end(w, 1, &shown, NULL);
  drop(&y), drop(&z);
  return made;
}

static tpu_number_t real(double number) {
  return (tpu_number_t){.is_float = true, .as_double = number};
}

TPU_TEST(graph_takes_the_numbers_of_each_call) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t x = world_range(&w, 8, 1);
  tpu_operand_t input = operand_of(x);
  tpu_template_t* one = capture_numbers(&w, x, 4.5, 5.5, false);
  tpu_template_t* two = capture_numbers(&w, x, 6.5, 7.5, false);
  tpu_template_t* other = capture_numbers(&w, x, 6.5, 7.5, true);
  const tpu_number_t mine[2] = {real(6.5), real(7.5)}, theirs[2] = {real(4.5), real(5.5)};
  const tpu_number_t same[2] = {real(6.5), real(6.5)}, none[2] = {real(1), real(1)};
  // Where a number went, what is none of the call's, and what was otherwise computed.
  TPU_EXPECT(!tpu_template_bind_numbers(two, one, 2, mine, same));
  TPU_EXPECT(!tpu_template_bind_numbers(two, one, 2, none, theirs));
  TPU_EXPECT(!tpu_template_bind_numbers(other, one, 2, mine, theirs));
  TPU_EXPECT(tpu_template_bind_numbers(two, one, 2, mine, theirs));
  tpu_result_t result;
  TPU_EXPECT_CODE(tpu_engine_replay(w.engine, two, &input, NULL, NULL, &result),
                  TPU_INVALID_ARGUMENT);
  size_t before = world_lane(&w)->recorder.slot_count;
  const tpu_number_t now[2] = {real(8.5), {.is_float = false, .as_int = 9}};
  TPU_EXPECT_OK(tpu_engine_replay(w.engine, two, &input, NULL, now, &result));
  const tpu_slot_t* slots = world_lane(&w)->recorder.slots + before;
  TPU_EXPECT(slots[0].as_double == 8.5 && slots[1].as_double == 9);
  tpu_storage_release(result.storage);
  tpu_template_destroy(one), tpu_template_destroy(two), tpu_template_destroy(other);
  drop(&x);
  world_close(&w);
}
