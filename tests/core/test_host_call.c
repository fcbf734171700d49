/* From XLA's FFI structs to a kernel and back, with a plugin that is a few functions here. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "engine_support.h"
#include "host/host_internal.h"
#include "host/random.h"
#include "test.h"

/* --- the plugin's side --- */

struct ffi_error_t {
  int32_t code;
  char text[256];
};

enum { MAX_TASKS = 64 };

typedef struct pool_t {
  int64_t threads;
  bool refuses;  // to schedule
  bool lazy;     // tasks run only in pool_drain
  int count;
  void (*tasks[MAX_TASKS])(void*);
  void* data[MAX_TASKS];
  pthread_t running[MAX_TASKS];
  int errors;  // destroyed
} pool_t;
static pool_t pool;

static ffi_error_t* make_error(int32_t code, const char* text) {
  ffi_error_t* error = calloc(1, sizeof(*error));
  error->code = code;
  strncpy(error->text, text, sizeof(error->text) - 1);
  return error;
}

static ffi_error_t* error_create(void* arg) {
  const ffi_error_create_args_t* args = arg;
  TPU_EXPECT_EQ(args->struct_size, 28);
  return make_error(args->code, args->message);
}

static ffi_error_t* error_destroy(void* arg) {
  ++pool.errors;
  free(((ffi_error_destroy_args_t*)arg)->error);
  return NULL;
}

static void* thread_main(void* k) {
  pool.tasks[(intptr_t)k](pool.data[(intptr_t)k]);
  return NULL;
}

static ffi_error_t* schedule(void* arg) {
  const ffi_schedule_args_t* args = arg;
  if (pool.refuses || pool.count == MAX_TASKS) return make_error(TPU_UNAVAILABLE, "no");
  int k = pool.count++;
  pool.tasks[k] = args->task;
  pool.data[k] = args->data;
  if (!pool.lazy) (void)pthread_create(&pool.running[k], NULL, thread_main, (void*)(intptr_t)k);
  return NULL;
}

static ffi_error_t* thread_count(void* arg) {
  if (pool.threads < 0) return make_error(TPU_UNIMPLEMENTED, "no pool");
  *((ffi_thread_count_args_t*)arg)->count = pool.threads;
  return NULL;
}

static void pool_drain(void) {
  for (int k = 0; k < pool.count; ++k) {
    if (pool.lazy)
      (void)thread_main((void*)(intptr_t)k);
    else
      (void)pthread_join(pool.running[k], NULL);
  }
}

static const ffi_api_t api = {
    .struct_size = sizeof(ffi_api_t),
    .version = {.major_version = 0, .minor_version = 4},
    .slots = {[FFI_SLOT_ERROR_CREATE] = error_create,
              [FFI_SLOT_ERROR_DESTROY] = error_destroy,
              [FFI_SLOT_THREAD_POOL_SCHEDULE] = schedule,
              [FFI_SLOT_THREAD_POOL_COUNT] = thread_count},
};

/* --- layout --- */

TPU_TEST(host_ffi_layout) {
  TPU_EXPECT_EQ(PJRT_STRUCT_SIZE(ffi_call_t, attrs), 168);
  TPU_EXPECT_EQ(PJRT_STRUCT_SIZE(ffi_values_t, values), 40);
  TPU_EXPECT_EQ(PJRT_STRUCT_SIZE(ffi_attrs_t, values), 48);
  TPU_EXPECT_EQ(PJRT_STRUCT_SIZE(ffi_buffer_t, sizes), 48);
  TPU_EXPECT_EQ(PJRT_STRUCT_SIZE(ffi_api_version_t, minor_version), 24);
  TPU_EXPECT_EQ(offsetof(ffi_api_t, slots), 48);
  TPU_EXPECT_EQ(PJRT_STRUCT_SIZE(pjrt_ffi_extension_t, register_handler), 48);
  TPU_EXPECT_EQ(PJRT_STRUCT_SIZE(pjrt_ffi_register_handler_args_t, traits), 52);
}

/* --- calls --- */

/* A kernel that shows what it got. */
static tpu_host_call_t seen;
static tpu_status_t seen_status;
static char seen_text[32];

static tpu_status_t spy(const tpu_host_call_t* call) {
  seen = *call;
  if (seen_status != NULL) {
    tpu_status_t status = seen_status;
    seen_status = NULL;
    return status;
  }
  int64_t dim, flag, missing;
  double scale;
  const char* text;
  size_t size;
  TPU_EXPECT_OK(tpu_host_attr_int(call, "dim", &dim));
  TPU_EXPECT_OK(tpu_host_attr_int(call, "flag", &flag));
  TPU_EXPECT_OK(tpu_host_attr_float(call, "scale", &scale));
  TPU_EXPECT_OK(tpu_host_attr_text(call, "name", &text, &size));
  TPU_EXPECT_CODE(tpu_host_attr_int(call, "other", &missing), TPU_INVALID_ARGUMENT);
  TPU_EXPECT_CODE(tpu_host_attr_int(call, "scale", &missing), TPU_INVALID_ARGUMENT);
  TPU_EXPECT_EQ(dim, -3);
  TPU_EXPECT_EQ(flag, 1);
  TPU_EXPECT(scale == 0.5);
  memcpy(seen_text, text, size);
  return NULL;
}
static const tpui_host_row_t spy_row = {"tpu_host_spy", spy, 2, 1};

typedef struct frame_t {
  ffi_buffer_t buffers[3];
  void* operands[2];
  void* results[1];
  int32_t buffer_types[2];
  ffi_span_t names[4];
  ffi_span_t* name_pointers[4];
  int32_t attr_types[4];
  void* attr_values[4];
  ffi_scalar_t scalars[3];
  ffi_span_t text;
  ffi_call_t call;
} frame_t;

static void make_frame(frame_t* f) {
  static int64_t sizes[] = {2, 5};
  static float data[10];
  static int32_t dim = -3;
  static uint8_t flag = 1;
  static float scale = 0.5f;
  static const char* const names[] = {"dim", "flag", "name", "scale"};
  memset(f, 0, sizeof(*f));
  for (int i = 0; i < 3; ++i) {
    f->buffers[i] = (ffi_buffer_t){.struct_size = 48,
                                   .dtype = i == 1 ? FFI_BF16 : FFI_F32,
                                   .data = data,
                                   .rank = 2,
                                   .sizes = sizes};
  }
  f->operands[0] = &f->buffers[0];
  f->operands[1] = &f->buffers[1];
  f->results[0] = &f->buffers[2];
  f->buffer_types[0] = f->buffer_types[1] = FFI_VALUE_BUFFER;
  f->scalars[0] = (ffi_scalar_t){FFI_S32, &dim};
  f->scalars[1] = (ffi_scalar_t){FFI_PRED, &flag};
  f->scalars[2] = (ffi_scalar_t){FFI_F32, &scale};
  f->text = (ffi_span_t){"hello", 5};
  for (int i = 0; i < 4; ++i) {
    f->names[i] = (ffi_span_t){names[i], strlen(names[i])};
    f->name_pointers[i] = &f->names[i];
    f->attr_types[i] = i == 2 ? FFI_ATTR_STRING : FFI_ATTR_SCALAR;
  }
  f->attr_values[0] = &f->scalars[0];
  f->attr_values[1] = &f->scalars[1];
  f->attr_values[2] = &f->text;
  f->attr_values[3] = &f->scalars[2];
  f->call = (ffi_call_t){
      .struct_size = 168,
      .api = &api,
      .stage = FFI_STAGE_EXECUTE,
      .operands = {.count = 2, .types = f->buffer_types, .values = f->operands},
      .results = {.count = 1, .types = f->buffer_types, .values = f->results},
      .attrs = {
          .count = 4, .types = f->attr_types, .names = f->name_pointers, .values = f->attr_values}};
}

/* Takes the error. */
static void expect_error(ffi_error_t* error, int32_t code, const char* part) {
  TPU_REQUIRE(error != NULL);
  TPU_EXPECT_EQ(error->code, code);
  TPU_EXPECT(strstr(error->text, "tpu_host_spy: ") == error->text);
  if (strstr(error->text, part) == NULL) TPU_EXPECT_TEXT(error->text, part);
  free(error);
}

TPU_TEST(host_calls_are_decoded) {
  frame_t f;
  make_frame(&f);
  memset(seen_text, 0, sizeof(seen_text));
  TPU_EXPECT(tpui_host_handle(&spy_row, &f.call) == NULL);
  TPU_EXPECT_EQ(seen.operand_count, 2);
  TPU_EXPECT_EQ(seen.result_count, 1);
  TPU_EXPECT_EQ(seen.attr_count, 4);
  TPU_EXPECT_TEXT(seen_text, "hello");
  f.call.stage = 0;  // another stage: nothing to do
  seen.operand_count = 0;
  TPU_EXPECT(tpui_host_handle(&spy_row, &f.call) == NULL);
  TPU_EXPECT_EQ(seen.operand_count, 0);
}

TPU_TEST(host_registration_is_answered) {
  frame_t f;
  make_frame(&f);
  ffi_metadata_t metadata = {.struct_size = sizeof(metadata), .traits = 7};
  ffi_metadata_extension_t extension = {.base = {.type = FFI_EXTENSION_METADATA},
                                        .metadata = &metadata};
  ffi_extension_base_t other = {.type = 99, .next = &extension.base};
  f.call.extension_start = &other;
  seen.operand_count = 0;
  TPU_EXPECT(tpui_host_handle(&spy_row, &f.call) == NULL);
  TPU_EXPECT_EQ(seen.operand_count, 0);
  TPU_EXPECT_EQ(metadata.api_version.major_version, 0);
  TPU_EXPECT_EQ(metadata.api_version.minor_version, 3);
  TPU_EXPECT_EQ(metadata.traits, 0);
}

TPU_TEST(host_registration_speaks_the_plugins_version) {
  static const struct {
    int major, minor, answer;  // -1: refused
  } versions[] = {{0, 1, -1}, {0, 2, 2}, {0, 3, 3}, {0, 4, 3}, {0, 5, -1}, {1, 3, -1}};
  for (int i = 0; i < 6; ++i) {
    frame_t f;
    make_frame(&f);
    ffi_metadata_t metadata = {.struct_size = sizeof(metadata)};
    ffi_metadata_extension_t extension = {.base = {.type = FFI_EXTENSION_METADATA},
                                          .metadata = &metadata};
    ffi_api_t other = api;
    other.version.major_version = versions[i].major;
    other.version.minor_version = versions[i].minor;
    f.call.api = &other;
    f.call.extension_start = &extension.base;
    int answers = tpui_host_answers();
    ffi_error_t* error = tpui_host_handle(&spy_row, &f.call);
    bool taken = versions[i].answer >= 0;
    TPU_EXPECT_EQ(error == NULL, taken);
    TPU_EXPECT_EQ(tpui_host_answers() - answers, taken);
    if (taken) TPU_EXPECT_EQ(metadata.api_version.minor_version, versions[i].answer);
    if (error != NULL) TPU_EXPECT_EQ(error->code, TPU_UNIMPLEMENTED);
    free(error);
  }
}

TPU_TEST(host_failures_become_errors) {
  frame_t f;
  make_frame(&f);
  seen_status = tpu_status_make(TPU_DATA_LOSS, "the disk is on fire");
  expect_error(tpui_host_handle(&spy_row, &f.call), TPU_DATA_LOSS, "the disk is on fire");
  f.call.operands.count = 1;
  expect_error(tpui_host_handle(&spy_row, &f.call), TPU_INVALID_ARGUMENT, "1 operands");
  f.call.operands.count = 2;
  f.buffer_types[1] = 7;
  expect_error(tpui_host_handle(&spy_row, &f.call), TPU_INVALID_ARGUMENT, "no tensor");
  make_frame(&f);
  f.buffers[1].dtype = 77;
  expect_error(tpui_host_handle(&spy_row, &f.call), TPU_INVALID_ARGUMENT, "element type 77");
  f.buffers[1].dtype = FFI_F32;
  f.buffers[1].rank = 1000;
  expect_error(tpui_host_handle(&spy_row, &f.call), TPU_INVALID_ARGUMENT, "1000 dimensions");
  make_frame(&f);
  f.attr_types[0] = 1;  // an array
  expect_error(tpui_host_handle(&spy_row, &f.call), TPU_INVALID_ARGUMENT, "attribute dim");
  make_frame(&f);
  f.scalars[0].dtype = FFI_C64;
  expect_error(tpui_host_handle(&spy_row, &f.call), TPU_INVALID_ARGUMENT, "attribute dim");
  make_frame(&f);
  f.call.attrs.count = 1000;
  expect_error(tpui_host_handle(&spy_row, &f.call), TPU_INVALID_ARGUMENT, "1000 attributes");
}

/* --- parallel work --- */

typedef struct sum_t {
  atomic_llong done;
  atomic_int calls;
  int64_t fail_at;  // index whose range fails; -1: none
} sum_t;

static tpu_status_t add_up(void* arg, int64_t first, int64_t last) {
  sum_t* sum = arg;
  atomic_fetch_add(&sum->calls, 1);
  if (sum->fail_at >= first && sum->fail_at < last) {
    return tpu_status_make(TPU_ABORTED, "range %lld", (long long)first);
  }
  for (int64_t i = first; i < last; ++i) atomic_fetch_add(&sum->done, i + 1);
  return NULL;
}

static tpu_status_t run_sum(sum_t* sum, int64_t count, int64_t grain, int64_t fail_at) {
  ffi_call_t frame = {.struct_size = 168, .api = &api};
  tpu_host_call_t call = {.frame = &frame};
  *sum = (sum_t){.fail_at = fail_at};
  return tpu_host_parallel(&call, count, grain, add_up, sum);
}

TPU_TEST(host_parallel_does_everything_once) {
  int64_t blocks = tpu_alloc_live_count();
  for (int64_t threads = -1; threads <= 70; threads = threads < 8 ? threads + 1 : threads + 31) {
    for (int mode = 0; mode < 3; ++mode) {
      static const int64_t counts[] = {0, 1, 2, 7, 100, 1001};
      for (int c = 0; c < 6; ++c) {
        pool = (pool_t){.threads = threads, .refuses = mode == 1, .lazy = mode == 2};
        sum_t sum;
        int64_t n = counts[c];
        TPU_EXPECT_OK(run_sum(&sum, n, 3, -1));
        TPU_EXPECT_EQ(sum.done, n * (n + 1) / 2);
        pool_drain();  // what starts late finds nothing to do
        TPU_EXPECT_EQ(sum.done, n * (n + 1) / 2);
        if (threads < 2) TPU_EXPECT(sum.calls <= 1);
        if (threads >= 2 && n == 1001) TPU_EXPECT(sum.calls >= threads);
        TPU_EXPECT_EQ(tpu_alloc_live_count(), blocks);
      }
    }
  }
}

TPU_TEST(host_parallel_gives_the_failure) {
  int64_t blocks = tpu_alloc_live_count();
  for (int64_t at = 0; at < 1000; at += 37) {
    pool = (pool_t){.threads = 4};
    sum_t sum;
    TPU_EXPECT_CODE(run_sum(&sum, 1000, 1, at), TPU_ABORTED);
    pool_drain();
    TPU_EXPECT_EQ(tpu_alloc_live_count(), blocks);
  }
}

/* --- random numbers on a pool --- */

enum { DRAWS = 300000 };

typedef struct random_call_t {
  uint64_t seed, offset;
  double a, b;
  int64_t size;
  tpu_host_buffer_t operands[4], result;
  tpu_host_attr_t wide;
  tpu_host_call_t call;
} random_call_t;

static void make_random_call(random_call_t* r, ffi_call_t* frame, void* out) {
  *r = (random_call_t){.seed = 5, .offset = 6, .a = 0.25, .b = 2.5, .size = DRAWS};
  r->operands[0] = (tpu_host_buffer_t){.dtype = TPU_F64, .data = &r->a};
  r->operands[1] = (tpu_host_buffer_t){.dtype = TPU_F64, .data = &r->b};
  r->operands[2] = (tpu_host_buffer_t){.dtype = TPU_U64, .data = &r->seed};
  r->operands[3] = (tpu_host_buffer_t){.dtype = TPU_U64, .data = &r->offset};
  r->result = (tpu_host_buffer_t){.dtype = TPU_F64, .rank = 1, .sizes = &r->size, .data = out};
  r->wide = (tpu_host_attr_t){.name = "wide", .name_size = 4, .kind = TPU_HOST_ATTR_INT};
  r->call = (tpu_host_call_t){.operand_count = 4,
                              .operands = r->operands,
                              .result_count = 1,
                              .results = &r->result,
                              .attr_count = 1,
                              .attrs = &r->wide,
                              .frame = frame};
}

TPU_TEST(host_random_does_not_depend_on_the_pool) {
  const tpu_random_draw_t draw = {.kind = TPU_RANDOM_NORMAL,
                                  .seed = 5,
                                  .offset = 6,
                                  .math = TPU_F64,
                                  .a = {.number = 0.25},
                                  .b = {.number = 2.5}};
  const size_t bytes = DRAWS * sizeof(double);
  double *expected = malloc(bytes), *out = malloc(bytes);
  int64_t* places = malloc(bytes);
  ffi_call_t frame = {.struct_size = 168, .api = &api};
  random_call_t r;
  TPU_EXPECT_OK(tpu_random_fill(&draw, TPU_F64, 0, DRAWS, expected));
  TPU_EXPECT_OK(tpu_random_permutation(5, 6, TPU_I64, DRAWS, places));
  for (int64_t threads = 0; threads < 9; threads += 2) {
    make_random_call(&r, &frame, out);
    pool = (pool_t){.threads = threads};
    memset(out, 0, bytes);
    TPU_EXPECT_OK(tpui_host_normal(&r.call));
    pool_drain();
    TPU_EXPECT(memcmp(out, expected, bytes) == 0);
    pool = (pool_t){.threads = threads};
    r.call.operands = &r.operands[2];
    r.call.operand_count = 2;
    r.result.dtype = TPU_I64;
    TPU_EXPECT_OK(tpui_host_randperm(&r.call));
    pool_drain();
    TPU_EXPECT(memcmp(out, places, bytes) == 0);
  }
  free(places);
  free(out);
  free(expected);
}

TPU_TEST(host_random_refuses_what_does_not_fit) {
  double out[8];
  random_call_t r;
  make_random_call(&r, NULL, out);
  r.size = 8;
  TPU_EXPECT_OK(tpui_host_normal(&r.call));
  r.result.dtype = TPU_F32;
  TPU_EXPECT_CODE(tpui_host_normal(&r.call), TPU_INVALID_ARGUMENT);
  r.result.dtype = TPU_F64;
  r.operands[1].dtype = TPU_F32;
  TPU_EXPECT_CODE(tpui_host_normal(&r.call), TPU_INVALID_ARGUMENT);
  r.operands[1].dtype = TPU_F64;
  const int64_t seven = 7;
  r.operands[1].rank = 1;
  r.operands[1].sizes = &seven;
  TPU_EXPECT_CODE(tpui_host_normal(&r.call), TPU_INVALID_ARGUMENT);
  r.operands[1].rank = 0;
  r.operands[2].dtype = TPU_I64;
  TPU_EXPECT_CODE(tpui_host_normal(&r.call), TPU_INVALID_ARGUMENT);
  r.operands[2].dtype = TPU_U64;
  r.wide.name_size = 3;
  TPU_EXPECT_CODE(tpui_host_normal(&r.call), TPU_INVALID_ARGUMENT);
  TPU_EXPECT_CODE(tpui_host_random_integers(&r.call), TPU_INVALID_ARGUMENT);
  r.result.rank = 0;
  r.call.operands = &r.operands[2];
  r.call.operand_count = 2;
  r.result.dtype = TPU_I64;
  TPU_EXPECT_CODE(tpui_host_randperm(&r.call), TPU_INVALID_ARGUMENT);
}

/* --- registration --- */

TPU_TEST(host_kernels_stay_off_without_ffi) {
  static const tpu_platform_kind_t platforms[] = {TPU_PLATFORM_CPU, TPU_PLATFORM_TPU};
  for (int i = 0; i < 2; ++i) {
    world_t world;
    TPU_REQUIRE(world_open(&world, platforms[i], TPU_MODE_FUSED));
    tpu_device_t* device = tpu_engine_device(world.engine);
    TPU_EXPECT(!tpu_device_has_host_calls(device));
    TPU_EXPECT_CODE(tpu_device_register_host_call(device, "x", NULL), TPU_INVALID_ARGUMENT);
    world_close(&world);
  }
}

TPU_TEST(host_kernels_register_with_a_real_plugin) {
  world_t world;
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_HOST_KERNELS, "0"));
  bool opened = world_open_real(&world, TPU_MODE_FUSED);
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_HOST_KERNELS, NULL));
  if (!opened) return;
  TPU_EXPECT(!tpu_device_has_host_calls(tpu_engine_device(world.engine)));
  world_close(&world);
  if (!world_open_real(&world, TPU_MODE_FUSED)) return;
  tpu_device_t* device = tpu_engine_device(world.engine);
  TPU_EXPECT(tpu_device_has_host_calls(device));
  tpu_host_register(device);  // again: no harm
  TPU_EXPECT(tpu_device_has_host_calls(device));
  world_close(&world);
}

/* x f32[8], rank i64[1] -> the element of that rank. */
static const char kth_text[] =
    "module @tpu {\nfunc.func @main(%arg0: tensor<8xf32>, %arg1: tensor<1xi64>) -> "
    "(tensor<1xf32>, tensor<1xi64>) {\n"
    "%0, %1 = \"stablehlo.custom_call\"(%arg0, %arg1) <{call_target_name = \"tpu_host_kth\", "
    "api_version = 4 : i32, backend_config = {dim = 0 : i64}}> : (tensor<8xf32>, tensor<1xi64>) -> "
    "(tensor<1xf32>, tensor<1xi64>)\n"
    "\"func.return\"(%0, %1) : (tensor<1xf32>, tensor<1xi64>) -> ()\n}\n}\n";

static tpu_status_t run_kth(tpu_device_t* device, tpu_executable_t* kth, int64_t rank,
                            float* out_value) {
  static const float x[8] = {5, 3, 8, 1, 9, 2, 7, 4};
  static const int64_t eight = 8, one = 1, bytes[2] = {4, 8};
  tpu_buffer_t *inputs[2] = {NULL, NULL}, *outputs[2] = {NULL, NULL};
  tpu_status_t status = tpu_buffer_from_host(device, x, TPU_F32, 1, &eight, &inputs[0]);
  if (status == NULL) {
    status = tpu_buffer_from_host(device, &rank, TPU_I64, 1, &one, &inputs[1]);
  }
  if (status == NULL) status = tpu_executable_run(kth, 2, inputs, NULL, NULL, bytes, outputs);
  if (status == NULL) status = tpu_buffer_read(outputs[0], 0, out_value, 4);
  for (int i = 0; i < 2; ++i) {
    tpu_buffer_release(inputs[i]);
    tpu_buffer_release(outputs[i]);
  }
  return status;
}

TPU_TEST(host_kernel_failures_come_out_of_a_real_run) {
  world_t world;
  if (!world_open_real(&world, TPU_MODE_FUSED)) return;
  tpu_device_t* device = tpu_engine_device(world.engine);
  tpu_compile_options_t options = {0};
  tpu_executable_t* kth = NULL;
  TPU_EXPECT_OK(
      tpu_compiler_get(world.engine->compiler, kth_text, sizeof(kth_text) - 1, &options, &kth));
  float value = 0;
  if (kth != NULL) {
    TPU_EXPECT_OK(run_kth(device, kth, 2, &value));
    TPU_EXPECT(value == 3.0f);
    tpu_status_t status = run_kth(device, kth, 9, &value);
    const char* text = tpu_status_message(status);
    TPU_EXPECT(strstr(text, "tpu_host_kth: rank 9 in a line of 8") != NULL);
    TPU_EXPECT_CODE(status, TPU_OUT_OF_RANGE);
    TPU_EXPECT_OK(run_kth(device, kth, 7, &value));  // the executable is still good
    TPU_EXPECT(value == 9.0f);
  }
  tpu_executable_release(kth);
  world_close(&world);
}
