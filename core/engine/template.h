/* Templates: the records that one call made, to be appended again for other inputs. Everything
 * belongs to the engine lock.
 */
#ifndef TPU_ENGINE_TEMPLATE_H_
#define TPU_ENGINE_TEMPLATE_H_

#include "engine/engine.h"
#include "trace/trace.h"
#include "trace/value.h"

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
  uint32_t* results;            // per result, the number of an own value ...
  tpu_meta_id_t* result_views;  // ... and how the tensor over it looks
  uint32_t result_count;
};

/* A template with room for this much and nothing in it. `words` are those of its records. */
TPU_MUST_USE tpu_status_t tpui_template_create(tpu_engine_t* engine, const char* name, size_t words,
                                               size_t inputs, size_t constants, size_t results,
                                               tpu_template_t** out_template);
/* tpu_template_destroy for those who hold the lock. */
void tpui_template_free(tpu_template_t* made);

#endif  // TPU_ENGINE_TEMPLATE_H_
