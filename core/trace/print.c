#include "trace/print.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_list(tpu_strbuf_t* text, const char* open, const int64_t* values, int count,
                       const char* close) {
  tpu_strbuf_append(text, open);
  for (int i = 0; i < count; ++i) {
    if (i > 0) tpu_strbuf_append(text, ",");
    tpu_strbuf_append_int(text, values[i]);
  }
  tpu_strbuf_append(text, close);
}

static void print_meta(tpu_strbuf_t* text, tpu_meta_id_t id) {
  const tpu_meta_t* meta = tpu_meta_get(id);
  if (meta == NULL) {
    tpu_strbuf_append(text, "?");
    return;
  }
  tpu_strbuf_append(text, tpu_dtype_hlo(meta->dtype));
  print_list(text, "[", meta->sizes, meta->rank, "]");
  if (!meta->row_major) print_list(text, "s(", meta->strides, meta->rank, ")");
}

/* A slot on its way to text. */
typedef struct printed_slot_t {
  const tpu_slot_t* number;  // NULL when the window has no slots
  bool dynamic;
} printed_slot_t;

/* A view always shows its strides. */
static void print_view(tpu_strbuf_t* text, tpu_meta_id_t id, printed_slot_t offset) {
  const tpu_meta_t* meta = tpu_meta_get(id);
  tpu_strbuf_append(text, "[view ");
  print_meta(text, id);
  if (meta != NULL && meta->row_major) print_list(text, "s(", meta->strides, meta->rank, ")");
  tpu_strbuf_append(text, offset.dynamic ? "+$" : "+");
  if (offset.number != NULL) {
    tpu_strbuf_append_int(text, offset.number->as_int);
  } else {
    tpu_strbuf_append(text, "?");
  }
  tpu_strbuf_append(text, "]");
}

/* The shortest text that reads back as the same number, and reads as a float. */
static void print_double(tpu_strbuf_t* text, double value) {
  char digits[40];
  int precision = 1;
  do {
    (void)snprintf(digits, sizeof(digits), "%.*g", precision, value);
  } while (strtod(digits, NULL) != value && !isnan(value) && ++precision <= 17);
  tpu_strbuf_append(text, digits);
  if (strpbrk(digits, ".enai") == NULL) tpu_strbuf_append(text, ".0");
}

/* The dtype that a weak number of this kind has when nothing else is said. */
static tpu_dtype_t usual_dtype(tpu_dtype_t dtype) {
  tpu_dtype_kind_t kind = tpu_dtype_kind(dtype);
  return kind == TPU_KIND_BOOL ? TPU_BOOL : kind < TPU_KIND_FLOAT ? TPU_I64 : TPU_F64;
}

static void print_number(tpu_strbuf_t* text, uint32_t ref, printed_slot_t slot) {
  tpu_dtype_t dtype = tpu_ref_scalar_dtype(ref);
  bool weak = tpu_ref_scalar_is_weak(ref);
  if (slot.dynamic) tpu_strbuf_append(text, "$");
  if (slot.number == NULL) {
    tpu_strbuf_append(text, "?");
  } else if (tpu_dtype_is_integral(dtype) && tpu_dtype_kind(dtype) != TPU_KIND_BOOL) {
    tpu_strbuf_append_int(text, slot.number->as_int);
  } else if (tpu_dtype_is_integral(dtype)) {
    tpu_strbuf_append(text, slot.number->as_int != 0 ? "true" : "false");
  } else {
    print_double(text, slot.number->as_double);
  }
  if (!weak || dtype != usual_dtype(dtype)) tpu_strbuf_printf(text, ":%s", tpu_dtype_hlo(dtype));
  if (weak && dtype != usual_dtype(dtype)) tpu_strbuf_append(text, " weak");
}

static void print_operand(tpu_strbuf_t* text, uint32_t ref, tpu_meta_id_t view,
                          printed_slot_t slot) {
  switch (tpu_ref_kind(ref)) {
    case TPU_REF_WINDOW: tpu_strbuf_printf(text, "%%%u", tpu_ref_index(ref)); break;
    case TPU_REF_EXTERNAL: tpu_strbuf_printf(text, "ext%u", tpu_ref_index(ref)); break;
    case TPU_REF_SCALAR:
      if (view == 0) print_number(text, ref, slot);
      break;
    default: tpu_strbuf_append(text, "none");
  }
  bool written = tpu_ref_kind(ref) == TPU_REF_SCALAR && view != 0;
  if ((ref & TPU_REF_VIEW_BIT) || written) print_view(text, view, slot);
}

static void print_operands(tpu_strbuf_t* text, const tpu_window_t* window,
                           const tpu_record_t* record, const uint8_t* dynamic) {
  uint32_t at = record->first_slot;
  tpu_strbuf_append(text, "(");
  for (int k = 0; k < record->operand_count; ++k) {
    uint32_t ref = tpu_record_ref(record, k);
    printed_slot_t slot = {0};
    if (tpu_ref_has_slot(ref)) {
      if (window->slots != NULL) slot.number = &window->slots[at];
      slot.dynamic = dynamic != NULL && dynamic[at] != 0;
      ++at;
    }
    if (k > 0) tpu_strbuf_append(text, ", ");
    print_operand(text, ref, tpu_record_view(record, k), slot);
  }
  tpu_strbuf_append(text, ")");
}

static void print_text(tpu_strbuf_t* text, const char* value) {
  tpu_strbuf_append(text, "\"");
  for (; *value != '\0'; ++value) {
    if (*value == '"' || *value == '\\') tpu_strbuf_append(text, "\\");
    tpu_strbuf_append_bytes(text, value, 1);
  }
  tpu_strbuf_append(text, "\"");
}

static void print_attribute(tpu_strbuf_t* text, tpu_attrs_id_t attrs, int position) {
  const int64_t* values;
  switch (tpu_attr_kind(attrs, position)) {
    case TPU_ATTR_INT: tpu_strbuf_append_int(text, tpu_attr_int(attrs, position, 0)); break;
    case TPU_ATTR_DTYPE:
      tpu_strbuf_append(text, tpu_dtype_hlo(tpu_attr_dtype(attrs, position, TPU_DTYPE_INVALID)));
      break;
    case TPU_ATTR_INTS: {
      int count = tpu_attr_ints(attrs, position, &values);
      print_list(text, "[", values, count, "]");
      break;
    }
    case TPU_ATTR_DOUBLE: print_double(text, tpu_attr_double(attrs, position, 0)); break;
    case TPU_ATTR_TEXT: print_text(text, tpu_attr_text(attrs, position)); break;
    case TPU_ATTR_COMPLEX: tpu_strbuf_append(text, "complex numbers"); break;
    case TPU_ATTR_DEFAULT_DTYPE:
      tpu_strbuf_printf(text, "default %s", tpu_dtype_hlo(tpu_attrs_default_dtype(attrs)));
      break;
    case TPU_ATTR_PRECISION:
      tpu_strbuf_printf(text, "precision %d", (int)tpu_attrs_precision(attrs));
      break;
    default: tpu_strbuf_append(text, "none");
  }
}

static void print_attributes(tpu_strbuf_t* text, tpu_attrs_id_t attrs) {
  int count = tpu_attrs_count(attrs);
  if (count == 0) return;
  for (int i = 0; i < count; ++i) {
    tpu_strbuf_append(text, i == 0 ? "{" : ", ");
    print_attribute(text, attrs, i);
  }
  tpu_strbuf_append(text, "}");
}

/* What a record computes in unless it says so: the result's dtype where operands promote. */
static tpu_dtype_t usual_compute_dtype(const tpu_record_t* record) {
  if (!(tpu_op_info(record->op)->flags & TPU_OP_PROMOTE)) return TPU_DTYPE_INVALID;
  const tpu_meta_t* meta = record->result_count > 0 ? tpu_meta_get(record->results[0]) : NULL;
  return meta != NULL ? meta->dtype : TPU_DTYPE_INVALID;
}

static void print_record(const tpu_window_t* window, uint32_t index, const uint8_t* dynamic,
                         tpu_strbuf_t* text) {
  static const char* const suffixes[] = {"", "_", ".out", ".through"};  // by tpu_call_variant_t
  tpu_record_t record;
  tpu_window_record(window, index, &record);
  for (int k = 0; k < record.result_count; ++k) {
    tpu_strbuf_printf(text, "%s%%%u", k > 0 ? ", " : "", record.first_value + (uint32_t)k);
  }
  tpu_strbuf_printf(text, " = %s%s", tpu_op_info(record.op)->name,
                    record.variant < 4 ? suffixes[record.variant] : "?");
  print_operands(text, window, &record, dynamic);
  print_attributes(text, record.attrs);
  tpu_strbuf_append(text, " -> ");
  for (int k = 0; k < record.result_count; ++k) {
    if (k > 0) tpu_strbuf_append(text, ", ");
    print_meta(text, record.results[k]);
  }
  if (record.compute_dtype == usual_compute_dtype(&record)) return;
  bool none = record.compute_dtype == TPU_DTYPE_INVALID;
  tpu_strbuf_printf(text, " via %s", none ? "none" : tpu_dtype_hlo(record.compute_dtype));
}

void tpu_record_print(const tpu_window_t* window, uint32_t index, tpu_strbuf_t* text) {
  print_record(window, index, NULL, text);
}

void tpu_window_print(const tpu_window_t* window, tpu_strbuf_t* text) {
  for (uint32_t i = 0; i < window->record_count; ++i) {
    tpu_record_print(window, i, text);
    tpu_strbuf_append(text, "\n");
  }
}

static void print_externals(const tpu_window_t* window, const uint8_t* dead, tpu_strbuf_t* text) {
  for (uint32_t i = 0; i < window->external_count; ++i) {
    tpu_strbuf_printf(text, "ext%u = ", i);
    print_meta(text, window->external_metas[i]);
    tpu_strbuf_append(text, dead != NULL && dead[i] != 0 ? " dead\n" : "\n");
  }
}

static void print_live(const tpu_window_t* window, const uint8_t* live, tpu_strbuf_t* text) {
  const char* between = "live ";
  for (uint32_t v = 0; v < window->value_count && live != NULL; ++v) {
    if (live[v] == 0) continue;
    tpu_strbuf_printf(text, "%s%%%u", between, v);
    between = ", ";
  }
  if (between[0] == ',') tpu_strbuf_append(text, "\n");
}

void tpu_window_print_whole(const tpu_window_t* window, const tpu_window_marks_t* marks,
                            tpu_strbuf_t* text) {
  print_externals(window, marks->external_dead, text);
  for (uint32_t i = 0; i < window->record_count; ++i) {
    print_record(window, i, marks->slot_dynamic, text);
    tpu_strbuf_append(text, "\n");
  }
  print_live(window, marks->live, text);
}
