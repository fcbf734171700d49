#include "base/env.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/thread.h"

typedef enum env_kind_t { ENV_TEXT, ENV_INT, ENV_BOOL } env_kind_t;
typedef enum env_source_t {
  SOURCE_UNREAD,
  SOURCE_DEFAULT,
  SOURCE_ENVIRONMENT,
  SOURCE_OVERRIDE
} env_source_t;

typedef struct env_row_t {
  const char* name;
  env_kind_t kind;
  const char* default_text;
} env_row_t;

static const env_row_t rows[TPU_ENV_COUNT] = {
#define TPU_ENV(id, name, kind, default_text, doc) \
  [TPU_ENV_##id] = {name, ENV_##kind, default_text},
#include "base/env_table.def"
#undef TPU_ENV
};

// The effective value of a row. Readers take no lock: `source` is stored last, with release.
typedef struct env_value_t {
  _Atomic int source;
  _Atomic(const char*) text;  // NULL when empty
  _Atomic int64_t number;
} env_value_t;

static env_value_t values[TPU_ENV_COUNT];
static tpu_mutex_t values_lock = TPU_MUTEX_INIT;

// Texts that were effective once. Callers may still hold them, so they are never freed; equal texts
// are kept once.
typedef struct kept_text_t {
  struct kept_text_t* next;
  char text[];
} kept_text_t;

static kept_text_t* kept_texts;

// A copy that lives forever, or NULL when memory is out. Needs the lock.
static const char* keep_text(const char* text) {
  for (kept_text_t* kept = kept_texts; kept != NULL; kept = kept->next) {
    if (strcmp(kept->text, text) == 0) return kept->text;
  }
  size_t size = strlen(text) + 1;
  kept_text_t* kept = tpui_alloc(sizeof(*kept) + size);
  if (kept == NULL) return NULL;
  memcpy(kept->text, text, size);
  kept->next = kept_texts;
  kept_texts = kept;
  return kept->text;
}

static bool parse_int(const char* text, int64_t* out_number) {
  char* end = NULL;
  errno = 0;
  long long number = strtoll(text, &end, 10);
  if (end == text || errno != 0) return false;
  int64_t unit = 1;
  if (*end == 'K' || *end == 'k') unit = 1ll << 10;
  if (*end == 'M' || *end == 'm') unit = 1ll << 20;
  if (*end == 'G' || *end == 'g') unit = 1ll << 30;
  if (unit != 1) ++end;
  return *end == '\0' && !__builtin_mul_overflow((int64_t)number, unit, out_number);
}

static bool parse_bool(const char* text, int64_t* out_number) {
  static const char* const words[2][4] = {{"0", "false", "off", "no"}, {"1", "true", "on", "yes"}};
  for (int value = 0; value < 2; ++value) {
    for (int i = 0; i < 4; ++i) {
      if (strcasecmp(text, words[value][i]) == 0) {
        *out_number = value;
        return true;
      }
    }
  }
  return false;
}

static bool parse_value(env_kind_t kind, const char* text, int64_t* out_number) {
  *out_number = 0;
  switch (kind) {
    case ENV_INT: return parse_int(text, out_number);
    case ENV_BOOL: return parse_bool(text, out_number);
    default: return true;
  }
}

// Needs the lock. `text` lives forever; an empty one reads as the default.
static void publish_value(tpu_env_t id, const char* text, env_source_t source) {
  if (text[0] == '\0') text = rows[id].default_text;
  int64_t number;
  (void)parse_value(rows[id].kind, text, &number);  // callers checked it; defaults are tested
  atomic_store_explicit(&values[id].number, number, memory_order_relaxed);
  atomic_store_explicit(&values[id].text, text[0] == '\0' ? NULL : text, memory_order_relaxed);
  atomic_store_explicit(&values[id].source, source, memory_order_release);
}

// Needs the lock. Reads the process environment.
static void load_variable(tpu_env_t id) {
  const char* text = getenv(rows[id].name);
  int64_t number;
  if (text == NULL || text[0] == '\0') {
    publish_value(id, "", SOURCE_DEFAULT);
  } else if (!parse_value(rows[id].kind, text, &number)) {
    fprintf(stderr, "torch_tpu: %s=%s is not %s; using %s\n", rows[id].name, text,
            rows[id].kind == ENV_INT ? "a whole number" : "a truth value", rows[id].default_text);
    publish_value(id, "", SOURCE_DEFAULT);
  } else {
    // Without memory for a copy, the environment's own string has to do.
    const char* kept = keep_text(text);
    publish_value(id, kept != NULL ? kept : text, SOURCE_ENVIRONMENT);
  }
}

static env_value_t* read_value(tpu_env_t id) {
  env_value_t* value = &values[id];
  if (TPU_LIKELY(atomic_load_explicit(&value->source, memory_order_acquire) != SOURCE_UNREAD)) {
    return value;
  }
  tpu_mutex_lock(&values_lock);
  if (atomic_load_explicit(&value->source, memory_order_relaxed) == SOURCE_UNREAD)
    load_variable(id);
  tpu_mutex_unlock(&values_lock);
  return value;
}

static bool in_table(tpu_env_t id) { return (unsigned)id < TPU_ENV_COUNT; }

const char* tpu_env_text(tpu_env_t id) {
  if (!in_table(id)) return NULL;
  return atomic_load_explicit(&read_value(id)->text, memory_order_relaxed);
}

int64_t tpu_env_int(tpu_env_t id) {
  if (!in_table(id)) return 0;
  return atomic_load_explicit(&read_value(id)->number, memory_order_relaxed);
}

bool tpu_env_bool(tpu_env_t id) { return tpu_env_int(id) != 0; }

tpu_status_t tpu_env_override(tpu_env_t id, const char* text) {
  if (!in_table(id)) return tpu_status_make(TPU_INVALID_ARGUMENT, "no environment row %d", (int)id);
  int64_t number;
  bool empty = text == NULL || text[0] == '\0';
  if (!empty && !parse_value(rows[id].kind, text, &number)) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "%s: \"%s\" is not %s", rows[id].name, text,
                           rows[id].kind == ENV_INT
                               ? "a whole number (suffixes K, M and G are allowed)"
                               : "a truth value (use 1 or 0)");
  }
  tpu_mutex_lock(&values_lock);
  const char* kept = empty ? "" : keep_text(text);
  if (kept != NULL && text == NULL) load_variable(id);
  if (kept != NULL && text != NULL) publish_value(id, kept, SOURCE_OVERRIDE);
  tpu_mutex_unlock(&values_lock);
  if (kept == NULL) return tpu_status_make(TPU_RESOURCE_EXHAUSTED, "out of host memory");
  return NULL;
}

tpu_env_t tpu_env_find(const char* name) {
  for (int id = 0; id < TPU_ENV_COUNT; ++id) {
    if (strcmp(rows[id].name, name) == 0) return (tpu_env_t)id;
  }
  return TPU_ENV_COUNT;
}

const char* tpu_env_source(tpu_env_t id) {
  static const char* const names[] = {"default", "default", "environment", "override"};
  if (!in_table(id)) return "default";
  return names[atomic_load_explicit(&read_value(id)->source, memory_order_relaxed)];
}

const char* tpu_env_name(tpu_env_t id) { return in_table(id) ? rows[id].name : ""; }
