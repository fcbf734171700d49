/* A window as text, for logs and tests.
 *
 *   %5 = add(%3, ext1[view f32[4,8]s(8,1)+16], 2.0) -> f32[4,8]
 *   %6, %7 = max(%5){1, 0} -> f32[4], i64[4]
 *
 * %n is value n of the window, extn its n-th external value. [view ...] is the view that an operand
 * reads (for view_write also the one it writes) and +n its offset in elements. Numbers are those
 * of the slots, with their dtype where they are not Python numbers; ? when the window has no slots.
 * In braces stand the attributes. `op_` was recorded in place, `op.out` with out= arguments. Results
 * show strides where they are not row-major. `via f64` names the dtype that is computed in when it
 * is not the result's.
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

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_TRACE_PRINT_H_
