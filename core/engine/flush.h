/* Flushing: the end of a window. */
#ifndef TPU_ENGINE_FLUSH_H_
#define TPU_ENGINE_FLUSH_H_

#include "engine/state.h"

/* Launches the lane's window. Errors go to the values concerned and to the pending error; the
 * status is for what prevented the flush itself (memory). May give the lock up before it looks at
 * the window, and not afterwards. */
TPU_MUST_USE tpu_status_t tpui_flush(tpui_lane_t* lane);
/* Ends a call that may have recorded: when `status` is not an error already, flushes if the mode or
 * the window's size asks for it. Then gives the lock back. */
TPU_MUST_USE tpu_status_t tpui_recording_end(tpui_lane_t* lane, tpu_status_t status);

#endif  // TPU_ENGINE_FLUSH_H_
