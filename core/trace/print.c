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
  if (!meta->contiguous) print_list(text, "s(", meta->strides, meta->rank, ")");
}

/* A view always shows its strides. */
static void print_view(tpu_strbuf_t* text, tpu_meta_id_t id, const tpu_slot_t* offset) {
  const tpu_meta_t* meta = tpu_meta_get(id);
  tpu_strbuf_append(text, "[view ");
  print_meta(text, id);
  if (meta != NULL && meta->contiguous) print_list(text, "s(", meta->strides, meta->rank, ")");
  tpu_strbuf_append(text, "+");
  if (offset != NULL) {
    tpu_strbuf_append_int(text, offset->as_int);
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

static void print_number(tpu_strbuf_t* text, uint32_t ref, const tpu_slot_t* number) {
  tpu_dtype_t dtype = tpu_ref_scalar_dtype(ref);
  if (number == NULL) {
    tpu_strbuf_append(text, "?");
  } else if (tpu_dtype_is_float(dtype)) {
    print_double(text, number->as_double);
  } else if (tpu_dtype_kind(dtype) == TPU_KIND_BOOL) {
    tpu_strbuf_append(text, number->as_int != 0 ? "true" : "false");
  } else {
    tpu_strbuf_append_int(text, number->as_int);
  }
  if (!tpu_ref_scalar_is_weak(ref)) tpu_strbuf_printf(text, ":%s", tpu_dtype_hlo(dtype));
}

static void print_operand(tpu_strbuf_t* text, uint32_t ref, tpu_meta_id_t view,
                          const tpu_slot_t* slot) {
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
                           const tpu_record_t* record) {
  uint32_t slot = record->first_slot;
  tpu_strbuf_append(text, "(");
  for (int k = 0; k < record->operand_count; ++k) {
    uint32_t ref = tpu_record_ref(record, k);
    const tpu_slot_t* number = NULL;
    if (tpu_ref_has_slot(ref)) {
      number = window->slots != NULL ? &window->slots[slot] : NULL;
      ++slot;
    }
    if (k > 0) tpu_strbuf_append(text, ", ");
    print_operand(text, ref, tpu_record_view(record, k), number);
  }
  tpu_strbuf_append(text, ")");
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
    case TPU_ATTR_TEXT: tpu_strbuf_printf(text, "\"%s\"", tpu_attr_text(attrs, position)); break;
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

void tpu_record_print(const tpu_window_t* window, uint32_t index, tpu_strbuf_t* text) {
  static const char* const suffixes[] = {"", "_", ".out"};  // by tpu_call_variant_t
  tpu_record_t record;
  tpu_window_record(window, index, &record);
  for (int k = 0; k < record.result_count; ++k) {
    tpu_strbuf_printf(text, "%s%%%u", k > 0 ? ", " : "", record.first_value + (uint32_t)k);
  }
  tpu_strbuf_printf(text, " = %s%s", tpu_op_info(record.op)->name,
                    record.variant < 3 ? suffixes[record.variant] : "?");
  print_operands(text, window, &record);
  print_attributes(text, record.attrs);
  tpu_strbuf_append(text, " -> ");
  bool same = record.compute_dtype == TPU_DTYPE_INVALID;
  for (int k = 0; k < record.result_count; ++k) {
    if (k > 0) tpu_strbuf_append(text, ", ");
    print_meta(text, record.results[k]);
    const tpu_meta_t* meta = tpu_meta_get(record.results[k]);
    same = same || (meta != NULL && meta->dtype == record.compute_dtype);
  }
  if (!same) tpu_strbuf_printf(text, " via %s", tpu_dtype_hlo(record.compute_dtype));
}

void tpu_window_print(const tpu_window_t* window, tpu_strbuf_t* text) {
  for (uint32_t i = 0; i < window->record_count; ++i) {
    tpu_record_print(window, i, text);
    tpu_strbuf_append(text, "\n");
  }
}
