#include <ctype.h>

#include "fake_internal.h"

typedef struct dtype_row_t {
  const char* hlo;
  int32_t code;
  int64_t bytes;
} dtype_row_t;

static const dtype_row_t dtypes[] = {
#define TPU_DTYPE(id, torch_name, torch_code, hlo, pjrt_code, bytes, kind, nonfinite) \
  {hlo, pjrt_code, bytes},
#include "types/dtype_table.def"
#undef TPU_DTYPE
    {"si8", 2, 1},
    {"si16", 3, 2},
    {"si32", 4, 4},
    {"si64", 5, 8},
};
enum { DTYPE_COUNT = sizeof(dtypes) / sizeof(dtypes[0]) };

int64_t fake_dtype_bytes(int32_t dtype) {
  for (int i = 0; i < DTYPE_COUNT; ++i) {
    if (dtypes[i].code == dtype) return dtypes[i].bytes;
  }
  return 0;
}

int64_t fake_type_bytes(const fake_type_t* type) {
  for (size_t i = 0; i < type->rank; ++i) {
    if (type->dims[i] == 0) return 0;  // whatever the others are
  }
  int64_t bytes = fake_dtype_bytes(type->dtype);
  for (size_t i = 0; i < type->rank; ++i) bytes *= type->dims[i];
  return bytes;
}

typedef struct parser_t {
  const char* next;
  const char* end;
} parser_t;

static void skip_space(parser_t* p) {
  while (p->next < p->end && isspace((unsigned char)*p->next)) p->next += 1;
}

static bool accept(parser_t* p, const char* token) {
  skip_space(p);
  size_t size = strlen(token);
  if ((size_t)(p->end - p->next) < size || memcmp(p->next, token, size) != 0) return false;
  p->next += size;
  return true;
}

/* tensor<2x3xf32> */
static bool parse_type(parser_t* p, fake_type_t* type) {
  memset(type, 0, sizeof(*type));
  if (!accept(p, "tensor<")) return false;
  while (p->next < p->end && isdigit((unsigned char)*p->next)) {
    char* after = NULL;
    int64_t size = strtoll(p->next, &after, 10);
    if (after >= p->end || *after != 'x' || type->rank == FAKE_MAX_RANK) return false;
    type->dims[type->rank++] = size;
    p->next = after + 1;
  }
  for (int i = 0; i < DTYPE_COUNT; ++i) {
    size_t size = strlen(dtypes[i].hlo);
    if ((size_t)(p->end - p->next) > size && memcmp(p->next, dtypes[i].hlo, size) == 0 &&
        p->next[size] == '>') {
      type->dtype = dtypes[i].code;
      p->next += size + 1;
      return true;
    }
  }
  return false;
}

/* {name = value, ...}: finds the marks of a donation, skips the rest. */
static bool parse_attributes(parser_t* p, fake_type_t* type) {
  if (!accept(p, "{")) return true;
  const char* start = p->next;
  int depth = 1;
  bool quoted = false;
  for (; p->next < p->end && depth > 0; ++p->next) {
    if (*p->next == '"') quoted = !quoted;
    if (quoted) continue;
    if (*p->next == '{') depth += 1;
    if (*p->next == '}') depth -= 1;
  }
  if (depth != 0) return false;
  size_t size = (size_t)(p->next - start);
  type->donor = memmem(start, size, "tf.aliasing_output", 18) != NULL ||
                memmem(start, size, "jax.buffer_donor", 16) != NULL;
  return true;
}

static bool append_type(fake_type_t** types, size_t* count, const fake_type_t* type) {
  fake_type_t* grown = realloc(*types, (*count + 1) * sizeof(*grown));
  if (grown == NULL) return false;
  *types = grown;
  grown[(*count)++] = *type;
  return true;
}

/* (%a: tensor<..> {..}, ...) or the same without names; ends behind the bracket. */
static bool parse_list(parser_t* p, bool named, fake_type_t** types, size_t* count) {
  if (accept(p, ")")) return true;
  for (;;) {
    if (named) {
      if (!accept(p, "%")) return false;
      while (p->next < p->end && *p->next != ':') p->next += 1;
      if (!accept(p, ":")) return false;
    }
    fake_type_t type;
    if (!parse_type(p, &type) || !parse_attributes(p, &type)) return false;
    if (!append_type(types, count, &type)) return false;
    if (accept(p, ")")) return true;
    if (!accept(p, ",")) return false;
  }
}

static bool parse_main(parser_t* p, fake_program_t* program) {
  const char* start = memmem(p->next, (size_t)(p->end - p->next), "@main(", 6);
  if (start == NULL) return false;
  p->next = start + 6;
  if (!parse_list(p, true, &program->arguments, &program->argument_count)) return false;
  if (!accept(p, "->")) return accept(p, "{") || accept(p, "attributes");
  bool ok;
  if (accept(p, "(")) {
    ok = parse_list(p, false, &program->results, &program->result_count);
  } else {
    fake_type_t type;
    ok = parse_type(p, &type) && append_type(&program->results, &program->result_count, &type);
  }
  return ok && (accept(p, "{") || accept(p, "attributes"));
}

/* A real compiler reads the whole text; at least its end must be there. */
static bool is_balanced(const char* text, size_t size) {
  int64_t depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < size && depth >= 0; ++i) {
    if (text[i] == '"') quoted = !quoted;
    if (quoted) continue;
    if (text[i] == '{') depth += 1;
    if (text[i] == '}') depth -= 1;
  }
  return depth == 0 && !quoted;
}

static bool list_results(fake_program_t* program) {
  size_t count = program->result_count;
  program->result_dtypes = calloc(count + 1, sizeof(int32_t));
  program->result_ranks = calloc(count + 1, sizeof(size_t));
  program->result_dims = calloc(count * FAKE_MAX_RANK + 1, sizeof(int64_t));
  if (program->result_dtypes == NULL || program->result_ranks == NULL ||
      program->result_dims == NULL) {
    return false;
  }
  int64_t* dims = program->result_dims;
  for (size_t i = 0; i < count; ++i) {
    const fake_type_t* type = &program->results[i];
    program->result_dtypes[i] = type->dtype;
    program->result_ranks[i] = type->rank;
    memcpy(dims, type->dims, type->rank * sizeof(int64_t));
    dims += type->rank;
  }
  return true;
}

fake_program_t* fake_program_parse(const char* text, size_t size, char* message,
                                   size_t message_size) {
  fake_program_t* program = calloc(1, sizeof(*program));
  if (program == NULL) return NULL;
  program->references = 1;
  program->text = calloc(size + 1, 1);  // with a NUL, so that strtoll stops
  if (program->text != NULL) {
    memcpy(program->text, text, size);
    program->text_size = size;
    parser_t parser = {.next = program->text, .end = program->text + size};
    bool read = parse_main(&parser, program);
    if (read && is_balanced(text, size) && list_results(program)) return program;
    (void)snprintf(message, message_size, "cannot read the signature of @main near \"%.40s\"",
                   read ? "(brackets)" : parser.next);
  }
  fake_program_release(program);
  return NULL;
}

void fake_program_release(fake_program_t* program) {
  if (program == NULL || __atomic_sub_fetch(&program->references, 1, __ATOMIC_ACQ_REL) > 0) return;
  free(program->text);
  free(program->arguments);
  free(program->results);
  free(program->result_dtypes);
  free(program->result_dims);
  free(program->result_ranks);
  free(program);
}
