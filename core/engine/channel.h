/* Channels: work that waits for other processes, on threads of its own.
 *
 * A record that is given to a channel is a window, a plan and a flight of its own: it is launched
 * at once, behind what its thread recorded before. The channel's thread waits for its operands,
 * runs its host step and hands out the results, all beside the launch queue: a window that reads
 * them waits for them, and nobody else does. So whatever a window looks like, only the order of the
 * records given to one channel matters.
 */
#ifndef TPU_ENGINE_CHANNEL_H_
#define TPU_ENGINE_CHANNEL_H_

#include "engine/lane.h"

/* Makes this lane's window empty and the operands ready to be recorded. May give the lock up. */
TPU_MUST_USE tpu_status_t tpui_channel_prepare(tpui_lane_t* lane, const tpu_call_t* call,
                                               const tpui_touch_t* touch);
/* Launches the lane's window, which is one record. */
TPU_MUST_USE tpu_status_t tpui_channel_launch(tpui_lane_t* lane, tpu_channel_t* channel);

/* Whether a flight of a channel up to this job is on its way. */
bool tpui_channels_busy(const tpu_engine_t* engine, uint64_t newest_job);

#endif  // TPU_ENGINE_CHANNEL_H_
