/* The engine's own structures, shared by the files of this folder. Everything belongs to
 * engine->lock unless a comment says otherwise. The `tpui_` functions of this folder expect the
 * lock to be held.
 */
#ifndef TPU_ENGINE_STATE_H_
#define TPU_ENGINE_STATE_H_

#include <stdatomic.h>

#include "base/env.h"
#include "base/thread.h"
#include "engine/engine.h"
#include "engine/plan.h"
#include "launch/queue.h"
#include "trace/address.h"
#include "trace/memo.h"
#include "trace/recorder.h"

#define TPUI_REASONS_KEPT 256

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

/* What a storage held before a record of this window wrote it: the way back if the record fails. */
typedef struct tpui_undo_t {
  tpu_storage_t* storage;  // not held: gone when it has another serial by then
  uint64_t serial;
  tpu_value_t* old;     // of another window and retained, or NULL for a result of this window ...
  uint32_t old_number;  // ... with this number
  uint32_t number;      // window number of the value that replaced it
  // Retained while a failure is dealt with: that value, if it failed; what `old_number` became.
  tpu_value_t *failed, *adopted;
} tpui_undo_t;

/* Storages of one allocation. */
#define TPUI_SLAB_STORAGES 256

/* Records after which a window without a sync is searched for a loop. */
#define TPUI_LOOP_CHECK 4096
/* A loop's windows hold as many turns as make at least this many records. */
#define TPUI_LOOP_MIN 512
#define TPUI_LOOP_MISSES 4

typedef struct tpui_capture_t tpui_capture_t;  // see watch.h
typedef struct tpui_flight_t tpui_flight_t;    // see flight.h
typedef struct tpui_thread_t tpui_thread_t;    // see lane.c

/* What a thread records; see lane.h. */
typedef struct tpui_lane_t {
  tpu_engine_t* engine;
  tpu_recorder_t recorder;
  tpui_undo_t* undo;
  size_t undo_count, undo_capacity;
  uint32_t flush_at;         // records at which this window is launched unasked
  uint32_t loop_length;      // records of some turns of a loop that never syncs; 0: none known
  uint32_t loop_misses;      // its windows in a row that were not expected
  bool window_recurs;        // it holds records that somebody knows to come again
  bool ahead;                // nothing is launched: see ahead.h
  tpui_plan_t* last_plan;    // whose successor is expected next
  tpui_capture_t* capture;   // NULL while nobody captures here
  struct tpui_lane_t* next;  // of the engine's
  bool helper;               // its thread works for others: it records here only what is nobody's
  _Atomic(tpui_thread_t*) owner;   // NULL: its thread has ended; read by any thread
  struct tpui_lane_t* next_owned;  // belongs to a lock of its own, see lane.c
} tpui_lane_t;

/* A task that a helper works on, and where it records. */
typedef struct tpui_task_t {
  int64_t number;
  tpui_lane_t* lane;
} tpui_task_t;
/* Tasks that may run at once; of more, the oldest are looked for anew. */
#define TPUI_TASKS 16

struct tpu_engine_t {
  tpu_mutex_t lock;
  uint64_t serial;  // never reused, unlike the pointer
  tpu_device_t* device;
  tpu_compiler_t* compiler;
  _Atomic tpu_eager_mode_t mode;  // read by any thread
  _Atomic bool expects_nonfinite;
  _Atomic bool traces;    // where ops are recorded is noted; read by any thread
  uint32_t window_limit;  // most records in a window
  int64_t code_limit;     // bytes of compiled programs in memory; 0: no bound
  tpu_partition_options_t partition;
  const tpu_host_ops_t* host_ops;  // NULL: nothing runs on the host, and nothing is interpreted

  tpu_value_pool_t pool;
  tpui_lane_t* lanes;      // newest first
  tpu_task_number_t task;  // see tpu_engine_set_task; NULL: there are no helpers
  tpui_task_t tasks[TPUI_TASKS];
  int next_task;  // entry of the next new one
  int captures;   // lanes where somebody captures
  tpu_memo_t* memo;
  tpu_address_space_t* addresses;
  tpu_storage_t* free_storages;
  tpu_storage_t** storage_slabs;
  size_t storage_slab_count, storage_slab_capacity;
  uint64_t next_serial;

  tpui_plan_cache_t plans;
  uint8_t* flags;  // scratch of a flush: live values, then dead externals
  size_t flags_capacity;
  tpu_queue_t* queue;
  pthread_cond_t landed;  // a queued flight or a build finished
  tpu_stop_t stop;        // see tpu_engine_set_stop
  int in_flight;          // queued and not finished
  int draining;           // threads that wait until there are none; nothing is queued meanwhile
  tpu_queue_t* builds;    // programs compiled in the background
  tpu_queue_t* compiles;  // the same that somebody waits for
  int building;           // queued in these two and not finished
  uint32_t given_up;      // how often builds were told to end
  int giving_up;          // threads that wait for that: nothing is compiled meanwhile
  uint32_t drops;         // how often plans were dropped
  uint64_t job_serial;    // of the newest job
  tpui_flight_t* free_flights;
  tpui_flight_t *first_flight, *last_flight;  // queued, in order
  tpui_flight_t* apart;                       // of channels, newest first

  tpu_flag_t* watched;  // what checks found and nobody looked at yet, oldest run first
  size_t watched_count, watched_capacity;

  tpu_status_t pending_error;  // of a launch that nobody has been told about
  uint64_t pending_job;        // serial of its job
  tpu_engine_stats_t stats;

  char* reasons[TPUI_REASONS_KEPT];  // owned; why programs were made, a ring; see reason.h
  uint64_t reason_count;             // all there ever were
  void (*told_reason)(void);         // see tpu_engine_set_told
};

static inline tpui_planner_t tpui_planner(const tpu_engine_t* e) {
  tpui_planner_t planner = {
      .compiler = e->compiler, .partition = e->partition, .host_ops = e->host_ops};
  planner.partition.checks = tpu_env_bool(TPU_ENV_CHECK_INDEX);
  return planner;
}

/* Limits and facts for programs of this platform, without host calls. */
void tpui_partition_write_for(tpu_partition_options_t* options, const tpu_platform_t* platform);

static inline void tpui_storage_set(tpu_storage_t* storage, tpu_value_t* value) {
  storage->value = value;
  atomic_store_explicit(&storage->layout, value != NULL ? value->meta : 0, memory_order_relaxed);
}

#endif  // TPU_ENGINE_STATE_H_
