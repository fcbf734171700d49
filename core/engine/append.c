#include "engine/append.h"

#include "engine/watch.h"

tpu_status_t tpui_record_internal(tpui_lane_t* lane, tpu_op_t op, int operand_count,
                                  const tpui_internal_operand_t* operands, tpu_meta_id_t result,
                                  tpu_value_t** out_value) {
  *out_value = NULL;
  if (TPU_UNLIKELY(lane->capture != NULL)) tpui_capture_touched(lane, NULL);
  for (int k = 0; k < operand_count; ++k) {
    const tpu_value_t* value = operands[k].value;
    if (value != NULL && value->state == TPU_VALUE_FAILED)
      return tpu_status_copy(value->failed.error);
  }
  TPU_RETURN_IF_ERROR(tpu_recorder_begin(&lane->recorder, operand_count, 1));
  for (int k = 0; k < operand_count; ++k) {
    const tpui_internal_operand_t* operand = &operands[k];
    if (operand->value != NULL) {
      tpu_recorder_tensor(&lane->recorder, operand->value, operand->view, operand->number);
    } else {
      tpu_recorder_scalar(&lane->recorder, TPU_I64, false, operand->view,
                          (tpu_slot_t){.as_int = operand->number});
    }
  }
  return tpu_recorder_commit(&lane->recorder, op, operand_count, 1, TPU_CALL_FUNCTIONAL, 0,
                             TPU_DTYPE_INVALID, &result, out_value);
}
