#include "fake_internal.h"

static const int64_t tpu_memory = 1 << 30;

/* Begins a call that can fail: `args` becomes the typed struct. */
#define ENTER(name, type)                                         \
  type* args = pointer;                                           \
  pjrt_error_t* injected = fake_enter(FAKE_CALL_##name, pointer); \
  if (injected != NULL) return injected

#define CHECK(name, object, kind) \
  if (!fake_check(FAKE_CALL_##name, object, kind)) return fake_error(3, "bad handle")

/* --- errors --- */

pjrt_error_t* fake_Error_Destroy(void* pointer) {
  pjrt_error_destroy_args_t* args = pointer;
  (void)fake_enter(FAKE_CALL_Error_Destroy, pointer);
  if (fake_check(FAKE_CALL_Error_Destroy, args->error, FAKE_ERROR)) fake_kill(args->error);
  return NULL;
}

pjrt_error_t* fake_Error_Message(void* pointer) {
  pjrt_error_message_args_t* args = pointer;
  (void)fake_enter(FAKE_CALL_Error_Message, pointer);
  if (!fake_check(FAKE_CALL_Error_Message, args->error, FAKE_ERROR)) return NULL;
  args->message = fake_error_text(args->error);
  args->message_size = strlen(args->message);
  return NULL;
}

pjrt_error_t* fake_Error_GetCode(void* pointer) {
  ENTER(Error_GetCode, pjrt_error_get_code_args_t);
  CHECK(Error_GetCode, args->error, FAKE_ERROR);
  args->code = fake_error_code(args->error);
  return NULL;
}

/* --- plugin and client --- */

pjrt_error_t* fake_Plugin_Initialize(void* pointer) {
  ENTER(Plugin_Initialize, pjrt_plugin_initialize_args_t);
  (void)args;
  return NULL;
}

static pjrt_error_t* check_create_options(const pjrt_named_value_t* values, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const pjrt_named_value_t* value = &values[i];
    if (value->struct_size != PJRT_STRUCT_SIZE(pjrt_named_value_t, value_size)) {
      fake_violation("Client_Create: option %zu has struct_size %zu", i, value->struct_size);
    }
    bool is_count = value->name_size == 16 && memcmp(value->name, "cpu_device_count", 16) == 0;
    bool is_async = value->name_size == 12 && memcmp(value->name, "asynchronous", 12) == 0;
    if (!is_count && !is_async) return fake_error(3, "Unexpected option name");
    if (value->type != (is_count ? PJRT_NAMED_INT64 : PJRT_NAMED_BOOL) || value->value_size != 1) {
      return fake_error(3, "Unexpected option type");
    }
    if (is_count && value->value.int64_value < 0) {
      fake_violation("Client_Create: negative device count: XLA aborts on that");
    }
  }
  return NULL;
}

pjrt_error_t* fake_Client_Create(void* pointer) {
  ENTER(Client_Create, pjrt_client_create_args_t);
  pjrt_error_t* error = check_create_options(args->create_options, args->num_options);
  if (error != NULL) return error;
  fake_client_t* client = fake_new(FAKE_CLIENT, sizeof(*client));
  client->is_cpu = args->num_options > 0;
  client->device = fake_new(FAKE_DEVICE, sizeof(fake_object_t));
  client->devices[0] = (pjrt_device_t*)client->device;
  args->client = (pjrt_client_t*)client;
  return NULL;
}

pjrt_error_t* fake_Client_Destroy(void* pointer) {
  pjrt_client_destroy_args_t* args = pointer;
  pjrt_error_t* injected = fake_enter(FAKE_CALL_Client_Destroy, pointer);
  if (!fake_check(FAKE_CALL_Client_Destroy, args->client, FAKE_CLIENT)) return injected;
  if (fake_live(FAKE_CLIENT) == 1 &&
      fake_live(FAKE_BUFFER) + fake_live(FAKE_LOADED) + fake_live(FAKE_EVENT) > 0) {
    fake_violation("Client_Destroy: buffers, events or executables are alive");
  }
  fake_kill(((fake_client_t*)args->client)->device);
  fake_kill(args->client);
  return injected;
}

pjrt_error_t* fake_Client_PlatformName(void* pointer) {
  ENTER(Client_PlatformName, pjrt_client_platform_name_args_t);
  CHECK(Client_PlatformName, args->client, FAKE_CLIENT);
  args->platform_name = ((fake_client_t*)args->client)->is_cpu ? "cpu" : "tpu";
  args->platform_name_size = 3;
  return NULL;
}

pjrt_error_t* fake_Client_PlatformVersion(void* pointer) {
  ENTER(Client_PlatformVersion, pjrt_client_platform_version_args_t);
  CHECK(Client_PlatformVersion, args->client, FAKE_CLIENT);
  args->platform_version = "fake 1 and text behind it";
  args->platform_version_size = 6;  // callers must not rely on a NUL
  return NULL;
}

pjrt_error_t* fake_Client_AddressableDevices(void* pointer) {
  ENTER(Client_AddressableDevices, pjrt_client_addressable_devices_args_t);
  CHECK(Client_AddressableDevices, args->client, FAKE_CLIENT);
  args->addressable_devices = ((fake_client_t*)args->client)->devices;
  args->num_addressable_devices = 1;
  return NULL;
}

/* A device describes itself. */
pjrt_error_t* fake_Device_GetDescription(void* pointer) {
  ENTER(Device_GetDescription, pjrt_device_get_description_args_t);
  CHECK(Device_GetDescription, args->device, FAKE_DEVICE);
  args->device_description = (pjrt_device_description_t*)args->device;
  return NULL;
}

pjrt_error_t* fake_DeviceDescription_Kind(void* pointer) {
  ENTER(DeviceDescription_Kind, pjrt_device_description_kind_args_t);
  CHECK(DeviceDescription_Kind, args->device_description, FAKE_DEVICE);
  args->device_kind = "TPU fake and text behind it";
  args->device_kind_size = 8;
  return NULL;
}

pjrt_error_t* fake_Device_MemoryStats(void* pointer) {
  ENTER(Device_MemoryStats, pjrt_device_memory_stats_args_t);
  CHECK(Device_MemoryStats, args->device, FAKE_DEVICE);
  args->bytes_limit = tpu_memory;
  args->bytes_limit_is_set = true;
  return NULL;
}

/* --- events --- */

typedef struct fake_event_t {
  fake_object_t head;
  fake_buffer_t* buffer;  // NULL: ready at once
  int64_t ready_us, lose_us;
  int error;
} fake_event_t;

static pjrt_event_t* new_event(fake_buffer_t* buffer) {
  fake_event_t* event = fake_new(FAKE_EVENT, sizeof(*event));
  event->buffer = buffer;
  if (buffer != NULL) {
    event->ready_us = buffer->ready_us;
    event->lose_us = buffer->lose_us;
    event->error = buffer->error;
  }
  return (pjrt_event_t*)event;
}

pjrt_event_t* fake_end_event(void) {
  fake_settings_t settings = fake_settings();
  fake_event_t* event = (fake_event_t*)new_event(NULL);
  event->ready_us = settings.delay_us > 0 ? fake_now_us() + settings.delay_us : 0;
  event->lose_us = settings.lose_us;
  event->error = settings.fail_outputs;
  return (pjrt_event_t*)event;
}

pjrt_error_t* fake_Event_Destroy(void* pointer) {
  pjrt_event_destroy_args_t* args = pointer;
  pjrt_error_t* injected = fake_enter(FAKE_CALL_Event_Destroy, pointer);
  if (fake_check(FAKE_CALL_Event_Destroy, args->event, FAKE_EVENT)) fake_kill(args->event);
  return injected;
}

/* What is lost is ready only for those who wait for it. */
pjrt_error_t* fake_Event_IsReady(void* pointer) {
  ENTER(Event_IsReady, pjrt_event_is_ready_args_t);
  CHECK(Event_IsReady, args->event, FAKE_EVENT);
  const fake_event_t* event = (const fake_event_t*)args->event;
  args->is_ready = event->lose_us > 0 || fake_now_us() >= event->ready_us;
  return NULL;
}

pjrt_error_t* fake_Event_Await(void* pointer) {
  ENTER(Event_Await, pjrt_event_await_args_t);
  CHECK(Event_Await, args->event, FAKE_EVENT);
  fake_event_t* event = (fake_event_t*)args->event;
  if (event->lose_us > 0) {
    (void)usleep((useconds_t)event->lose_us);
    return fake_error(4, "the event was lost");
  }
  while (fake_now_us() < event->ready_us) (void)usleep(50);
  if (event->error != 0) return fake_error(event->error, "the run failed");
  if (event->buffer != NULL) __atomic_store_n(&event->buffer->awaited, true, __ATOMIC_RELEASE);
  return NULL;
}

/* Host memory is copied, so what depends on it is over at once. */
pjrt_error_t* fake_Event_OnReady(void* pointer) {
  ENTER(Event_OnReady, pjrt_event_on_ready_args_t);
  CHECK(Event_OnReady, args->event, FAKE_EVENT);
  args->callback(NULL, args->user_arg);
  return NULL;
}

/* --- buffers --- */

fake_buffer_t* fake_buffer_new(const fake_type_t* type, bool is_cpu) {
  fake_buffer_t* buffer = fake_new(FAKE_BUFFER, sizeof(*buffer));
  fake_settings_t settings = fake_settings();
  buffer->type = *type;
  buffer->bytes = fake_type_bytes(type);
  buffer->data = aligned_alloc(64, ((size_t)buffer->bytes + 64) / 64 * 64);
  if (buffer->data != NULL) memset(buffer->data, 0, (size_t)buffer->bytes);
  buffer->ready_us = settings.delay_us > 0 ? fake_now_us() + settings.delay_us : 0;
  buffer->lose_us = settings.lose_us;
  buffer->is_cpu = is_cpu;
  return buffer;
}

pjrt_error_t* fake_Client_BufferFromHostBuffer(void* pointer) {
  ENTER(Client_BufferFromHostBuffer, pjrt_client_buffer_from_host_buffer_args_t);
  CHECK(Client_BufferFromHostBuffer, args->client, FAKE_CLIENT);
  CHECK(Client_BufferFromHostBuffer, args->device, FAKE_DEVICE);
  fake_type_t type = {.dtype = args->type, .rank = args->num_dims};
  if (args->num_dims > FAKE_MAX_RANK) return fake_error(3, "rank");
  for (size_t i = 0; i < args->num_dims; ++i) {
    if (args->dims[i] < 0) return fake_error(3, "negative size");
    type.dims[i] = args->dims[i];
  }
  if (fake_dtype_bytes(type.dtype) == 0) return fake_error(3, "unknown type %d", type.dtype);
  if (args->data == NULL) {
    fake_violation("Client_BufferFromHostBuffer: data is NULL");
    return fake_error(3, "NULL data");
  }
  fake_buffer_t* buffer = fake_buffer_new(&type, ((fake_client_t*)args->client)->is_cpu);
  if (buffer->data == NULL) {
    fake_kill(buffer);
    return fake_error(8, "Out of memory allocating %lld bytes.", (long long)buffer->bytes);
  }
  memcpy(buffer->data, args->data, (size_t)buffer->bytes);
  args->buffer = (pjrt_buffer_t*)buffer;
  args->done_with_host_buffer = new_event(NULL);
  return NULL;
}

pjrt_error_t* fake_Buffer_Destroy(void* pointer) {
  pjrt_buffer_destroy_args_t* args = pointer;
  pjrt_error_t* injected = fake_enter(FAKE_CALL_Buffer_Destroy, pointer);
  if (!fake_check(FAKE_CALL_Buffer_Destroy, args->buffer, FAKE_BUFFER)) return injected;
  free(((fake_buffer_t*)args->buffer)->data);
  fake_kill(args->buffer);
  return injected;
}

pjrt_error_t* fake_Buffer_IsDeleted(void* pointer) {
  ENTER(Buffer_IsDeleted, pjrt_buffer_is_deleted_args_t);
  CHECK(Buffer_IsDeleted, args->buffer, FAKE_BUFFER);
  args->is_deleted = ((fake_buffer_t*)args->buffer)->data == NULL;
  return NULL;
}

pjrt_error_t* fake_Buffer_ReadyEvent(void* pointer) {
  ENTER(Buffer_ReadyEvent, pjrt_buffer_ready_event_args_t);
  CHECK(Buffer_ReadyEvent, args->buffer, FAKE_BUFFER);
  args->event = new_event((fake_buffer_t*)args->buffer);
  return NULL;
}

pjrt_error_t* fake_Buffer_UnsafePointer(void* pointer) {
  ENTER(Buffer_UnsafePointer, pjrt_buffer_unsafe_pointer_args_t);
  CHECK(Buffer_UnsafePointer, args->buffer, FAKE_BUFFER);
  fake_buffer_t* buffer = (fake_buffer_t*)args->buffer;
  if (!buffer->is_cpu) return fake_error(12, "no host pointers on this platform");
  if (buffer->data == NULL) return fake_error(3, "the buffer was donated");
  if (!__atomic_load_n(&buffer->awaited, __ATOMIC_ACQUIRE)) {
    fake_violation("Buffer_UnsafePointer: nobody waited for the content");
  }
  args->buffer_pointer = (uintptr_t)buffer->data;
  return NULL;
}

pjrt_error_t* fake_Buffer_Dimensions(void* pointer) {
  ENTER(Buffer_Dimensions, pjrt_buffer_dimensions_args_t);
  CHECK(Buffer_Dimensions, args->buffer, FAKE_BUFFER);
  const fake_type_t* type = &((fake_buffer_t*)args->buffer)->type;
  args->dims = type->dims;
  args->num_dims = type->rank;
  return NULL;
}

/* Devices other than CPUs order dimensions as they like: a reader has to ask for row-major. */
static void check_host_layout(const fake_buffer_t* buffer, const pjrt_memory_layout_t* layout) {
  size_t rank = buffer->type.rank;
  if (layout == NULL) {
    if (rank > 1 && !buffer->is_cpu) fake_violation("Buffer_ToHostBuffer: no order is asked for");
    return;
  }
  bool ok = layout->struct_size == PJRT_STRUCT_SIZE(pjrt_memory_layout_t, type) &&
            layout->type == PJRT_MEMORY_LAYOUT_TILED && layout->tiled.num_tiles == 0 &&
            layout->tiled.struct_size == PJRT_STRUCT_SIZE(pjrt_memory_layout_tiled_t, num_tiles) &&
            layout->tiled.minor_to_major_size == rank;
  for (size_t i = 0; ok && i < rank; ++i) {
    ok = layout->tiled.minor_to_major[i] == (int64_t)(rank - 1 - i);
  }
  if (!ok) fake_violation("Buffer_ToHostBuffer: the host's order is not row-major");
}

/* Copies at once, and the event says when it may be read. */
pjrt_error_t* fake_Buffer_ToHostBuffer(void* pointer) {
  ENTER(Buffer_ToHostBuffer, pjrt_buffer_to_host_buffer_args_t);
  CHECK(Buffer_ToHostBuffer, args->src, FAKE_BUFFER);
  fake_buffer_t* buffer = (fake_buffer_t*)args->src;
  if (buffer->data == NULL) return fake_error(3, "the buffer was donated");
  if (args->dst == NULL) {
    args->dst_size = (size_t)buffer->bytes;
    return NULL;
  }
  if (args->dst_size < (size_t)buffer->bytes) return fake_error(3, "dst is too small");
  check_host_layout(buffer, args->host_layout);
  memcpy(args->dst, buffer->data, (size_t)buffer->bytes);
  args->event = new_event(buffer);
  return NULL;
}
