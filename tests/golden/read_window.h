/* Reads a window back from the text of tpu_window_print_whole (trace/print.h): what a test case or
 * a tool is given instead of a running engine.
 */
#ifndef TPU_TESTS_GOLDEN_READ_WINDOW_H_
#define TPU_TESTS_GOLDEN_READ_WINDOW_H_

#include "trace/print.h"
#include "trace/recorder.h"

typedef struct golden_window_t {
  tpu_window_t window;    // borrows from `recorder`
  uint8_t* live;          // [value_count]
  uint8_t* dead;          // [external_count]
  uint8_t* slot_dynamic;  // [slot_count]
  tpu_value_pool_t pool;
  tpu_recorder_t recorder;
  tpu_value_t** values;  // [value_count] one reference each
  size_t value_count, value_capacity;
  tpu_value_t** externals;  // [external_count] one reference each
  size_t external_count, external_capacity, dead_capacity, live_capacity, dynamic_capacity;
} golden_window_t;

/* Reads all of `text`. Errors name the line and what was expected there. */
TPU_MUST_USE tpu_status_t golden_window_read(const char* text, golden_window_t* out_window);
/* Also for what a failed read has left. */
void golden_window_free(golden_window_t* window);
/* Appends the text again. */
void golden_window_print(const golden_window_t* window, tpu_strbuf_t* text);

#endif  // TPU_TESTS_GOLDEN_READ_WINDOW_H_
