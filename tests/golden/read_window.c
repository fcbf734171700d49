#include "read_window.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "ops/op_ids.h"

#define MAX_RESULTS 256

/* The text being read. Errors are latched: after the first one nothing is accepted. */
typedef struct reader_t {
  const char* at;
  int line;
  tpu_status_t status;
  golden_window_t* out;
} reader_t;

static bool reader_ok(const reader_t* r) { return r->status == NULL; }

static void fail_at(reader_t* r, const char* expected) {
  if (!reader_ok(r)) return;
  int shown = (int)strcspn(r->at, "\n");
  r->status = tpu_status_make(TPU_INVALID_ARGUMENT, "line %d: expected %s at \"%.*s\"", r->line,
                              expected, shown < 60 ? shown : 60, r->at);
}

static void latch(reader_t* r, tpu_status_t status) {
  if (reader_ok(r)) {
    r->status = tpu_status_annotate(status, "line %d", r->line);
  } else {
    tpu_status_free(status);
  }
}

/* --- words and numbers --- */

static bool accept_text(reader_t* r, const char* text) {
  size_t size = strlen(text);
  if (!reader_ok(r) || strncmp(r->at, text, size) != 0) return false;
  r->at += size;
  return true;
}

static void expect_text(reader_t* r, const char* text) {
  if (!accept_text(r, text)) fail_at(r, text);
}

static bool is_word_char(char c) { return isalnum((unsigned char)c) || c == '_'; }

static int64_t read_int(reader_t* r) {
  char* end;
  if (!reader_ok(r)) return 0;
  long long number = strtoll(r->at, &end, 10);
  if (end == r->at) fail_at(r, "an integer");
  r->at = end;
  return number;
}

static double read_double(reader_t* r) {
  char* end;
  if (!reader_ok(r)) return 0;
  double number = strtod(r->at, &end);
  if (end == r->at) fail_at(r, "a number");
  r->at = end;
  return number;
}

/* Integers up to `close`, after the opening bracket. Gives their number. */
static int read_ints(reader_t* r, const char* close, int64_t* out_numbers, int most) {
  int count = 0;
  if (accept_text(r, close)) return 0;
  do {
    if (count == most) fail_at(r, "fewer numbers");
    if (reader_ok(r)) out_numbers[count++] = read_int(r);
  } while (accept_text(r, ","));
  expect_text(r, close);
  return count;
}

/* INVALID, and nothing read, when no dtype stands here. */
static tpu_dtype_t accept_dtype(reader_t* r) {
  for (int d = 1; d < TPU_DTYPE_COUNT && reader_ok(r); ++d) {
    const char* name = tpu_dtype_hlo((tpu_dtype_t)d);
    size_t size = strlen(name);
    if (strncmp(r->at, name, size) != 0 || is_word_char(r->at[size])) continue;
    r->at += size;
    return (tpu_dtype_t)d;
  }
  return TPU_DTYPE_INVALID;
}

static tpu_meta_id_t read_meta(reader_t* r) {
  int64_t sizes[TPU_MAX_RANK], strides[TPU_MAX_RANK];
  tpu_meta_id_t id = 0;
  tpu_dtype_t dtype = accept_dtype(r);
  if (dtype == TPU_DTYPE_INVALID) fail_at(r, "a dtype");
  expect_text(r, "[");
  int rank = read_ints(r, "]", sizes, TPU_MAX_RANK);
  bool strided = accept_text(r, "s(");
  if (strided && read_ints(r, ")", strides, TPU_MAX_RANK) != rank) fail_at(r, "a stride per size");
  if (!reader_ok(r)) return 0;
  latch(r, strided ? tpu_meta_intern(dtype, rank, sizes, strides, &id)
                   : tpu_meta_intern_contiguous(dtype, rank, sizes, &id));
  return id;
}

/* --- operands --- */

/* Marks the slot that the next operand takes. */
static void note_slot(reader_t* r, bool dynamic) {
  golden_window_t* out = r->out;
  size_t slot = out->recorder.draft_slots;
  if (!reader_ok(r)) return;
  latch(r, tpu_grow((void**)&out->slot_dynamic, &out->dynamic_capacity, slot + 1, 1));
  if (reader_ok(r)) out->slot_dynamic[slot] = dynamic;
}

/* "view META+N]", after the bracket. */
static tpu_meta_id_t read_view(reader_t* r, int64_t* out_offset) {
  expect_text(r, "view ");
  tpu_meta_id_t view = read_meta(r);
  expect_text(r, "+");
  note_slot(r, accept_text(r, "$"));
  *out_offset = read_int(r);
  expect_text(r, "]");
  return view;
}

static void read_tensor(reader_t* r, tpu_value_t* value) {
  tpu_meta_id_t view = value != NULL ? value->meta : 0;
  int64_t offset = 0;
  if (value == NULL) fail_at(r, "a value that exists");
  bool viewed = accept_text(r, "[");
  if (viewed) view = read_view(r, &offset);
  if (!reader_ok(r)) return;
  if (viewed && view == value->meta && offset == 0) fail_at(r, "a view that is not the value");
  if (reader_ok(r)) tpu_recorder_tensor(&r->out->recorder, value, view, offset);
}

/* The recorder numbers externals by first use. */
static void read_external(reader_t* r) {
  golden_window_t* out = r->out;
  int64_t number = read_int(r);
  bool known = number >= 0 && number < (int64_t)out->external_count;
  read_tensor(r, known ? out->externals[number] : NULL);
  if (reader_ok(r) && out->externals[number]->external_number != (uint32_t)number) {
    fail_at(r, "externals numbered by their first use");
  }
}

static void read_window_value(reader_t* r) {
  int64_t number = read_int(r);
  bool known = number >= 0 && number < (int64_t)r->out->value_count;
  read_tensor(r, known ? r->out->values[number] : NULL);
}

/* The offset at which operand 0 is written. */
static void read_place(reader_t* r) {
  tpu_slot_t offset = {0};
  tpu_meta_id_t view = read_view(r, &offset.as_int);
  if (reader_ok(r)) tpu_recorder_scalar(&r->out->recorder, TPU_I64, false, view, offset);
}

/* True when the number here is written as a floating-point one. */
static bool looks_double(const char* at) {
  size_t size = strcspn(at, ",):} \n");
  for (size_t i = 0; i < size; ++i) {
    if (strchr(".einf", at[i]) != NULL) return true;
  }
  return false;
}

static void read_number(reader_t* r) {
  note_slot(r, accept_text(r, "$"));
  bool truth = accept_text(r, "true"), boolean = truth || accept_text(r, "false");
  bool is_double = !boolean && looks_double(r->at);
  tpu_slot_t number = {.as_int = truth};
  if (is_double) number.as_double = read_double(r);
  if (!boolean && !is_double) number.as_int = read_int(r);
  tpu_dtype_t dtype = boolean ? TPU_BOOL : is_double ? TPU_F64 : TPU_I64;
  bool typed = accept_text(r, ":");
  if (typed) dtype = accept_dtype(r);
  if (typed && (tpu_dtype_is_integral(dtype) == is_double || dtype == TPU_DTYPE_INVALID)) {
    fail_at(r, "a dtype of the number");
  }
  bool weak = !typed || accept_text(r, " weak");
  if (reader_ok(r)) tpu_recorder_scalar(&r->out->recorder, dtype, weak, 0, number);
}

static void read_operand(reader_t* r) {
  if (accept_text(r, "none")) {
    tpu_recorder_none(&r->out->recorder);
  } else if (accept_text(r, "ext")) {
    read_external(r);
  } else if (accept_text(r, "%")) {
    read_window_value(r);
  } else if (accept_text(r, "[")) {
    read_place(r);
  } else {
    read_number(r);
  }
}

static int read_operands(reader_t* r) {
  int count = 0;
  expect_text(r, "(");
  if (accept_text(r, ")")) return 0;
  do {
    read_operand(r);
    ++count;
  } while (accept_text(r, ", "));
  expect_text(r, ")");
  return count;
}

/* --- attributes --- */

static void read_text_attribute(reader_t* r, tpu_attrs_builder_t* attrs) {
  char text[256];
  size_t size = 0;
  while (*r->at != '"' && *r->at != '\n' && *r->at != '\0' && size < sizeof(text)) {
    if (*r->at == '\\' && r->at[1] != '\0') ++r->at;
    text[size++] = *r->at++;
  }
  expect_text(r, "\"");
  if (reader_ok(r)) tpu_attrs_add_text(attrs, text, size);
}

static void read_attribute(reader_t* r, tpu_attrs_builder_t* attrs) {
  int64_t numbers[TPU_ATTRS_MAX_WORDS];
  tpu_dtype_t dtype;
  if (accept_text(r, "none")) {
    tpu_attrs_add_none(attrs);
  } else if (accept_text(r, "[")) {
    int count = read_ints(r, "]", numbers, TPU_ATTRS_MAX_WORDS);
    if (reader_ok(r)) tpu_attrs_add_ints(attrs, numbers, (size_t)count);
  } else if (accept_text(r, "\"")) {
    read_text_attribute(r, attrs);
  } else if (accept_text(r, "precision ")) {
    tpu_attrs_add_precision(attrs, (tpu_precision_t)read_int(r));
  } else if ((dtype = accept_dtype(r)) != TPU_DTYPE_INVALID) {
    tpu_attrs_add_dtype(attrs, dtype);
  } else if (looks_double(r->at)) {
    tpu_attrs_add_double(attrs, read_double(r));
  } else {
    tpu_attrs_add_int(attrs, read_int(r));
  }
}

static tpu_attrs_id_t read_attributes(reader_t* r) {
  tpu_attrs_builder_t attrs;
  tpu_attrs_id_t id = 0;
  tpu_attrs_begin(&attrs);
  if (!accept_text(r, "{")) return 0;
  do {
    read_attribute(r, &attrs);
  } while (accept_text(r, ", "));
  expect_text(r, "}");
  if (reader_ok(r)) latch(r, tpu_attrs_intern(&attrs, &id));
  return id;
}

/* --- records --- */

static tpu_op_t find_op(const char* name, size_t size) {
  for (tpu_op_t op = 1; op < TPU_OP_COUNT; ++op) {
    const char* known = tpu_op_info(op)->name;
    if (strncmp(known, name, size) == 0 && known[size] == '\0') return op;
  }
  return TPU_OP_INVALID;
}

/* "add", "add_", "add.out" or "add.through"; the variant is a tpu_call_variant_t. */
static tpu_op_t read_op(reader_t* r, uint8_t* out_variant) {
  size_t size = 0;
  *out_variant = 0;
  while (is_word_char(r->at[size])) ++size;
  tpu_op_t op = find_op(r->at, size);
  if (op == TPU_OP_INVALID && size > 1 && r->at[size - 1] == '_') {
    op = find_op(r->at, size - 1);
    *out_variant = TPU_CALL_IN_PLACE;
  }
  if (op == TPU_OP_INVALID) fail_at(r, "an operation of the op table");
  if (reader_ok(r)) r->at += size;
  if (*out_variant == 0 && accept_text(r, ".out")) *out_variant = TPU_CALL_OUT;
  if (*out_variant == 0 && accept_text(r, ".through")) *out_variant = TPU_CALL_THROUGH;
  return op;
}

/* "%4, %5 = ": numbers in order. Gives how many. */
static int read_targets(reader_t* r) {
  int count = 0;
  do {
    expect_text(r, "%");
    if (read_int(r) != (int64_t)r->out->value_count + count) fail_at(r, "the next value's number");
  } while (reader_ok(r) && ++count < MAX_RESULTS && accept_text(r, ", "));
  expect_text(r, " = ");
  return count;
}

static void read_metas(reader_t* r, int count, tpu_meta_id_t* out_metas) {
  for (int k = 0; k < count && reader_ok(r); ++k) {
    if (k > 0) expect_text(r, ", ");
    out_metas[k] = read_meta(r);
  }
}

static tpu_dtype_t read_compute_dtype(reader_t* r, tpu_op_t op, tpu_meta_id_t result) {
  if (!accept_text(r, " via ")) {
    bool promotes = (tpu_op_info(op)->flags & TPU_OP_PROMOTE) != 0;
    return promotes && reader_ok(r) ? tpu_meta_get(result)->dtype : TPU_DTYPE_INVALID;
  }
  if (accept_text(r, "none")) return TPU_DTYPE_INVALID;
  tpu_dtype_t dtype = accept_dtype(r);
  if (dtype == TPU_DTYPE_INVALID) fail_at(r, "a dtype");
  return dtype;
}

/* Room for the operands of a line: each is followed by a comma or the bracket. */
static int most_operands(const char* line) {
  int count = 1;
  for (; *line != '\n' && *line != '\0'; ++line) count += *line == ',';
  return count;
}

static void take_values(reader_t* r, int count, tpu_value_t** values) {
  golden_window_t* out = r->out;
  latch(r, tpu_grow((void**)&out->values, &out->value_capacity, out->value_count + (size_t)count,
                    sizeof(tpu_value_t*)));
  for (int k = 0; k < count; ++k) {
    if (reader_ok(r)) {
      out->values[out->value_count++] = values[k];
    } else {
      tpu_value_release(&out->pool, values[k]);
    }
  }
}

static void read_record(reader_t* r) {
  tpu_recorder_t* recorder = &r->out->recorder;
  tpu_meta_id_t metas[MAX_RESULTS];
  tpu_value_t* values[MAX_RESULTS];
  uint8_t variant;
  int results = read_targets(r);
  tpu_op_t op = read_op(r, &variant);
  if (reader_ok(r)) latch(r, tpu_recorder_begin(recorder, most_operands(r->at), results));
  if (!reader_ok(r)) return;
  int operands = read_operands(r);
  tpu_attrs_id_t attrs = read_attributes(r);
  expect_text(r, " -> ");
  read_metas(r, results, metas);
  tpu_dtype_t compute = read_compute_dtype(r, op, metas[0]);
  if (!reader_ok(r)) {
    tpu_recorder_abandon(recorder);
    return;
  }
  latch(r, tpu_recorder_commit(recorder, op, operands, results, variant, attrs, compute, metas,
                               values));
  if (reader_ok(r)) take_values(r, results, values);
}

/* --- the other lines --- */

static void read_external_line(reader_t* r) {
  golden_window_t* out = r->out;
  size_t number = out->external_count;
  tpu_value_t* value = NULL;
  if (read_int(r) != (int64_t)number) fail_at(r, "the next external's number");
  expect_text(r, " = ");
  tpu_meta_id_t meta = read_meta(r);
  bool dead = accept_text(r, " dead");
  if (!reader_ok(r)) return;
  latch(r, tpu_grow((void**)&out->dead, &out->dead_capacity, number + 1, 1));
  if (!reader_ok(r)) return;
  latch(r, tpu_grow((void**)&out->externals, &out->external_capacity, number + 1, sizeof(value)));
  if (!reader_ok(r)) return;
  latch(r, tpu_value_create(&out->pool, meta, &value));
  if (!reader_ok(r)) return;
  value->state = TPU_VALUE_READY;
  out->dead[number] = dead;
  out->externals[out->external_count++] = value;
}

static void read_live_line(reader_t* r) {
  golden_window_t* out = r->out;
  do {
    expect_text(r, "%");
    int64_t number = read_int(r);
    if (number < 0 || number >= (int64_t)out->value_count) fail_at(r, "a value that exists");
    if (reader_ok(r)) out->live[number] = 1;
  } while (accept_text(r, ", "));
}

/* Arrays for what no line has mentioned. */
static void complete_marks(reader_t* r) {
  golden_window_t* out = r->out;
  latch(r, tpu_grow((void**)&out->dead, &out->dead_capacity, out->external_count + 1, 1));
  if (!reader_ok(r)) return;
  latch(r, tpu_grow((void**)&out->slot_dynamic, &out->dynamic_capacity,
                    out->recorder.slot_count + 1, 1));
  if (!reader_ok(r)) return;
  latch(r, tpu_grow((void**)&out->live, &out->live_capacity, out->value_count + 1, 1));
  if (reader_ok(r)) memset(out->live, 0, out->value_count + 1);
}

static void end_line(reader_t* r) {
  if (reader_ok(r) && *r->at != '\n' && *r->at != '\0') fail_at(r, "the end of the line");
  if (reader_ok(r) && *r->at == '\n') ++r->at;
  ++r->line;
}

static void read_lines(reader_t* r) {
  for (; accept_text(r, "ext"); end_line(r)) read_external_line(r);
  for (; reader_ok(r) && *r->at == '%'; end_line(r)) read_record(r);
  if (reader_ok(r)) complete_marks(r);
  if (accept_text(r, "live ")) {
    read_live_line(r);
    end_line(r);
  }
  if (reader_ok(r) && *r->at != '\0') fail_at(r, "a record or the end");
  if (reader_ok(r) && r->out->recorder.external_count != r->out->external_count) {
    fail_at(r, "a use of each external");
  }
}

tpu_status_t golden_window_read(const char* text, golden_window_t* out_window) {
  *out_window = (golden_window_t){0};
  tpu_recorder_init(&out_window->recorder, &out_window->pool);
  reader_t r = {.at = text, .line = 1, .out = out_window};
  read_lines(&r);
  if (reader_ok(&r)) tpu_recorder_window(&out_window->recorder, &out_window->window);
  return r.status;
}

void golden_window_free(golden_window_t* w) {
  for (size_t i = 0; i < w->value_count; ++i) tpu_value_release(&w->pool, w->values[i]);
  for (size_t i = 0; i < w->external_count; ++i) tpu_value_release(&w->pool, w->externals[i]);
  tpu_recorder_free(&w->recorder);
  tpu_value_pool_free(&w->pool);
  tpu_free(w->values);
  tpu_free(w->externals);
  tpu_free(w->live);
  tpu_free(w->dead);
  tpu_free(w->slot_dynamic);
  *w = (golden_window_t){0};
}

void golden_window_print(const golden_window_t* w, tpu_strbuf_t* text) {
  tpu_window_marks_t marks = {
      .live = w->live, .external_dead = w->dead, .slot_dynamic = w->slot_dynamic};
  tpu_window_print_whole(&w->window, &marks, text);
}
