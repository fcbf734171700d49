/* The recorder: the window that is being filled.
 *
 * It holds a reference to every external value (that keeps inputs alive), but none to the values
 * that its records make: an entry in `values` turns NULL when the last storage lets go, and that is
 * how dead results are known at the flush. All calls belong to the engine lock. Recorders that
 * share a pool may list the same externals; a value that one of them made and that is still
 * RECORDED is no operand of another one's.
 *
 * Invariant: record k's words are words[record_words[k] .. record_words[k+1]).
 */
#ifndef TPU_TRACE_RECORDER_H_
#define TPU_TRACE_RECORDER_H_

#include "trace/location.h"
#include "trace/trace.h"
#include "trace/value.h"

typedef struct tpu_recorder_t {
  uint32_t window_id;  // changes with every reset; never 0
  bool traces;         // notes where ops are recorded
  tpu_value_pool_t* pool;

  uint32_t* words;
  size_t word_count, word_capacity;
  uint32_t *record_words, *record_values, *record_slots;
  tpu_location_t* record_locations;  // 0 unless `traces`
  size_t record_count, record_capacity;
  tpu_meta_id_t* value_metas;
  uint32_t* value_records;
  tpu_value_t** values;  // borrowed; NULL once dead
  size_t value_count, value_capacity;
  tpu_value_t** externals;  // retained
  tpu_meta_id_t* external_metas;
  size_t external_count, external_capacity;
  // Open addressing by value: number + 1 of the first `found_count` externals. Only used where a
  // value's own note of its number may be another recorder's.
  uint32_t* found;
  size_t found_count, found_capacity;
  tpu_slot_t* slots;
  size_t slot_count, slot_capacity;

  // The window that is expected; NULL when what was recorded has left it.
  const tpu_window_t* predicted;

  // The record being built; see tpu_recorder_begin.
  uint32_t draft_words, draft_slots, draft_externals;
} tpu_recorder_t;

void tpu_recorder_init(tpu_recorder_t* recorder, tpu_value_pool_t* pool);
void tpu_recorder_free(tpu_recorder_t* recorder);

/* Empties the window: drops references to externals and starts to expect `predicted` (may be NULL;
 * borrowed until the next reset). RECORDED values must have been fulfilled or failed. */
void tpu_recorder_reset(tpu_recorder_t* recorder, const tpu_window_t* predicted);

/* Building a record: begin, operands in order, then either commit or abandon.
 * begin makes room for everything that the record can need, so the steps between cannot fail for
 * memory except a new external. */
TPU_MUST_USE tpu_status_t tpu_recorder_begin(tpu_recorder_t* recorder, int operand_count,
                                             int result_count);
/* A value read through `view` at `offset` (identity when view == value->meta and offset == 0). */
void tpu_recorder_tensor(tpu_recorder_t* recorder, tpu_value_t* value, tpu_meta_id_t view,
                         int64_t offset);
void tpu_recorder_scalar(tpu_recorder_t* recorder, tpu_dtype_t dtype, bool wrapped,
                         tpu_meta_id_t view, tpu_slot_t number);
void tpu_recorder_none(tpu_recorder_t* recorder);

/* When the draft equals the expected window's record at this place, points at that record's words;
 * NULL otherwise. Call after the operands, with the header that commit will get. */
const uint32_t* tpu_recorder_match(tpu_recorder_t* recorder, tpu_op_t op, int operand_count,
                                   int result_count, uint8_t variant, tpu_attrs_id_t attrs);

/* Ends the record. Gives one new value per result (one reference each, the caller's). On failure
 * the draft is abandoned. */
TPU_MUST_USE tpu_status_t tpu_recorder_commit(tpu_recorder_t* recorder, tpu_op_t op,
                                              int operand_count, int result_count, uint8_t variant,
                                              tpu_attrs_id_t attrs, tpu_dtype_t compute_dtype,
                                              const tpu_meta_id_t* result_metas,
                                              tpu_value_t** out_values);
void tpu_recorder_abandon(tpu_recorder_t* recorder);

/* The window as a structure, borrowed until the next record. */
void tpu_recorder_window(const tpu_recorder_t* recorder, tpu_window_t* out_window);

#endif  // TPU_TRACE_RECORDER_H_
