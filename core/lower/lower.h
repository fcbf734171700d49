/* A program -> StableHLO text.
 *
 * Byte-stable: equal programs give equal text (the compile cache keys on it). The text never holds
 * window value numbers, metadata ids, addresses or the value of a dynamic slot.
 *
 * Arguments of @main: first the program's inputs in order, each with its value's dtype and sizes
 * (row-major), then the dynamic slots in two packed vectors, each present only when not empty:
 * tensor<Kxf64> for float scalars and tensor<Kxi64> for integer scalars and view offsets. A dynamic
 * view offset contributes one int64 per sliced factor of its plan (the starts), not the flat offset.
 * Results: the program's outputs in order, with their values' dtypes and sizes.
 */
#ifndef TPU_LOWER_LOWER_H_
#define TPU_LOWER_LOWER_H_

#include "base/strbuf.h"
#include "partition/program.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where a packed number comes from, so that launch/ can fill the vectors. */
typedef struct tpu_packed_slot_t {
  uint32_t slot;       // window slot
  int32_t factor;      // -1: the slot itself; else: start of this factor of the view plan
  tpu_meta_id_t base;  // view offsets: metadata of the base value (in the view's element size)
  tpu_meta_id_t view;
} tpu_packed_slot_t;

typedef struct tpu_lowered_t {
  tpu_strbuf_t text;
  uint32_t double_count;
  tpu_packed_slot_t* doubles;  // owned
  uint32_t int_count;
  tpu_packed_slot_t* ints;  // owned
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
