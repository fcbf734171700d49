/* Lanes: the window that a thread fills, and what is expected of it. Each thread that records has
 * one, so that what it records does not depend on what others do meanwhile.
 *
 * Order between lanes: a value that is still recorded is only ever an operand in its own lane. Who
 * touches a storage whose content is recorded in another lane has that lane flushed first. Nothing
 * else is needed, since values are immutable and flushed windows run in the order of their flushes.
 *
 * A thread may also work for another one (autograd's workers do, while the other one waits). It is
 * told the number of the task that it works on, and records in the lane of the thread that asked.
 *
 * A lane stays until the engine is destroyed. When its thread ends, what it recorded is launched by
 * the next flush or by the next thread that needs a lane; that one gets it.
 */
#ifndef TPU_ENGINE_LANE_H_
#define TPU_ENGINE_LANE_H_

#include "engine/state.h"

/* What a call is going to read, and to write: see tpui_lane_enter. */
typedef struct tpui_touch_t {
  int operand_count, result_count;
  const tpu_operand_t* operands;
  const tpu_result_t* results;
} tpui_touch_t;

/* Takes the engine's lock and gives the lane in which this thread records what touches these
 * tensors; none of them is recorded in another lane then. That holds until the lock is given up,
 * also for a while. On failure the lock is not held. */
TPU_MUST_USE tpu_status_t tpui_lane_enter(tpu_engine_t* engine, const tpui_touch_t* touch,
                                          tpui_lane_t** out_lane);
/* The same for calls that record nothing. */
TPU_MUST_USE tpu_status_t tpui_lane_look(tpu_engine_t* engine, tpui_lane_t** out_lane);

/* --- the rest expects the lock --- */

/* The same promise again for a lane that was entered, after the lock was given up. */
TPU_MUST_USE tpu_status_t tpui_lane_settle(tpui_lane_t* lane, const tpui_touch_t* touch);

/* Flushes the lanes of threads that ended, or of all. */
TPU_MUST_USE tpu_status_t tpui_lanes_flush(tpu_engine_t* engine, bool all);
/* Plans were dropped, or are about to be: no lane expects one any more, and who waits for the build
 * of one looks again. */
void tpui_lanes_expect_nothing(tpu_engine_t* engine);
/* Whether something waits to be flushed. */
bool tpui_lanes_waiting(const tpu_engine_t* engine);
void tpui_lanes_free(tpu_engine_t* engine);

#endif  // TPU_ENGINE_LANE_H_
