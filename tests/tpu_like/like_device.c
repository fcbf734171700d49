#include "like_internal.h"

static const char device_kind[] = "TPU v5 lite";
static const char platform_name[] = "tpu";
static const char platform_version[] = "TPU-like over XLA's CPU plugin";

pjrt_error_t* like_Plugin_Initialize(void* pointer) {
  return LIKE_REAL(Plugin_Initialize, pointer);
}

/* --- client --- */

static void adopt_devices(like_client_t* client, pjrt_device_t* const* devices, int count) {
  client->count = count;
  for (int i = 0; i < count; ++i) {
    client->devices[i] = (like_device_t){.real = devices[i], .client = client};
    client->list[i] = (pjrt_device_t*)&client->devices[i];
    like_queue_begin(&client->devices[i].programs);
  }
  like_queue_begin(&client->transfers);
}

static pjrt_error_t* create_real(pjrt_client_t** out_client) {
  pjrt_named_value_t values[2] = {
      {.name = "cpu_device_count", .name_size = 16, .type = PJRT_NAMED_INT64, .value_size = 1},
      {.name = "asynchronous", .name_size = 12, .type = PJRT_NAMED_BOOL, .value_size = 1},
  };
  values[0].struct_size = values[1].struct_size = PJRT_STRUCT_SIZE(pjrt_named_value_t, value_size);
  values[0].value.int64_value = like_value(LIKE_devices);
  values[1].value.bool_value = false;  // the queues are what runs behind the host
  pjrt_client_create_args_t args = {.create_options = values, .num_options = 2};
  pjrt_error_t* error = LIKE_REAL(Client_Create, &args);
  *out_client = args.client;
  return error;
}

pjrt_error_t* like_Client_Create(void* pointer) {
  pjrt_client_create_args_t* args = pointer;
  if (args->num_options > 0) return like_error(3, "Unexpected option name passed to PJRT client");
  if (like_value(LIKE_no_tpu) != 0) {
    const char* skips = getenv("TPU_SKIP_MDS_QUERY");
    if (skips == NULL) {
      return like_error(4, "a TPU's client would ask the metadata server for ten minutes now");
    }
    return like_error(5, "TPU initialization failed: No jellyfish device found.");
  }
  like_client_t* client = like_new(sizeof(*client));
  pjrt_error_t* error = create_real(&client->real);
  pjrt_client_addressable_devices_args_t devices = {.client = client->real};
  if (error == NULL) error = LIKE_REAL(Client_AddressableDevices, &devices);
  if (error != NULL) {
    free(client);
    return error;
  }
  adopt_devices(client, devices.addressable_devices, (int)devices.num_addressable_devices);
  args->client = (pjrt_client_t*)client;
  return NULL;
}

pjrt_error_t* like_Client_Destroy(void* pointer) {
  pjrt_client_destroy_args_t* args = pointer;
  like_client_t* client = (like_client_t*)args->client;
  for (int i = 0; i < client->count; ++i) like_queue_end(&client->devices[i].programs);
  like_queue_end(&client->transfers);
  pjrt_client_destroy_args_t real = {.client = client->real};
  pjrt_error_t* error = LIKE_REAL(Client_Destroy, &real);
  free(client);
  return error;
}

pjrt_error_t* like_Client_PlatformName(void* pointer) {
  pjrt_client_platform_name_args_t* args = pointer;
  args->platform_name = platform_name;
  args->platform_name_size = sizeof(platform_name) - 1;
  return NULL;
}

pjrt_error_t* like_Client_PlatformVersion(void* pointer) {
  pjrt_client_platform_version_args_t* args = pointer;
  args->platform_version = platform_version;
  args->platform_version_size = sizeof(platform_version) - 1;
  return NULL;
}

pjrt_error_t* like_Client_AddressableDevices(void* pointer) {
  pjrt_client_addressable_devices_args_t* args = pointer;
  like_client_t* client = (like_client_t*)args->client;
  args->addressable_devices = client->list;
  args->num_addressable_devices = (size_t)client->count;
  return NULL;
}

/* --- device --- */

pjrt_error_t* like_Device_GetDescription(void* pointer) {
  pjrt_device_get_description_args_t* args = pointer;
  args->device_description = (pjrt_device_description_t*)args->device;
  return NULL;
}

pjrt_error_t* like_DeviceDescription_Kind(void* pointer) {
  pjrt_device_description_kind_args_t* args = pointer;
  args->device_kind = device_kind;
  args->device_kind_size = sizeof(device_kind) - 1;
  return NULL;
}

pjrt_error_t* like_Device_MemoryStats(void* pointer) {
  pjrt_device_memory_stats_args_t* args = pointer;
  int code = (int)like_value(LIKE_no_memory_stats);
  if (code != 0) return like_error(code, "this device cannot tell its memory");
  like_device_t* device = (like_device_t*)args->device;
  like_lock();
  args->bytes_in_use = device->in_use;
  args->peak_bytes_in_use = device->peak;
  like_unlock();
  args->peak_bytes_in_use_is_set = true;
  args->bytes_limit = like_value(LIKE_hbm_bytes);
  args->bytes_limit_is_set = true;
  return NULL;
}

bool like_memory_take(like_device_t* device, int64_t bytes, int64_t temporary, int64_t freed) {
  like_lock();
  int64_t after = device->in_use - freed + bytes;
  bool fits = after + temporary <= like_value(LIKE_hbm_bytes);
  if (fits) device->in_use = after;
  if (fits && after + temporary > device->peak) device->peak = after + temporary;
  like_unlock();
  return fits;
}

void like_memory_give(like_device_t* device, int64_t bytes) {
  like_lock();
  device->in_use -= bytes;
  like_unlock();
}
