/* Appending the engine's own ops to the window: views, zeros, resizes. */
#ifndef TPU_ENGINE_APPEND_H_
#define TPU_ENGINE_APPEND_H_

#include "engine/state.h"

/* Operands are values here, so that storages need none. */
typedef struct tpui_internal_operand_t {
  tpu_value_t* value;  // NULL: the scalar `number` with `view` as its view word
  tpu_meta_id_t view;
  int64_t number;  // offset of the view, or the scalar
} tpui_internal_operand_t;

/* Records an internal op with one result. */
TPU_MUST_USE tpu_status_t tpui_record_internal(tpui_lane_t* lane, tpu_op_t op, int operand_count,
                                               const tpui_internal_operand_t* operands,
                                               tpu_meta_id_t result, tpu_value_t** out_value);

#endif  // TPU_ENGINE_APPEND_H_
