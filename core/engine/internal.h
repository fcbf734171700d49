/* The engine's own structures, shared by the files of this folder. Everything belongs to
 * engine->lock unless a comment says otherwise. Functions here expect the lock to be held.
 */
#ifndef TPU_ENGINE_INTERNAL_H_
#define TPU_ENGINE_INTERNAL_H_

#include <stdatomic.h>

#include "base/thread.h"
#include "engine/engine.h"
#include "engine/plan.h"
#include "engine/template.h"
#include "launch/queue.h"
#include "trace/address.h"
#include "trace/memo.h"
#include "trace/recorder.h"

#define TPUI_SLAB_STORAGES 256

struct tpu_storage_t {
  _Atomic int32_t refs;  // any thread
  tpu_engine_t* engine;
  tpu_value_t* value;            // NULL: no content yet, reads as zeros; see tpui_storage_set
  _Atomic tpu_meta_id_t layout;  // value's metadata, 0 without one; read by any thread
  int64_t nbytes;
  void* address;
  uint64_t serial;  // never reused, unlike the pointer
  tpu_storage_t* next_free;
};

/* What a storage held before a record of this window wrote it: the way back if that record fails. */
typedef struct tpui_undo_t {
  uint64_t storage;     // serial
  uint32_t number;      // window number of the value that replaced it
  tpu_value_t* old;     // READY and retained, or NULL when it was a result of this window ...
  uint32_t old_number;  // ... with this number
} tpui_undo_t;

/* Records after which a window without a sync is searched for a loop. */
#define TPUI_LOOP_CHECK 4096
/* A loop's windows hold as many turns as make at least this many records. */
#define TPUI_LOOP_MIN 512
#define TPUI_LOOP_MISSES 4

/* A window on its way through the launch queue; see flush.c. */
typedef struct tpui_flight_t tpui_flight_t;

struct tpu_engine_t {
  tpu_mutex_t lock;
  tpu_device_t* device;
  tpu_compiler_t* compiler;
  _Atomic tpu_eager_mode_t mode;  // read by any thread
  uint32_t window_limit;          // most records in a window
  uint32_t flush_at;              // records at which this window is launched unasked
  uint32_t loop_length;           // records of some turns of a loop that never syncs; 0: none known
  uint32_t loop_misses;           // its windows in a row that were not expected
  tpu_partition_options_t partition;

  tpu_value_pool_t pool;
  tpu_recorder_t recorder;
  tpu_memo_t* memo;
  tpu_address_space_t* addresses;
  tpui_capture_t* capture;  // NULL while nobody captures
  tpu_storage_t* free_storages;
  tpu_storage_t** storage_slabs;
  size_t storage_slab_count, storage_slab_capacity;
  uint64_t next_serial;

  tpui_undo_t* undo;
  size_t undo_count, undo_capacity;

  tpui_plan_cache_t plans;
  tpui_plan_t* last_plan;  // whose successor is expected next

  uint8_t* flags;  // scratch of a flush: live values, then dead externals
  size_t flags_capacity;
  tpu_queue_t* queue;
  pthread_cond_t landed;   // a queued flight finished
  int in_flight;           // queued and not finished
  uint64_t flight_serial;  // of the newest flight
  tpui_flight_t* free_flights;

  tpu_status_t pending_error;  // of a launch that nobody has been told about
  tpu_engine_stats_t stats;
};

/* --- storage.c --- */
static inline void tpui_storage_set(tpu_storage_t* storage, tpu_value_t* value) {
  storage->value = value;
  atomic_store_explicit(&storage->layout, value != NULL ? value->meta : 0, memory_order_relaxed);
}
TPU_MUST_USE tpu_status_t tpui_storage_create(tpu_engine_t* engine, int64_t nbytes,
                                              tpu_storage_t** out_storage);
/* Makes `value` (taken) the content. When `undoable`, the old content can come back (flush.c). */
TPU_MUST_USE tpu_status_t tpui_storage_bind(tpu_storage_t* storage, tpu_value_t* value,
                                            bool undoable);
/* Gives the storage a value if it has none: zeros, laid out for `view`. */
TPU_MUST_USE tpu_status_t tpui_storage_ensure_value(tpu_storage_t* storage, tpu_meta_id_t view);
/* Metadata of the whole storage as a vector of this dtype (bytes if the size does not divide). */
TPU_MUST_USE tpu_status_t tpui_storage_flat(const tpu_storage_t* storage, tpu_dtype_t dtype,
                                            tpu_meta_id_t* out_meta);
/* True when `view` at `offset` is the whole storage, each element once. */
bool tpui_storage_is_whole(const tpu_storage_t* storage, tpu_meta_id_t view, int64_t offset);

/* A READY value that takes `buffer`, with one reference; false (and nothing taken) without memory. */
bool tpui_value_adopt(tpu_engine_t* engine, tpu_meta_id_t meta, tpu_buffer_t* buffer,
                      tpu_value_t** out_value);

/* --- capture.c --- */
static inline bool tpui_capture_is_mine(const tpu_engine_t* engine) {
  return pthread_equal(engine->capture->thread, pthread_self()) != 0;
}
/* For the following, engine->capture is not NULL. Something was done to the window: by the capturing
 * thread, then `obstacle` (a literal, NULL for none) says why no template can be made; by another one,
 * then none can be made this time. */
void tpui_capture_touched(tpu_engine_t* engine, const char* obstacle);
/* The storage got other content. */
void tpui_capture_bound(tpu_engine_t* engine, const tpu_storage_t* storage);
/* This READY value came from the host. */
void tpui_capture_constant(tpu_engine_t* engine, tpu_value_t* value);

/* --- record.c --- */
/* Gives operands values, since that may record an op. The error of a failed one names `reader`. */
TPU_MUST_USE tpu_status_t tpui_prepare_operands(int count, const tpu_operand_t* operands,
                                                const char* reader);
/* Records an internal op with one result. operands[k].storage values must not be needed: operands
 * are values here. */
typedef struct tpui_internal_operand_t {
  tpu_value_t* value;  // NULL: the scalar `number` with `view` as its view word
  tpu_meta_id_t view;
  int64_t number;  // offset of the view, or the scalar
} tpui_internal_operand_t;
TPU_MUST_USE tpu_status_t tpui_record_internal(tpu_engine_t* engine, tpu_op_t op, int operand_count,
                                               const tpui_internal_operand_t* operands,
                                               tpu_meta_id_t result, tpu_value_t** out_value);
/* Writes `value` (taken; sizes of `view`) into the part of the storage that the view names. */
TPU_MUST_USE tpu_status_t tpui_storage_write(tpu_storage_t* storage, tpu_meta_id_t view,
                                             int64_t offset, tpu_value_t* value);

/* --- finite.c --- */
/* True when all numbers that the job reads are finite; to be asked before it runs. */
bool tpui_inputs_finite(const tpu_window_t* window, const tpu_job_t* job);
/* The error that names the op behind the first result with NaN or infinity. */
TPU_MUST_USE tpu_status_t tpui_outputs_finite(const tpu_window_t* window, const tpu_job_t* job);

/* --- loop.c --- */
/* Asked once the window has engine->flush_at records, and after every record in Debug and Strict
 * mode: whether it should be launched now. Sets flush_at for the windows to come. */
TPU_MUST_USE tpu_status_t tpui_window_is_due(tpu_engine_t* engine, bool* out_due);

/* --- flush.c --- */
/* Launches the window. Errors go to the values concerned and to engine->pending_error; the status is
 * for what prevented the flush itself (memory). May give the lock up before it looks at the window,
 * and not afterwards. */
TPU_MUST_USE tpu_status_t tpui_flush(tpu_engine_t* engine);
/* The caller hands this error to the user: the next sync must not tell it again. */
void tpui_told(tpu_engine_t* engine, tpu_status_t error);
/* Waits until nothing is queued. Gives the lock up meanwhile, so values may change state. */
void tpui_wait_idle(tpu_engine_t* engine);
/* The same until this value has landed; the caller holds a reference. */
void tpui_wait_value(tpu_engine_t* engine, const tpu_value_t* value);
void tpui_flights_free(tpu_engine_t* engine);
/* Flushes if the mode or the window's size asks for it after a record. */
TPU_MUST_USE tpu_status_t tpui_flush_if_due(tpu_engine_t* engine);

#endif  // TPU_ENGINE_INTERNAL_H_
