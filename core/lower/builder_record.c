/* Operands and results of the record that is being lowered. */
#include <string.h>

#include "lower/builder_internal.h"

int tpui_operand_count(const tpui_lowering_t* op) { return op->record->operand_count; }

bool tpui_has_operand(const tpui_lowering_t* op, int k) {
  return k >= 0 && k < op->record->operand_count &&
         tpu_ref_kind(tpu_record_ref(op->record, k)) != TPU_REF_NONE;
}

static bool is_tensor(const tpui_lowering_t* op, int k) {
  if (!tpui_has_operand(op, k)) return false;
  return tpu_ref_kind(tpu_record_ref(op->record, k)) != TPU_REF_SCALAR;
}

/* Metadata through which operand k is seen; the value's own when there is no view. */
const tpu_meta_t* tpui_operand_meta(const tpui_lowering_t* op, int k) {
  if (!is_tensor(op, k)) return NULL;
  tpu_meta_id_t view = tpu_record_view(op->record, k);
  if (view != 0) return tpu_meta_get(view);
  return tpu_meta_get(tpu_window_ref_meta(op->b->window, tpu_record_ref(op->record, k)));
}

bool tpui_slot_is_dynamic(const tpui_builder_t* b, uint32_t slot) {
  return b->slot_packed != NULL && slot < b->window->slot_count && b->slot_packed[slot] >= 0;
}

const tpu_packed_slot_t* tpui_packed_slot(const tpui_builder_t* b, uint32_t slot) {
  return tpui_slot_is_dynamic(b, slot) ? &b->packed->slots[b->slot_packed[slot]] : NULL;
}

tpui_hlo_t tpui_packed_number(tpui_builder_t* b, bool is_double, int32_t position) {
  uint64_t key[4] = {TPUI_MEMO_NUMBER, is_double, (uint64_t)position, 0};
  tpui_hlo_t result;
  if (!tpui_ok(b)) return tpui_harmless();
  if (tpui_memo_get(b, key, &result)) return result;
  tpui_hlo_t packed = is_double ? b->packed_doubles : b->packed_ints;
  result = tpui_reshape(b, tpui_slice_dim(b, packed, 0, position, position + 1), 0, NULL);
  tpui_memo_put(b, key, result);
  return result;
}

static tpui_hlo_t scalar_operand(const tpui_lowering_t* op, int k) {
  tpui_builder_t* b = op->b;
  tpu_dtype_t dtype = tpu_ref_scalar_dtype(tpu_record_ref(op->record, k));
  uint32_t slot = tpu_record_slot(op->record, k);
  bool is_double = tpu_dtype_kind(dtype) >= TPU_KIND_FLOAT;
  if (tpui_slot_is_dynamic(b, slot)) {
    int32_t position = is_double ? b->slot_packed[slot] : (int32_t)tpui_packed_slot(b, slot)->first;
    return tpui_convert(b, tpui_packed_number(b, is_double, position), dtype);
  }
  tpu_slot_t number = b->window->slots[slot];
  return is_double ? tpui_constant(b, dtype, number.as_double)
                   : tpui_constant_int(b, dtype, number.as_int);
}

bool tpui_operand_constant(const tpui_lowering_t* op, int k, double* out_value) {
  *out_value = 0.0;
  if (!tpui_has_operand(op, k) || is_tensor(op, k)) return false;
  uint32_t slot = tpu_record_slot(op->record, k);
  if (tpui_slot_is_dynamic(op->b, slot)) return false;
  tpu_dtype_t dtype = tpu_ref_scalar_dtype(tpu_record_ref(op->record, k));
  tpu_slot_t number = op->b->window->slots[slot];
  bool is_double = tpu_dtype_kind(dtype) >= TPU_KIND_FLOAT;
  *out_value = is_double ? number.as_double : (double)number.as_int;
  return true;
}

tpui_hlo_t tpui_base_value(tpui_builder_t* b, uint32_t ref) {
  bool window = tpu_ref_kind(ref) == TPU_REF_WINDOW;
  tpui_hlo_t base = (window ? b->values : b->externals)[tpu_ref_index(ref)];
  if (base.id == TPUI_ID_ERROR) {
    tpui_fail(b, TPU_INTERNAL, "%s value %u is neither an input nor made before its use",
              window ? "window" : "external", tpu_ref_index(ref));
  }
  return base;
}

static tpui_hlo_t tensor_operand(const tpui_lowering_t* op, int k) {
  tpui_builder_t* b = op->b;
  uint32_t ref = tpu_record_ref(op->record, k);
  tpui_hlo_t base = tpui_base_value(b, ref);
  if (!tpui_ok(b) || (ref & TPU_REF_VIEW_BIT) == 0) return base;
  tpu_meta_id_t view = tpu_record_view(op->record, k);
  uint32_t slot = tpu_record_slot(op->record, k);
  const tpu_packed_slot_t* packed = tpui_packed_slot(b, slot);
  uint64_t number = packed != NULL ? packed->first : b->window->slots[slot].bits;
  uint64_t key[4] = {TPUI_MEMO_VIEW | (uint64_t)(packed != NULL) << 8, (uint64_t)(int64_t)base.id,
                     view, number};
  tpui_hlo_t result;
  if (tpui_memo_get(b, key, &result)) return result;
  const tpu_meta_t* base_meta = tpu_meta_get(tpu_window_ref_meta(b->window, ref));
  result = tpui_view_read(b, base, base_meta, tpu_meta_get(view), slot);
  tpui_memo_put(b, key, result);
  return result;
}

tpui_hlo_t tpui_operand(const tpui_lowering_t* op, int k) {
  if (!tpui_ok(op->b)) return tpui_harmless();
  if (!tpui_has_operand(op, k)) {
    tpui_fail(op->b, TPU_INTERNAL, "operand %d is missing", k);
    return tpui_harmless();
  }
  return is_tensor(op, k) ? tensor_operand(op, k) : scalar_operand(op, k);
}

/* A fixed number as a constant of another dtype, when that gives what a conversion would. */
static bool constant_as(const tpui_lowering_t* op, int k, tpu_dtype_t dtype, tpui_hlo_t* out) {
  double value;
  if (!tpui_ok(op->b) || !tpui_operand_constant(op, k, &value)) return false;
  tpu_dtype_t from = tpu_ref_scalar_dtype(tpu_record_ref(op->record, k));
  bool from_float = from == TPU_F64, to_float = tpu_dtype_is_float(dtype);
  bool exact = value >= -9007199254740992.0 && value <= 9007199254740992.0;
  if (!to_float || (!from_float && !(tpu_dtype_is_integral(from) && exact))) return false;
  *out = tpui_constant(op->b, dtype, value);
  return true;
}

tpui_hlo_t tpui_operand_as(const tpui_lowering_t* op, int k, tpu_dtype_t dtype) {
  tpui_hlo_t constant;
  if (constant_as(op, k, dtype, &constant)) return constant;
  return tpui_convert(op->b, tpui_operand(op, k), dtype);
}

/* --- results --- */

bool tpui_is_gathered(const tpui_lowering_t* op, int k) {
  if (!is_tensor(op, k)) return false;
  uint32_t ref = tpu_record_ref(op->record, k);
  bool window = tpu_ref_kind(ref) == TPU_REF_WINDOW;
  return (window ? op->b->value_gathered : op->b->external_gathered)[tpu_ref_index(ref)] != 0;
}

bool tpui_writes_through(const tpui_lowering_t* op) {
  return op->record->variant == TPU_CALL_THROUGH;
}

const tpu_meta_t* tpui_result_meta(const tpui_lowering_t* op, int k) {
  if (k == 0 && tpui_writes_through(op)) return tpui_operand_meta(op, 0);
  if (k < 0 || k >= op->record->result_count) return NULL;
  return tpu_meta_get(op->record->results[k]);
}

bool tpui_result_needed(const tpui_lowering_t* op, int k) {
  if (k < 0 || k >= op->record->result_count) return false;
  return op->b->value_needed[op->record->first_value + (uint32_t)k] != 0;
}

static bool same_sizes(tpui_hlo_t x, const tpu_meta_t* meta) {
  return x.rank == meta->rank &&
         memcmp(x.sizes, meta->sizes, (size_t)x.rank * sizeof(int64_t)) == 0;
}

void tpui_set_result(const tpui_lowering_t* op, int k, tpui_hlo_t value) {
  tpui_builder_t* b = op->b;
  const tpu_meta_t* meta = tpui_result_meta(op, k);
  if (!tpui_ok(b)) return;
  if (meta == NULL) {
    tpui_fail(b, TPU_INTERNAL, "no result %d", k);
    return;
  }
  value = tpui_convert(b, value, meta->dtype);
  if (value.rank == 0) value = tpui_broadcast_to(b, value, meta->rank, meta->sizes);
  if (tpui_ok(b) && !same_sizes(value, meta)) {
    tpui_fail(b, TPU_INTERNAL, "result %d has sizes [%s], expected [%s]", k,
              tpui_text_ints(b, value.rank, value.sizes),
              tpui_text_ints(b, meta->rank, meta->sizes));
    return;
  }
  if (k == 0 && tpui_writes_through(op)) {
    tpui_view_write_result(op, value);
    return;
  }
  b->values[op->record->first_value + (uint32_t)k] = value;
}
