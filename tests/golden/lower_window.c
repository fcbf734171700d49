#include "lower_window.h"

#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "device/device_internal.h"
#include "lower/lower.h"
#include "ops/op_ids.h"
#include "partition/partition.h"

/* --- what a platform means: the one place that knows how the lowering is told --- */

golden_platform_t golden_platform(int index) {
  static const struct {
    const char* name;
    tpu_platform_kind_t kind;
    bool host_calls;
  } rows[GOLDEN_PLATFORM_COUNT] = {
      {"cpu", TPU_PLATFORM_CPU, true},
      {"cpu without kernels", TPU_PLATFORM_CPU, false},
      {"tpu", TPU_PLATFORM_TPU, false},
      {"cuda", TPU_PLATFORM_CUDA, false},
  };
  const tpu_platform_t* facts = tpu_platform_get(rows[index].kind);
  return (golden_platform_t){.name = rows[index].name,
                             .facts = facts,
                             .host_calls = rows[index].host_calls,
                             .program_ops = (uint32_t)facts->program_ops};
}

/* As the engine does (engine/engine.c). */
static tpu_partition_options_t options_for(const golden_platform_t* platform) {
  return (tpu_partition_options_t){.max_records = platform->program_ops,
                                   .min_records = platform->program_ops / 4,
                                   .platform = platform->facts,
                                   .host_calls = platform->host_calls,
                                   .checks = true};
}

/* --- programs --- */

static void append_ref(tpu_strbuf_t* text, uint32_t ref) {
  bool outside = tpu_ref_kind(ref) == TPU_REF_EXTERNAL;
  tpu_strbuf_printf(text, "%s%u", outside ? "ext" : "%", tpu_ref_index(ref));
}

static void append_doubles(tpu_strbuf_t* text, const tpu_packed_t* packed) {
  for (uint32_t i = 0; i < packed->double_count; ++i) {
    tpu_strbuf_printf(text, "%sslot %u", i > 0 ? ", " : "", packed->doubles[i]);
  }
}

/* With what the window's slots become there: an offset travels as one number, several or none. */
static tpu_status_t append_ints(tpu_strbuf_t* text, const tpu_packed_t* packed,
                                const tpu_slot_t* slots) {
  int64_t* numbers = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc(packed->int_count + 1, sizeof(int64_t), (void**)&numbers));
  if (!tpu_packed_fill_ints(packed, slots, numbers)) {
    tpu_strbuf_append(text, "offsets that do not fit");
  }
  for (uint32_t i = 0; i < packed->slot_count; ++i) {
    bool last = i + 1 == packed->slot_count;
    uint32_t end = last ? packed->int_count : packed->slots[i + 1].first;
    tpu_strbuf_printf(text, "%sslot %u:", i > 0 ? ", " : "", packed->slots[i].slot);
    for (uint32_t k = packed->slots[i].first; k < end; ++k) {
      tpu_strbuf_printf(text, " %lld", (long long)numbers[k]);
    }
  }
  tpu_free(numbers);
  return NULL;
}

static tpu_status_t append_interface(tpu_strbuf_t* text, const tpu_program_t* program,
                                     const tpu_lowered_t* lowered) {
  tpu_strbuf_append(text, "(");
  for (uint32_t i = 0; i < program->input_count; ++i) {
    if (i > 0) tpu_strbuf_append(text, ", ");
    append_ref(text, program->inputs[i].ref);
  }
  const tpu_packed_t* packed = &lowered->packed;
  if (packed->double_count > 0) {
    tpu_strbuf_append(text, program->input_count > 0 ? ", f64[" : "f64[");
    append_doubles(text, packed);
    tpu_strbuf_append(text, "]");
  }
  if (packed->slot_count > 0) {
    bool first = program->input_count == 0 && packed->double_count == 0;
    tpu_strbuf_append(text, first ? "i64[" : ", i64[");
    TPU_RETURN_IF_ERROR(append_ints(text, packed, program->window->slots));
    tpu_strbuf_append(text, "]");
  }
  tpu_strbuf_append(text, ") -> (");
  for (uint32_t i = 0; i < program->output_count; ++i) {
    tpu_strbuf_printf(text, "%s%%%u", i > 0 ? ", " : "", program->outputs[i]);
  }
  tpu_strbuf_append(text, ")");
  return NULL;
}

/* The first of `count` programs with this text, or `count`. */
static uint32_t find_text(const tpu_lowered_t* lowered, uint32_t count, const char* text) {
  for (uint32_t i = 0; i < count; ++i) {
    if (strcmp(tpu_strbuf_text(&lowered[i].text), text) == 0) return i;
  }
  return count;
}

/* Lines kept of a long program. */
#define HEAD_LINES 90
#define TAIL_LINES 40
#define FEWEST_LEFT_OUT 30

static const char* skip_lines(const char* at, int count) {
  for (; count > 0 && *at != '\0'; --count) {
    at += strcspn(at, "\n");
    at += *at == '\n';
  }
  return at;
}

static void append_text(tpu_strbuf_t* text, const char* program, golden_form_t form) {
  int lines = 0;
  for (const char* at = program; *at != '\0'; at = skip_lines(at, 1)) ++lines;
  int left_out = lines - HEAD_LINES - TAIL_LINES;
  if (form == GOLDEN_FULL || left_out < FEWEST_LEFT_OUT) {
    tpu_strbuf_append(text, program);
    return;
  }
  char digest[33];
  tpu_digest_state_t state;
  tpu_digest_begin(&state);
  tpu_digest_update(&state, program, strlen(program));
  tpu_digest_hex(tpu_digest_end(&state), digest);
  const char* head_end = skip_lines(program, HEAD_LINES);
  tpu_strbuf_append_bytes(text, program, (size_t)(head_end - program));
  tpu_strbuf_printf(text, "... %d lines; digest of all: %s\n", left_out, digest);
  tpu_strbuf_append(text, skip_lines(head_end, left_out));
}

static tpu_status_t append_program(tpu_strbuf_t* text, const tpu_partition_t* partition, uint32_t p,
                                   tpu_lowered_t* lowered, tpu_status_t error, golden_form_t form) {
  tpu_strbuf_printf(text, "program %u: ", p);
  TPU_RETURN_IF_ERROR(append_interface(text, &partition->programs[p], &lowered[p]));
  const char* own = tpu_strbuf_text(&lowered[p].text);
  uint32_t same = error == NULL ? find_text(lowered, p, own) : p;
  if (error != NULL) {
    tpu_strbuf_printf(text, "\nerror: %s: %s\n", tpu_status_code_name(tpu_status_code(error)),
                      tpu_status_message(error));
  } else if (same < p) {
    tpu_strbuf_printf(text, ", text of %u\n", same);
  } else {
    tpu_strbuf_append(text, "\n");
    append_text(text, own, form);
  }
  return NULL;
}

static tpu_status_t lower_programs(const tpu_partition_t* partition, golden_form_t form,
                                   tpu_strbuf_t* text) {
  tpu_lowered_t* lowered = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc(partition->program_count + 1, sizeof(*lowered), (void**)&lowered));
  tpu_status_t status = NULL;
  for (uint32_t p = 0; p < partition->program_count && status == NULL; ++p) {
    tpu_status_t error = tpu_lower_program(&partition->programs[p], &lowered[p]);
    status = append_program(text, partition, p, lowered, error, form);
    tpu_status_free(error);
  }
  for (uint32_t p = 0; p < partition->program_count; ++p) tpu_lowered_free(&lowered[p]);
  tpu_free(lowered);
  return status != NULL ? status : tpu_strbuf_status(text);
}

tpu_status_t golden_lower(const golden_window_t* window, const golden_platform_t* platform,
                          golden_form_t form, tpu_strbuf_t* text) {
  tpu_partition_t partition = {0};
  tpu_partition_options_t options = options_for(platform);
  const tpu_window_t* w = &window->window;
  uint8_t* dynamic = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc(w->slot_count + 1, 1, (void**)&dynamic));
  if (w->slot_count > 0) memcpy(dynamic, window->slot_dynamic, w->slot_count);
  tpu_status_t status = tpu_partition(w, window->live, window->dead, dynamic, &options, &partition);
  if (status == NULL) status = tpu_partition_share(w, &partition, dynamic);
  if (status == NULL) status = lower_programs(&partition, form, text);
  tpu_partition_free(&partition);
  tpu_free(dynamic);
  return status;
}

static bool same_text(const tpu_strbuf_t* a, const tpu_strbuf_t* b) {
  return strcmp(tpu_strbuf_text(a), tpu_strbuf_text(b)) == 0;
}

/* Appends the platforms with the text of platform `first`, and the text, if none before has it. */
static void append_group(tpu_strbuf_t* text, const tpu_strbuf_t* texts, int first) {
  for (int i = 0; i < first; ++i) {
    if (same_text(&texts[i], &texts[first])) return;
  }
  for (int i = first; i < GOLDEN_PLATFORM_COUNT; ++i) {
    if (!same_text(&texts[i], &texts[first])) continue;
    tpu_strbuf_printf(text, "%s%s", i == first ? "-- " : ", ", golden_platform(i).name);
  }
  tpu_strbuf_printf(text, "\n%s", tpu_strbuf_text(&texts[first]));
}

tpu_status_t golden_lower_all(const golden_window_t* window, golden_form_t form,
                              tpu_strbuf_t* text) {
  tpu_strbuf_t texts[GOLDEN_PLATFORM_COUNT] = {{0}};
  tpu_status_t status = NULL;
  for (int i = 0; i < GOLDEN_PLATFORM_COUNT && status == NULL; ++i) {
    golden_platform_t platform = golden_platform(i);
    status = golden_lower(window, &platform, form, &texts[i]);
  }
  for (int i = 0; i < GOLDEN_PLATFORM_COUNT; ++i) {
    if (status == NULL) append_group(text, texts, i);
  }
  for (int i = 0; i < GOLDEN_PLATFORM_COUNT; ++i) tpu_strbuf_free(&texts[i]);
  return status != NULL ? status : tpu_strbuf_status(text);
}

const char* golden_lowering_name(tpu_op_t op) {
  static const char* const names[TPU_OP_COUNT] = {
#define TPU_OP(id, aten, family, lowering, argument, flags, opinfo) [TPU_OP_##id] = #lowering,
#include "ops/op_table.def"
#undef TPU_OP
  };
  return op > TPU_OP_INVALID && op < TPU_OP_COUNT ? names[op] : "";
}
