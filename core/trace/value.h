/* Values: immutable results of records, and the buffers they become.
 *
 * A value is RECORDED while its record waits in the window, LAUNCHED while its program is queued or
 * runs, READY once a buffer holds its content, FAILED when its program could not be compiled or
 * run. A tensor's own state of having no content yet is HOLLOW while programs are written ahead of
 * time. All fields belong to the engine lock; those who hold a reference to a READY value may read
 * its buffer without.
 */
#ifndef TPU_TRACE_VALUE_H_
#define TPU_TRACE_VALUE_H_

#include "device/device.h"

typedef enum tpu_value_state_t {
  TPU_VALUE_RECORDED,
  TPU_VALUE_LAUNCHED,
  TPU_VALUE_READY,
  TPU_VALUE_FAILED,
  TPU_VALUE_HOLLOW,
} tpu_value_state_t;

typedef struct tpu_value_t {
  int32_t refs;              // storages, externals of windows and of jobs, undo entries
  int32_t passing_refs;      // of these, of jobs on their way: they keep no buffer from donation,
                             // since jobs run in order and a later one begins after they are gone
  tpu_meta_id_t meta;        // dtype, sizes and the strides that lay it out in its storage
  uint32_t external_window;  // the latest window that lists it as external ...
  uint32_t external_number;  // ... under this number
  uint8_t state;             // tpu_value_state_t: says which member of the union there is
  bool awaited;              // the content is there, or somebody was told why not
  bool given;                // a program may take the content: nobody else can ask for it
  union {
    struct {                      // RECORDED, LAUNCHED; HOLLOW, without a slot
      struct tpu_value_t** slot;  // the window's or job's entry, cleared at death
      uint32_t number;            // in its window
      uint32_t window;            // RECORDED: the recorder's window_id
    } pending;
    struct {                              // READY
      tpu_buffer_t* buffer;               // owned
      struct tpu_value_t *older, *newer;  // in the pool's list, unless `awaited` or `given`
    } ready;
    struct {               // FAILED
      tpu_status_t error;  // owned
      uint64_t job;        // serial of the job whose failure it is
    } failed;
    struct tpu_value_t* next_free;  // in no state: it is the pool's
  };
} tpu_value_t;

/* Values come from a pool: recording makes and drops one per op. Those that nobody holds have
 * `refs` 0. */
#define TPU_VALUE_SLAB 256
typedef struct tpu_value_pool_t {
  tpu_value_t* free_list;
  tpu_value_t** slabs;  // of TPU_VALUE_SLAB values
  size_t slab_count, slab_capacity;
  tpu_value_t *oldest, *newest;  // READY ones that a sync has to wait for
  size_t unawaited_count;        // their number
  uint32_t newest_window;        // ids of windows are not shared by recorders with the same pool
  int recorder_count;
} tpu_value_pool_t;

/* A value with one reference, state RECORDED and no slot yet. */
TPU_MUST_USE tpu_status_t tpu_value_create(tpu_value_pool_t* pool, tpu_meta_id_t meta,
                                           tpu_value_t** out_value);
static inline void tpu_value_retain(tpu_value_t* value) { ++value->refs; }
void tpu_value_release(tpu_value_pool_t* pool, tpu_value_t* value);  // NULL is fine
/* -> READY; takes the buffer. */
void tpu_value_fulfil(tpu_value_pool_t* pool, tpu_value_t* value, tpu_buffer_t* buffer);
/* -> FAILED; takes the error, which is that of job `job`. */
void tpu_value_fail(tpu_value_t* value, tpu_status_t error, uint64_t job);
/* The content of a READY value was waited for: syncs need not look at it again. */
void tpu_value_set_awaited(tpu_value_pool_t* pool, tpu_value_t* value);
/* Nobody but a program can use the content from now on; or somebody can again. */
void tpu_value_set_given(tpu_value_pool_t* pool, tpu_value_t* value, bool given);
void tpu_value_pool_free(tpu_value_pool_t* pool);

#endif  // TPU_TRACE_VALUE_H_
