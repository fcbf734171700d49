/* The device, its buffers and executables, on the fake plugin; a few on a real CPU plugin when
 * TORCH_TPU_PJRT_PLUGIN names one. */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "../fake_plugin/fake_plugin.h"
#include "device/device.h"
#include "test.h"

static const char add_text[] =
    "module { func.func public @main(%a: tensor<2x3xf32>, %b: tensor<2x3xf32>) -> tensor<2x3xf32> {"
    " %0 = stablehlo.add %a, %b : tensor<2x3xf32>\n return %0 : tensor<2x3xf32> } }";
static const char donate_text[] =
    "module { func.func public @main(%a: tensor<2x3xf32> {tf.aliasing_output = 0 : i32}, "
    "%b: tensor<2x3xf32>) -> tensor<2x3xf32> {"
    " %0 = stablehlo.add %a, %b : tensor<2x3xf32>\n return %0 : tensor<2x3xf32> } }";
/* 1 replica, 1 partition. */
static const unsigned char options_bytes[] = {0x1a, 4, 0x20, 1, 0x28, 1};
static const int64_t sizes[2] = {2, 3};
enum { BYTES = 24 };

/* Blocks that were allocated before the test; for end(). */
static int64_t live_before;

static const fake_control_t* begin(void) {
  const fake_control_t* fake = fake_plugin_control();
  if (fake == NULL) {
    tpu_test_fail(__FILE__, __LINE__, "no fake plugin at '%s'", fake_plugin_path());
    return NULL;
  }
  fake->reset();
  live_before = tpu_alloc_live_count();
  return fake;
}

/* Nothing is alive and nothing was done wrong. */
static void end(const fake_control_t* fake) {
  fake_stats_t stats;
  fake->stats(&stats);
  TPU_EXPECT_EQ(stats.violations, 0);
  TPU_EXPECT_EQ(fake->live(), 0);
  TPU_EXPECT_EQ(tpu_alloc_live_count(), live_before);
  fake->reset();
}

static tpu_status_t make_device_of(tpu_platform_kind_t platform, int64_t limit,
                                   tpu_device_t** out_device) {
  tpu_device_options_t options = {
      .plugin_path = fake_plugin_path(), .platform = platform, .memory_limit = limit};
  return tpu_device_create(&options, out_device);
}

static tpu_status_t make_device(tpu_device_t** out_device) {
  return make_device_of(TPU_PLATFORM_CPU, 0, out_device);
}

static tpu_status_t make_buffer(tpu_device_t* device, tpu_buffer_t** out_buffer) {
  static const float numbers[6] = {1, 2, 3, 4, 5, 6};
  return tpu_buffer_from_host(device, numbers, TPU_F32, 2, sizes, out_buffer);
}

static tpu_status_t compile(tpu_device_t* device, const char* text, tpu_executable_t** out) {
  return tpu_executable_compile(device, text, strlen(text), options_bytes, sizeof(options_bytes),
                                out);
}

static tpu_memory_stats_t memory_of(tpu_device_t* device) {
  tpu_memory_stats_t stats;
  tpu_device_memory_stats(device, &stats);
  return stats;
}

/* Most tests need one device on the CPU platform; NULL when there is none. */
static const fake_control_t* begin_with_device(tpu_device_t** out_device) {
  const fake_control_t* fake = begin();
  if (fake == NULL) return NULL;
  tpu_status_t status = make_device(out_device);
  if (status == NULL) return fake;
  tpu_test_fail(__FILE__, __LINE__, "%s", tpu_status_message(status));
  tpu_status_free(status);
  return NULL;
}

static void end_with_device(const fake_control_t* fake, tpu_device_t* device) {
  tpu_device_destroy(device);
  end(fake);
}

/* --- creating --- */

TPU_TEST(device_create_and_names) {
  tpu_device_t* device = NULL;
  const fake_control_t* fake = begin_with_device(&device);
  TPU_REQUIRE(fake != NULL);
  tpu_device_destroy(device);
  live_before = tpu_alloc_live_count();  // the plugin itself stays
  TPU_REQUIRE_OK(make_device(&device));
  TPU_EXPECT(strncmp(tpu_device_name(device), "TPU (cpu host: ", 15) == 0);
  TPU_EXPECT(strncmp(tpu_device_plugin_version(device), "cpu; fake 1; PJRT 0.114; file ", 30) == 0);
  TPU_EXPECT_EQ(tpu_device_platform(device)->program_ops, 64);
  TPU_EXPECT(tpu_device_platform(device)->host_addressable);
  TPU_EXPECT(memory_of(device).bytes_limit > 0);
  tpu_device_destroy(device);
  TPU_REQUIRE_OK(make_device_of(TPU_PLATFORM_TPU, 0, &device));
  TPU_EXPECT_TEXT(tpu_device_name(device), "TPU fake");
  TPU_EXPECT(!tpu_device_platform(device)->host_addressable);
  TPU_EXPECT_EQ(memory_of(device).bytes_limit, 1 << 30);
  tpu_device_destroy(device);
  tpu_device_destroy(NULL);
  end(fake);
}

TPU_TEST(device_create_refuses_bad_options) {
  const fake_control_t* fake = begin();
  TPU_REQUIRE(fake != NULL);
  tpu_device_t* device = NULL;
  TPU_EXPECT_CODE(tpu_device_create(NULL, &device), TPU_INVALID_ARGUMENT);
  tpu_device_options_t options = {.plugin_path = NULL};
  TPU_EXPECT_CODE(tpu_device_create(&options, &device), TPU_INVALID_ARGUMENT);
  options.plugin_path = "/nonexistent.so";
  TPU_EXPECT_CODE(tpu_device_create(&options, &device), TPU_NOT_FOUND);
  options.plugin_path = fake_plugin_path();
  options.platform = (tpu_platform_kind_t)77;
  TPU_EXPECT_CODE(tpu_device_create(&options, &device), TPU_INVALID_ARGUMENT);
  options.platform = TPU_PLATFORM_CPU;
  options.memory_limit = -1;
  TPU_EXPECT_CODE(tpu_device_create(&options, &device), TPU_INVALID_ARGUMENT);
  options.memory_limit = 0;
  options.threads = -1;
  TPU_EXPECT_CODE(tpu_device_create(&options, &device), TPU_INVALID_ARGUMENT);
  TPU_EXPECT(device == NULL);
  end(fake);
}

/* Settings that travel through the environment leave no trace in it. */
TPU_TEST(device_create_restores_environment) {
  const fake_control_t* fake = begin();
  TPU_REQUIRE(fake != NULL);
  (void)setenv("NPROC", "7", 1);
  (void)unsetenv("PJRT_NPROC");
  tpu_device_options_t options = {.plugin_path = fake_plugin_path(), .threads = 3};
  tpu_device_t* device = NULL;
  TPU_EXPECT_OK(tpu_device_create(&options, &device));
  TPU_EXPECT_TEXT(getenv("NPROC"), "7");
  TPU_EXPECT(getenv("PJRT_NPROC") == NULL);
  (void)unsetenv("NPROC");
  tpu_device_destroy(device);
  TPU_EXPECT_EQ(fake->live(), 0);
}

/* --- buffers --- */

TPU_TEST(device_buffer_roundtrip) {
  const fake_control_t* fake = begin();
  TPU_REQUIRE(fake != NULL);
  static const tpu_platform_kind_t kinds[] = {TPU_PLATFORM_CPU, TPU_PLATFORM_TPU};
  for (int k = 0; k < 2; ++k) {
    tpu_device_t* device = NULL;
    TPU_REQUIRE_OK(make_device_of(kinds[k], 0, &device));
    tpu_buffer_t* buffer = NULL;
    TPU_REQUIRE_OK(make_buffer(device, &buffer));
    TPU_EXPECT_EQ(tpu_buffer_bytes(buffer), BYTES);
    float all[6] = {0}, part[2] = {0};
    TPU_EXPECT_OK(tpu_buffer_read(buffer, 0, all, BYTES));
    TPU_EXPECT(all[0] == 1 && all[5] == 6);
    TPU_EXPECT_OK(tpu_buffer_read(buffer, 12, part, 8));
    TPU_EXPECT(part[0] == 4 && part[1] == 5);
    TPU_EXPECT_OK(tpu_buffer_read(buffer, BYTES, NULL, 0));
    TPU_EXPECT_CODE(tpu_buffer_read(buffer, 0, all, BYTES + 1), TPU_OUT_OF_RANGE);
    TPU_EXPECT_CODE(tpu_buffer_read(buffer, -1, all, 1), TPU_OUT_OF_RANGE);
    TPU_EXPECT_CODE(tpu_buffer_read(buffer, INT64_MAX, all, 1), TPU_OUT_OF_RANGE);
    TPU_EXPECT_CODE(tpu_buffer_read(buffer, 0, all, -1), TPU_OUT_OF_RANGE);
    TPU_EXPECT_CODE(tpu_buffer_read(buffer, 0, NULL, 4), TPU_INVALID_ARGUMENT);
    void* pointer = NULL;
    TPU_EXPECT_CODE(tpu_buffer_host_pointer(buffer, &pointer),
                    kinds[k] == TPU_PLATFORM_CPU ? TPU_OK : TPU_UNIMPLEMENTED);
    TPU_EXPECT((pointer != NULL) == (kinds[k] == TPU_PLATFORM_CPU));
    tpu_buffer_release(buffer);
    tpu_buffer_release(NULL);
    tpu_device_destroy(device);
  }
  end(fake);
}

TPU_TEST(device_buffer_refuses_bad_arguments) {
  tpu_device_t* device = NULL;
  const fake_control_t* fake = begin_with_device(&device);
  TPU_REQUIRE(fake != NULL);
  tpu_buffer_t* buffer = NULL;
  float data[6] = {0};
  int64_t negative[2] = {2, -1};
  int64_t huge[3] = {INT64_MAX / 2, INT64_MAX / 2, 4};
  int64_t many[TPU_MAX_RANK + 1] = {0};
  TPU_EXPECT_CODE(tpu_buffer_from_host(device, data, TPU_DTYPE_INVALID, 2, sizes, &buffer),
                  TPU_INVALID_ARGUMENT);
  TPU_EXPECT_CODE(tpu_buffer_from_host(device, data, TPU_DTYPE_COUNT, 2, sizes, &buffer),
                  TPU_INVALID_ARGUMENT);
  TPU_EXPECT_CODE(tpu_buffer_from_host(device, data, TPU_F32, 2, negative, &buffer),
                  TPU_INVALID_ARGUMENT);
  TPU_EXPECT_CODE(tpu_buffer_from_host(device, data, TPU_F32, 3, huge, &buffer),
                  TPU_INVALID_ARGUMENT);
  TPU_EXPECT_CODE(tpu_buffer_from_host(device, data, TPU_F32, TPU_MAX_RANK + 1, many, &buffer),
                  TPU_INVALID_ARGUMENT);
  TPU_EXPECT_CODE(tpu_buffer_from_host(device, data, TPU_F32, -1, many, &buffer),
                  TPU_INVALID_ARGUMENT);
  TPU_EXPECT_CODE(tpu_buffer_from_host(device, NULL, TPU_F32, 2, sizes, &buffer),
                  TPU_INVALID_ARGUMENT);
  TPU_EXPECT(buffer == NULL);
  TPU_EXPECT_EQ(memory_of(device).bytes_total, 0);
  end_with_device(fake, device);
}

TPU_TEST(device_buffer_without_elements) {
  tpu_device_t* device = NULL;
  const fake_control_t* fake = begin_with_device(&device);
  TPU_REQUIRE(fake != NULL);
  int64_t empty[3] = {INT64_MAX / 2, 0, INT64_MAX / 2};
  tpu_buffer_t* buffer = NULL;
  TPU_REQUIRE_OK(tpu_buffer_from_host(device, NULL, TPU_F32, 3, empty, &buffer));
  TPU_EXPECT_EQ(tpu_buffer_bytes(buffer), 0);
  TPU_EXPECT_OK(tpu_buffer_read(buffer, 0, NULL, 0));
  TPU_EXPECT_EQ(memory_of(device).buffers_in_use, 1);
  tpu_buffer_release(buffer);
  end_with_device(fake, device);
}

/* The fake plugin reports a read that nobody waited for, so this also shows that reads wait. */
TPU_TEST(device_buffer_waits_for_delayed_content) {
  const fake_control_t* fake = begin();
  TPU_REQUIRE(fake != NULL);
  fake->delay(3000);
  tpu_device_t* device = NULL;
  TPU_REQUIRE_OK(make_device(&device));
  tpu_buffer_t* buffer = NULL;
  TPU_REQUIRE_OK(make_buffer(device, &buffer));
  float all[6] = {0};
  TPU_EXPECT_OK(tpu_buffer_read(buffer, 0, all, BYTES));
  TPU_EXPECT(all[5] == 6);
  tpu_buffer_release(buffer);
  TPU_REQUIRE_OK(make_buffer(device, &buffer));
  tpu_buffer_release(buffer);  // without waiting
  fake->delay(0);
  fake->lose(1000);
  TPU_REQUIRE_OK(make_buffer(device, &buffer));
  TPU_EXPECT_CODE(tpu_buffer_await(buffer), TPU_DEADLINE_EXCEEDED);
  TPU_EXPECT_CODE(tpu_buffer_read(buffer, 0, all, BYTES), TPU_DEADLINE_EXCEEDED);
  tpu_buffer_release(buffer);
  end_with_device(fake, device);
}

/* --- accounting --- */

TPU_TEST(device_memory_accounting) {
  tpu_device_t* device = NULL;
  const fake_control_t* fake = begin_with_device(&device);
  TPU_REQUIRE(fake != NULL);
  tpu_buffer_t *a = NULL, *b = NULL;
  TPU_REQUIRE_OK(make_buffer(device, &a));
  TPU_REQUIRE_OK(make_buffer(device, &b));
  tpu_buffer_retain(a);
  tpu_buffer_release(a);
  TPU_EXPECT_EQ(memory_of(device).bytes_in_use, 2 * BYTES);
  tpu_buffer_release(a);
  tpu_memory_stats_t stats = memory_of(device);
  TPU_EXPECT_EQ(stats.bytes_in_use, BYTES);
  TPU_EXPECT_EQ(stats.bytes_peak, 2 * BYTES);
  TPU_EXPECT_EQ(stats.bytes_total, 2 * BYTES);
  TPU_EXPECT_EQ(stats.buffers_in_use, 1);
  TPU_EXPECT_EQ(stats.buffers_peak, 2);
  TPU_EXPECT_EQ(stats.buffers_total, 2);
  tpu_device_memory_reset_peak(device);
  TPU_EXPECT_EQ(memory_of(device).bytes_peak, BYTES);
  TPU_EXPECT_EQ(memory_of(device).buffers_peak, 1);
  fake->fail_call("Client_BufferFromHostBuffer", 8);
  TPU_EXPECT_CODE(make_buffer(device, &a), TPU_RESOURCE_EXHAUSTED);
  fake->fail_call(NULL, 0);
  TPU_EXPECT_EQ(memory_of(device).bytes_in_use, BYTES);
  TPU_EXPECT_EQ(memory_of(device).bytes_total, 2 * BYTES);
  tpu_buffer_release(b);
  TPU_EXPECT_EQ(memory_of(device).bytes_in_use, 0);
  end_with_device(fake, device);
}

TPU_TEST(device_memory_share) {
  const fake_control_t* fake = begin();
  TPU_REQUIRE(fake != NULL);
  tpu_device_t* device = NULL;
  TPU_REQUIRE_OK(make_device_of(TPU_PLATFORM_CPU, 4 * BYTES, &device));
  TPU_REQUIRE_OK(tpu_device_set_memory_share(device, 0.5));
  TPU_EXPECT_EQ(memory_of(device).bytes_limit, 4 * BYTES);
  tpu_buffer_t *a = NULL, *b = NULL, *c = NULL;
  TPU_REQUIRE_OK(make_buffer(device, &a));
  TPU_REQUIRE_OK(make_buffer(device, &b));
  tpu_status_t status = make_buffer(device, &c);
  TPU_EXPECT_TEXT(tpu_status_message(status),
                  "out of device memory: 24 bytes wanted, 48 bytes in use, limit 48 bytes");
  TPU_EXPECT_CODE(status, TPU_RESOURCE_EXHAUSTED);
  TPU_EXPECT_CODE(tpu_device_set_memory_share(device, 1.5), TPU_INVALID_ARGUMENT);
  TPU_EXPECT_CODE(tpu_device_set_memory_share(device, NAN), TPU_INVALID_ARGUMENT);
  TPU_REQUIRE_OK(tpu_device_set_memory_share(device, 1));
  TPU_REQUIRE_OK(make_buffer(device, &c));
  tpu_buffer_release(a);
  tpu_buffer_release(b);
  tpu_buffer_release(c);
  end_with_device(fake, device);
}

TPU_TEST(device_memory_limit) {
  const fake_control_t* fake = begin();
  TPU_REQUIRE(fake != NULL);
  tpu_device_t* device = NULL;
  TPU_REQUIRE_OK(make_device_of(TPU_PLATFORM_CPU, 2 * BYTES, &device));
  TPU_EXPECT_EQ(memory_of(device).bytes_limit, 2 * BYTES);
  tpu_buffer_t *a = NULL, *b = NULL, *c = NULL;
  TPU_REQUIRE_OK(make_buffer(device, &a));
  TPU_REQUIRE_OK(make_buffer(device, &b));
  tpu_status_t status = make_buffer(device, &c);
  TPU_EXPECT_TEXT(tpu_status_message(status),
                  "out of device memory: 24 bytes wanted, 48 bytes in use, limit 48 bytes");
  TPU_EXPECT_CODE(status, TPU_RESOURCE_EXHAUSTED);
  tpu_executable_t *add = NULL, *donate = NULL;
  TPU_REQUIRE_OK(compile(device, add_text, &add));
  TPU_REQUIRE_OK(compile(device, donate_text, &donate));
  tpu_buffer_t* inputs[2] = {a, b};
  uint8_t first[2] = {1, 0};
  int64_t bytes = BYTES;
  TPU_EXPECT_CODE(tpu_executable_run(add, 2, inputs, NULL, NULL, &bytes, &c),
                  TPU_RESOURCE_EXHAUSTED);
  TPU_EXPECT(c == NULL);
  /* Room that a donation makes counts. */
  TPU_EXPECT_OK(tpu_executable_run(donate, 2, inputs, first, first, &bytes, &c));
  TPU_EXPECT_EQ(memory_of(device).bytes_in_use, 2 * BYTES);
  TPU_EXPECT_EQ(memory_of(device).bytes_peak, 2 * BYTES);
  tpu_buffer_release(c);
  tpu_buffer_release(a);
  tpu_buffer_release(b);
  TPU_EXPECT_EQ(memory_of(device).bytes_in_use, 0);
  TPU_EXPECT_EQ(memory_of(device).buffers_in_use, 0);
  tpu_executable_release(add);
  tpu_executable_release(donate);
  end_with_device(fake, device);
}

/* --- executables --- */

TPU_TEST(device_run_and_donate) {
  tpu_device_t* device = NULL;
  const fake_control_t* fake = begin_with_device(&device);
  TPU_REQUIRE(fake != NULL);
  tpu_executable_t* donate = NULL;
  TPU_REQUIRE_OK(compile(device, donate_text, &donate));
  TPU_EXPECT_EQ(tpu_executable_output_count(donate), 1);
  tpu_buffer_t *a = NULL, *b = NULL, *c = NULL;
  TPU_REQUIRE_OK(make_buffer(device, &a));
  TPU_REQUIRE_OK(make_buffer(device, &b));
  tpu_buffer_t* inputs[2] = {a, b};
  uint8_t first[2] = {1, 0}, both[2] = {1, 1};
  int64_t bytes = BYTES, wrong = BYTES + 1;
  float all[6] = {1, 1, 1, 1, 1, 1};
  /* Kept: the plugin would take it, if it were not told otherwise. */
  TPU_EXPECT_OK(tpu_executable_run(donate, 2, inputs, first, NULL, &bytes, &c));
  tpu_buffer_release(c);
  TPU_EXPECT_OK(tpu_buffer_read(a, 0, all, BYTES));
  TPU_EXPECT(all[5] == 6);
  TPU_EXPECT_CODE(tpu_executable_run(donate, 2, inputs, first, both, &bytes, &c),
                  TPU_INVALID_ARGUMENT);
  TPU_EXPECT_CODE(tpu_executable_run(donate, 2, inputs, first, NULL, &wrong, &c),
                  TPU_INVALID_ARGUMENT);
  TPU_EXPECT_CODE(tpu_executable_run(donate, -1, inputs, first, NULL, &bytes, &c),
                  TPU_INVALID_ARGUMENT);
  TPU_EXPECT_CODE(tpu_executable_run(donate, 1, inputs, first, NULL, &bytes, &c),
                  TPU_INVALID_ARGUMENT);
  tpu_buffer_t* with_null[2] = {a, NULL};
  TPU_EXPECT_CODE(tpu_executable_run(donate, 2, with_null, first, NULL, &bytes, &c),
                  TPU_INVALID_ARGUMENT);
  TPU_EXPECT(c == NULL);
  TPU_EXPECT_EQ(memory_of(device).bytes_in_use, 2 * BYTES);
  /* Given away. */
  TPU_EXPECT_OK(tpu_executable_run(donate, 2, inputs, first, first, &bytes, &c));
  TPU_EXPECT_EQ(memory_of(device).bytes_in_use, 2 * BYTES);
  TPU_EXPECT_EQ(tpu_buffer_bytes(a), 0);
  TPU_EXPECT_CODE(tpu_buffer_await(a), TPU_FAILED_PRECONDITION);
  TPU_EXPECT_CODE(tpu_buffer_read(a, 0, all, 0), TPU_FAILED_PRECONDITION);
  TPU_EXPECT_OK(tpu_buffer_read(c, 0, all, BYTES));
  TPU_EXPECT(all[5] == 0);
  tpu_buffer_t* reused = NULL;
  TPU_EXPECT_CODE(tpu_executable_run(donate, 2, inputs, first, NULL, &bytes, &reused),
                  TPU_INVALID_ARGUMENT);
  tpu_buffer_release(a);
  tpu_buffer_release(b);
  tpu_buffer_release(c);
  tpu_executable_release(donate);
  tpu_executable_release(NULL);
  end_with_device(fake, device);
}

/* A run that fails may have taken its donations or not; what is still there stays usable. */
TPU_TEST(device_failed_run_may_have_taken_donations) {
  tpu_device_t* device = NULL;
  const fake_control_t* fake = begin_with_device(&device);
  TPU_REQUIRE(fake != NULL);
  tpu_executable_t* donate = NULL;
  TPU_REQUIRE_OK(compile(device, donate_text, &donate));
  tpu_buffer_t *a = NULL, *b = NULL, *c = NULL;
  TPU_REQUIRE_OK(make_buffer(device, &a));
  TPU_REQUIRE_OK(make_buffer(device, &b));
  tpu_buffer_t* inputs[2] = {a, b};
  uint8_t first[2] = {1, 0};
  int64_t bytes = BYTES;
  fake->fail_call("LoadedExecutable_Execute", 8);
  TPU_EXPECT_CODE(tpu_executable_run(donate, 2, inputs, first, first, &bytes, &c),
                  TPU_RESOURCE_EXHAUSTED);
  fake->fail_call(NULL, 0);
  TPU_EXPECT(tpu_buffer_has_content(a));
  TPU_EXPECT_EQ(memory_of(device).bytes_in_use, 2 * BYTES);
  // A run that failed like this is not trusted with its donations while there is room.
  fake->fail_taking(8);
  TPU_EXPECT_CODE(tpu_executable_run(donate, 2, inputs, first, first, &bytes, &c),
                  TPU_RESOURCE_EXHAUSTED);
  TPU_EXPECT(tpu_buffer_has_content(a));
  TPU_EXPECT_EQ(memory_of(device).bytes_in_use, 2 * BYTES);
  fake->fail_taking(0);
  TPU_REQUIRE_OK(tpu_executable_run(donate, 2, inputs, first, first, &bytes, &c));
  TPU_EXPECT(!tpu_buffer_has_content(a));
  TPU_EXPECT_EQ(memory_of(device).bytes_in_use, 2 * BYTES);
  tpu_buffer_release(a);
  a = c;
  inputs[0] = a;
  c = NULL;
  fake->fail_taking(13);
  TPU_EXPECT_CODE(tpu_executable_run(donate, 2, inputs, first, first, &bytes, &c), TPU_INTERNAL);
  TPU_EXPECT(!tpu_buffer_has_content(a) && tpu_buffer_has_content(b));
  TPU_EXPECT_CODE(tpu_buffer_await(a), TPU_FAILED_PRECONDITION);
  TPU_EXPECT_EQ(memory_of(device).bytes_in_use, BYTES);
  fake->fail_taking(0);
  tpu_buffer_release(a);
  tpu_buffer_release(b);
  TPU_EXPECT_EQ(memory_of(device).bytes_in_use, 0);
  tpu_executable_release(donate);
  end_with_device(fake, device);
}

TPU_TEST(device_run_refuses_other_device) {
  const fake_control_t* fake = begin();
  TPU_REQUIRE(fake != NULL);
  tpu_device_t *device = NULL, *other = NULL;
  TPU_REQUIRE_OK(make_device(&device));
  TPU_REQUIRE_OK(make_device(&other));
  tpu_executable_t* add = NULL;
  TPU_REQUIRE_OK(compile(device, add_text, &add));
  tpu_buffer_t *a = NULL, *c = NULL;
  TPU_REQUIRE_OK(make_buffer(other, &a));
  tpu_buffer_t* inputs[2] = {a, a};
  int64_t bytes = BYTES;
  TPU_EXPECT_CODE(tpu_executable_run(add, 2, inputs, NULL, NULL, &bytes, &c), TPU_INVALID_ARGUMENT);
  tpu_buffer_release(a);
  tpu_executable_release(add);
  tpu_device_destroy(other);
  end_with_device(fake, device);
}

TPU_TEST(device_failed_run_is_reported_when_waited_for) {
  tpu_device_t* device = NULL;
  const fake_control_t* fake = begin_with_device(&device);
  TPU_REQUIRE(fake != NULL);
  tpu_executable_t* add = NULL;
  TPU_REQUIRE_OK(compile(device, add_text, &add));
  tpu_buffer_t *a = NULL, *c = NULL;
  TPU_REQUIRE_OK(make_buffer(device, &a));
  tpu_buffer_t* inputs[2] = {a, a};
  int64_t bytes = BYTES;
  fake->fail_outputs(8);
  TPU_EXPECT_OK(tpu_executable_run(add, 2, inputs, NULL, NULL, &bytes, &c));
  TPU_EXPECT_CODE(tpu_buffer_await(c), TPU_RESOURCE_EXHAUSTED);
  TPU_EXPECT_CODE(tpu_buffer_await(c), TPU_RESOURCE_EXHAUSTED);  // every time
  void* pointer = NULL;
  TPU_EXPECT_CODE(tpu_buffer_host_pointer(c, &pointer), TPU_RESOURCE_EXHAUSTED);
  tpu_buffer_release(c);
  tpu_buffer_release(a);
  tpu_executable_release(add);
  end_with_device(fake, device);
}

TPU_TEST(device_without_memory_statistics) {
  const fake_control_t* fake = begin();
  TPU_REQUIRE(fake != NULL);
  for (int code = 1; code <= 16; ++code) {
    tpu_device_t* device = NULL;
    fake->fail_call("Device_MemoryStats", code);
    TPU_REQUIRE_OK(make_device_of(TPU_PLATFORM_TPU, 0, &device));
    TPU_EXPECT_EQ(memory_of(device).bytes_limit, 0);
    tpu_device_destroy(device);
  }
  fake->fail_call(NULL, 0);
  end(fake);
}

static bool stop_at_once(void) { return true; }

/* A device other than a CPU, and a program that has begun whose results nobody holds. */
TPU_TEST(device_runs_are_waited_for_without_their_results) {
  const fake_control_t* fake = begin();
  TPU_REQUIRE(fake != NULL);
  tpu_device_t* device = NULL;
  TPU_REQUIRE_OK(make_device_of(TPU_PLATFORM_TPU, 0, &device));
  tpu_executable_t* add = NULL;
  TPU_REQUIRE_OK(compile(device, add_text, &add));
  tpu_buffer_t *a = NULL, *c = NULL;
  TPU_REQUIRE_OK(make_buffer(device, &a));
  tpu_buffer_t* inputs[2] = {a, a};
  int64_t bytes = BYTES;
  TPU_EXPECT_OK(tpu_device_await_runs(device, NULL));  // nothing runs
  enum { RUNS = 1100 };                                // more than may be open
  for (int i = 0; i < RUNS; ++i) {
    if (i == RUNS - 2) fake->delay(150000);
    fake->fail_outputs(i == 5 ? 8 : i == 7 ? 13 : 0);
    TPU_EXPECT_OK(tpu_executable_run(add, 2, inputs, NULL, NULL, &bytes, &c));
    tpu_buffer_release(c);
  }
  TPU_EXPECT_CODE(tpu_device_await_runs(device, stop_at_once), TPU_CANCELLED);
  TPU_EXPECT_CODE(tpu_device_await_runs(device, NULL), TPU_RESOURCE_EXHAUSTED);  // the first error
  TPU_EXPECT_OK(tpu_device_await_runs(device, NULL));                            // once
  tpu_buffer_release(a);
  tpu_executable_release(add);
  tpu_device_destroy(device);
  end(fake);
}

TPU_TEST(device_compile_and_load_refuse_bad_input) {
  tpu_device_t* device = NULL;
  const fake_control_t* fake = begin_with_device(&device);
  TPU_REQUIRE(fake != NULL);
  tpu_executable_t* executable = NULL;
  TPU_EXPECT_CODE(compile(device, "module {", &executable), TPU_UNKNOWN);
  TPU_EXPECT_CODE(compile(device, "", &executable), TPU_INVALID_ARGUMENT);
  TPU_EXPECT_CODE(tpu_executable_compile(device, add_text, strlen(add_text), NULL, 0, &executable),
                  TPU_INVALID_ARGUMENT);
  TPU_EXPECT_CODE(tpu_executable_deserialize(device, "nonsense", 8, NULL, 0, &executable),
                  TPU_INTERNAL);
  TPU_EXPECT_CODE(tpu_executable_deserialize(device, NULL, 0, NULL, 0, &executable),
                  TPU_INVALID_ARGUMENT);
  TPU_EXPECT(executable == NULL);
  end_with_device(fake, device);
}

/* "@main(%a0: tensor<f32>, ...) -> (tensor<f32>, ...)" with `count` of both; every second argument
 * may be donated. */
static void many_text(char* text, size_t size, int count) {
  size_t used = (size_t)snprintf(text, size, "module { func.func public @main(");
  for (int i = 0; i < count; ++i) {
    used += (size_t)snprintf(text + used, size - used, "%s%%a%d: tensor<f32>%s", i > 0 ? ", " : "",
                             i, i % 2 == 0 ? " {jax.buffer_donor = true}" : "");
  }
  used += (size_t)snprintf(text + used, size - used, ") -> (");
  for (int i = 0; i < count; ++i) {
    used += (size_t)snprintf(text + used, size - used, "%stensor<f32>", i > 0 ? ", " : "");
  }
  (void)snprintf(text + used, size - used, ") { } }");
}

enum { MANY = 150 };
typedef struct many_t {
  tpu_executable_t* executable;
  tpu_buffer_t* inputs[MANY];
  int rounds;
} many_t;

/* The same inputs again and again: none is given away, although half of them could be. */
static void* run_many(void* argument) {
  many_t* many = argument;
  uint8_t donatable[MANY];
  int64_t bytes[MANY];
  for (int i = 0; i < MANY; ++i) {
    donatable[i] = i % 2 == 0;
    bytes[i] = 4;
  }
  for (int round = 0; round < many->rounds; ++round) {
    tpu_buffer_t* outputs[MANY];
    TPU_EXPECT_OK(
        tpu_executable_run(many->executable, MANY, many->inputs, donatable, NULL, bytes, outputs));
    for (int i = 0; i < MANY; ++i) tpu_buffer_release(outputs[i]);
  }
  return NULL;
}

/* More arguments than fit on the stack, from several threads at once. */
TPU_TEST(device_run_with_many_arguments) {
  tpu_device_t* device = NULL;
  const fake_control_t* fake = begin_with_device(&device);
  TPU_REQUIRE(fake != NULL);
  char text[16384];
  many_text(text, sizeof(text), MANY);
  many_t many = {.rounds = 20};
  TPU_REQUIRE_OK(compile(device, text, &many.executable));
  TPU_EXPECT_EQ(tpu_executable_output_count(many.executable), MANY);
  float number = 5;
  for (int i = 0; i < MANY; ++i) {
    TPU_EXPECT_OK(tpu_buffer_from_host(device, &number, TPU_F32, 0, NULL, &many.inputs[i]));
  }
  pthread_t threads[4];
  for (int i = 0; i < 4; ++i) TPU_REQUIRE(pthread_create(&threads[i], NULL, run_many, &many) == 0);
  for (int i = 0; i < 4; ++i) TPU_REQUIRE(pthread_join(threads[i], NULL) == 0);
  TPU_EXPECT_EQ(memory_of(device).bytes_in_use, 4 * MANY);
  TPU_EXPECT_EQ(memory_of(device).bytes_total, 4 * MANY + 4 * 20 * 4 * MANY);
  for (int i = 0; i < MANY; ++i) tpu_buffer_release(many.inputs[i]);
  tpu_executable_release(many.executable);
  end_with_device(fake, device);
}

/* --- everything fails once --- */

static tpu_status_t use_executable(tpu_device_t* device, tpu_executable_t* executable,
                                   tpu_buffer_t** buffers) {
  uint8_t first[2] = {1, 0};
  int64_t bytes = BYTES;
  float all[6];
  TPU_RETURN_IF_ERROR(make_buffer(device, &buffers[0]));
  TPU_RETURN_IF_ERROR(make_buffer(device, &buffers[1]));
  TPU_RETURN_IF_ERROR(
      tpu_executable_run(executable, 2, buffers, first, first, &bytes, &buffers[2]));
  TPU_RETURN_IF_ERROR(tpu_buffer_read(buffers[2], 4, all, 8));
  TPU_RETURN_IF_ERROR(tpu_device_await_runs(device, NULL));
  return tpu_buffer_await(buffers[1]);
}

static tpu_status_t use_device(tpu_device_t* device, tpu_executable_t** executables,
                               tpu_buffer_t** buffers) {
  TPU_RETURN_IF_ERROR(compile(device, donate_text, &executables[0]));
  void* bytes = NULL;
  size_t size = 0;
  TPU_RETURN_IF_ERROR(tpu_executable_serialize(executables[0], &bytes, &size));
  tpu_status_t status = tpu_executable_deserialize(device, bytes, size, NULL, 0, &executables[1]);
  tpu_free(bytes);
  TPU_RETURN_IF_ERROR(status);
  return use_executable(device, executables[1], buffers);
}

/* One life of a device: `argument` is the platform. */
static tpu_status_t whole_life(void* argument) {
  tpu_device_t* device = NULL;
  TPU_RETURN_IF_ERROR(make_device_of(*(const tpu_platform_kind_t*)argument, 0, &device));
  tpu_executable_t* executables[2] = {NULL};
  tpu_buffer_t* buffers[3] = {NULL};
  tpu_status_t status = use_device(device, executables, buffers);
  for (int i = 0; i < 3; ++i) tpu_buffer_release(buffers[i]);
  tpu_executable_release(executables[0]);
  tpu_executable_release(executables[1]);
  tpu_device_destroy(device);
  return status;
}

TPU_TEST(device_every_pjrt_call_may_fail) {
  const fake_control_t* fake = begin();
  TPU_REQUIRE(fake != NULL);
  tpu_platform_kind_t kinds[] = {TPU_PLATFORM_CPU, TPU_PLATFORM_TPU};
  for (int k = 0; k < 2; ++k) {
    TPU_EXPECT_OK(whole_life(&kinds[k]));
    fake_stats_t stats;
    fake->reset();
    TPU_EXPECT_OK(whole_life(&kinds[k]));
    fake->stats(&stats);
    int64_t calls = stats.calls, failures = 0;
    for (int64_t n = 1; n <= calls; ++n) {
      fake->fail_at(n, 13);
      tpu_status_t status = whole_life(&kinds[k]);
      TPU_EXPECT(!fake->fail_pending());
      if (status != NULL) {
        failures += 1;
        TPU_EXPECT(strstr(tpu_status_message(status), "injected failure") != NULL);
        TPU_EXPECT_EQ(tpu_status_code(status), TPU_INTERNAL);
        tpu_status_free(status);
      }
    }
    /* Only calls that destroy, and memory statistics, may fail without the caller hearing of it. */
    TPU_EXPECT(calls > 25 && failures >= calls - 13);
    end(fake);
  }
}

TPU_TEST(device_every_allocation_may_fail) {
  const fake_control_t* fake = begin();
  TPU_REQUIRE(fake != NULL);
  tpu_platform_kind_t kinds[] = {TPU_PLATFORM_CPU, TPU_PLATFORM_TPU};
  for (int k = 0; k < 2; ++k) {
    TPU_EXPECT_OK(whole_life(&kinds[k]));
    TPU_EXPECT(TPU_OOM_SWEEP(whole_life, &kinds[k]) > 10);
    end(fake);
  }
}

/* --- a real CPU plugin --- */

TPU_TEST(device_real_cpu_plugin) {
  const char* path = getenv("TORCH_TPU_PJRT_PLUGIN");
  if (path == NULL) {
    tpu_test_skip("TORCH_TPU_PJRT_PLUGIN is not set");
    return;
  }
  tpu_device_options_t options = {.plugin_path = path};
  tpu_device_t* device = NULL;
  TPU_REQUIRE_OK(tpu_device_create(&options, &device));
  tpu_executable_t* donate = NULL;
  TPU_REQUIRE_OK(compile(device, donate_text, &donate));
  tpu_buffer_t *a = NULL, *b = NULL, *c = NULL;
  TPU_REQUIRE_OK(make_buffer(device, &a));
  TPU_REQUIRE_OK(make_buffer(device, &b));
  tpu_buffer_t* inputs[2] = {a, b};
  uint8_t first[2] = {1, 0};
  int64_t bytes = BYTES;
  float all[6] = {0};
  void *before = NULL, *after = NULL;
  TPU_EXPECT_OK(tpu_executable_run(donate, 2, inputs, first, NULL, &bytes, &c));
  TPU_EXPECT_OK(tpu_buffer_read(c, 0, all, BYTES));
  TPU_EXPECT(all[0] == 2 && all[5] == 12);
  tpu_buffer_release(c);
  TPU_EXPECT_OK(tpu_buffer_host_pointer(a, &before));
  TPU_EXPECT_OK(tpu_executable_run(donate, 2, inputs, first, first, &bytes, &c));
  TPU_EXPECT_OK(tpu_buffer_host_pointer(c, &after));
  TPU_EXPECT_EQ((intptr_t)before, (intptr_t)after);  // computed in place
  tpu_buffer_release(c);
  tpu_buffer_release(a);
  tpu_buffer_release(b);
  int64_t empty[2] = {0, 3};
  TPU_EXPECT_OK(tpu_buffer_from_host(device, NULL, TPU_BOOL, 2, empty, &a));
  TPU_EXPECT_OK(tpu_buffer_read(a, 0, NULL, 0));
  tpu_buffer_release(a);
  TPU_EXPECT_EQ(memory_of(device).bytes_in_use, 0);
  tpu_executable_release(donate);
  tpu_device_destroy(device);
}
