/* The engine on the fake plugin, whose programs give zeros: what is recorded, launched and read. */
#include "base/env.h"
#include "engine_support.h"

TPU_TEST(engine_record_flush_read) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 8, 1), b = world_range(&w, 8, 100);
  EXPECT_CONTENT(&w, a, 1, 1);  // written, not computed
  TPU_EXPECT_EQ(world_stats(&w).flushes, 0);
  tensor_t c = world_binary(&w, TPU_OP_ADD, a, b), d = world_binary(&w, TPU_OP_MUL, c, a);
  EXPECT_WINDOW(&w,
                "%0 = add(ext0, ext1) -> f32[8]\n"
                "%1 = mul(%0, ext0) -> f32[8]\n");
  EXPECT_CONTENT(&w, d, 0, 0);
  TPU_EXPECT_EQ(world_waiting(&w), 0u);
  tpu_engine_stats_t stats = world_stats(&w);
  TPU_EXPECT_EQ(stats.records, 2);
  TPU_EXPECT_EQ(stats.flushes, 1);
  TPU_EXPECT_EQ(stats.window_plans, 1);
  TPU_EXPECT_EQ(stats.launches, 1);
  EXPECT_CONTENT(&w, c, 0, 0);
  EXPECT_CONTENT(&w, a, 1, 1);
  TPU_EXPECT_EQ(world_stats(&w).flushes, 1);
  drop(&a), drop(&b), drop(&c), drop(&d);
  world_close(&w);
}

TPU_TEST(engine_modes) {
  static const tpu_eager_mode_t modes[3] = {TPU_MODE_DEBUG, TPU_MODE_STRICT, TPU_MODE_FUSED};
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  for (int i = 0; i < 3; ++i) {
    tpu_engine_reset_stats(w.engine);
    TPU_EXPECT_OK(tpu_engine_set_mode(w.engine, modes[i]));
    TPU_EXPECT_EQ(tpu_engine_mode(w.engine), modes[i]);
    tensor_t a = world_range(&w, 8, 1), b = world_binary(&w, TPU_OP_ADD, a, a);
    world_update(&w, TPU_OP_MUL, b, a);
    TPU_EXPECT_EQ(world_stats(&w).flushes, modes[i] == TPU_MODE_FUSED ? 0 : 2);
    TPU_EXPECT_EQ(world_waiting(&w), modes[i] == TPU_MODE_FUSED ? 2u : 0u);
    EXPECT_CONTENT(&w, b, 0, 0);
    drop(&a), drop(&b);
  }
  TPU_EXPECT_CODE(tpu_engine_set_mode(w.engine, (tpu_eager_mode_t)7), TPU_INVALID_ARGUMENT);
  // Changing the mode flushes.
  tensor_t a = world_range(&w, 8, 1), b = world_binary(&w, TPU_OP_ADD, a, a);
  TPU_EXPECT_EQ(world_waiting(&w), 1u);
  TPU_EXPECT_OK(tpu_engine_set_mode(w.engine, TPU_MODE_STRICT));
  TPU_EXPECT_EQ(world_waiting(&w), 0u);
  drop(&a), drop(&b);
  world_close(&w);
}

TPU_TEST(engine_window_limit) {
  world_t w;
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_WINDOW_OPS, "10"));
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 8, 1), b = world_binary(&w, TPU_OP_ADD, a, a);
  for (int i = 1; i < 35; ++i) world_update(&w, TPU_OP_MUL, b, a);
  TPU_EXPECT_EQ(world_stats(&w).flushes, 3);
  TPU_EXPECT_EQ(world_waiting(&w), 5u);
  drop(&a), drop(&b);
  world_close(&w);
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_WINDOW_OPS, NULL));
}

/* 4G would be 0 in 32 bits, and then nothing would ever be launched together. */
TPU_TEST(engine_huge_window_limit) {
  world_t w;
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_WINDOW_OPS, "4G"));
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_WINDOW_OPS, NULL));
  tensor_t a = world_range(&w, 8, 1);
  for (int i = 0; i < 20; ++i) world_update_by(&w, TPU_OP_ADD, a, 1);
  tpu_engine_stats_t stats;
  tpu_engine_stats(w.engine, &stats);
  TPU_EXPECT_EQ(stats.flushes, 0);
  drop(&a);
  world_close(&w);
}

TPU_TEST(engine_asks_once_per_signature) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 8, 1), b = world_range(&w, 16, 1);
  tensor_t half = view_of(b, 0, 8, 2);
  for (int i = 0; i < 5; ++i) {
    tensor_t c = world_binary(&w, TPU_OP_ADD, a, a);
    drop(&c);
    TPU_EXPECT_EQ(w.asked, 1);
  }
  struct {
    tensor_t x, y;
    tpu_op_t op;
  } others[3] = {{a, a, TPU_OP_SUB}, {b, b, TPU_OP_ADD}, {a, half, TPU_OP_ADD}};
  for (int i = 0; i < 3; ++i) {
    for (int twice = 0; twice < 2; ++twice) {
      tensor_t c = world_binary(&w, others[i].op, others[i].x, others[i].y);
      TPU_EXPECT_EQ(c.view, tpu_meta_get(others[i].x.view)->numel == 8 ? a.view : b.view);
      drop(&c);
      TPU_EXPECT_EQ(w.asked, 2 + i);
    }
  }
  // Numbers are told apart by dtype and weakness, not by value; in-place calls by destination.
  tensor_t c = world_scale(&w, TPU_OP_ADD, a, 1), d = world_scale(&w, TPU_OP_ADD, a, 2);
  TPU_EXPECT_EQ(w.asked, 5);
  world_update(&w, TPU_OP_ADD, c, a);
  world_update(&w, TPU_OP_ADD, d, a);
  TPU_EXPECT_EQ(w.asked, 6);
  drop(&a), drop(&b), drop(&c), drop(&d);
  world_close(&w);
}

/* The same window again and again: planned once, then every record is predicted. */
TPU_TEST(engine_prediction) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 8, 1), b = world_range(&w, 8, 2);
  for (int step = 0; step < 6; ++step) {
    tpu_engine_reset_stats(w.engine);
    tensor_t c = world_binary(&w, TPU_OP_ADD, a, b), d = world_binary(&w, TPU_OP_MUL, c, b);
    world_update(&w, TPU_OP_SUB, d, c);
    EXPECT_CONTENT(&w, d, 0, 0);
    tpu_engine_stats_t stats = world_stats(&w);
    TPU_EXPECT_EQ(stats.records, 3);
    TPU_EXPECT_EQ(stats.window_plans, step == 0);
    TPU_EXPECT_EQ(stats.window_hits, step > 0);
    // Step 0 makes the plan, step 1 makes it its own successor.
    TPU_EXPECT_EQ(stats.predicted, step >= 2 ? 3 : 0);
    TPU_EXPECT_EQ(world_compiles(&w), step == 0);
    drop(&c), drop(&d);
  }
  // Two windows in turn predict each other.
  for (int step = 0; step < 8; ++step) {
    tpu_engine_reset_stats(w.engine);
    tensor_t c = world_binary(&w, step % 2 ? TPU_OP_ADD : TPU_OP_SUB, b, a);
    EXPECT_CONTENT(&w, c, 0, 0);
    drop(&c);
    if (step >= 4) TPU_EXPECT_EQ(world_stats(&w).predicted, 1);
  }
  drop(&a), drop(&b);
  world_close(&w);
}

/* A window that leaves the expected one half-way is recorded and planned as it is. */
TPU_TEST(engine_misprediction) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 8, 1), other = world_range(&w, 4, 1);
  for (int step = 0; step < 12; ++step) {
    tensor_t c = world_binary(&w, TPU_OP_ADD, a, a);
    tensor_t d = world_binary(&w, step % 3 == 2 ? TPU_OP_DIV : TPU_OP_MUL, c, a);
    tensor_t e = step % 4 == 3 ? world_binary(&w, TPU_OP_ADD, other, other) : (tensor_t){0};
    EXPECT_CONTENT(&w, d, 0, 0);
    if (e.storage != NULL) EXPECT_CONTENT(&w, e, 0, 0);
    drop(&c), drop(&d), drop(&e);
  }
  TPU_EXPECT_EQ(world_stats(&w).window_plans, 4);
  drop(&a), drop(&other);
  world_close(&w);
}

/* --- in place and views --- */

TPU_TEST(engine_in_place_whole) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 8, 1), b = world_range(&w, 8, 2);
  void* address = tpu_storage_address(a.storage);
  world_update(&w, TPU_OP_ADD, a, b);
  world_update_by(&w, TPU_OP_MUL, a, 3);
  EXPECT_WINDOW(&w,
                "%0 = add_(ext0, ext1) -> f32[8]\n"
                "%1 = mul_(%0, 3.0) -> f32[8]\n");
  EXPECT_CONTENT(&w, a, 0, 0);
  EXPECT_CONTENT(&w, b, 2, 1);
  TPU_EXPECT(tpu_storage_address(a.storage) == address);
  drop(&a), drop(&b);
  world_close(&w);
}

TPU_TEST(engine_in_place_through_views) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 8, 1), b = world_range(&w, 4, 2);
  world_update(&w, TPU_OP_ADD, view_of(a, 1, 4, 2), b);
  // The result is written through the view; the base is what it was plus that.
  EXPECT_WINDOW(&w,
                "%0 = add_(ext0[view f32[4]s(2)+1], ext1) -> f32[4]\n"
                "%1 = view_write(ext0, %0, [view f32[4]s(2)+1]) -> f32[8]\n");
  // Reading a piece of the new base needs no op, other strides do.
  EXPECT_CONTENT(&w, view_of(a, 2, 4, 1), 0, 0);
  TPU_EXPECT_EQ(world_stats(&w).launches, 1);
  EXPECT_CONTENT(&w, view_of(a, 0, 4, 2), 0, 0);
  TPU_EXPECT_EQ(world_stats(&w).launches, 2);
  drop(&a), drop(&b);
  world_close(&w);
}

/* A transposed destination of the whole storage becomes the storage's layout. */
TPU_TEST(engine_in_place_transposed) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 8, 1), t = a;
  t.view = meta_of(TPU_F32, 2, (const int64_t[]){4, 2}, (const int64_t[]){1, 4});
  world_update_by(&w, TPU_OP_ADD, t, 1);
  EXPECT_WINDOW(&w, "%0 = add_(ext0[view f32[4,2]s(1,4)+0], 1.0) -> f32[4,2]s(1,4)\n");
  tpu_meta_id_t view = 0;
  TPU_EXPECT_OK(tpu_storage_view(a.storage, TPU_F32, 2, (const int64_t[]){4, 2},
                                 (const int64_t[]){1, 4}, &view));
  TPU_EXPECT_EQ(view, t.view);
  EXPECT_CONTENT(&w, t, 0, 0);
  EXPECT_CONTENT(&w, a, 0, 0);
  drop(&a);
  world_close(&w);
}

TPU_TEST(engine_out_variant_and_dtype_change) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 8, 1), out = world_empty(&w, 8), bytes = out;
  tpu_operand_t operands[2] = {operand_of(a), operand_of(a)};
  TPU_EXPECT_OK(world_try(&w, TPU_OP_ADD, TPU_CALL_OUT, 2, operands, &out));
  EXPECT_WINDOW(&w, "%0 = add.out(ext0, ext0) -> f32[8]\n");
  // Writing integers into a part of a float storage reads the rest as integers first.
  bytes.view = meta_of(TPU_I32, 1, (const int64_t[]){3}, NULL);
  bytes.offset = 2;
  TPU_EXPECT_OK(world_try(&w, TPU_OP_MUL, TPU_CALL_OUT, 2, operands, &bytes));
  EXPECT_WINDOW(&w,
                "%0 = add.out(ext0, ext0) -> f32[8]\n"
                "%1 = mul.out(ext0, ext0) -> i32[3] via f32\n"
                "%2 = view_read(%0[view i32[8]s(1)+0]) -> i32[8]\n"
                "%3 = view_write(%2, %1, [view i32[3]s(1)+2]) -> i32[8]\n");
  drop(&a), drop(&out);
  world_close(&w);
}

/* --- storages --- */

TPU_TEST(engine_empty_content_reads_zeros) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_empty(&w, 8), b = world_range(&w, 8, 1);
  EXPECT_CONTENT(&w, a, 0, 0);
  EXPECT_CONTENT(&w, view_of(a, 1, 3, 2), 0, 0);
  TPU_EXPECT_EQ(world_waiting(&w), 0u);  // no program was needed
  tensor_t c = world_binary(&w, TPU_OP_ADD, a, b);
  EXPECT_WINDOW(&w,
                "%0 = storage_zero() -> f32[8]\n"
                "%1 = add(%0, ext0) -> f32[8]\n");
  world_sync(&w);
  // A part: zeros for the whole storage, then the view of them.
  tensor_t d = world_empty(&w, 8);
  tensor_t e = world_binary(&w, TPU_OP_ADD, view_of(d, 1, 4, 2), view_of(b, 0, 4, 1));
  EXPECT_WINDOW(&w,
                "%0 = storage_zero() -> f32[8]\n"
                "%1 = add(%0[view f32[4]s(2)+1], ext0[view f32[4]s(1)+0]) -> f32[4]\n");
  drop(&a), drop(&b), drop(&c), drop(&d), drop(&e);
  world_close(&w);
}

TPU_TEST(engine_storage_resize) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 8, 1), longer = a;
  void* address = tpu_storage_address(a.storage);
  TPU_EXPECT_OK(tpu_storage_resize(a.storage, 32));
  TPU_EXPECT_EQ(world_waiting(&w), 0u);  // the same size
  TPU_EXPECT_OK(tpu_storage_resize(a.storage, 48));
  TPU_EXPECT_EQ(tpu_storage_nbytes(a.storage), 48);
  EXPECT_WINDOW(&w, "%0 = storage_resize(ext0) -> f32[12]\n");
  TPU_EXPECT(tpu_storage_address(a.storage) != address);
  TPU_EXPECT(tpu_storage_find(w.engine, address) == NULL);
  tpu_storage_t* found = tpu_storage_find(w.engine, (char*)tpu_storage_address(a.storage) + 47);
  TPU_EXPECT(found == a.storage);
  tpu_storage_release(found);
  longer.view = vector_of(12);
  EXPECT_CONTENT(&w, longer, 0, 0);
  // FSDP frees a storage and takes it again.
  TPU_EXPECT_OK(tpu_storage_resize(a.storage, 0));
  TPU_EXPECT(tpu_storage_address(a.storage) == NULL);
  TPU_EXPECT_OK(tpu_storage_resize(a.storage, 32));
  EXPECT_CONTENT(&w, a, 0, 0);
  TPU_EXPECT_EQ(world_waiting(&w), 0u);
  TPU_EXPECT_CODE(tpu_storage_resize(a.storage, -1), TPU_INVALID_ARGUMENT);
  TPU_EXPECT_EQ(tpu_storage_nbytes(a.storage), 32);
  drop(&a);
  world_close(&w);
}

TPU_TEST(engine_storage_addresses) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tpu_storage_t *empty = NULL, *bad = NULL;
  TPU_EXPECT_OK(tpu_storage_create(w.engine, 0, &empty));
  TPU_EXPECT(tpu_storage_address(empty) == NULL);
  TPU_EXPECT_CODE(tpu_storage_create(w.engine, -4, &bad), TPU_INVALID_ARGUMENT);
  TPU_EXPECT_CODE(tpu_storage_create(w.engine, 1ll << 60, &bad), TPU_RESOURCE_EXHAUSTED);
  TPU_EXPECT(bad == NULL);
  enum { COUNT = 1000 };  // several slabs
  static tensor_t many[COUNT];
  for (int i = 0; i < COUNT; ++i) many[i] = world_empty(&w, 1 + i % 300);
  for (int i = 0; i < COUNT; ++i) {
    char* address = tpu_storage_address(many[i].storage);
    char* last = address + tpu_storage_nbytes(many[i].storage) - 1;
    tpu_storage_t* found = tpu_storage_find(w.engine, last);
    TPU_EXPECT(found == many[i].storage);
    tpu_storage_release(found);
  }
  for (int i = 0; i < COUNT; ++i) drop(&many[i]);
  TPU_EXPECT(tpu_storage_find(w.engine, &w) == NULL);
  tpu_storage_release(empty);
  tpu_storage_release(NULL);
  tpu_storage_retain(NULL);
  world_close(&w);
}

TPU_TEST(engine_host_writes) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 8, 1);
  float numbers[3] = {7, 8, 9}, all[8];
  tensor_t part = view_of(a, 2, 3, 1);
  TPU_EXPECT_OK(tpu_engine_write(w.engine, a.storage, part.view, 2, numbers, 12));
  EXPECT_WINDOW(&w, "%0 = view_write(ext0, ext1, [view f32[3]s(1)+2]) -> f32[8]\n");
  TPU_EXPECT_CODE(tpu_engine_write(w.engine, a.storage, part.view, 2, numbers, 8),
                  TPU_INVALID_ARGUMENT);
  tpu_operand_t operand = operand_of(a);
  TPU_EXPECT_CODE(tpu_engine_read(w.engine, &operand, all, 28), TPU_INVALID_ARGUMENT);
  operand.view = 0;
  TPU_EXPECT_CODE(tpu_engine_read(w.engine, &operand, all, 32), TPU_INVALID_ARGUMENT);
  tensor_t none = world_empty(&w, 8);
  none.view = vector_of(0);
  TPU_EXPECT_OK(world_read(&w, none, NULL));
  TPU_EXPECT_OK(tpu_engine_write(w.engine, none.storage, none.view, 0, NULL, 0));
  drop(&a), drop(&none);
  world_close(&w);
}

TPU_TEST(engine_refuses_too_wide_calls) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tpu_call_t call = {.op = TPU_OP_CAT, .operand_count = 70000};
  bool unknown = true;
  TPU_EXPECT_CODE(tpu_engine_record(w.engine, &call, &unknown), TPU_INVALID_ARGUMENT);
  TPU_EXPECT(!unknown);
  // Wide ones that fit take the heap.
  enum { WIDE = 300 };
  static tpu_operand_t operands[WIDE];
  tensor_t a = world_range(&w, 8, 1);
  for (int i = 0; i < WIDE; ++i) operands[i] = operand_of(a);
  static tpu_result_t results[WIDE];
  for (int i = 0; i < WIDE; ++i) results[i] = (tpu_result_t){.meta = a.view};
  call = (tpu_call_t){.op = TPU_OP_ADD,
                      .operand_count = WIDE,
                      .operands = operands,
                      .result_count = WIDE,
                      .results = results,
                      .has_metas = true};
  TPU_EXPECT_OK(tpu_engine_record(w.engine, &call, &unknown));
  for (int i = 0; i < WIDE; ++i) tpu_storage_release(results[i].storage);
  // Asked without metadata: as many results as never were learnt.
  for (int i = 0; i < WIDE; ++i) results[i] = (tpu_result_t){0};
  call.has_metas = false;
  TPU_EXPECT_OK(tpu_engine_record(w.engine, &call, &unknown));
  TPU_EXPECT(unknown);
  drop(&a);
  world_close(&w);
}
