/* The fake plugin itself: it must notice what it is there to notice. */
#include <string.h>
#include <sys/wait.h>

#include "../fake_plugin/fake_plugin.h"
#include "pjrt/plugin.h"
#include "test.h"

typedef struct raw_t {
  const fake_control_t* fake;
  const tpu_plugin_t* plugin;
  pjrt_client_t* client;
  pjrt_device_t* device;
} raw_t;

static bool begin(raw_t* raw) {
  memset(raw, 0, sizeof(*raw));
  raw->fake = fake_plugin_control();
  if (raw->fake == NULL) {
    tpu_test_fail(__FILE__, __LINE__, "no fake plugin at '%s'", fake_plugin_path());
    return false;
  }
  raw->fake->reset();
  pjrt_client_create_args_t create = {0};
  tpu_status_t status = tpu_plugin_load(fake_plugin_path(), &raw->plugin);
  if (status == NULL) status = tpu_pjrt_call(raw->plugin, Client_Create, &create);
  pjrt_client_addressable_devices_args_t devices = {.client = create.client};
  if (status == NULL) status = tpu_pjrt_call(raw->plugin, Client_AddressableDevices, &devices);
  bool ok = status == NULL;
  TPU_EXPECT_OK(status);
  if (!ok) return false;
  raw->client = create.client;
  raw->device = devices.addressable_devices[0];
  return true;
}

static tpu_status_t make_buffer(const raw_t* raw, pjrt_buffer_t** out_buffer) {
  static const float data[1] = {1};
  pjrt_client_buffer_from_host_buffer_args_t args = {
      .client = raw->client, .data = data, .type = 11, .device = raw->device};
  TPU_RETURN_IF_ERROR(tpu_pjrt_call(raw->plugin, Client_BufferFromHostBuffer, &args));
  *out_buffer = args.buffer;
  pjrt_event_destroy_args_t destroy = {.event = args.done_with_host_buffer};
  return tpu_pjrt_call(raw->plugin, Event_Destroy, &destroy);
}

static tpu_status_t destroy_buffer(const raw_t* raw, pjrt_buffer_t* buffer) {
  pjrt_buffer_destroy_args_t args = {.buffer = buffer};
  return tpu_pjrt_call(raw->plugin, Buffer_Destroy, &args);
}

/* Violations since the last call of this function. */
static int64_t violations(const raw_t* raw) {
  static int64_t before;
  fake_stats_t stats;
  raw->fake->stats(&stats);
  int64_t fresh = stats.violations - before;
  before = stats.violations;
  return fresh;
}

TPU_TEST(fake_plugin_notices_mistakes) {
  raw_t raw;
  if (!begin(&raw)) return;
  (void)violations(&raw);
  pjrt_buffer_t* buffer = NULL;
  TPU_REQUIRE_OK(make_buffer(&raw, &buffer));
  TPU_EXPECT_EQ(violations(&raw), 0);

  pjrt_buffer_ready_event_args_t ready = {.buffer = buffer};
  TPU_EXPECT_OK(tpu_pjrt_invoke(raw.plugin, PJRT_CALL_Buffer_ReadyEvent, 40, &ready));
  TPU_EXPECT_EQ(violations(&raw), 1);  // wrong struct_size
  pjrt_event_destroy_args_t event = {.event = ready.event};
  TPU_EXPECT_OK(tpu_pjrt_call(raw.plugin, Event_Destroy, &event));
  TPU_EXPECT_OK(tpu_pjrt_call(raw.plugin, Event_Destroy, &event));
  TPU_EXPECT_EQ(violations(&raw), 1);  // destroyed twice

  pjrt_buffer_unsafe_pointer_args_t host = {.buffer = (pjrt_buffer_t*)raw.client};
  TPU_EXPECT_CODE(tpu_pjrt_call(raw.plugin, Buffer_UnsafePointer, &host), TPU_INVALID_ARGUMENT);
  TPU_EXPECT_EQ(violations(&raw), 1);  // a client is no buffer
  host.buffer = NULL;
  TPU_EXPECT_CODE(tpu_pjrt_call(raw.plugin, Buffer_UnsafePointer, &host), TPU_INVALID_ARGUMENT);
  TPU_EXPECT_EQ(violations(&raw), 1);

  pjrt_client_destroy_args_t client = {.client = raw.client};
  pjrt_buffer_t* second = NULL;
  TPU_REQUIRE_OK(make_buffer(&raw, &second));
  TPU_EXPECT_OK(destroy_buffer(&raw, buffer));
  host.buffer = buffer;
  TPU_EXPECT_CODE(tpu_pjrt_call(raw.plugin, Buffer_UnsafePointer, &host), TPU_INVALID_ARGUMENT);
  TPU_EXPECT_EQ(violations(&raw), 1);  // used after it was destroyed
  TPU_EXPECT_OK(tpu_pjrt_call(raw.plugin, Client_Destroy, &client));
  TPU_EXPECT_EQ(violations(&raw), 1);  // before its buffers
  TPU_EXPECT_OK(destroy_buffer(&raw, second));
  TPU_EXPECT_EQ(raw.fake->live(), 0);
  raw.fake->reset();
  (void)violations(&raw);
}

TPU_TEST(fake_plugin_aborting_options_are_violations) {
  raw_t raw;
  if (!begin(&raw)) return;
  (void)violations(&raw);
  static const char text[] = "module { func.func @main() -> tensor<f32> { } }";
  pjrt_program_t program = {.struct_size = PJRT_SIZE_program,
                            .code = text,
                            .code_size = sizeof(text) - 1,
                            .format = "mlir",
                            .format_size = 4};
  static const char zero_counts[] = {0x1a, 4, 0x20, 0, 0x28, 0};
  pjrt_client_compile_args_t args = {.client = raw.client,
                                     .program = &program,
                                     .compile_options = zero_counts,
                                     .compile_options_size = sizeof(zero_counts)};
  TPU_EXPECT_CODE(tpu_pjrt_call(raw.plugin, Client_Compile, &args), TPU_INVALID_ARGUMENT);
  TPU_EXPECT_EQ(violations(&raw), 1);
  pjrt_client_destroy_args_t client = {.client = raw.client};
  TPU_EXPECT_OK(tpu_pjrt_call(raw.plugin, Client_Destroy, &client));
  raw.fake->reset();
  (void)violations(&raw);
}

/* A test program that ignores violations still ends with a status that shows them. */
TPU_TEST(fake_plugin_exit_status) {
  raw_t raw;
  if (!begin(&raw)) return;
  fflush(NULL);
  pid_t child = fork();
  TPU_REQUIRE(child >= 0);
  if (child == 0) {
    pjrt_client_destroy_args_t client = {.client = raw.client};
    tpu_status_free(tpu_pjrt_call(raw.plugin, Client_Destroy, &client));
    tpu_status_free(tpu_pjrt_call(raw.plugin, Client_Destroy, &client));
    exit(0);
  }
  int status = 0;
  TPU_EXPECT_EQ(waitpid(child, &status, 0), child);
  TPU_EXPECT(WIFEXITED(status));
  TPU_EXPECT_EQ(WEXITSTATUS(status), 97);
  pjrt_client_destroy_args_t client = {.client = raw.client};
  TPU_EXPECT_OK(tpu_pjrt_call(raw.plugin, Client_Destroy, &client));
  raw.fake->reset();
}
