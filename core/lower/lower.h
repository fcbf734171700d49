/* A program -> StableHLO text.
 *
 * Byte-stable: equal programs give equal text (the compile cache keys on it). The text never holds
 * window value numbers, metadata ids, addresses or the value of a dynamic slot.
 *
 * Arguments of @main: first the program's inputs in order, each with its value's dtype and sizes
 * (row-major), then the numbers of the dynamic slots (packed.h).
 * Results: the program's outputs in order, with their values' dtypes and sizes; then, if it checks
 * its data, what the checks found (check.h).
 */
#ifndef TPU_LOWER_LOWER_H_
#define TPU_LOWER_LOWER_H_

#include "base/strbuf.h"
#include "lower/check.h"
#include "lower/packed.h"
#include "partition/program.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tpu_lowered_t {
  tpu_strbuf_t text;
  tpu_packed_t packed;
  tpu_checks_t* checks;  // one reference; NULL: none
} tpu_lowered_t;

/* Lowers a program. On failure the text names the operation and what it could not do;
 * TPU_UNIMPLEMENTED when an op, dtype or attribute has no lowering. */
TPU_MUST_USE tpu_status_t tpu_lower_program(const tpu_program_t* program,
                                            tpu_lowered_t* out_lowered);
void tpu_lowered_free(tpu_lowered_t* lowered);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_LOWER_LOWER_H_
