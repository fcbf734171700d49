/* Why programs were made: which fact about a window was new. */
#ifndef TPU_ENGINE_REASON_H_
#define TPU_ENGINE_REASON_H_

#include "engine/state.h"

/* Notes, and logs under the topic `compile`, that the plan gets a new set of programs for these
 * numbers and results, and why. Before the set is made. */
void tpui_reason_note(tpu_engine_t* e, const tpui_plan_t* plan, const tpu_slot_t* slots,
                      const uint8_t* live);

/* Frees what was noted. */
void tpui_reasons_free(tpu_engine_t* e);

#endif  // TPU_ENGINE_REASON_H_
