/* The builder's core: memory, errors, remembered values and the text of one operation. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "lower/builder_internal.h"

/* Sanitizer builds have a block per piece of memory: each has bounds, and each may fail. */
#ifndef TPU_ARENA_BLOCK_BYTES
#define TPU_ARENA_BLOCK_BYTES 16384
#endif

/* --- errors --- */

/* Ones, since lowerings divide by sizes; to both sides, since they count from the end as well. */
#define FOUR_ONES 1, 1, 1, 1
#define MANY_ONES FOUR_ONES, FOUR_ONES, FOUR_ONES, FOUR_ONES, FOUR_ONES, FOUR_ONES, FOUR_ONES
static const int64_t harmless_sizes[] = {MANY_ONES, MANY_ONES, MANY_ONES, MANY_ONES};
_Static_assert(sizeof(harmless_sizes) / sizeof(int64_t) == 2 * TPUI_MAX_HLO_RANK, "both sides");

tpui_hlo_t tpui_harmless(void) {
  return (tpui_hlo_t){.id = TPUI_ID_ERROR,
                      .dtype = TPU_F32,
                      .rank = 0,
                      .sizes = harmless_sizes + TPUI_MAX_HLO_RANK};
}

bool tpui_ok(const tpui_builder_t* b) { return b->status == NULL; }

static void latch_error(tpui_builder_t* b, tpu_status_t status) {
  if (status == NULL) return;
  if (b->status != NULL) {
    tpu_status_free(status);
    return;
  }
  b->status = b->op_name[0] != '\0' ? tpu_status_annotate(status, "%s", b->op_name) : status;
}

void tpui_fail(tpui_builder_t* b, tpu_status_code_t code, const char* format, ...) {
  if (b->status != NULL) return;
  char text[512];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  latch_error(b, tpu_status_make(code, "%s", text));
}

void tpui_latch_status(tpui_builder_t* b, tpu_status_t status) { latch_error(b, status); }

/* --- memory --- */

void* tpui_arena(tpui_builder_t* b, size_t bytes) {
  if (!tpui_ok(b)) return NULL;
  bytes = (bytes + 15) & ~(size_t)15;
  if (bytes == 0) bytes = 16;
  tpui_arena_block_t* block = b->arena;
  if (block == NULL || block->capacity - block->used < bytes) {
    size_t capacity = bytes > TPU_ARENA_BLOCK_BYTES ? bytes : TPU_ARENA_BLOCK_BYTES;
    void* memory = NULL;
    latch_error(b, tpu_calloc(1, sizeof(tpui_arena_block_t) + capacity, &memory));
    if (memory == NULL) return NULL;
    block = memory;
    block->next = b->arena;
    block->capacity = capacity;
    b->arena = block;
  }
  void* result = (char*)(block + 1) + block->used;
  block->used += bytes;
  return result;
}

void tpui_builder_free(tpui_builder_t* b) {
  tpui_arena_block_t* block = b->arena;
  while (block != NULL) {
    tpui_arena_block_t* next = block->next;
    tpu_free(block);
    block = next;
  }
  b->arena = NULL;
  tpu_free(b->memo);
  b->memo = NULL;
  tpu_free(b->checked);
  b->checked = NULL;
  tpu_strbuf_free(&b->body);
  tpu_status_free(b->status);
  b->status = NULL;
}

/* --- remembered values --- */

static size_t memo_find(const tpui_builder_t* b, const uint64_t key[4]) {
  uint64_t hash = 0;
  for (int i = 0; i < 4; ++i) hash = tpu_hash_mix(hash, key[i]);
  size_t mask = b->memo_capacity - 1;
  size_t at = (size_t)hash & mask;
  while (b->memo[at].key[0] != 0 && memcmp(b->memo[at].key, key, sizeof b->memo[at].key) != 0) {
    at = (at + 1) & mask;
  }
  return at;
}

bool tpui_memo_get(tpui_builder_t* b, const uint64_t key[4], tpui_hlo_t* out_value) {
  if (b->memo_capacity == 0) return false;
  size_t at = memo_find(b, key);
  if (b->memo[at].key[0] == 0) return false;
  *out_value = b->memo[at].value;
  return true;
}

static bool memo_grow(tpui_builder_t* b) {
  tpui_known_value_t* old = b->memo;
  size_t old_capacity = b->memo_capacity;
  size_t capacity = old_capacity == 0 ? 64 : old_capacity * 2;
  void* memory = NULL;
  latch_error(b, tpu_calloc(capacity, sizeof(tpui_known_value_t), &memory));
  if (memory == NULL) return false;
  b->memo = memory;
  b->memo_capacity = capacity;
  for (size_t i = 0; i < old_capacity; ++i) {
    if (old[i].key[0] != 0) b->memo[memo_find(b, old[i].key)] = old[i];
  }
  tpu_free(old);
  return true;
}

void tpui_memo_put(tpui_builder_t* b, const uint64_t key[4], tpui_hlo_t value) {
  if (!tpui_ok(b)) return;
  if ((b->memo_count + 1) * 2 > b->memo_capacity && !memo_grow(b)) return;
  size_t at = memo_find(b, key);
  if (b->memo[at].key[0] == 0) ++b->memo_count;
  memcpy(b->memo[at].key, key, sizeof b->memo[at].key);
  b->memo[at].value = value;
}

/* --- text --- */

void tpui_append_type(tpu_strbuf_t* out, tpu_dtype_t dtype, int rank, const int64_t* sizes) {
  tpu_strbuf_append(out, "tensor<");
  for (int i = 0; i < rank; ++i) {
    tpu_strbuf_append_int(out, sizes[i]);
    tpu_strbuf_append(out, "x");
  }
  tpu_strbuf_append(out, tpu_dtype_hlo(dtype));
  tpu_strbuf_append(out, ">");
}

void tpui_append_value(tpu_strbuf_t* out, tpui_hlo_t value) {
  if (value.id >= 0) {
    tpu_strbuf_append(out, "%");
    tpu_strbuf_append_int(out, value.id);
  } else {
    tpu_strbuf_append(out, "%arg");
    tpu_strbuf_append_int(out, -2 - value.id);
  }
}

/* Moves a finished text into the arena. */
static const char* keep_text(tpui_builder_t* b, tpu_strbuf_t* text) {
  latch_error(b, tpu_strbuf_status(text));
  char* copy = tpui_arena(b, text->size + 1);
  if (copy != NULL) memcpy(copy, tpu_strbuf_text(text), text->size + 1);
  tpu_strbuf_free(text);
  return copy != NULL ? copy : "";
}

const char* tpui_text(tpui_builder_t* b, const char* format, ...) {
  va_list args;
  va_start(args, format);
  va_list measure;
  va_copy(measure, args);
  int size = vsnprintf(NULL, 0, format, measure);
  va_end(measure);
  char* text = size < 0 ? NULL : tpui_arena(b, (size_t)size + 1);
  if (text != NULL) vsnprintf(text, (size_t)size + 1, format, args);
  va_end(args);
  return text != NULL ? text : "";
}

const char* tpui_text_ints(tpui_builder_t* b, int count, const int64_t* values) {
  tpu_strbuf_t text = {0};
  for (int i = 0; i < count; ++i) {
    if (i > 0) tpu_strbuf_append(&text, ", ");
    tpu_strbuf_append_int(&text, values[i]);
  }
  return keep_text(b, &text);
}

const char* tpui_text_array(tpui_builder_t* b, int count, const int64_t* values) {
  if (count == 0) return "array<i64>";
  return tpui_text(b, "array<i64: %s>", tpui_text_ints(b, count, values));
}

const char* tpui_text_type(tpui_builder_t* b, tpui_type_t type) {
  tpu_strbuf_t text = {0};
  tpui_append_type(&text, type.dtype, type.rank, type.sizes);
  return keep_text(b, &text);
}

const char* tpui_text_combiner(tpui_builder_t* b, const char* kind, tpu_dtype_t dtype) {
  const char* type = tpui_text_type(b, (tpui_type_t){dtype, 0, NULL});
  return tpui_text(b,
                   "({\n^bb0(%%l: %s, %%r: %s):\n"
                   "%%c = \"stablehlo.%s\"(%%l, %%r) : (%s, %s) -> %s\n"
                   "\"stablehlo.return\"(%%c) : (%s) -> ()\n})",
                   type, type, kind, type, type, type, type);
}

/* --- operations --- */

/* Later products of sizes are computed without asking: they fit because all bytes of a value do. */
static bool type_ok(tpui_builder_t* b, tpu_dtype_t dtype, int rank, const int64_t* sizes) {
  int64_t bytes = (int64_t)tpu_dtype_bytes(dtype);
  if (rank < 0 || rank > TPUI_MAX_HLO_RANK) {
    tpui_fail(b, TPU_UNIMPLEMENTED, "a tensor of %d dimensions is not supported", rank);
  } else if (bytes == 0) {
    tpui_fail(b, TPU_INTERNAL, "a value without a dtype");
  }
  for (int i = 0; i < rank && tpui_ok(b); ++i) {
    if (sizes[i] < 0) {
      tpui_fail(b, TPU_INTERNAL, "negative size %lld", (long long)sizes[i]);
    } else if (sizes[i] > 1 && __builtin_mul_overflow(bytes, sizes[i], &bytes)) {
      tpui_fail(b, TPU_INVALID_ARGUMENT, "a tensor of sizes [%s] is too large",
                tpui_text_ints(b, rank, sizes));
    }
  }
  return tpui_ok(b);
}

tpui_hlo_t tpui_value_make(tpui_builder_t* b, int32_t id, tpu_dtype_t dtype, int rank,
                           const int64_t* sizes) {
  if (!tpui_ok(b) || !type_ok(b, dtype, rank, sizes)) return tpui_harmless();
  int64_t* copy = tpui_arena(b, (size_t)(rank > 0 ? rank : 1) * sizeof(int64_t));
  if (copy == NULL) return tpui_harmless();
  if (rank > 0) memcpy(copy, sizes, (size_t)rank * sizeof(int64_t));
  return (tpui_hlo_t){.id = id, .dtype = dtype, .rank = rank, .sizes = copy};
}

/* Attribute and region texts may come with or without their brackets. */
static void append_bracketed(tpu_strbuf_t* out, const char* text, const char* open,
                             const char* close) {
  if (text == NULL || text[0] == '\0') return;
  bool done = strncmp(text, open, strlen(open)) == 0;
  tpu_strbuf_append(out, " ");
  if (!done) tpu_strbuf_append(out, open);
  tpu_strbuf_append(out, text);
  if (!done) tpu_strbuf_append(out, close);
}

static void append_result_types(tpu_strbuf_t* out, int count, const tpui_type_t* results) {
  if (count != 1) tpu_strbuf_append(out, "(");
  for (int i = 0; i < count; ++i) {
    if (i > 0) tpu_strbuf_append(out, ", ");
    tpui_append_type(out, results[i].dtype, results[i].rank, results[i].sizes);
  }
  if (count != 1) tpu_strbuf_append(out, ")");
  tpu_strbuf_append(out, "\n");
}

/* `%7 = "name"(%1, %2) <{...}> ({...}) : (types) -> types` */
static void emit_operation(tpui_builder_t* b, const char* name, int operand_count,
                           const tpui_hlo_t* operands, const char* attributes, const char* region,
                           int result_count, const tpui_type_t* results) {
  tpu_strbuf_t* out = &b->body;
  for (int i = 0; i < result_count; ++i) {
    tpu_strbuf_append(out, i == 0 ? "%" : ", %");
    tpu_strbuf_append_int(out, b->next_id + i);
  }
  tpu_strbuf_append(out, " = \"");
  tpu_strbuf_append(out, name);
  tpu_strbuf_append(out, "\"(");
  for (int i = 0; i < operand_count; ++i) {
    if (i > 0) tpu_strbuf_append(out, ", ");
    tpui_append_value(out, operands[i]);
  }
  tpu_strbuf_append(out, ")");
  append_bracketed(out, attributes, "<{", "}>");
  append_bracketed(out, region, "({", "})");
  tpu_strbuf_append(out, " : (");
  for (int i = 0; i < operand_count; ++i) {
    if (i > 0) tpu_strbuf_append(out, ", ");
    tpui_append_type(out, operands[i].dtype, operands[i].rank, operands[i].sizes);
  }
  tpu_strbuf_append(out, ") -> ");
  append_result_types(out, result_count, results);
}

void tpui_raw_multi(tpui_builder_t* b, const char* name, int operand_count,
                    const tpui_hlo_t* operands, const char* attributes, const char* region,
                    int result_count, const tpui_type_t* results, tpui_hlo_t* out_results) {
  for (int i = 0; i < result_count; ++i) out_results[i] = tpui_harmless();
  for (int i = 0; i < operand_count && tpui_ok(b); ++i) {
    if (operands[i].id == TPUI_ID_ERROR) {
      tpui_fail(b, TPU_INTERNAL, "%s: operand %d has no value", name, i);
    }
  }
  if (!tpui_ok(b)) return;
  for (int i = 0; i < result_count; ++i) {
    out_results[i] =
        tpui_value_make(b, b->next_id + i, results[i].dtype, results[i].rank, results[i].sizes);
  }
  if (!tpui_ok(b)) return;
  emit_operation(b, name, operand_count, operands, attributes, region, result_count, results);
  b->next_id += result_count;
}

tpui_hlo_t tpui_raw(tpui_builder_t* b, const char* name, int operand_count,
                    const tpui_hlo_t* operands, const char* attributes, const char* region,
                    tpu_dtype_t dtype, int rank, const int64_t* sizes) {
  tpui_hlo_t result;
  tpui_type_t type = {dtype, rank, sizes};
  tpui_raw_multi(b, name, operand_count, operands, attributes, region, 1, &type, &result);
  return result;
}
