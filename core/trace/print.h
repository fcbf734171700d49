/* A window as text, for logs and tests.
 *
 *   ext0 = f32[4,8]
 *   ext1 = f32[64] dead
 *   %0 = relu(ext0) -> f32[4,8]
 *   %1 = add(%0, ext1[view f32[4,8]s(8,1)+16], $0.3) -> f32[4,8]
 *   %2, %3 = max_dim(%1){1, 0} -> f32[4], i64[4]
 *   live %1, %3
 *
 * %n is value n of the window, extn its n-th external value. [view ...] is the view that an operand
 * reads (for view_write also the one it writes) and +n its offset in elements. Numbers are those
 * of the slots, with their dtype where they are not Python numbers; ? when the window has no slots.
 * In braces stand the attributes. `op_` was recorded in place, `op.out` with out= arguments.
 * Metadata shows strides where they are not row-major. `via f64` names the dtype that is computed
 * in when it is not the first result's (or not "none", for ops without promotion).
 *
 * The whole window (tpu_window_print_whole) says everything that its programs depend on: it begins
 * with its external values (`dead`: nobody else holds the value), `$` stands before numbers that
 * are arguments of the programs, and its last line lists the values that are needed afterwards.
 * tests/golden/read_window.h reads it back.
 */
#ifndef TPU_TRACE_PRINT_H_
#define TPU_TRACE_PRINT_H_

#include "base/strbuf.h"
#include "trace/trace.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Appends record `index` as one line, without the newline. */
void tpu_record_print(const tpu_window_t* window, uint32_t index, tpu_strbuf_t* text);
/* Appends all records, each with a newline. */
void tpu_window_print(const tpu_window_t* window, tpu_strbuf_t* text);

/* What is known about a window beside its structure when it becomes programs. NULL: not printed. */
typedef struct tpu_window_marks_t {
  const uint8_t* live;           // [value_count] 1: needed after the window
  const uint8_t* external_dead;  // [external_count] 1: nobody else holds it
  const uint8_t* slot_dynamic;   // [slot_count] 1: an argument of the programs
} tpu_window_marks_t;

/* Appends externals, records and live values, a line each. */
void tpu_window_print_whole(const tpu_window_t* window, const tpu_window_marks_t* marks,
                            tpu_strbuf_t* text);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_TRACE_PRINT_H_
