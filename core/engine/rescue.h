/* Running a flight's job, and what is done when a step of it fails: memory is freed and the step
 * tried again, then its ops one by one, so that only those fail that must. Everything is kept that
 * a tensor has to go back to. docs/decisions/012-run-failures.md has the whole order.
 */
#ifndef TPU_ENGINE_RESCUE_H_
#define TPU_ENGINE_RESCUE_H_

#include "engine/flight.h"

/* What became of a value of the window, once a step has failed. */
typedef enum tpui_made_t {
  TPUI_NOT_MADE,  // its turn has not come, or nobody needed it
  TPUI_MADE,      // it was there, and may have been released since
  TPUI_FAILED,    // its op failed, or one that it depends on
} tpui_made_t;

typedef struct tpui_rescue_t {
  uint8_t* made;             // [value_count] tpui_made_t
  uint8_t* held_values;      // [value_count] a tensor may have to go back to it
  uint8_t* held_externals;   // [external_count]
  uint8_t* due;              // [value_count] to be released once it is not held
  uint32_t* undo_externals;  // [undo_count] number of the external that was replaced; UINT32_MAX
  uint32_t* records;         // [record_count] scratch, like the rest
  uint8_t* live;             // [value_count]
  uint8_t* dead;             // [external_count]
} tpui_rescue_t;

/* Runs all steps, without the engine's lock unless flight->locked. The results are the job's
 * buffers; the first failure is its error, and flight->rescue then says which values failed. */
void tpui_flight_run(tpui_flight_t* flight);

#endif  // TPU_ENGINE_RESCUE_H_
