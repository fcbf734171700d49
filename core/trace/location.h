/* Where in the user's program ops are recorded, such as "train.py:12". The caller of the core finds
 * out and says so before it records; records and errors carry the number.
 */
#ifndef TPU_TRACE_LOCATION_H_
#define TPU_TRACE_LOCATION_H_

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef uint32_t tpu_location_t;  // 0: nowhere known

/* The number of this text, which is copied. Equal texts have equal numbers; none is ever freed. */
TPU_MUST_USE tpu_status_t tpu_location_intern(const char* text, tpu_location_t* out_location);
/* Lives forever; NULL for 0. */
const char* tpu_location_text(tpu_location_t location);

/* Where this thread records from now on. */
void tpu_location_set(tpu_location_t location);
tpu_location_t tpu_location_get(void);

/* Puts " (recorded at <text>)" behind the error's text. Takes and returns `status`; NULL and
 * nowhere change nothing. */
TPU_MUST_USE tpu_status_t tpu_location_append(tpu_status_t status, tpu_location_t location);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_TRACE_LOCATION_H_
