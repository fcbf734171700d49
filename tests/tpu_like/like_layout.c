#include <ctype.h>

#include "like_internal.h"

static int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

/* Rows of a tile: 8 words of 32 bits, fewer for a smaller dimension; narrower types pack. */
static int64_t tile_rows(const fake_type_t* type, int64_t rows) {
  int64_t size = fake_dtype_bytes(type->dtype);
  int64_t packed = size < 4 ? 4 / size : 1;
  int64_t most = 8 * packed, least = packed;
  int64_t tile = least;
  while (tile < most && tile < rows) tile *= 2;
  return tile;
}

/* Elements in whole tiles with `minor` along the lanes and `second` along the rows. */
static int64_t tiled_elements(const fake_type_t* type, size_t minor, size_t second) {
  int64_t elements = round_up(type->dims[minor], 128) *
                     round_up(type->dims[second], tile_rows(type, type->dims[second]));
  for (size_t i = 0; i < type->rank; ++i) {
    if (i != minor && i != second) elements *= type->dims[i];
  }
  return elements;
}

void like_layout_choose(const fake_type_t* type, int64_t* out_minor_to_major) {
  size_t rank = type->rank;
  for (size_t i = 0; i < rank; ++i) out_minor_to_major[i] = (int64_t)(rank - 1 - i);
  if (rank < 2 || fake_type_bytes(type) == 0) return;
  size_t minor = rank - 1, second = rank - 2;
  int64_t best = tiled_elements(type, minor, second);
  for (size_t a = rank; a-- > 0;) {
    for (size_t b = rank; b-- > 0;) {
      if (a == b || tiled_elements(type, a, b) >= best) continue;
      best = tiled_elements(type, a, b);
      minor = a;
      second = b;
    }
  }
  out_minor_to_major[0] = (int64_t)minor;
  out_minor_to_major[1] = (int64_t)second;
  size_t next = 2;
  for (size_t i = rank; i-- > 0;) {
    if (i != minor && i != second) out_minor_to_major[next++] = (int64_t)i;
  }
}

bool like_layout_is_row_major(const fake_type_t* type) {
  int64_t order[FAKE_MAX_RANK];
  like_layout_choose(type, order);
  for (size_t i = 0; i < type->rank; ++i) {
    if (order[i] != (int64_t)(type->rank - 1 - i)) return false;
  }
  return true;
}

int64_t like_layout_bytes(const fake_type_t* type) {
  int64_t dense = fake_type_bytes(type);
  if (dense == 0) return 0;
  if (type->rank < 2) return round_up(dense, dense <= 512 ? 512 : 4096);
  int64_t order[FAKE_MAX_RANK];
  like_layout_choose(type, order);
  return tiled_elements(type, (size_t)order[0], (size_t)order[1]) * fake_dtype_bytes(type->dtype);
}

/* --- the signature of @main --- */

typedef struct writer_t {
  char* text;
  size_t size;
} writer_t;

static void append(writer_t* out, const char* text, size_t size) {
  memcpy(out->text + out->size, text, size);
  out->size += size;
}

/* mhlo.layout_mode = "{0,1}" */
static void append_layout(writer_t* out, const fake_type_t* type) {
  int64_t order[FAKE_MAX_RANK];
  like_layout_choose(type, order);
  char text[256];
  int size = snprintf(text, sizeof(text), "mhlo.layout_mode = \"{");
  for (size_t i = 0; i < type->rank; ++i) {
    size += snprintf(text + size, sizeof(text) - (size_t)size, "%s%lld", i > 0 ? "," : "",
                     (long long)order[i]);
  }
  size += snprintf(text + size, sizeof(text) - (size_t)size, "}\"");
  append(out, text, (size_t)size);
}

/* Copies up to `end`; every tensor type on the way gets its layout. Gives how many there were. */
static size_t copy_with_layouts(writer_t* out, const char** text, const char* end,
                                const fake_type_t* types, size_t count) {
  size_t done = 0;
  while (*text < end) {
    const char* type = memmem(*text, (size_t)(end - *text), "tensor<", 7);
    if (type == NULL || done == count) break;
    const char* close = memmem(type, (size_t)(end - type), ">", 1);
    // complex<f32> has one of its own
    while (close[1] == '>') ++close;
    append(out, *text, (size_t)(close + 1 - *text));
    *text = close + 1;
    bool marked = strncmp(*text, " {", 2) == 0 && (*text)[2] != '\n';
    append(out, " {", 2);
    append_layout(out, &types[done++]);
    append(out, marked ? ", " : "}", marked ? 2 : 1);
    if (marked) *text += 2;
  }
  append(out, *text, (size_t)(end - *text));
  *text = end;
  return done;
}

/* NULL for a program whose signature is not one that the core writes. */
char* like_layout_write(const char* text, size_t size, size_t* out_size) {
  char message[256];
  fake_program_t* program = fake_program_parse(text, size, message, sizeof(message));
  if (program == NULL) return NULL;
  const char* end = text + size;
  const char* head = memmem(text, size, "@main(", 6);
  const char* arrow = memmem(head, (size_t)(end - head), ") -> (", 6);
  const char* body = arrow != NULL ? memmem(arrow, (size_t)(end - arrow), ") {\n", 4) : NULL;
  writer_t out = {.text = NULL};
  if (body != NULL) {
    out.text = like_new(size + (program->argument_count + program->result_count) * 256);
    const char* next = text;
    append(&out, text, (size_t)(head - text));
    next = head;
    (void)copy_with_layouts(&out, &next, arrow, program->arguments, program->argument_count);
    (void)copy_with_layouts(&out, &next, body, program->results, program->result_count);
    append(&out, body, (size_t)(end - body));
  }
  fake_program_release(program);
  *out_size = out.size;
  return out.text;
}
