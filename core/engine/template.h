/* Templates: the records that one call made, to be appended again for other inputs; and captures,
 * which watch such a call. Everything belongs to the engine lock.
 */
#ifndef TPU_ENGINE_TEMPLATE_H_
#define TPU_ENGINE_TEMPLATE_H_

#include <pthread.h>

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

/* Where an input lay when the capture began, in bytes of its storage. */
typedef struct tpui_captured_input_t {
  tpu_value_t* value;  // retained; NULL for inputs that are no tensors
  tpu_meta_id_t view;
  int64_t begin, end;
} tpui_captured_input_t;

typedef struct tpui_capture_t {
  pthread_t thread;
  const char* obstacle;  // why these records can be no template
  bool interrupted;      // another thread came between: no template, but only this time
  uint32_t first_record, first_value;
  uint64_t first_serial;  // storages with greater ones were made inside
  tpui_captured_input_t* inputs;
  int input_count;
  tpu_value_t** constants;  // retained
  size_t constant_count, constant_capacity;
} tpui_capture_t;

#endif  // TPU_ENGINE_TEMPLATE_H_
