/* Flights: windows on their way from the recorder through a job to values.
 *
 * Small jobs run on the caller's thread with the engine lock held. Others are queued: the launch
 * thread runs them without the lock and takes it to hand out the results.
 */
#ifndef TPU_ENGINE_FLIGHT_H_
#define TPU_ENGINE_FLIGHT_H_

#include "engine/state.h"

typedef struct tpui_rescue_t tpui_rescue_t;  // see rescue.h

struct tpui_flight_t {
  tpu_queue_item_t item;
  tpu_engine_t* engine;
  tpui_variant_t* variant;  // borrowed; in_flight keeps it
  tpui_plan_t* plan;
  tpu_job_t job;
  tpu_value_t** values;  // [value_count] entries turn NULL when the value dies
  tpui_undo_t* undo;
  size_t undo_count;
  tpu_channel_t* channel;   // that it runs on; its plan is its own. NULL: the launch queue
  bool awaits;              // some inputs may still be on their way on channels
  bool locked;              // it runs on the caller's thread, which has the engine's lock
  tpui_rescue_t* rescue;    // owned; NULL while nothing has failed
  tpui_flight_t* launched;  // the flight that was queued after it, or the channels' next
  tpui_flight_t* next_free;
  void* memory;  // of the arrays above, reused from job to job
  size_t capacity;
};

/* Moves the window into a flight. On failure the window is as before. */
TPU_MUST_USE tpu_status_t tpui_flight_load(tpui_lane_t* lane, tpui_plan_t* plan,
                                           tpui_variant_t* variant, const uint8_t* external_dead,
                                           tpu_channel_t* channel, tpui_flight_t** out_flight);
/* Runs the flight or queues it. Its errors go to the values concerned and to the pending error. */
void tpui_flight_launch(tpu_engine_t* engine, tpui_flight_t* flight);
/* The three parts of a flight: waiting for inputs (gives the lock up meanwhile), running (see
 * rescue.h; not the lock), handing out results. */
void tpui_flight_await_inputs(const tpui_flight_t* flight);
void tpui_flight_finish(tpui_flight_t* flight);
void tpui_flights_free(tpu_engine_t* engine);

/* Waits give the lock up meanwhile, so values may change state. They fail only when the user stops
 * them (tpu_engine_set_stop). Until a flight lands, a build is finished, or for a while: */
TPU_MUST_USE tpu_status_t tpui_wait_landing(tpu_engine_t* engine);
/* Until one more flight may be on its way: */
TPU_MUST_USE tpu_status_t tpui_wait_for_room(tpu_engine_t* engine);
/* Until nothing is queued: */
TPU_MUST_USE tpu_status_t tpui_wait_idle(tpu_engine_t* engine);
/* Until this value has landed; the caller holds a reference: */
TPU_MUST_USE tpu_status_t tpui_wait_value(tpu_engine_t* engine, const tpu_value_t* value);
/* Until nothing is queued, whatever the user does: */
void tpui_wait_to_the_end(tpu_engine_t* engine);

#endif  // TPU_ENGINE_FLIGHT_H_
