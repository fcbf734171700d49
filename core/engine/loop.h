/* When a window that nobody waits for is launched: a loop without a sync, turn by turn. */
#ifndef TPU_ENGINE_LOOP_H_
#define TPU_ENGINE_LOOP_H_

#include "engine/state.h"

/* Asked once the window has lane->flush_at records, and after every record in Debug and Strict
 * mode: whether it should be launched now. Sets flush_at for the windows to come. */
TPU_MUST_USE tpu_status_t tpui_window_is_due(tpui_lane_t* lane, bool* out_due);

#endif  // TPU_ENGINE_LOOP_H_
