/* A small engine on the fake plugin (or a real one), and tensors to use it with. */
#ifndef TPU_TESTS_CORE_ENGINE_SUPPORT_H_
#define TPU_TESTS_CORE_ENGINE_SUPPORT_H_

#include "../fake_plugin/fake_plugin.h"
#include "engine/lane.h"
#include "ops/op_ids.h"
#include "test.h"

typedef struct world_t {
  const fake_control_t* fake;  // NULL on a real plugin
  tpu_engine_t* engine;
  int64_t blocks;  // allocations alive before the engine was made
  int asked;       // how often a signature was unknown
} world_t;

/* A view of a storage; the storage is one reference of the test's. */
typedef struct tensor_t {
  tpu_storage_t* storage;
  tpu_meta_id_t view;
  int64_t offset;
} tensor_t;

/* False, with a failure, when there is no plugin. The compile cache on disk is off. */
bool world_open(world_t* world, tpu_platform_kind_t platform, tpu_eager_mode_t mode);
/* The same on the plugin that TORCH_TPU_PJRT_PLUGIN names; false, with a skip, if it names none. */
bool world_open_real(world_t* world, tpu_eager_mode_t mode);
/* All tensors must be dropped before. Nothing may be alive afterwards. */
void world_close(world_t* world);

tpu_meta_id_t meta_of(tpu_dtype_t dtype, int rank, const int64_t* sizes, const int64_t* strides);
static inline tpu_meta_id_t vector_of(int64_t size) { return meta_of(TPU_F32, 1, &size, NULL); }

/* f32[size] with content first, first + 1, ... */
tensor_t world_range(world_t* world, int64_t size, float first);
/* f32[size] that nothing was written to. */
tensor_t world_empty(world_t* world, int64_t size);
/* f32[size] with this stride, into the same storage; not a reference of its own. */
tensor_t view_of(tensor_t base, int64_t offset, int64_t size, int64_t stride);
void drop(tensor_t* tensor);

tpu_operand_t operand_of(tensor_t tensor);
tpu_operand_t number_of(double number);  // a Python float
/* Records a call with one result. Functional: `result` is filled, with the metadata of the first
 * tensor operand made row-major. Otherwise `result` is the tensor that is written. */
tpu_status_t world_try(world_t* world, tpu_op_t op, tpu_call_variant_t variant, int count,
                       const tpu_operand_t* operands, tensor_t* result);

/* The same, must succeed. */
tensor_t world_binary(world_t* world, tpu_op_t op, tensor_t x, tensor_t y);
tensor_t world_scale(world_t* world, tpu_op_t op, tensor_t x, double y);
void world_update(world_t* world, tpu_op_t op, tensor_t x, tensor_t y);  // x op= y
void world_update_by(world_t* world, tpu_op_t op, tensor_t x, double y);
/* x + y of sizes that do not broadcast: recorded, but never compiles. */
tensor_t world_impossible(world_t* world, tensor_t x);
void world_update_impossible(world_t* world, tensor_t x);

void world_flush(world_t* world);  // without waiting
void world_sync(world_t* world);   // must succeed

tpu_status_t world_read(world_t* world, tensor_t tensor, float* out);
/* Reads and expects first, first + step, ...; a step of 0 is a constant. */
void expect_content(const char* file, int line, world_t* world, tensor_t tensor, float first,
                    float step);
#define EXPECT_CONTENT(world, tensor, first, step) \
  expect_content(__FILE__, __LINE__, (world), (tensor), (float)(first), (float)(step))

tpu_engine_stats_t world_stats(world_t* world);
int64_t world_compiles(world_t* world);
/* The calling thread's lane. */
tpui_lane_t* world_lane(world_t* world);
/* Records that wait in its window. */
size_t world_waiting(world_t* world);
/* The waiting window as text. */
void expect_window(const char* file, int line, world_t* world, const char* text);
#define EXPECT_WINDOW(world, text) expect_window(__FILE__, __LINE__, (world), (text))

#endif  // TPU_TESTS_CORE_ENGINE_SUPPORT_H_
