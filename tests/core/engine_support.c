#include "engine_support.h"

#include <math.h>

#include "base/env.h"
#include "trace/print.h"

enum { MAX_SIZE = 1 << 18 };

/* --- the engine --- */

/* As in a Python process, where a signal may end waits: then another thread waits for compilers. */
static bool never_stop(void) { return false; }

static bool open_engine(world_t* world, const tpu_device_options_t* options,
                        tpu_eager_mode_t mode) {
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_CACHE, "0"));
  // Once without counting: the plugin and the environment table stay in memory.
  for (int round = 0; round < 2; ++round) {
    world->blocks = tpu_alloc_live_count();
    if (!tpu_test_check_code(__FILE__, __LINE__, "engine",
                             tpu_engine_create(options, &world->engine), TPU_OK)) {
      return false;
    }
    if (round == 0) tpu_engine_destroy(world->engine);
  }
  TPU_EXPECT_OK(tpu_engine_set_mode(world->engine, mode));
  tpu_engine_set_stop(world->engine, never_stop);
  return true;
}

bool world_open(world_t* world, tpu_platform_kind_t platform, tpu_eager_mode_t mode) {
  *world = (world_t){.fake = fake_plugin_control()};
  if (world->fake == NULL) {
    tpu_test_fail(__FILE__, __LINE__, "no fake plugin at '%s'", fake_plugin_path());
    return false;
  }
  world->fake->reset();
  tpu_device_options_t options = {.plugin_path = fake_plugin_path(), .platform = platform};
  return open_engine(world, &options, mode);
}

bool world_open_real(world_t* world, tpu_eager_mode_t mode) {
  *world = (world_t){0};
  const char* path = getenv("TORCH_TPU_PJRT_PLUGIN");
  if (path == NULL || path[0] == '\0') {
    tpu_test_skip("TORCH_TPU_PJRT_PLUGIN is not set");
    return false;
  }
  tpu_device_options_t options = {.plugin_path = path, .platform = TPU_PLATFORM_CPU, .threads = 1};
  return open_engine(world, &options, mode);
}

void world_close(world_t* world) {
  tpu_engine_destroy(world->engine);
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_CACHE, NULL));
  if (world->fake == NULL) return;  // a real plugin interns what it likes
  fake_stats_t stats;
  world->fake->stats(&stats);
  TPU_EXPECT_EQ(stats.violations, 0);
  TPU_EXPECT_EQ(stats.other_shapes, 0);
  TPU_EXPECT_EQ(world->fake->live(), 0);
  world->fake->reset();
}

/* --- tensors --- */

tpu_meta_id_t meta_of(tpu_dtype_t dtype, int rank, const int64_t* sizes, const int64_t* strides) {
  tpu_meta_id_t meta = 0;
  TPU_EXPECT_OK(strides != NULL ? tpu_meta_intern(dtype, rank, sizes, strides, &meta)
                                : tpu_meta_intern_contiguous(dtype, rank, sizes, &meta));
  return meta;
}

tensor_t world_empty(world_t* world, int64_t size) {
  tensor_t tensor = {.view = vector_of(size)};
  TPU_EXPECT_OK(tpu_storage_create(world->engine, size * 4, &tensor.storage));
  return tensor;
}

tensor_t world_range(world_t* world, int64_t size, float first) {
  tensor_t tensor = world_empty(world, size);
  float* numbers = malloc((size_t)size * sizeof(float));
  for (int64_t i = 0; i < size; ++i) numbers[i] = first + (float)i;
  TPU_EXPECT_OK(tpu_engine_write(world->engine, tensor.storage, tensor.view, 0, numbers, size * 4));
  free(numbers);
  return tensor;
}

tensor_t view_of(tensor_t base, int64_t offset, int64_t size, int64_t stride) {
  tpu_meta_id_t view = meta_of(TPU_F32, 1, &size, &stride);
  return (tensor_t){.storage = base.storage, .view = view, .offset = base.offset + offset};
}

void drop(tensor_t* tensor) {
  tpu_storage_release(tensor->storage);
  tensor->storage = NULL;
}

/* --- recording --- */

tpu_operand_t operand_of(tensor_t tensor) {
  return (tpu_operand_t){.kind = TPU_OPERAND_TENSOR,
                         .view = tensor.view,
                         .offset = tensor.offset,
                         .storage = tensor.storage};
}

tpu_operand_t number_of(double number) {
  return (tpu_operand_t){
      .kind = TPU_OPERAND_SCALAR, .wrapped = 1, .scalar_dtype = TPU_F64, .number_double = number};
}

static tpu_meta_id_t result_meta(int count, const tpu_operand_t* operands) {
  for (int k = 0; k < count; ++k) {
    if (operands[k].kind != TPU_OPERAND_TENSOR) continue;
    const tpu_meta_t* meta = tpu_meta_get(operands[k].view);
    return meta_of(meta->dtype, meta->rank, meta->sizes, NULL);
  }
  return 0;
}

tpu_status_t world_try(world_t* world, tpu_op_t op, tpu_call_variant_t variant, int count,
                       const tpu_operand_t* operands, tensor_t* result) {
  tpu_result_t out = {0};
  if (variant != TPU_CALL_FUNCTIONAL) {
    out = (tpu_result_t){result->storage, result->view, result->offset};
  }
  tpu_call_t call = {.op = op,
                     .variant = variant,
                     .operand_count = count,
                     .operands = operands,
                     .result_count = 1,
                     .results = &out};
  bool unknown = false;
  tpu_status_t status = tpu_engine_record(world->engine, &call, &unknown);
  if (status == NULL && unknown) {
    ++world->asked;
    call.has_metas = true;
    call.compute_dtype = TPU_F32;
    if (variant == TPU_CALL_FUNCTIONAL) out.meta = result_meta(count, operands);
    status = tpu_engine_record(world->engine, &call, &unknown);
    TPU_EXPECT(!unknown);
  }
  if (variant == TPU_CALL_FUNCTIONAL) {
    TPU_EXPECT((out.storage == NULL) == (status != NULL));
    *result = (tensor_t){out.storage, out.meta, out.offset};
  }
  return status;
}

tensor_t world_binary(world_t* world, tpu_op_t op, tensor_t x, tensor_t y) {
  tpu_operand_t operands[2] = {operand_of(x), operand_of(y)};
  tensor_t result = {0};
  TPU_EXPECT_OK(world_try(world, op, TPU_CALL_FUNCTIONAL, 2, operands, &result));
  return result;
}

tensor_t world_scale(world_t* world, tpu_op_t op, tensor_t x, double y) {
  tpu_operand_t operands[2] = {operand_of(x), number_of(y)};
  tensor_t result = {0};
  TPU_EXPECT_OK(world_try(world, op, TPU_CALL_FUNCTIONAL, 2, operands, &result));
  return result;
}

void world_update(world_t* world, tpu_op_t op, tensor_t x, tensor_t y) {
  tpu_operand_t operands[2] = {operand_of(x), operand_of(y)};
  TPU_EXPECT_OK(world_try(world, op, TPU_CALL_IN_PLACE, 2, operands, &x));
}

void world_update_by(world_t* world, tpu_op_t op, tensor_t x, double y) {
  tpu_operand_t operands[2] = {operand_of(x), number_of(y)};
  TPU_EXPECT_OK(world_try(world, op, TPU_CALL_IN_PLACE, 2, operands, &x));
}

tensor_t world_impossible(world_t* world, tensor_t x) {
  tensor_t other = world_range(world, 7, 0);
  tensor_t result = world_binary(world, TPU_OP_DIV, x, other);
  drop(&other);
  return result;
}

void world_update_impossible(world_t* world, tensor_t x) {
  tensor_t other = world_range(world, 7, 0);
  world_update(world, TPU_OP_DIV, x, other);
  drop(&other);
}

void world_flush(world_t* world) { TPU_EXPECT_OK(tpu_engine_flush(world->engine, false)); }
void world_sync(world_t* world) { TPU_EXPECT_OK(tpu_engine_flush(world->engine, true)); }

/* --- looking --- */

tpu_status_t world_read(world_t* world, tensor_t tensor, float* out) {
  tpu_operand_t operand = operand_of(tensor);
  return tpu_engine_read(world->engine, &operand, out, tpu_meta_bytes(tpu_meta_get(tensor.view)));
}

void expect_content(const char* file, int line, world_t* world, tensor_t tensor, float first,
                    float step) {
  static _Thread_local float numbers[MAX_SIZE];
  int64_t size = tpu_meta_get(tensor.view)->numel;
  if (size > MAX_SIZE) {
    tpu_test_fail(file, line, "tensor of %lld elements", (long long)size);
    return;
  }
  memset(numbers, 0x5a, (size_t)size * sizeof(float));
  if (!tpu_test_check_code(file, line, "read", world_read(world, tensor, numbers), TPU_OK)) return;
  for (int64_t i = 0; i < size; ++i) {
    float expected = first + step * (float)i;
    if (fabsf(numbers[i] - expected) <= 1e-5f * fabsf(expected)) continue;
    tpu_test_fail(file, line, "element %lld: expected %g, got %g", (long long)i, (double)expected,
                  (double)numbers[i]);
    return;
  }
}

tpu_engine_stats_t world_stats(world_t* world) {
  tpu_engine_stats_t stats;
  tpu_engine_stats(world->engine, &stats);
  return stats;
}

int64_t world_compiles(world_t* world) {
  tpu_compile_stats_t stats;
  tpu_engine_compile_stats(world->engine, &stats);
  return stats.compiles;
}

tpui_lane_t* world_lane(world_t* world) {
  tpui_lane_t* lane = NULL;
  TPU_EXPECT_OK(tpui_lane_look(world->engine, &lane));
  tpu_mutex_unlock(&world->engine->lock);
  return lane;
}

size_t world_waiting(world_t* world) { return world_lane(world)->recorder.record_count; }

void expect_window(const char* file, int line, world_t* world, const char* text) {
  tpu_window_t window;
  tpu_strbuf_t printed = {0};
  tpu_recorder_window(&world_lane(world)->recorder, &window);
  tpu_window_print(&window, &printed);
  (void)tpu_test_check_text(file, line, "window", tpu_strbuf_text(&printed), text);
  tpu_strbuf_free(&printed);
}
