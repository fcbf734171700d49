/* Templates: the records that one call made, to be appended again for other inputs. Everything
 * belongs to the engine lock.
 */
#ifndef TPU_ENGINE_TEMPLATE_H_
#define TPU_ENGINE_TEMPLATE_H_

#include "engine/engine.h"
#include "trace/trace.h"
#include "trace/value.h"

/* A tensor that comes out: a view of a storage that holds an own value. */
typedef struct tpui_template_result_t {
  uint32_t value;  // its number
  uint32_t first;  // the first result over the same storage; itself if it is that
  tpu_meta_id_t view;
  int64_t offset, storage_bytes;
} tpui_template_result_t;

/* One allocation. `words` are records as in trace.h, with these references:
 *   WINDOW    a value that the template makes itself, numbered from 0
 *   EXTERNAL  below input_count an input, always with the view bit: its slot is the distance in
 *             bytes from the input's first element. From there on a constant
 *   SCALAR, NONE as in a window
 */
struct tpu_template_t {
  tpu_engine_t* engine;
  const char* name;
  uint32_t* words;
  uint32_t word_count, record_count, value_count;
  tpu_slot_t* slots;
  tpu_meta_id_t* input_views;  // what each input must look like; 0 for those that are no tensors
  uint32_t input_count;
  tpu_value_t** constants;  // retained
  uint32_t constant_count;
  tpui_template_result_t* results;
  uint32_t result_count;
  // Per input, 1 + the number of the own value that its storage gets, or 0: it is only read.
  uint32_t* writes;
  uint32_t* random_slots;  // ascending: of each seed and, right after it, of its offset
  uint32_t random_slot_count;
  // Ascending: slots that get a number of the call, and which one.
  uint32_t *number_slots, *number_places;
  uint32_t number_count;
  bool recurs;  // see tpu_capture_options_t
};

/* How much a template has room for. `words` are those of its records. */
typedef struct tpui_template_room_t {
  size_t words, inputs, constants, results;
} tpui_template_room_t;

/* A template with nothing in it. */
TPU_MUST_USE tpu_status_t tpui_template_create(tpu_engine_t* engine, const char* name,
                                               const tpui_template_room_t* room,
                                               tpu_template_t** out_template);
/* tpu_template_destroy for those who hold the lock. */
void tpui_template_free(tpu_template_t* made);

#endif  // TPU_ENGINE_TEMPLATE_H_
