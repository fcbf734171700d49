/* tpu_lower_program: packs the dynamic slots, lowers each record, writes the signature. */
#include <string.h>

#include "base/alloc.h"
#include "lower/builder_internal.h"
#include "lower/op_lowering.h"

#define NO_OUTPUT (-1)

/* --- dynamic slots --- */

static tpu_status_t pack_number(tpui_builder_t* b, uint32_t slot, bool is_double) {
  b->slot_packed[slot] = (int32_t)(is_double ? b->packed->double_count : b->packed->slot_count);
  return is_double ? tpu_packed_add_double(b->packed, slot) : tpu_packed_add_int(b->packed, slot);
}

/* The plan's structure is that of the slot's present value. */
static tpu_status_t pack_offset(tpui_builder_t* b, uint32_t slot, tpu_meta_id_t base,
                                tpu_meta_id_t view_id, bool apart) {
  const tpu_meta_t *view = tpu_meta_get(view_id), *base_meta = tpu_meta_get(base);
  tpu_view_plan_t plan;
  if (view == NULL || base_meta == NULL) {
    return tpu_status_make(TPU_INTERNAL, "view of a value without metadata");
  }
  if (view->numel == 0) return NULL;  // reads nothing: the offset has no effect
  TPU_RETURN_IF_ERROR(tpui_view_base_meta(base_meta, view->dtype, &base));
  int64_t offset = b->window->slots[slot].as_int;
  base_meta = tpu_meta_get(base);
  TPU_RETURN_IF_ERROR(apart ? tpu_view_plan_apart(base_meta, view, offset, &plan)
                            : tpu_view_plan(base_meta, view, offset, &plan));
  b->slot_packed[slot] = (int32_t)b->packed->slot_count;
  return tpu_packed_add_offset(b->packed, slot, &plan);
}

static tpu_status_t pack_record(tpui_builder_t* b, const tpu_record_t* record) {
  const tpu_program_t* program = b->program;
  for (tpu_slot_walk_t at = tpu_record_slots(record); tpu_record_next_slot(record, &at);) {
    if (program->slot_dynamic == NULL || program->slot_dynamic[at.slot] == 0) continue;
    uint32_t ref = tpu_record_ref(record, at.operand);
    bool scalar = tpu_ref_kind(ref) == TPU_REF_SCALAR;
    tpu_meta_id_t view = tpu_record_view(record, at.operand);
    if (scalar && view == 0) {
      tpu_dtype_t dtype = tpu_ref_scalar_dtype(ref);
      TPU_RETURN_IF_ERROR(pack_number(b, at.slot, tpu_dtype_kind(dtype) >= TPU_KIND_FLOAT));
      continue;
    }
    // A scalar with a view is the offset at which operand 0 is written.
    uint32_t base = scalar ? tpu_record_ref(record, 0) : ref;
    bool apart = at.operand == 0 && (tpu_op_info(record->op)->flags & TPU_OP_SPARSE) != 0;
    TPU_RETURN_IF_ERROR(
        pack_offset(b, at.slot, tpu_window_ref_meta(program->window, base), view, apart));
  }
  return NULL;
}

static tpu_status_t pack_slots(tpui_builder_t* b) {
  for (uint32_t i = 0; i < b->program->record_count; ++i) {
    tpu_record_t record;
    tpu_window_record(b->window, b->program->records[i], &record);
    TPU_RETURN_IF_ERROR(pack_record(b, &record));
  }
  return NULL;
}

/* --- values --- */

static void mark_gathered(tpui_builder_t* b, const tpu_record_t* record) {
  bool sparse = (tpu_op_info(record->op)->flags & TPU_OP_SPARSE) != 0;
  if (!sparse || record->variant == TPU_CALL_THROUGH) return;
  uint32_t ref = tpu_record_ref(record, 0);
  if (tpu_ref_kind(ref) == TPU_REF_WINDOW) b->value_gathered[tpu_ref_index(ref)] = 1;
  if (tpu_ref_kind(ref) == TPU_REF_EXTERNAL) b->external_gathered[tpu_ref_index(ref)] = 1;
}

static void mark_needed(tpui_builder_t* b) {
  for (uint32_t i = 0; i < b->program->record_count; ++i) {
    tpu_record_t record;
    tpu_window_record(b->window, b->program->records[i], &record);
    mark_gathered(b, &record);
    for (int k = 0; k < record.operand_count; ++k) {
      uint32_t ref = tpu_record_ref(&record, k);
      if (tpu_ref_kind(ref) == TPU_REF_WINDOW) b->value_needed[tpu_ref_index(ref)] = 1;
    }
  }
  for (uint32_t i = 0; i < b->program->output_count; ++i) {
    b->value_needed[b->program->outputs[i]] = 1;
  }
}

static tpui_hlo_t* new_values(tpui_builder_t* b, uint32_t count) {
  tpui_hlo_t* values = tpui_arena(b, (count > 0 ? count : 1) * sizeof(tpui_hlo_t));
  for (uint32_t i = 0; values != NULL && i < count; ++i) values[i] = tpui_harmless();
  return values;
}

static void bind_inputs(tpui_builder_t* b) {
  const tpu_program_t* program = b->program;
  uint32_t at = 0;
  for (; at < program->input_count; ++at) {
    uint32_t ref = program->inputs[at].ref;
    const tpu_meta_t* meta = tpu_meta_get(tpu_window_ref_meta(b->window, ref));
    if (meta == NULL) {
      tpui_fail(b, TPU_INTERNAL, "input %u has no metadata", at);
      return;
    }
    tpui_hlo_t* values = tpu_ref_kind(ref) == TPU_REF_WINDOW ? b->values : b->externals;
    values[tpu_ref_index(ref)] =
        tpui_value_make(b, TPUI_ID_ARGUMENT(at), meta->dtype, meta->rank, meta->sizes);
  }
  int64_t doubles = b->packed->double_count, ints = b->packed->int_count;
  if (doubles > 0) {
    b->packed_doubles = tpui_value_make(b, TPUI_ID_ARGUMENT(at++), TPU_F64, 1, &doubles);
  }
  if (ints > 0) b->packed_ints = tpui_value_make(b, TPUI_ID_ARGUMENT(at), TPU_I64, 1, &ints);
}

static tpu_status_t begin_program(tpui_builder_t* b) {
  const tpu_window_t* window = b->window;
  b->op_name = "";
  b->values = new_values(b, window->value_count);
  b->externals = new_values(b, window->external_count);
  b->value_needed = tpui_arena(b, window->value_count + 1);
  b->value_gathered = tpui_arena(b, window->value_count + 1);
  b->external_gathered = tpui_arena(b, window->external_count + 1);
  b->slot_packed = tpui_arena(b, (window->slot_count + 1) * sizeof(int32_t));
  b->packed_doubles = b->packed_ints = tpui_harmless();
  if (!tpui_ok(b)) return NULL;  // latched
  for (uint32_t i = 0; i < window->slot_count; ++i) b->slot_packed[i] = -1;
  TPU_RETURN_IF_ERROR(pack_slots(b));
  mark_needed(b);
  bind_inputs(b);
  return NULL;
}

/* --- records --- */

static void lower_record(tpui_builder_t* b, uint32_t index) {
  tpu_record_t record;
  tpu_window_record(b->window, index, &record);
  const tpu_op_info_t* info = tpu_op_info(record.op);
  tpui_op_lowering_t lowering = tpui_op_lowering(record.op);
  b->op_name = info->name;
  b->record_index = index;
  b->precision = (info->flags & TPU_OP_PRODUCTS) != 0 ? tpu_attrs_precision(record.attrs)
                                                      : TPU_PRECISION_HIGHEST;
  if (lowering.function == NULL) {
    tpui_fail(b, TPU_UNIMPLEMENTED, "no lowering for operation %d", (int)record.op);
    return;
  }
  tpui_lowering_t op = {.b = b, .record = &record, .argument = lowering.argument};
  lowering.function(&op);
  for (int k = 0; k < record.result_count && tpui_ok(b); ++k) {
    if (tpui_result_needed(&op, k) && b->values[record.first_value + k].id == TPUI_ID_ERROR) {
      tpui_fail(b, TPU_INTERNAL, "the lowering gave no result %d", k);
    }
  }
  b->op_name = "";
}

/* --- signature --- */

static const tpu_meta_t* output_meta(const tpui_builder_t* b, uint32_t output) {
  return tpu_meta_get(b->window->value_metas[b->program->outputs[output]]);
}

static bool same_type(const tpu_meta_t* a, const tpu_meta_t* b) {
  return a->dtype == b->dtype && a->rank == b->rank &&
         (a->rank == 0 || memcmp(a->sizes, b->sizes, (size_t)a->rank * sizeof(int64_t)) == 0);
}

/* True when output's value is made from `ref` as its first operand: the in-place case. */
static bool is_update_of(const tpui_builder_t* b, uint32_t output, uint32_t ref) {
  tpu_record_t record;
  tpu_window_record(b->window, b->window->value_records[b->program->outputs[output]], &record);
  if (record.operand_count == 0) return false;
  return (tpu_record_ref(&record, 0) & ~TPU_REF_VIEW_BIT) == ref;
}

/* Output that argument `input` may be written into, or NO_OUTPUT. */
static int32_t alias_of(const tpui_builder_t* b, uint32_t input, const uint8_t* taken) {
  const tpu_program_input_t* in = &b->program->inputs[input];
  if (!in->donatable) return NO_OUTPUT;
  const tpu_meta_t* meta = tpu_meta_get(tpu_window_ref_meta(b->window, in->ref));
  int32_t found = NO_OUTPUT;
  for (uint32_t i = 0; i < b->program->output_count; ++i) {
    if (taken[i] || !same_type(meta, output_meta(b, i))) continue;
    if (is_update_of(b, i, in->ref)) return (int32_t)i;
    if (found == NO_OUTPUT) found = (int32_t)i;
  }
  return found;
}

static void append_meta_type(tpu_strbuf_t* out, const tpu_meta_t* meta) {
  tpui_append_type(out, meta->dtype, meta->rank, meta->sizes);
}

/* Of the result behind the outputs, if there is one. */
static void append_checks_type(const tpui_builder_t* b, tpu_strbuf_t* out) {
  if (b->checks == NULL) return;
  int64_t count = b->checks->count;
  if (b->program->output_count > 0) tpu_strbuf_append(out, ", ");
  tpui_append_type(out, TPU_I64, 1, &count);
}

static void append_packed(tpu_strbuf_t* out, uint32_t* argument, uint32_t count,
                          tpu_dtype_t dtype) {
  int64_t size = count;
  if (count == 0) return;
  tpu_strbuf_printf(out, "%s%%arg%u: ", *argument > 0 ? ", " : "", *argument);
  tpui_append_type(out, dtype, 1, &size);
  ++*argument;
}

static void append_signature(tpui_builder_t* b, tpu_lowered_t* lowered) {
  tpu_strbuf_t* out = &lowered->text;
  const tpu_program_t* program = b->program;
  uint8_t* taken = tpui_arena(b, program->output_count + 1);
  if (taken == NULL) return;
  uint32_t at = 0;
  for (; at < program->input_count; ++at) {
    tpu_strbuf_printf(out, "%s%%arg%u: ", at > 0 ? ", " : "", at);
    append_meta_type(out, tpu_meta_get(tpu_window_ref_meta(b->window, program->inputs[at].ref)));
    int32_t alias = alias_of(b, at, taken);
    if (alias == NO_OUTPUT) continue;
    taken[alias] = 1;
    tpu_strbuf_printf(out, " {tf.aliasing_output = %d : i32}", alias);
  }
  append_packed(out, &at, lowered->packed.double_count, TPU_F64);
  append_packed(out, &at, lowered->packed.int_count, TPU_I64);
  tpu_strbuf_append(out, ") -> (");
  for (uint32_t i = 0; i < program->output_count; ++i) {
    if (i > 0) tpu_strbuf_append(out, ", ");
    append_meta_type(out, output_meta(b, i));
  }
  append_checks_type(b, out);
  tpu_strbuf_append(out, ")");
}

static void append_return(tpui_builder_t* b, tpui_hlo_t checks, tpu_strbuf_t* out) {
  const tpu_program_t* program = b->program;
  tpu_strbuf_append(out, "\"func.return\"(");
  for (uint32_t i = 0; i < program->output_count; ++i) {
    if (i > 0) tpu_strbuf_append(out, ", ");
    tpui_append_value(out, b->values[program->outputs[i]]);
  }
  if (b->checks != NULL) {
    if (program->output_count > 0) tpu_strbuf_append(out, ", ");
    tpui_append_value(out, checks);
  }
  tpu_strbuf_append(out, ") : (");
  for (uint32_t i = 0; i < program->output_count; ++i) {
    if (i > 0) tpu_strbuf_append(out, ", ");
    append_meta_type(out, output_meta(b, i));
  }
  append_checks_type(b, out);
  tpu_strbuf_append(out, ") -> ()\n");
}

static void write_text(tpui_builder_t* b, tpu_lowered_t* lowered) {
  tpu_strbuf_t* out = &lowered->text;
  tpui_hlo_t checks = b->checks != NULL ? tpui_checks_result(b) : tpui_harmless();
  tpu_strbuf_append(out, "module @tpu {\nfunc.func @main(");
  append_signature(b, lowered);
  tpu_strbuf_append(out, " {\n");
  tpu_strbuf_append_bytes(out, tpu_strbuf_text(&b->body), b->body.size);
  append_return(b, checks, out);
  tpu_strbuf_append(out, "}\n}\n");
}

tpu_status_t tpu_lower_program(const tpu_program_t* program, tpu_lowered_t* out_lowered) {
  memset(out_lowered, 0, sizeof *out_lowered);
  tpui_builder_t b = {
      .program = program, .window = program->window, .packed = &out_lowered->packed, .op_name = ""};
  tpu_status_t status = begin_program(&b);
  for (uint32_t i = 0; status == NULL && tpui_ok(&b) && i < program->record_count; ++i) {
    lower_record(&b, program->records[i]);
  }
  // A program whose records only check their data, and find that there is none.
  if (program->output_count == 0 && b.checks == NULL) tpui_check_nothing(&b);
  if (status == NULL && tpui_ok(&b)) write_text(&b, out_lowered);
  out_lowered->checks = b.checks;
  status = tpu_status_join(status, b.status);
  b.status = NULL;
  if (status == NULL) status = tpu_strbuf_status(&b.body);
  if (status == NULL) status = tpu_strbuf_status(&out_lowered->text);
  tpui_builder_free(&b);
  if (status != NULL) tpu_lowered_free(out_lowered);
  return status;
}

void tpu_lowered_free(tpu_lowered_t* lowered) {
  tpu_strbuf_free(&lowered->text);
  tpu_packed_free(&lowered->packed);
  tpu_checks_release(lowered->checks);
  lowered->checks = NULL;
}
