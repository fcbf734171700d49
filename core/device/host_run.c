#include <string.h>

#include "base/alloc.h"
#include "base/layout.h"
#include "device/device_internal.h"

#define INLINE_RUN 16

/* --- content that is a block --- */

static void release_content(tpui_content_t* content) {
  if (atomic_fetch_sub_explicit(&content->references, 1, memory_order_acq_rel) != 1) return;
  content->block.release(content->block.owner);
  tpu_free(content);
}

void tpui_buffer_drop_block(tpu_buffer_t* buffer) {
  if (buffer->content == NULL) return;
  release_content(buffer->content);
  buffer->content = NULL;
  atomic_store_explicit(&buffer->host, NULL, memory_order_relaxed);
}

tpu_status_t tpui_buffer_adopt(tpu_buffer_t* buffer, const tpu_host_block_t* block,
                               tpu_meta_id_t meta) {
  void* memory = NULL;
  tpu_status_t status = tpu_calloc(1, sizeof(tpui_content_t), &memory);
  if (status != NULL) {
    block->release(block->owner);
    return status;
  }
  tpui_content_t* content = memory;
  atomic_init(&content->references, 1);
  content->block = *block;
  buffer->content = content;
  buffer->meta = meta;
  atomic_store_explicit(&buffer->host, block->data, memory_order_relaxed);
  atomic_store_explicit(&buffer->ready, true, memory_order_release);
  return NULL;
}

typedef struct watch_t {
  const tpu_plugin_t* plugin;
  tpui_content_t* content;
} watch_t;

/* The plugin is done with the memory: its buffer is gone, and those that took it by donation. */
static void stop_watching(pjrt_error_t* error, void* arg) {
  watch_t* watch = arg;
  if (error != NULL)
    tpui_log_failed_destroy(tpu_pjrt_status(watch->plugin, PJRT_CALL_Event_OnReady, error));
  release_content(watch->content);
  tpu_free(watch);
}

/* Lets the plugin hold the content until `event`, which is destroyed. */
static tpu_status_t hold_until(tpu_buffer_t* buffer, pjrt_event_t* event) {
  const tpu_plugin_t* plugin = buffer->device->plugin;
  void* memory = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc(1, sizeof(watch_t), &memory));
  watch_t* watch = memory;
  *watch = (watch_t){.plugin = plugin, .content = buffer->content};
  atomic_fetch_add_explicit(&buffer->content->references, 1, memory_order_relaxed);
  pjrt_event_on_ready_args_t args = {.event = event, .callback = stop_watching, .user_arg = watch};
  tpu_status_t status = tpu_pjrt_call(plugin, Event_OnReady, &args);
  if (status != NULL) stop_watching(NULL, watch);
  pjrt_event_destroy_args_t destroy = {.event = event};
  return tpu_status_join(status, tpu_pjrt_call(plugin, Event_Destroy, &destroy));
}

tpu_status_t tpui_buffer_materialize(tpu_buffer_t* buffer) {
  const tpu_plugin_t* plugin = buffer->device->plugin;
  const tpu_meta_t* meta = tpu_meta_get(buffer->meta);
  pjrt_client_buffer_from_host_buffer_args_t args = {
      .client = buffer->device->client,
      .data = buffer->content->block.data,
      .type = tpu_dtype_pjrt(meta->dtype),
      .dims = meta->sizes,
      .num_dims = (size_t)meta->rank,
      // Mutable: a program that is given the buffer may write its result there.
      .host_buffer_semantics = PJRT_HOST_BUFFER_MUTABLE_ZERO_COPY,
      .device = buffer->device->device,
  };
  TPU_RETURN_IF_ERROR(tpu_pjrt_call(plugin, Client_BufferFromHostBuffer, &args));
  tpu_status_t status = hold_until(buffer, args.done_with_host_buffer);
  if (status != NULL) {
    pjrt_buffer_destroy_args_t destroy = {.buffer = args.buffer};
    tpui_log_failed_destroy(tpu_pjrt_call(plugin, Buffer_Destroy, &destroy));
    return status;
  }
  buffer->pjrt = args.buffer;
  return NULL;
}

/* --- running --- */

typedef struct host_run_t {
  int input_count, output_count;
  tpu_buffer_t* const* inputs;
  const uint8_t* donated;
  const tpu_meta_id_t* output_metas;
  tpu_buffer_t** outputs;
  tpu_host_input_t* host_inputs;  // [input_count]
  tpu_host_block_t* blocks;       // [output_count]
  int64_t* output_bytes;          // [output_count]
} host_run_t;

static bool shares_memory(const tpu_device_t* device) { return device->platform->host_addressable; }

/* A copy of the buffer, which is freed after the run. */
static tpu_status_t fetch_input(tpu_buffer_t* buffer, tpu_host_input_t* input) {
  TPU_RETURN_IF_ERROR(tpu_calloc(1, (size_t)buffer->bytes + 1, &input->data));
  return tpu_buffer_read(buffer, 0, input->data, buffer->bytes);
}

static tpu_status_t bind_host_inputs(tpu_device_t* device, const host_run_t* r,
                                     int64_t* out_freed) {
  *out_freed = 0;
  for (int i = 0; i < r->input_count; ++i) {
    tpu_buffer_t* buffer = r->inputs[i];
    tpu_host_input_t* input = &r->host_inputs[i];
    if (r->donated[i] != 0) *out_freed += buffer->bytes;
    if (!shares_memory(device)) {
      TPU_RETURN_IF_ERROR(fetch_input(buffer, input));
      continue;
    }
    TPU_RETURN_IF_ERROR(tpu_buffer_host_pointer(buffer, &input->data));
    // A PJRT buffer on the same memory would not know that it changed hands.
    bool owned = buffer->content != NULL && buffer->pjrt == NULL;
    input->owner = owned ? buffer->content->block.owner : NULL;
    input->given = owned && r->donated[i] != 0;
  }
  return NULL;
}

static void free_copies(const tpu_device_t* device, const host_run_t* r) {
  for (int i = 0; i < r->input_count && !shares_memory(device); ++i) {
    tpu_free(r->host_inputs[i].data);
  }
}

/* The block becomes the buffer's content, or is copied to it; it is taken also on failure. */
static tpu_status_t take_block(tpu_buffer_t* buffer, const tpu_host_block_t* block,
                               tpu_meta_id_t id) {
  if (shares_memory(buffer->device)) return tpui_buffer_adopt(buffer, block, id);
  const tpu_meta_t* meta = tpu_meta_get(id);
  tpu_status_t status = tpui_transfer_in(buffer->device, block->data, meta->dtype, meta->rank,
                                         meta->sizes, &buffer->pjrt);
  block->release(block->owner);
  return status;
}

/* Content for the outputs. All blocks are taken, also on failure. */
static tpu_status_t take_blocks(const host_run_t* r) {
  tpu_status_t status = NULL;
  for (int i = 0; i < r->output_count; ++i) {
    if (status == NULL) {
      status = take_block(r->outputs[i], &r->blocks[i], r->output_metas[i]);
    } else {
      r->blocks[i].release(r->blocks[i].owner);
    }
  }
  return status;
}

static tpu_status_t run_bound(tpu_device_t* device, tpu_host_function_t function, void* context,
                              const host_run_t* r, int64_t freed) {
  for (int i = 0; i < r->output_count; ++i) {
    r->output_bytes[i] = tpu_meta_bytes(tpu_meta_get(r->output_metas[i]));
  }
  TPU_RETURN_IF_ERROR(tpui_buffers_reserve(device, r->output_count, r->output_bytes,
                                           (tpui_need_t){.freed = freed}, r->outputs));
  tpu_status_t status = function(context, r->host_inputs, r->blocks);
  if (status == NULL) status = take_blocks(r);
  if (status == NULL) return NULL;
  for (int i = 0; i < r->output_count; ++i) tpui_buffer_drop_content(r->outputs[i]);
  tpui_buffers_cancel(device, r->output_count, r->outputs, freed);
  return status;
}

static tpu_status_t run_host(tpu_device_t* device, tpu_host_function_t function, void* context,
                             const host_run_t* r) {
  int64_t freed;
  memset(r->host_inputs, 0, (size_t)r->input_count * sizeof(*r->host_inputs));
  tpu_status_t status = bind_host_inputs(device, r, &freed);
  if (status == NULL) status = run_bound(device, function, context, r, freed);
  free_copies(device, r);
  for (int i = 0; i < r->input_count && status == NULL; ++i) {
    if (r->donated[i] != 0) tpui_buffer_drop_donated(r->inputs[i]);
  }
  return status;
}

tpu_status_t tpu_device_run_host(tpu_device_t* device, tpu_host_function_t function, void* context,
                                 int input_count, tpu_buffer_t* const* inputs,
                                 const uint8_t* donated, int output_count,
                                 const tpu_meta_id_t* output_metas, tpu_buffer_t** out_outputs) {
  for (int i = 0; i < output_count; ++i) out_outputs[i] = NULL;
  tpu_host_input_t inline_inputs[INLINE_RUN];
  tpu_host_block_t inline_blocks[INLINE_RUN];
  int64_t inline_bytes[INLINE_RUN];
  host_run_t r = {.input_count = input_count,
                  .output_count = output_count,
                  .inputs = inputs,
                  .donated = donated,
                  .output_metas = output_metas,
                  .outputs = out_outputs,
                  .host_inputs = inline_inputs,
                  .blocks = inline_blocks,
                  .output_bytes = inline_bytes};
  void* memory = NULL;
  if (input_count > INLINE_RUN || output_count > INLINE_RUN) {
    tpu_layout_t layout;
    tpu_layout_init(&layout);
    TPU_LAYOUT_ADD(&layout, r.host_inputs, (size_t)input_count);
    TPU_LAYOUT_ADD(&layout, r.blocks, (size_t)output_count);
    TPU_LAYOUT_ADD(&layout, r.output_bytes, (size_t)output_count);
    TPU_RETURN_IF_ERROR(tpu_layout_allocate(&layout, &memory));
  }
  tpu_status_t status = run_host(device, function, context, &r);
  tpu_free(memory);
  return status;
}
