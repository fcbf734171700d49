/* Flushing: the end of a window. */
#ifndef TPU_ENGINE_FLUSH_H_
#define TPU_ENGINE_FLUSH_H_

#include "engine/state.h"

/* Launches the lane's window. Errors go to the values concerned and to the pending error; the
 * status is for what prevented the flush itself (memory). May give the lock up before it looks at
 * the window, and not afterwards. Does nothing while the lane records ahead of time. */
TPU_MUST_USE tpu_status_t tpui_flush(tpui_lane_t* lane);
/* A byte for each of the lane's values: somebody needs it after the window; and for each external:
 * nobody else holds it. `in_order`: the window runs behind the flights of the queue, whose
 * references are gone by then. Both lie in engine->flags. */
TPU_MUST_USE tpu_status_t tpui_mark_flags(tpui_lane_t* lane, bool in_order, uint8_t** out_live,
                                          uint8_t** out_dead);
/* Ends a call that may have recorded: when `status` is not an error already, flushes if the mode or
 * the window's size asks for it. Then gives the lock back. */
TPU_MUST_USE tpu_status_t tpui_recording_end(tpui_lane_t* lane, tpu_status_t status);

#endif  // TPU_ENGINE_FLUSH_H_
