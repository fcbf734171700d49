/* Tiers: a window is interpreted a fixed number of times, and meanwhile its programs are compiled
 * in the background. The number depends on the window's structure alone, never on time or on what
 * is cached, so that a program gives the same numbers each time it is run.
 */
#ifndef TPU_ENGINE_TIER_H_
#define TPU_ENGINE_TIER_H_

#include "engine/state.h"

/* Whether this occurrence of the window is interpreted. Begins to build its programs when it is
 * time, with the window's numbers `slots`, `live` and `external_dead`. */
TPU_MUST_USE tpu_status_t tpui_tier_choose(tpu_engine_t* e, tpui_plan_t* plan,
                                           const tpu_slot_t* slots, const uint8_t* live,
                                           const uint8_t* external_dead, bool* out_interpret);

/* The window will come again, and with the same results each time: it is interpreted at most once,
 * and built meanwhile if that takes a while. */
void tpui_tier_expect(tpui_plan_t* plan);

/* Takes what was built for the plan into its variants. False when it isn't finished, or when jobs
 * in flight must land first. */
bool tpui_tier_adopt(tpu_engine_t* e, tpui_plan_t* plan);
/* Waits until the plan's build, if there is one, is finished, or until it is told to stop. */
TPU_MUST_USE tpu_status_t tpui_tier_wait(tpu_engine_t* e, const tpui_plan_t* plan);

/* Waits for all builds; those that have not begun to compile are given up. */
void tpui_tier_stop(tpu_engine_t* e);

#endif  // TPU_ENGINE_TIER_H_
