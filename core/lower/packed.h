/* Packed numbers: how the slots that vary reach a program. lower/ writes the text by this protocol,
 * launch/ fills the vectors, and the plan cache asks whether a program can serve other offsets.
 *
 * A program has up to two vectors as its last arguments, each present only when not empty:
 * tensor<Kxf64> for float scalars, then tensor<Kxi64> for all else. An integer scalar is one
 * number. The offset of a view is
 *   nothing              where the view reads no elements or all of them in place
 *   the offset itself    where the text needs it flat: gathers, and slices with steps
 *   one start per sliced factor of the view's plan (ops/views.h), in the plan's order, otherwise
 * The structure of the plan is part of the text, so an offset with another structure does not fit.
 */
#ifndef TPU_LOWER_PACKED_H_
#define TPU_LOWER_PACKED_H_

#include "ops/views.h"
#include "trace/trace.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A slot behind numbers of the integer vector. */
typedef struct tpu_packed_slot_t {
  uint32_t slot;          // window slot
  uint32_t first;         // its first number in the vector
  tpu_view_plan_t* plan;  // a view's offset: the plan that the text was written for; owned
} tpu_packed_slot_t;

typedef struct tpu_packed_t {
  uint32_t double_count;     // numbers in the float vector
  uint32_t* doubles;         // [double_count] window slots; owned
  uint32_t int_count;        // numbers in the integer vector
  uint32_t slot_count;       // what they come from
  tpu_packed_slot_t* slots;  // [slot_count] in the vector's order; owned
  size_t double_capacity, slot_capacity;
} tpu_packed_t;

void tpu_packed_free(tpu_packed_t* packed);

TPU_MUST_USE tpu_status_t tpu_packed_add_double(tpu_packed_t* packed, uint32_t slot);
TPU_MUST_USE tpu_status_t tpu_packed_add_int(tpu_packed_t* packed, uint32_t slot);
/* Copies the plan, which is that of the slot's present offset. */
TPU_MUST_USE tpu_status_t tpu_packed_add_offset(tpu_packed_t* packed, uint32_t slot,
                                                const tpu_view_plan_t* plan);

/* True when an offset of this view travels flat. */
bool tpu_packed_plan_is_flat(const tpu_view_plan_t* plan);

/* True when the program can read its views at the offsets in `slots` (a window's). */
bool tpu_packed_fits(const tpu_packed_t* packed, const tpu_slot_t* slots);
/* Write double_count and int_count numbers; the latter is false when an offset does not fit. */
void tpu_packed_fill_doubles(const tpu_packed_t* packed, const tpu_slot_t* slots, double* out);
bool tpu_packed_fill_ints(const tpu_packed_t* packed, const tpu_slot_t* slots, int64_t* out);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_LOWER_PACKED_H_
