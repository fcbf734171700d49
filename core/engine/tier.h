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

/* Makes a variant for this window. The user can stop waiting for the compiler
 * (tpu_engine_set_stop): so it is made by another thread, and `*out_variant` is NULL until that is
 * done and adopted; also while builds are given up. Where nobody can stop waits, or no thread is to
 * be had, it is made here. */
TPU_MUST_USE tpu_status_t tpui_tier_make(tpu_engine_t* e, tpui_plan_t* plan,
                                         const tpu_slot_t* slots, const uint8_t* live,
                                         const uint8_t* external_dead,
                                         tpui_variant_t** out_variant);
/* Takes what was built for the plan into its variants. `*out_ready` is false when it isn't
 * finished, or when jobs in flight must land first. `*out_variant`: what tpui_tier_make was asked
 * for and is to be run also if some of its steps only say why they failed. */
TPU_MUST_USE tpu_status_t tpui_tier_adopt(tpu_engine_t* e, tpui_plan_t* plan,
                                          const tpu_slot_t* slots, const uint8_t* live,
                                          bool* out_ready, tpui_variant_t** out_variant);
/* Waits until the plan's build, if there is one, is finished and none is given up any more, or
 * until it is told to stop. */
TPU_MUST_USE tpu_status_t tpui_tier_wait(tpu_engine_t* e, const tpui_plan_t* plan);

/* Waits for all builds; those that have not begun to compile are given up. */
void tpui_tier_stop(tpu_engine_t* e);

#endif  // TPU_ENGINE_TIER_H_
