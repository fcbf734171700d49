/* Flights: windows on their way from the recorder through a job to values.
 *
 * Small jobs run on the caller's thread with the engine lock held. Others are queued: the launch
 * thread runs them without the lock and takes it to hand out the results.
 */
#ifndef TPU_ENGINE_FLIGHT_H_
#define TPU_ENGINE_FLIGHT_H_

#include "engine/state.h"

/* Moves the window into a flight. On failure the window is as before. */
TPU_MUST_USE tpu_status_t tpui_flight_load(tpu_engine_t* engine, tpui_plan_t* plan,
                                           tpui_variant_t* variant, const uint8_t* external_dead,
                                           tpui_flight_t** out_flight);
/* Runs the flight or queues it. Its errors go to the values concerned and to the pending error. */
void tpui_flight_launch(tpu_engine_t* engine, tpui_flight_t* flight);
void tpui_flights_free(tpu_engine_t* engine);

/* Waits give the lock up meanwhile, so values may change state.
 * Until one more flight may be on its way: */
void tpui_wait_for_room(tpu_engine_t* engine);
/* Until nothing is queued: */
void tpui_wait_idle(tpu_engine_t* engine);
/* Until this value has landed; the caller holds a reference: */
void tpui_wait_value(tpu_engine_t* engine, const tpu_value_t* value);

#endif  // TPU_ENGINE_FLIGHT_H_
