/* What the files of core/device/ share. Other folders use device.h. */
#ifndef TPU_DEVICE_DEVICE_INTERNAL_H_
#define TPU_DEVICE_DEVICE_INTERNAL_H_

#include <stdatomic.h>

#include "base/thread.h"
#include "device/device.h"
#include "pjrt/plugin.h"

/* A run that the device has accepted, and the event of its end. */
typedef struct tpui_completion_t {
  uint64_t run;
  pjrt_event_t* event;  // owned
} tpui_completion_t;

typedef struct tpui_completions_t {
  tpui_completion_t* open;  // owned, from `first` on in the order of their launches
  size_t first, count, capacity;
  tpu_status_t error;  // owned; of run `failed`, which nobody was told
  uint64_t failed;
  uint64_t told;  // errors up to this run were seen by those who waited for a result
} tpui_completions_t;

struct tpu_device_t {
  const tpu_plugin_t* plugin;
  const tpu_platform_t* platform;
  pjrt_client_t* client;  // owned
  pjrt_device_t* device;  // lives as long as the client
  char* name;             // owned
  char* version;          // owned
  bool probes_memory;     // ask the host's allocator before large runs
  atomic_bool host_calls;
  _Atomic uint64_t runs;        // begun so far
  _Atomic int64_t code_bytes;   // of the executables that are alive
  _Atomic int64_t risky_bytes;  // a run that led to so many in use failed; INT64_MAX: none did

  tpu_mutex_t mutex;  // guards the rest
  tpu_memory_stats_t stats;
  double memory_share;         // of bytes_limit, that buffers may fill
  int64_t peak_before;         // the device's own peak when peaks began anew, which it cannot
  tpu_buffer_t* free_buffers;  // released tpu_buffer_t, kept for the next output
  tpui_completions_t completions;
};

/* A block that a buffer has for its content, and maybe a PJRT buffer as well: each holds a
 * reference for as long as it uses the memory. */
typedef struct tpui_content_t {
  atomic_int references;
  tpu_host_block_t block;
} tpui_content_t;

struct tpu_buffer_t {
  atomic_int references;
  atomic_bool ready;  // an await succeeded
  tpu_device_t* device;
  pjrt_buffer_t* pjrt;      // owned; NULL once donated, and for a block until a program needs it
  tpui_content_t* content;  // owned; NULL unless the content came as a block
  tpu_meta_id_t meta;       // of such content
  int64_t bytes;            // what the accounting holds for it
  uint64_t run;             // that makes the content, 0: none
  uint32_t origin;          // what made it, for reports
  _Atomic(void*) host;      // cached UnsafePointer, or the block's memory
  tpu_buffer_t* next_free;
};

/* Model name of the host CPU from /proc/cpuinfo; "unknown" when it cannot be read. */
void tpui_platform_cpu_model(char* out_text, size_t size);
/* Physical memory in bytes, or the control group's limit when that is lower; 0 if unknown. */
int64_t tpui_platform_host_memory(void);
/* Whether the host's allocator would give this many bytes now: limits of the process and overcommit
 * rules make it refuse long before memory is really used up. */
bool tpui_platform_host_grants(int64_t bytes);

/* Bytes of a dense tensor; TPU_INVALID_ARGUMENT for a bad dtype, rank or size, or on overflow. */
TPU_MUST_USE tpu_status_t tpui_dense_bytes(tpu_dtype_t dtype, int rank, const int64_t* sizes,
                                           int64_t* out_bytes);

/* What a run needs besides its outputs. */
typedef struct tpui_need_t {
  int64_t freed;      // bytes of buffers that it takes over
  int64_t temporary;  // bytes that it has while it runs
} tpui_need_t;
/* Takes `count` buffer objects without content and books `bytes[i]` for each. All or nothing. Fails
 * with TPU_RESOURCE_EXHAUSTED when they and the need exceed what the device has. */
TPU_MUST_USE tpu_status_t tpui_buffers_reserve(tpu_device_t* device, int count,
                                               const int64_t* bytes, tpui_need_t need,
                                               tpu_buffer_t** out_buffers);
/* Undoes a reserve whose buffers got no content; sets the entries to NULL. */
void tpui_buffers_cancel(tpu_device_t* device, int count, tpu_buffer_t** buffers, int64_t freed);

/* A new PJRT buffer with a copy of these dense row-major elements. */
TPU_MUST_USE tpu_status_t tpui_transfer_in(tpu_device_t* device, const void* data,
                                           tpu_dtype_t dtype, int rank, const int64_t* sizes,
                                           pjrt_buffer_t** out_pjrt);

/* Gives a buffer without content this block as content, which it takes also when it fails. */
TPU_MUST_USE tpu_status_t tpui_buffer_adopt(tpu_buffer_t* buffer, const tpu_host_block_t* block,
                                            tpu_meta_id_t meta);
/* Makes the PJRT buffer of content that is a block. One thread at a time for each buffer. */
TPU_MUST_USE tpu_status_t tpui_buffer_materialize(tpu_buffer_t* buffer);
/* Drops the reference to the block, if there is one. */
void tpui_buffer_drop_block(tpu_buffer_t* buffer);

/* Destroys the content, whose bytes stay booked. */
void tpui_buffer_drop_content(tpu_buffer_t* buffer);
/* Destroys the content of a donated buffer, whose bytes the reserve has taken off already. */
void tpui_buffer_drop_donated(tpu_buffer_t* buffer);

/* Waits for an event and destroys it. */
TPU_MUST_USE tpu_status_t tpui_event_await(const tpu_plugin_t* plugin, pjrt_event_t* event);
/* Waits until the event is ready, failed, or cannot be asked (an await then tells which), or gives
 * up with TPU_CANCELLED. */
TPU_MUST_USE tpu_status_t tpui_event_poll(const tpu_plugin_t* plugin, pjrt_event_t* event,
                                          tpu_stop_t stop);

/* Takes the event of a run's end; NULL from plugins that have none. */
void tpui_completion_add(tpu_device_t* device, uint64_t run, pjrt_event_t* event);
/* Somebody heard that run `run` failed, of its own or because of an earlier one. */
void tpui_completion_told(tpu_device_t* device, uint64_t run);
void tpui_completions_free(tpu_device_t* device);

/* The plugin's error text of a failed destroy has no caller to go to: it is logged. */
void tpui_log_failed_destroy(tpu_status_t status);

#endif  // TPU_DEVICE_DEVICE_INTERNAL_H_
