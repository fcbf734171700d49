/* What holds the device's memory, for the text of an error. */
#ifndef TPU_ENGINE_HOLDERS_H_
#define TPU_ENGINE_HOLDERS_H_

#include "engine/flight.h"

/* Adds a table of the largest contents (how many, bytes, dtype and sizes, the op that made them) to
 * a TPU_RESOURCE_EXHAUSTED; gives all others and NULL back as they are. Takes `status`. For the
 * flight that runs (its results so far are counted), or while none does (NULL). */
TPU_MUST_USE tpu_status_t tpui_add_holders(const tpu_engine_t* engine, const tpui_flight_t* flight,
                                           tpu_status_t status);

#endif  // TPU_ENGINE_HOLDERS_H_
