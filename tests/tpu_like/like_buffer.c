#include "like_internal.h"

static pjrt_memory_layout_t layout_of(const int64_t* order, size_t rank) {
  pjrt_memory_layout_t layout = {.struct_size = PJRT_STRUCT_SIZE(pjrt_memory_layout_t, type)};
  layout.tiled.struct_size = PJRT_STRUCT_SIZE(pjrt_memory_layout_tiled_t, num_tiles);
  layout.tiled.minor_to_major = order;
  layout.tiled.minor_to_major_size = rank;
  return layout;
}

like_buffer_t* like_buffer_new(like_device_t* device, const fake_type_t* type) {
  like_buffer_t* buffer = like_new(sizeof(*buffer));
  buffer->references = 1;
  buffer->device = device;
  buffer->type = *type;
  buffer->bytes = like_layout_bytes(type);
  buffer->made = like_event_new();
  return buffer;
}

like_buffer_t* like_buffer_retain(like_buffer_t* buffer) {
  like_lock();
  buffer->references += 1;
  like_unlock();
  return buffer;
}

void like_buffer_release(like_buffer_t* buffer) {
  like_lock();
  bool last = --buffer->references == 0;
  like_unlock();
  if (!last) return;
  if (buffer->real != NULL) {
    pjrt_buffer_destroy_args_t args = {.buffer = buffer->real};
    like_error_free(LIKE_REAL(Buffer_Destroy, &args));
  }
  like_event_release(buffer->made);
  free(buffer);
}

void like_buffer_delete(like_buffer_t* buffer) {
  like_lock();
  buffer->deleted = true;
  buffer->device->in_use -= buffer->bytes;
  buffer->bytes = 0;
  like_unlock();
}

pjrt_error_t* like_Buffer_Destroy(void* pointer) {
  pjrt_buffer_destroy_args_t* args = pointer;
  like_buffer_delete((like_buffer_t*)args->buffer);
  like_buffer_release((like_buffer_t*)args->buffer);
  return NULL;
}

pjrt_error_t* like_Buffer_IsDeleted(void* pointer) {
  pjrt_buffer_is_deleted_args_t* args = pointer;
  args->is_deleted = ((like_buffer_t*)args->buffer)->deleted;
  return NULL;
}

pjrt_error_t* like_Buffer_Dimensions(void* pointer) {
  pjrt_buffer_dimensions_args_t* args = pointer;
  args->dims = ((like_buffer_t*)args->buffer)->type.dims;
  args->num_dims = ((like_buffer_t*)args->buffer)->type.rank;
  return NULL;
}

pjrt_error_t* like_Buffer_UnsafePointer(void* pointer) {
  (void)pointer;
  return like_error(12, "memory of a TPU has no host address");
}

static pjrt_error_t* check_content(const like_buffer_t* buffer) {
  return buffer->deleted ? like_error(3, "Buffer has been deleted or donated.") : NULL;
}

pjrt_error_t* like_Buffer_ReadyEvent(void* pointer) {
  pjrt_buffer_ready_event_args_t* args = pointer;
  like_buffer_t* buffer = (like_buffer_t*)args->buffer;
  pjrt_error_t* error = check_content(buffer);
  if (error == NULL) args->event = (pjrt_event_t*)like_event_retain(buffer->made);
  return error;
}

/* --- from the host --- */

static void arrive(void* data) {
  like_buffer_t* buffer = data;
  like_event_set(buffer->made, NULL);
  like_buffer_release(buffer);
}

static pjrt_error_t* upload(const pjrt_client_buffer_from_host_buffer_args_t* args,
                            like_buffer_t* buffer) {
  pjrt_client_buffer_from_host_buffer_args_t real = *args;
  int64_t order[FAKE_MAX_RANK];
  like_layout_choose(&buffer->type, order);
  pjrt_memory_layout_t layout = layout_of(order, buffer->type.rank);
  real.client = buffer->device->client->real;
  real.device = buffer->device->real;
  real.memory = NULL;
  real.device_layout = &layout;
  real.host_buffer_semantics = PJRT_HOST_BUFFER_ONLY_DURING_CALL;
  pjrt_error_t* error = LIKE_REAL(Client_BufferFromHostBuffer, &real);
  if (error != NULL) return error;
  buffer->real = real.buffer;
  // Destroyed by a direct call: the event is the CPU plugin's, not one of ours.
  pjrt_event_destroy_args_t destroy = {.event = real.done_with_host_buffer};
  return LIKE_REAL(Event_Destroy, &destroy);
}

pjrt_error_t* like_Client_BufferFromHostBuffer(void* pointer) {
  pjrt_client_buffer_from_host_buffer_args_t* args = pointer;
  if (args->device_layout != NULL || args->memory != NULL || args->num_byte_strides > 0) {
    return like_error(12, "tpu_like: layouts, memories and strides of uploads");
  }
  like_device_t* device = (like_device_t*)args->device;
  fake_type_t type = {.dtype = args->type, .rank = args->num_dims};
  for (size_t i = 0; i < type.rank; ++i) type.dims[i] = args->dims[i];
  int64_t bytes = like_layout_bytes(&type);
  if (!like_memory_take(device, bytes, 0, 0)) {
    return like_error(8,
                      "Error allocating device buffer: Attempting to allocate %lld bytes. That "
                      "was not possible.",
                      (long long)bytes);
  }
  like_buffer_t* buffer = like_buffer_new(device, &type);
  pjrt_error_t* error = upload(args, buffer);
  if (error != NULL) {
    like_buffer_delete(buffer);
    like_buffer_release(buffer);
    return error;
  }
  like_add(LIKE_bytes_from_host, fake_type_bytes(&type));
  like_queue_push(&device->client->transfers, arrive, like_buffer_retain(buffer));
  args->buffer = (pjrt_buffer_t*)buffer;
  args->done_with_host_buffer = (pjrt_event_t*)like_event_new();
  like_event_set((like_event_t*)args->done_with_host_buffer, NULL);
  return NULL;
}

/* --- to the host --- */

typedef struct like_fetch_t {
  like_buffer_t* buffer;
  like_event_t* done;
  bool ordered;  // the caller said in which order
  int64_t order[FAKE_MAX_RANK];
  void* dst;
  size_t size;
} like_fetch_t;

static pjrt_error_t* fetch_now(const like_fetch_t* fetch) {
  pjrt_error_t* error = like_event_wait(fetch->buffer->made);
  if (error != NULL) return error;
  pjrt_memory_layout_t layout = layout_of(fetch->order, fetch->buffer->type.rank);
  pjrt_buffer_to_host_buffer_args_t args = {.src = fetch->buffer->real,
                                            .host_layout = fetch->ordered ? &layout : NULL,
                                            .dst = fetch->dst,
                                            .dst_size = fetch->size};
  error = LIKE_REAL(Buffer_ToHostBuffer, &args);
  if (error != NULL) return error;
  pjrt_event_await_args_t await = {.event = args.event};
  error = LIKE_REAL(Event_Await, &await);
  pjrt_event_destroy_args_t destroy = {.event = args.event};
  like_error_free(LIKE_REAL(Event_Destroy, &destroy));
  return error;
}

static void fetch_queued(void* data) {
  like_fetch_t* fetch = data;
  like_event_set(fetch->done, fetch_now(fetch));
  like_event_release(fetch->done);
  like_buffer_release(fetch->buffer);
  free(fetch);
}

static pjrt_error_t* read_order(const pjrt_memory_layout_t* layout, like_fetch_t* fetch) {
  if (layout == NULL) return NULL;
  if (layout->struct_size < PJRT_STRUCT_SIZE(pjrt_memory_layout_t, type)) {
    return like_error(3, "Unexpected PJRT_Buffer_MemoryLayout size: got %zu", layout->struct_size);
  }
  if (layout->type != PJRT_MEMORY_LAYOUT_TILED || layout->tiled.num_tiles > 0) {
    return like_error(12, "host layouts with strides or tiles are not supported");
  }
  if (layout->tiled.minor_to_major_size != fetch->buffer->type.rank) {
    return like_error(3, "host layout has the wrong number of dimensions");
  }
  fetch->ordered = true;
  for (size_t i = 0; i < fetch->buffer->type.rank; ++i) {
    fetch->order[i] = layout->tiled.minor_to_major[i];
  }
  return NULL;
}

pjrt_error_t* like_Buffer_ToHostBuffer(void* pointer) {
  pjrt_buffer_to_host_buffer_args_t* args = pointer;
  like_buffer_t* buffer = (like_buffer_t*)args->src;
  pjrt_error_t* error = check_content(buffer);
  if (error != NULL) return error;
  size_t size = (size_t)fake_type_bytes(&buffer->type);
  if (args->dst == NULL) {
    args->dst_size = size;
    return NULL;
  }
  if (args->dst_size < size) return like_error(3, "the destination is too small");
  like_fetch_t* fetch = like_new(sizeof(*fetch));
  *fetch = (like_fetch_t){.buffer = buffer, .dst = args->dst, .size = args->dst_size};
  error = read_order(args->host_layout, fetch);
  if (error != NULL) {
    free(fetch);
    return error;
  }
  like_add(LIKE_bytes_to_host, (int64_t)size);
  (void)like_buffer_retain(buffer);
  fetch->done = like_event_new();
  args->event = (pjrt_event_t*)like_event_retain(fetch->done);
  like_queue_push(&buffer->device->client->transfers, fetch_queued, fetch);
  return NULL;
}
