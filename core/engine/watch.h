/* Watching one thread's records while it captures; what the other files tell the capture.
 * For all functions, lane->capture is not NULL.
 */
#ifndef TPU_ENGINE_WATCH_H_
#define TPU_ENGINE_WATCH_H_

#include <pthread.h>

#include "engine/state.h"

/* Where an input lay when the capture began, in bytes of its storage. */
typedef struct tpui_captured_input_t {
  tpu_value_t* value;            // retained; NULL for inputs that are no tensors
  const tpu_storage_t* storage;  // lives until the end; NULL unless it may be written
  tpu_meta_id_t view;
  int64_t begin, end;
} tpui_captured_input_t;

struct tpui_capture_t {
  pthread_t thread;
  const char* obstacle;  // why these records can be no template
  bool interrupted;      // another thread came between: no template, but only this time
  bool draws;            // random numbers, counted from `random`, are allowed
  tpu_random_state_t random;
  uint32_t max_records;
  bool recurs;
  uint32_t first_record, first_value;
  uint64_t first_serial;  // storages with greater ones were made inside
  tpui_captured_input_t* inputs;
  int input_count;
  tpu_value_t** constants;  // retained
  size_t constant_count, constant_capacity;
};

static inline bool tpui_capture_is_mine(const tpui_lane_t* lane) {
  return pthread_equal(lane->capture->thread, pthread_self()) != 0;
}
/* Something was done to the window: by the capturing thread, then `obstacle` (a literal, NULL for
 * none) says why no template can be made; by another one, then none can be made this time. */
void tpui_capture_touched(tpui_lane_t* lane, const char* obstacle);
/* The lane got records of a call; `draws`: of random numbers, which others may be drawing too and
 * whose numbers then have gaps. Only needed while somebody captures (engine->captures). */
void tpui_capture_recorded(tpui_lane_t* lane, bool draws);
/* The storage got other content. */
void tpui_capture_bound(tpui_lane_t* lane, const tpu_storage_t* storage);
/* This READY value came from the host. */
void tpui_capture_constant(tpui_lane_t* lane, tpu_value_t* value);

#endif  // TPU_ENGINE_WATCH_H_
