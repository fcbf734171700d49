/* Checks: what a program finds out about its data while it runs, such as the greatest index.
 *
 * All checks of a program leave it as one more result behind its outputs, i64[count]. Element k is
 * the unsigned maximum of what was checked, less the row's `lowest`: it is in order below the row's
 * `span`, so that one reduction and one comparison find numbers on both sides.
 */
#ifndef TPU_LOWER_CHECK_H_
#define TPU_LOWER_CHECK_H_

#include "ops/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tpu_check_t {
  tpu_op_t op;
  uint32_t record;         // index in the window
  int32_t dim;             // that is indexed; -1: none, or all
  tpu_status_code_t code;  // of the error
  int64_t lowest;
  uint64_t span;
  const char* text;  // literal that says what is wrong; NULL: an index is out of range
} tpu_check_t;

/* The checks of one program. Shared by its step and by runs that nobody has looked at yet, on any
 * thread; unchanged once lowered. */
typedef struct tpu_checks_t {
  _Atomic int32_t refs;
  uint32_t count;
  size_t capacity;
  tpu_check_t* rows;
} tpu_checks_t;

/* Adds a row; makes the object, with one reference, when `*inout_checks` is NULL. */
TPU_MUST_USE tpu_status_t tpu_checks_add(tpu_checks_t** inout_checks, const tpu_check_t* row);
void tpu_checks_retain(tpu_checks_t* checks);
void tpu_checks_release(tpu_checks_t* checks);  // NULL is fine

/* The first row that is not in order, or NULL. `numbers` [count] is the program's result. */
const tpu_check_t* tpu_checks_failed(const tpu_checks_t* checks, const int64_t* numbers,
                                     int64_t* out_number);
/* The error for `number`, which was found by the row's check. `place` says where it was recorded
 * and ends the text. */
TPU_MUST_USE tpu_status_t tpu_check_error(const tpu_check_t* row, int64_t number,
                                          const char* place);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_LOWER_CHECK_H_
