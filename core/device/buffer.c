#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "device/device_internal.h"

/* --- accounting and buffer objects --- */

/* Smaller requests are not worth the question: what is left besides is always more. */
#define PROBE_BYTES (16 << 20)

static tpu_status_t check_limit(const tpu_device_t* device, int64_t outputs, tpui_need_t need) {
  const tpu_memory_stats_t* stats = &device->stats;
  int64_t wanted = outputs;
  if (__builtin_add_overflow(wanted, need.temporary, &wanted)) wanted = INT64_MAX;
  int64_t limit = stats->bytes_limit;
  if (device->memory_share < 1) limit = (int64_t)((double)limit * device->memory_share);
  int64_t left = limit - (stats->bytes_in_use - need.freed);
  if (stats->bytes_limit > 0 && wanted > left) {
    char temporary[64] = "";
    if (need.temporary > 0) {
      (void)snprintf(temporary, sizeof(temporary), " (%" PRId64 " of them temporary)",
                     need.temporary);
    }
    return tpu_status_make(TPU_RESOURCE_EXHAUSTED,
                           "out of device memory: %" PRId64 " bytes wanted%s, %" PRId64
                           " bytes in use, limit %" PRId64 " bytes",
                           wanted, temporary, stats->bytes_in_use, limit);
  }
  int64_t fresh = wanted - need.freed;
  if (!device->probes_memory || fresh < PROBE_BYTES || tpui_platform_host_grants(fresh)) {
    return NULL;
  }
  return tpu_status_make(TPU_RESOURCE_EXHAUSTED,
                         "out of device memory: the host does not give %" PRId64
                         " bytes to this process (a limit such as ulimit -v?), %" PRId64
                         " bytes in use",
                         fresh, stats->bytes_in_use);
}

static tpu_status_t pop_object(tpu_device_t* device, tpu_buffer_t** out_buffer) {
  tpu_buffer_t* buffer = device->free_buffers;
  if (buffer != NULL) {
    device->free_buffers = buffer->next_free;
  } else {
    void* memory = NULL;
    TPU_RETURN_IF_ERROR(tpu_calloc(1, sizeof(tpu_buffer_t), &memory));
    buffer = memory;
    buffer->device = device;
  }
  *out_buffer = buffer;
  return NULL;
}

static void push_object(tpu_device_t* device, tpu_buffer_t* buffer) {
  buffer->next_free = device->free_buffers;
  device->free_buffers = buffer;
}

/* All four run with the device's mutex held. */
static tpu_status_t reserve_locked(tpu_device_t* device, int count, const int64_t* bytes,
                                   tpui_need_t need, tpu_buffer_t** out_buffers) {
  int64_t wanted = 0;
  for (int i = 0; i < count; ++i) {
    if (__builtin_add_overflow(wanted, bytes[i], &wanted)) {
      return tpu_status_make(TPU_RESOURCE_EXHAUSTED, "output sizes overflow");
    }
  }
  TPU_RETURN_IF_ERROR(check_limit(device, wanted, need));
  for (int i = 0; i < count; ++i) {
    tpu_status_t status = pop_object(device, &out_buffers[i]);
    if (status != NULL) {
      for (int j = 0; j < i; ++j) {
        push_object(device, out_buffers[j]);
        out_buffers[j] = NULL;
      }
      return status;
    }
    out_buffers[i]->bytes = bytes[i];
  }
  tpu_memory_stats_t* stats = &device->stats;
  stats->bytes_in_use += wanted - need.freed;
  stats->bytes_total += wanted;
  stats->buffers_in_use += count;
  stats->buffers_total += count;
  if (stats->bytes_in_use > stats->bytes_peak) stats->bytes_peak = stats->bytes_in_use;
  if (stats->buffers_in_use > stats->buffers_peak) stats->buffers_peak = stats->buffers_in_use;
  return NULL;
}

tpu_status_t tpui_buffers_reserve(tpu_device_t* device, int count, const int64_t* bytes,
                                  tpui_need_t need, tpu_buffer_t** out_buffers) {
  tpu_mutex_lock(&device->mutex);
  tpu_status_t status = reserve_locked(device, count, bytes, need, out_buffers);
  tpu_mutex_unlock(&device->mutex);
  if (status != NULL) return status;
  for (int i = 0; i < count; ++i) {
    tpu_buffer_t* buffer = out_buffers[i];
    atomic_init(&buffer->references, 1);
    atomic_init(&buffer->ready, false);
    atomic_init(&buffer->host, NULL);
    buffer->pjrt = NULL;
    buffer->run = 0;
    buffer->origin = 0;
    buffer->content = NULL;
  }
  return NULL;
}

void tpui_buffers_cancel(tpu_device_t* device, int count, tpu_buffer_t** buffers, int64_t freed) {
  tpu_mutex_lock(&device->mutex);
  int64_t bytes = 0;
  for (int i = 0; i < count; ++i) {
    bytes += buffers[i]->bytes;
    push_object(device, buffers[i]);
    buffers[i] = NULL;
  }
  device->stats.bytes_in_use -= bytes - freed;
  device->stats.bytes_total -= bytes;
  device->stats.buffers_in_use -= count;
  device->stats.buffers_total -= count;
  tpu_mutex_unlock(&device->mutex);
}

static void destroy_pjrt(tpu_device_t* device, pjrt_buffer_t* pjrt) {
  pjrt_buffer_destroy_args_t args = {.buffer = pjrt};
  tpui_log_failed_destroy(tpu_pjrt_call(device->plugin, Buffer_Destroy, &args));
}

void tpui_buffer_drop_content(tpu_buffer_t* buffer) {
  if (buffer->pjrt != NULL) destroy_pjrt(buffer->device, buffer->pjrt);
  buffer->pjrt = NULL;
  tpui_buffer_drop_block(buffer);
  atomic_store_explicit(&buffer->host, NULL, memory_order_relaxed);
}

void tpui_buffer_drop_donated(tpu_buffer_t* buffer) {
  if (!tpu_buffer_has_content(buffer)) return;  // the same buffer twice in one argument list
  tpui_buffer_drop_content(buffer);
  buffer->bytes = 0;
}

void tpu_buffer_drop(tpu_buffer_t* buffer) {
  tpu_device_t* device = buffer->device;
  int64_t bytes = buffer->bytes;
  tpui_buffer_drop_donated(buffer);
  tpu_mutex_lock(&device->mutex);
  device->stats.bytes_in_use -= bytes - buffer->bytes;
  tpu_mutex_unlock(&device->mutex);
}

void tpu_buffer_set_origin(tpu_buffer_t* buffer, uint32_t origin) { buffer->origin = origin; }
uint32_t tpu_buffer_origin(const tpu_buffer_t* buffer) { return buffer->origin; }

void tpu_buffer_retain(tpu_buffer_t* buffer) {
  atomic_fetch_add_explicit(&buffer->references, 1, memory_order_relaxed);
}

void tpu_buffer_release(tpu_buffer_t* buffer) {
  if (buffer == NULL) return;
  if (atomic_fetch_sub_explicit(&buffer->references, 1, memory_order_acq_rel) != 1) return;
  tpu_device_t* device = buffer->device;
  if (buffer->pjrt != NULL) destroy_pjrt(device, buffer->pjrt);
  buffer->pjrt = NULL;
  tpui_buffer_drop_block(buffer);
  tpu_mutex_lock(&device->mutex);
  device->stats.bytes_in_use -= buffer->bytes;
  device->stats.buffers_in_use -= 1;
  push_object(device, buffer);
  tpu_mutex_unlock(&device->mutex);
}

int64_t tpu_buffer_bytes(const tpu_buffer_t* buffer) { return buffer->bytes; }

uint64_t tpu_buffer_run(const tpu_buffer_t* buffer) { return buffer->run; }

bool tpu_buffer_has_content(const tpu_buffer_t* buffer) {
  return buffer->content != NULL || buffer->pjrt != NULL;
}

/* --- host transfers --- */

tpu_status_t tpui_dense_bytes(tpu_dtype_t dtype, int rank, const int64_t* sizes,
                              int64_t* out_bytes) {
  if (dtype <= TPU_DTYPE_INVALID || dtype >= TPU_DTYPE_COUNT) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "invalid dtype %d", (int)dtype);
  }
  if (rank < 0 || rank > TPU_MAX_RANK || (rank > 0 && sizes == NULL)) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "rank %d is not in 0..%d", rank, TPU_MAX_RANK);
  }
  int64_t bytes = (int64_t)tpu_dtype_bytes(dtype);
  bool empty = false;
  for (int i = 0; i < rank; ++i) {
    if (sizes[i] < 0) {
      return tpu_status_make(TPU_INVALID_ARGUMENT, "size %" PRId64 " of dimension %d is negative",
                             sizes[i], i);
    }
    if (sizes[i] == 0) empty = true;
  }
  for (int i = 0; i < rank && !empty; ++i) {
    if (__builtin_mul_overflow(bytes, sizes[i], &bytes)) {
      return tpu_status_make(TPU_INVALID_ARGUMENT, "the tensor's size in bytes overflows int64");
    }
  }
  *out_bytes = empty ? 0 : bytes;
  return NULL;
}

tpu_status_t tpui_transfer_in(tpu_device_t* device, const void* data, tpu_dtype_t dtype, int rank,
                              const int64_t* sizes, pjrt_buffer_t** out_pjrt) {
  pjrt_client_buffer_from_host_buffer_args_t args = {
      .client = device->client,
      .data = data,
      .type = tpu_dtype_pjrt(dtype),
      .dims = sizes,
      .num_dims = (size_t)rank,
      .host_buffer_semantics = PJRT_HOST_BUFFER_ONLY_DURING_CALL,
      .device = device->device,
  };
  TPU_RETURN_IF_ERROR(tpu_pjrt_call(device->plugin, Client_BufferFromHostBuffer, &args));
  *out_pjrt = args.buffer;
  /* The host memory may be reused already (semantics above), so nobody waits for this event. */
  pjrt_event_destroy_args_t destroy = {.event = args.done_with_host_buffer};
  if (destroy.event != NULL) {
    tpui_log_failed_destroy(tpu_pjrt_call(device->plugin, Event_Destroy, &destroy));
  }
  return NULL;
}

tpu_status_t tpu_buffer_from_host(tpu_device_t* device, const void* data, tpu_dtype_t dtype,
                                  int rank, const int64_t* sizes, tpu_buffer_t** out_buffer) {
  *out_buffer = NULL;
  int64_t bytes = 0;
  TPU_RETURN_IF_ERROR(tpui_dense_bytes(dtype, rank, sizes, &bytes));
  static const char nothing[64];
  if (bytes == 0) data = nothing;  // plugins want a pointer also for empty buffers
  if (data == NULL) return tpu_status_make(TPU_INVALID_ARGUMENT, "host data is NULL");
  TPU_RETURN_IF_ERROR(tpui_buffers_reserve(device, 1, &bytes, (tpui_need_t){0}, out_buffer));
  tpu_status_t status = tpui_transfer_in(device, data, dtype, rank, sizes, &(*out_buffer)->pjrt);
  if (status != NULL) tpui_buffers_cancel(device, 1, out_buffer, 0);
  return status;
}

tpu_status_t tpui_event_await(const tpu_plugin_t* plugin, pjrt_event_t* event) {
  pjrt_event_await_args_t await = {.event = event};
  tpu_status_t status = tpu_pjrt_call(plugin, Event_Await, &await);
  pjrt_event_destroy_args_t destroy = {.event = event};
  return tpu_status_join(status, tpu_pjrt_call(plugin, Event_Destroy, &destroy));
}

#define POLL_MOST_NS 1000000

tpu_status_t tpu_stop_ask(tpu_stop_t stop) {
  return stop() ? tpu_status_make(TPU_CANCELLED, "interrupted while waiting for the device") : NULL;
}

tpu_status_t tpui_event_poll(const tpu_plugin_t* plugin, pjrt_event_t* event, tpu_stop_t stop) {
  struct timespec pause = {.tv_nsec = 10000};
  for (int64_t waited = 0;;) {
    pjrt_event_is_ready_args_t args = {.event = event};
    tpu_status_t status = tpu_pjrt_call(plugin, Event_IsReady, &args);
    bool over = status != NULL || args.is_ready;
    tpu_status_free(status);
    if (over) return NULL;
    (void)nanosleep(&pause, NULL);  // a signal ends it early
    waited += pause.tv_nsec;
    if (pause.tv_nsec < POLL_MOST_NS) pause.tv_nsec += pause.tv_nsec / 8;
    if (waited < TPU_STOP_EVERY_NS) continue;
    waited = 0;
    TPU_RETURN_IF_ERROR(tpu_stop_ask(stop));
  }
}

static tpu_status_t check_content(const tpu_buffer_t* buffer) {
  if (buffer == NULL) return tpu_status_make(TPU_INVALID_ARGUMENT, "buffer is NULL");
  if (!tpu_buffer_has_content(buffer)) {
    return tpu_status_make(TPU_FAILED_PRECONDITION,
                           "the buffer's content was donated to a program and is gone");
  }
  return NULL;
}

tpu_status_t tpu_buffer_await(tpu_buffer_t* buffer) {
  return tpu_buffer_await_unless(buffer, NULL);
}

tpu_status_t tpu_buffer_await_unless(tpu_buffer_t* buffer, tpu_stop_t stop) {
  TPU_RETURN_IF_ERROR(check_content(buffer));
  if (atomic_load_explicit(&buffer->ready, memory_order_acquire)) return NULL;
  const tpu_plugin_t* plugin = buffer->device->plugin;
  pjrt_buffer_ready_event_args_t args = {.buffer = buffer->pjrt};
  TPU_RETURN_IF_ERROR(tpu_pjrt_call(plugin, Buffer_ReadyEvent, &args));
  if (stop != NULL) {
    tpu_status_t status = tpui_event_poll(plugin, args.event, stop);
    if (status != NULL) {
      pjrt_event_destroy_args_t destroy = {.event = args.event};
      tpui_log_failed_destroy(tpu_pjrt_call(plugin, Event_Destroy, &destroy));
      return status;
    }
  }
  tpu_status_t status = tpui_event_await(plugin, args.event);
  if (TPU_UNLIKELY(status != NULL)) {
    tpui_completion_told(buffer->device, buffer->run);
    return status;
  }
  atomic_store_explicit(&buffer->ready, true, memory_order_release);
  return NULL;
}

tpu_status_t tpu_buffer_host_pointer(tpu_buffer_t* buffer, void** out_pointer) {
  *out_pointer = NULL;
  TPU_RETURN_IF_ERROR(check_content(buffer));
  if (!buffer->device->platform->host_addressable) {
    return tpu_status_make(TPU_UNIMPLEMENTED, "buffers of platform '%s' have no host pointer",
                           buffer->device->platform->name);
  }
  TPU_RETURN_IF_ERROR(tpu_buffer_await(buffer));
  void* host = atomic_load_explicit(&buffer->host, memory_order_relaxed);
  if (host == NULL) {
    pjrt_buffer_unsafe_pointer_args_t args = {.buffer = buffer->pjrt};
    TPU_RETURN_IF_ERROR(tpu_pjrt_call(buffer->device->plugin, Buffer_UnsafePointer, &args));
    host = (void*)args.buffer_pointer;
    atomic_store_explicit(&buffer->host, host, memory_order_relaxed);
  }
  *out_pointer = host;
  return NULL;
}

/* Fetches the whole buffer as dense row-major bytes. Without a layout a plugin delivers the
 * dimensions in the order that they have on the device, which is its own choice. */
static tpu_status_t fetch_all(tpu_buffer_t* buffer, void* dst) {
  pjrt_buffer_dimensions_args_t shape = {.buffer = buffer->pjrt};
  TPU_RETURN_IF_ERROR(tpu_pjrt_call(buffer->device->plugin, Buffer_Dimensions, &shape));
  int64_t minor_to_major[TPU_MAX_RANK];
  if (shape.num_dims > TPU_MAX_RANK) {
    return tpu_status_make(TPU_INTERNAL, "a buffer of %zu dimensions", shape.num_dims);
  }
  for (size_t i = 0; i < shape.num_dims; ++i) minor_to_major[i] = (int64_t)(shape.num_dims - 1 - i);
  pjrt_memory_layout_t layout = {
      .struct_size = PJRT_SIZE_memory_layout,
      .tiled = {.struct_size = PJRT_SIZE_memory_layout_tiled,
                .minor_to_major = minor_to_major,
                .minor_to_major_size = shape.num_dims},
      .type = PJRT_MEMORY_LAYOUT_TILED,
  };
  pjrt_buffer_to_host_buffer_args_t args = {
      .src = buffer->pjrt, .host_layout = &layout, .dst = dst, .dst_size = (size_t)buffer->bytes};
  TPU_RETURN_IF_ERROR(tpu_pjrt_call(buffer->device->plugin, Buffer_ToHostBuffer, &args));
  return tpui_event_await(buffer->device->plugin, args.event);
}

/* Devices hand out whole buffers only: a part goes through a temporary copy. */
static tpu_status_t fetch_part(tpu_buffer_t* buffer, int64_t offset, void* dst, int64_t size) {
  if (size == buffer->bytes) return fetch_all(buffer, dst);
  void* whole = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc((size_t)buffer->bytes, 1, &whole));
  tpu_status_t status = fetch_all(buffer, whole);
  if (status == NULL) memcpy(dst, (const char*)whole + offset, (size_t)size);
  tpu_free(whole);
  return status;
}

tpu_status_t tpu_buffer_read(tpu_buffer_t* buffer, int64_t offset, void* dst, int64_t size) {
  TPU_RETURN_IF_ERROR(check_content(buffer));
  if (offset < 0 || size < 0 || size > buffer->bytes - offset) {
    return tpu_status_make(TPU_OUT_OF_RANGE,
                           "cannot read %" PRId64 " bytes at %" PRId64 " of a buffer of %" PRId64,
                           size, offset, buffer->bytes);
  }
  if (size == 0) return tpu_buffer_await(buffer);
  if (dst == NULL) return tpu_status_make(TPU_INVALID_ARGUMENT, "destination is NULL");
  if (!buffer->device->platform->host_addressable) return fetch_part(buffer, offset, dst, size);
  void* host = NULL;
  TPU_RETURN_IF_ERROR(tpu_buffer_host_pointer(buffer, &host));
  memcpy(dst, (const char*)host + offset, (size_t)size);
  return NULL;
}
