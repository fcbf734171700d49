#include "engine/lane.h"

#include <errno.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/flush.h"

/* What a thread knows about itself. Lanes point at it until the thread or the engine ends; the list
 * and those pointers belong to `owners_lock`. */
struct tpui_thread_t {
  tpui_lane_t* lanes;  // of all engines
  uint64_t engine;     // serial of the engine whose lane `lane` is
  tpui_lane_t* lane;
  bool known;   // its end will be noticed
  bool helper;  // it began in a task, so it may do more of them
};

static _Thread_local tpui_thread_t this_thread;
static tpu_mutex_t owners_lock = TPU_MUTEX_INIT;
static pthread_once_t key_once = PTHREAD_ONCE_INIT;
static pthread_key_t end_key;
static int key_error;

/* When a thread ends. Nothing is launched here: the engine may be gone, or at its end. */
static void leave_lanes(void* pointer) {
  tpui_thread_t* thread = pointer;
  tpu_mutex_lock(&owners_lock);
  for (tpui_lane_t* lane = thread->lanes; lane != NULL; lane = lane->next_owned) {
    atomic_store_explicit(&lane->owner, NULL, memory_order_release);
  }
  tpu_mutex_unlock(&owners_lock);
  *thread = (tpui_thread_t){0};
}

static void make_key(void) { key_error = pthread_key_create(&end_key, leave_lanes); }

static tpu_status_t know_thread(tpui_thread_t* thread) {
  if (TPU_LIKELY(thread->known)) return NULL;
  (void)pthread_once(&key_once, make_key);
  int error = key_error != 0 ? key_error : pthread_setspecific(end_key, thread);
  if (error != 0) {
    return tpu_status_make(TPU_RESOURCE_EXHAUSTED, "the first operation of a thread: %s",
                           strerror(error));
  }
  thread->known = true;
  return NULL;
}

static bool has_ended(const tpui_lane_t* lane) {
  return atomic_load_explicit(&lane->owner, memory_order_acquire) == NULL;
}

static void own_lane(tpui_thread_t* thread, tpui_lane_t* lane) {
  tpu_mutex_lock(&owners_lock);
  atomic_store_explicit(&lane->owner, thread, memory_order_release);
  lane->next_owned = thread->lanes;
  thread->lanes = lane;
  tpu_mutex_unlock(&owners_lock);
}

static void disown_lane(tpui_lane_t* lane) {
  tpu_mutex_lock(&owners_lock);
  tpui_thread_t* thread = atomic_load_explicit(&lane->owner, memory_order_relaxed);
  for (tpui_lane_t** at = thread != NULL ? &thread->lanes : NULL; at != NULL && *at != NULL;) {
    if (*at == lane) {
      *at = lane->next_owned;
    } else {
      at = &(*at)->next_owned;
    }
  }
  tpu_mutex_unlock(&owners_lock);
}

static tpu_status_t make_lane(tpu_engine_t* e, tpui_lane_t** out_lane) {
  tpui_lane_t* lane = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc(1, sizeof(*lane), (void**)&lane));
  lane->engine = e;
  tpu_recorder_init(&lane->recorder, &e->pool);
  lane->recorder.traces = tpu_engine_traces(e);
  lane->flush_at = e->window_limit < TPUI_LOOP_CHECK ? e->window_limit : TPUI_LOOP_CHECK;
  lane->next = e->lanes;
  e->lanes = lane;
  *out_lane = lane;
  return NULL;
}

/* This thread's own lane: the one it has, one that a thread left behind, or a new one. */
static tpu_status_t find_own(tpu_engine_t* e, tpui_thread_t* thread, tpui_lane_t** out_lane) {
  tpui_lane_t* found = NULL;
  for (tpui_lane_t* lane = e->lanes; lane != NULL; lane = lane->next) {
    if (atomic_load_explicit(&lane->owner, memory_order_relaxed) == thread) {
      *out_lane = lane;
      return NULL;
    }
  }
  TPU_RETURN_IF_ERROR(tpui_lanes_flush(e, false));
  for (tpui_lane_t* lane = e->lanes; lane != NULL; lane = lane->next) {
    bool idle = lane->recorder.record_count == 0 && lane->capture == NULL && !lane->ahead;
    if (has_ended(lane) && idle) found = lane;
  }
  if (found == NULL) TPU_RETURN_IF_ERROR(make_lane(e, &found));
  own_lane(thread, found);
  found->helper = thread->helper;
  *out_lane = found;
  return NULL;
}

/* --- tasks --- */

static bool is_recorded(const tpu_storage_t* storage) {
  return storage != NULL && storage->value != NULL && storage->value->state == TPU_VALUE_RECORDED;
}

/* The lane in whose window the storage's content is recorded. */
static tpui_lane_t* recorded_in(const tpu_engine_t* e, const tpu_storage_t* storage) {
  tpui_lane_t* lane = e->lanes;
  while (lane->recorder.window_id != storage->value->pending.window) lane = lane->next;
  return lane;
}

static bool may_ask(const tpui_lane_t* lane) { return !lane->helper && !has_ended(lane); }

/* The lane of a thread that has recorded one of the operands; NULL without one. */
static tpui_lane_t* find_recording(const tpu_engine_t* e, const tpui_touch_t* touch) {
  for (int k = 0; k < touch->operand_count; ++k) {
    const tpu_operand_t* operand = &touch->operands[k];
    if (operand->kind != TPU_OPERAND_TENSOR || !is_recorded(operand->storage)) continue;
    tpui_lane_t* lane = recorded_in(e, operand->storage);
    if (may_ask(lane)) return lane;
  }
  return NULL;
}

/* The lane of the only thread that records on its own; NULL when there are none or several. */
static tpui_lane_t* only_lane(const tpu_engine_t* e) {
  tpui_lane_t* only = NULL;
  for (tpui_lane_t* lane = e->lanes; lane != NULL; lane = lane->next) {
    if (!may_ask(lane)) continue;
    if (only != NULL) return NULL;
    only = lane;
  }
  return only;
}

/* The lane of whoever asked for the task. Nobody says who that is, but the task begins with what
 * that thread has just recorded. NULL while that cannot be told. */
static tpui_lane_t* find_asker(tpu_engine_t* e, int64_t task, const tpui_touch_t* touch) {
  for (int i = 0; i < TPUI_TASKS; ++i) {
    if (e->tasks[i].number == task) return e->tasks[i].lane;
  }
  tpui_lane_t* lane = find_recording(e, touch);
  if (lane == NULL) lane = only_lane(e);
  if (lane != NULL) {
    e->tasks[e->next_task] = (tpui_task_t){.number = task, .lane = lane};
    e->next_task = (e->next_task + 1) % TPUI_TASKS;
  }
  return lane;
}

/* --- entering --- */

static bool is_elsewhere(const tpui_lane_t* lane, const tpu_storage_t* storage) {
  return is_recorded(storage) && storage->value->pending.window != lane->recorder.window_id;
}

/* A storage that is touched and whose content is recorded in another lane. */
static const tpu_storage_t* find_elsewhere(const tpui_lane_t* lane, const tpui_touch_t* touch) {
  for (int k = 0; k < touch->operand_count; ++k) {
    const tpu_operand_t* operand = &touch->operands[k];
    if (operand->kind != TPU_OPERAND_TENSOR) continue;
    if (is_elsewhere(lane, operand->storage)) return operand->storage;
  }
  for (int k = 0; k < touch->result_count; ++k) {
    if (is_elsewhere(lane, touch->results[k].storage)) return touch->results[k].storage;
  }
  return NULL;
}

/* Flushing may give the lock up, and others may then record again what is touched here. */
tpu_status_t tpui_lane_settle(tpui_lane_t* lane, const tpui_touch_t* touch) {
  const tpu_storage_t* storage;
  while ((storage = find_elsewhere(lane, touch)) != NULL) {
    tpui_lane_t* other = recorded_in(lane->engine, storage);
    if (other->ahead) {
      return tpu_status_make(TPU_FAILED_PRECONDITION,
                             "a tensor of another thread's program for later has no content");
    }
    TPU_RETURN_IF_ERROR(tpui_flush(other));
  }
  return NULL;
}

/* A helper's lane is looked for each time: the next call may be of another task. */
static tpu_status_t find_lane(tpu_engine_t* e, int64_t task, const tpui_touch_t* touch,
                              tpui_lane_t** out_lane) {
  tpui_thread_t* thread = &this_thread;
  *out_lane = task != 0 ? find_asker(e, task, touch) : NULL;
  if (*out_lane != NULL) return NULL;
  TPU_RETURN_IF_ERROR(find_own(e, thread, out_lane));
  if (thread->helper) return NULL;
  thread->engine = e->serial;
  thread->lane = *out_lane;
  return NULL;
}

static tpu_status_t enter_slowly(tpu_engine_t* e, const tpui_touch_t* touch,
                                 tpui_lane_t** out_lane) {
  tpui_thread_t* thread = &this_thread;
  bool asks = e->task != NULL && (thread->helper || !thread->known);
  int64_t task = asks ? e->task() : 0;
  thread->helper |= task != 0;
  tpu_status_t status = know_thread(thread);
  tpu_mutex_lock(&e->lock);
  return status == NULL ? find_lane(e, task, touch, out_lane) : status;
}

tpu_status_t tpui_lane_enter(tpu_engine_t* e, const tpui_touch_t* touch, tpui_lane_t** out_lane) {
  const tpui_thread_t* thread = &this_thread;
  tpu_status_t status = NULL;
  if (TPU_LIKELY(thread->engine == e->serial)) {
    tpu_mutex_lock(&e->lock);
    *out_lane = thread->lane;
  } else {
    status = enter_slowly(e, touch, out_lane);
  }
  if (TPU_UNLIKELY(status == NULL && e->lanes->next != NULL))
    status = tpui_lane_settle(*out_lane, touch);
  if (TPU_UNLIKELY(status != NULL)) tpu_mutex_unlock(&e->lock);
  return status;
}

tpu_status_t tpui_lane_look(tpu_engine_t* e, tpui_lane_t** out_lane) {
  return tpui_lane_enter(e, &(tpui_touch_t){0}, out_lane);
}

/* --- all of them --- */

tpu_status_t tpui_lanes_flush(tpu_engine_t* e, bool all) {
  for (tpui_lane_t* lane = e->lanes; lane != NULL; lane = lane->next) {
    if (lane->recorder.record_count == 0 || !(all || has_ended(lane))) continue;
    TPU_RETURN_IF_ERROR(tpui_flush(lane));
  }
  return NULL;
}

void tpui_lanes_expect_nothing(tpu_engine_t* e) {
  ++e->drops;
  for (tpui_lane_t* lane = e->lanes; lane != NULL; lane = lane->next) {
    lane->recorder.predicted = NULL;
    lane->last_plan = NULL;
  }
}

bool tpui_lanes_waiting(const tpu_engine_t* e) {
  for (const tpui_lane_t* lane = e->lanes; lane != NULL; lane = lane->next) {
    if (lane->recorder.record_count > 0 && !lane->ahead) return true;
  }
  return false;
}

void tpui_lanes_free(tpu_engine_t* e) {
  while (e->lanes != NULL) {
    tpui_lane_t* lane = e->lanes;
    e->lanes = lane->next;
    disown_lane(lane);
    tpu_recorder_free(&lane->recorder);
    for (size_t i = 0; i < lane->undo_count; ++i) tpu_value_release(&e->pool, lane->undo[i].old);
    tpu_free(lane->undo);
    tpu_free(lane);
  }
}
