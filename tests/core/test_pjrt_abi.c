/* Struct sizes, function slots and plugin loading. tests/abi/test_pjrt_abi.py compares with
 * published declarations field by field; here are the numbers a wrong edit would change. */
#include <dlfcn.h>
#include <fcntl.h>
#include <string.h>

#include "../fake_plugin/fake_plugin.h"
#include "pjrt/plugin.h"
#include "test.h"

/* struct_size in PJRT 0.114; in front the calls whose structs end in padding. */
TPU_TEST(pjrt_struct_sizes) {
  TPU_EXPECT_EQ(PJRT_SIZE_Error_GetCode, 28);
  TPU_EXPECT_EQ(PJRT_SIZE_Device_MemoryStats, 201);
  TPU_EXPECT_EQ(sizeof(pjrt_device_memory_stats_args_t), 208);
  TPU_EXPECT_EQ(PJRT_SIZE_Plugin_Initialize, 16);
  TPU_EXPECT_EQ(PJRT_SIZE_Client_Create, 88);
  TPU_EXPECT_EQ(PJRT_SIZE_Client_Compile, 56);
  TPU_EXPECT_EQ(PJRT_SIZE_Client_BufferFromHostBuffer, 120);
  TPU_EXPECT_EQ(PJRT_SIZE_LoadedExecutable_Execute, 80);
  TPU_EXPECT_EQ(PJRT_SIZE_execute_options, 144);
  TPU_EXPECT_EQ(PJRT_SIZE_Executable_DeserializeAndLoad, 72);
  TPU_EXPECT_EQ(PJRT_SIZE_named_value, 56);
  TPU_EXPECT_EQ(PJRT_SIZE_program, 48);
  TPU_EXPECT_EQ(sizeof(pjrt_api_t), 1144);
  TPU_EXPECT_EQ(offsetof(pjrt_api_t, slots), 40);
}

/* Loads the fake plugin under a new name: plugins are kept by path. */
static tpu_status_t load_again(const tpu_plugin_t** out_plugin) {
  static int count;
  static char path[8192];
  const char* real = fake_plugin_path();
  const char* slash = strrchr(real, '/');
  int size = snprintf(path, sizeof(path), "%.*s", (int)(slash - real), real);
  for (int i = 0; i <= count; ++i) size += snprintf(path + size, sizeof(path) - size, "/.");
  (void)snprintf(path + size, sizeof(path) - size, "%s", slash);
  count += 1;
  return tpu_plugin_load(path, out_plugin);
}

static bool names(tpu_status_t status, const char* text) {
  bool found = strstr(tpu_status_message(status), text) != NULL;
  if (!found) printf("message: %s\n", tpu_status_message(status));
  return found;
}

TPU_TEST(pjrt_plugin_missing_file) {
  const tpu_plugin_t* plugin = NULL;
  tpu_status_t status = tpu_plugin_load("/nonexistent/plugin.so", &plugin);
  TPU_EXPECT(names(status, "/nonexistent/plugin.so"));
  TPU_EXPECT_CODE(status, TPU_NOT_FOUND);
  TPU_EXPECT(plugin == NULL);
  TPU_EXPECT_CODE(tpu_plugin_load("", &plugin), TPU_INVALID_ARGUMENT);
  TPU_EXPECT_CODE(tpu_plugin_load(NULL, &plugin), TPU_INVALID_ARGUMENT);
}

TPU_TEST(pjrt_plugin_not_a_library) {
  const tpu_plugin_t* plugin = NULL;
  tpu_status_t status = tpu_plugin_load("/proc/self/status", &plugin);
  TPU_EXPECT(names(status, "/proc/self/status"));
  TPU_EXPECT_CODE(status, TPU_INVALID_ARGUMENT);
  TPU_EXPECT_CODE(tpu_plugin_load("/proc", &plugin), TPU_INVALID_ARGUMENT);
}

TPU_TEST(pjrt_plugin_without_entry_point) {
  Dl_info info;
  TPU_REQUIRE(dladdr(dlsym(RTLD_DEFAULT, "qsort"), &info) != 0);
  const tpu_plugin_t* plugin = NULL;
  tpu_status_t status = tpu_plugin_load(info.dli_fname, &plugin);  // libc
  TPU_EXPECT(names(status, "GetPjrtApi"));
  TPU_EXPECT_CODE(status, TPU_INVALID_ARGUMENT);
}

TPU_TEST(pjrt_plugin_versions) {
  const fake_control_t* fake = fake_plugin_control();
  TPU_REQUIRE(fake != NULL);
  fake->reset();
  const tpu_plugin_t* plugin = NULL;
  fake->set_version(0, 80, sizeof(pjrt_api_t));
  tpu_status_t status = load_again(&plugin);
  TPU_EXPECT(names(status, "0.80"));
  TPU_EXPECT_CODE(status, TPU_FAILED_PRECONDITION);
  fake->set_version(1, 0, sizeof(pjrt_api_t));
  TPU_EXPECT_CODE(load_again(&plugin), TPU_FAILED_PRECONDITION);
  fake->set_version(0, 114, offsetof(pjrt_api_t, slots) - 8);
  TPU_EXPECT_CODE(load_again(&plugin), TPU_FAILED_PRECONDITION);
  fake->set_version(0, 114, offsetof(pjrt_api_t, slots) + 2 * sizeof(pjrt_function_t));
  status = load_again(&plugin);
  TPU_EXPECT(names(status, "Error_GetCode"));
  TPU_EXPECT_CODE(status, TPU_FAILED_PRECONDITION);
  fake->set_version(0, 200, sizeof(pjrt_api_t) + 800);  // newer plugins have more slots
  TPU_EXPECT_OK(load_again(&plugin));
  fake->reset();
}

/* A table that ends in the middle of a slot does not have that call. */
TPU_TEST(pjrt_call_outside_table) {
  const fake_control_t* fake = fake_plugin_control();
  TPU_REQUIRE(fake != NULL);
  fake->reset();
  enum { CREATE_SLOT = 10 };
  size_t end = offsetof(pjrt_api_t, slots) + (CREATE_SLOT + 1) * sizeof(pjrt_function_t);
  const tpu_plugin_t* plugin = NULL;
  fake->set_version(0, 114, end - 1);
  TPU_REQUIRE_OK(load_again(&plugin));
  pjrt_client_create_args_t args = {0};
  tpu_status_t status = tpu_pjrt_call(plugin, Client_Create, &args);
  TPU_EXPECT(names(status, "PJRT_Client_Create"));
  TPU_EXPECT_CODE(status, TPU_UNIMPLEMENTED);
  fake->set_version(0, 114, end);
  TPU_REQUIRE_OK(load_again(&plugin));
  pjrt_client_create_args_t again = {0};
  TPU_EXPECT_OK(tpu_pjrt_call(plugin, Client_Create, &again));
  pjrt_client_destroy_args_t destroy = {.client = again.client};
  TPU_EXPECT_CODE(tpu_pjrt_call(plugin, Client_Destroy, &destroy), TPU_UNIMPLEMENTED);
  fake->reset();
  TPU_REQUIRE_OK(load_again(&plugin));
  TPU_EXPECT_OK(tpu_pjrt_call(plugin, Client_Destroy, &destroy));
  TPU_EXPECT_EQ(fake->live(), 0);
}

TPU_TEST(pjrt_error_becomes_status) {
  const fake_control_t* fake = fake_plugin_control();
  TPU_REQUIRE(fake != NULL);
  fake->reset();
  const tpu_plugin_t* plugin = NULL;
  TPU_REQUIRE_OK(tpu_plugin_load(fake_plugin_path(), &plugin));
  static const struct {
    int pjrt;
    tpu_status_code_t code;
  } rows[] = {{3, TPU_INVALID_ARGUMENT},
              {8, TPU_RESOURCE_EXHAUSTED},
              {16, TPU_UNAUTHENTICATED},
              {99, TPU_UNKNOWN},
              {-1, TPU_UNKNOWN}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); ++i) {
    fake->fail_at(1, rows[i].pjrt);
    pjrt_client_create_args_t args = {0};
    tpu_status_t status = tpu_pjrt_call(plugin, Client_Create, &args);
    TPU_EXPECT_TEXT(tpu_status_message(status),
                    "PJRT_Client_Create: injected failure of Client_Create");
    TPU_EXPECT_CODE(status, rows[i].code);
  }
  /* An error whose code cannot be read is still an error, and both are freed. */
  fake->fail_at(1, 3);
  fake->fail_call("Error_GetCode", 13);
  pjrt_client_create_args_t args = {0};
  TPU_EXPECT_CODE(tpu_pjrt_call(plugin, Client_Create, &args), TPU_UNKNOWN);
  fake->fail_call(NULL, 0);
  TPU_EXPECT_EQ(fake->live(), 0);
  fake_stats_t stats;
  fake->stats(&stats);
  TPU_EXPECT_EQ(stats.violations, 0);
}

TPU_TEST(pjrt_initialize_failure_can_be_retried) {
  const fake_control_t* fake = fake_plugin_control();
  TPU_REQUIRE(fake != NULL);
  fake->reset();
  fake->fail_call("Plugin_Initialize", 14);
  const tpu_plugin_t* plugin = NULL;
  TPU_EXPECT_CODE(load_again(&plugin), TPU_UNAVAILABLE);
  fake->reset();
  TPU_EXPECT_OK(load_again(&plugin));
  TPU_EXPECT_EQ(fake->live(), 0);
}
