#include "ops/attrs.h"

#include <string.h>

#include "base/hash.h"
#include "base/intern.h"
#include "base/layout.h"

static tpu_intern_t sets = TPU_INTERN_INIT;

// One allocation: the struct, `size` words, `count` positions, then the texts.
typedef struct attrs_item_t {
  uint32_t size;
  uint32_t count;
  const uint64_t* words;      // as built
  const uint32_t* positions;  // index of each value's header word
  const char* texts;          // all texts in order, each with a NUL
} attrs_item_t;

static uint64_t header_word(tpu_attr_kind_t kind, size_t length) {
  return (uint64_t)kind << 32 | (uint32_t)length;
}
static tpu_attr_kind_t header_kind(uint64_t header) { return (tpu_attr_kind_t)(header >> 32); }
static uint32_t header_length(uint64_t header) { return (uint32_t)header; }

static size_t text_words(size_t size) { return (size + 7) / 8; }

static uint32_t payload_words(uint64_t header) {
  switch (header_kind(header)) {
    case TPU_ATTR_NONE: return 0;
    case TPU_ATTR_INTS: return header_length(header);
    case TPU_ATTR_TEXT: return (uint32_t)text_words(header_length(header));
    default: return 1;
  }
}

// Room for a value's payload behind its header, or NULL when it does not fit.
static uint64_t* begin_value(tpu_attrs_builder_t* builder, tpu_attr_kind_t kind, size_t length,
                             size_t payload) {
  if (builder->overflow || payload >= TPU_ATTRS_MAX_WORDS - builder->size) {
    builder->overflow = true;
    return NULL;
  }
  uint64_t* words = builder->words + builder->size;
  words[0] = header_word(kind, length);
  builder->size += 1 + (uint32_t)payload;
  builder->count += 1;
  return words + 1;
}

static void add_word(tpu_attrs_builder_t* builder, tpu_attr_kind_t kind, uint64_t word) {
  uint64_t* payload = begin_value(builder, kind, 1, 1);
  if (payload != NULL) payload[0] = word;
}

void tpu_attrs_add_none(tpu_attrs_builder_t* builder) {
  (void)begin_value(builder, TPU_ATTR_NONE, 0, 0);
}

void tpu_attrs_add_int(tpu_attrs_builder_t* builder, int64_t value) {
  add_word(builder, TPU_ATTR_INT, (uint64_t)value);
}

void tpu_attrs_add_dtype(tpu_attrs_builder_t* builder, tpu_dtype_t dtype) {
  add_word(builder, TPU_ATTR_DTYPE, (uint64_t)dtype);
}

void tpu_attrs_add_double(tpu_attrs_builder_t* builder, double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof(bits));
  add_word(builder, TPU_ATTR_DOUBLE, bits);
}

void tpu_attrs_add_ints(tpu_attrs_builder_t* builder, const int64_t* values, size_t count) {
  uint64_t* payload = begin_value(builder, TPU_ATTR_INTS, count, count);
  if (payload != NULL && count > 0) memcpy(payload, values, count * sizeof(*values));
}

void tpu_attrs_add_text(tpu_attrs_builder_t* builder, const char* text, size_t size) {
  size_t payload_size = text_words(size);
  uint64_t* payload = begin_value(builder, TPU_ATTR_TEXT, size, payload_size);
  if (payload == NULL || size == 0) return;
  payload[payload_size - 1] = 0;  // the last word's padding is compared and hashed too
  memcpy(payload, text, size);
}

void tpu_attrs_add_complex(tpu_attrs_builder_t* builder, int64_t operands) {
  add_word(builder, TPU_ATTR_COMPLEX, (uint64_t)operands);
}

void tpu_attrs_add_default_dtype(tpu_attrs_builder_t* builder, tpu_dtype_t dtype) {
  add_word(builder, TPU_ATTR_DEFAULT_DTYPE, (uint64_t)dtype);
}

void tpu_attrs_add_precision(tpu_attrs_builder_t* builder, tpu_precision_t precision) {
  add_word(builder, TPU_ATTR_PRECISION, (uint64_t)precision);
}

static bool match_set(const void* item_pointer, const void* key_pointer) {
  const attrs_item_t* item = item_pointer;
  const tpu_attrs_builder_t* key = key_pointer;
  return item->size == key->size &&
         memcmp(item->words, key->words, key->size * sizeof(uint64_t)) == 0;
}

// Copies the texts behind each other and notes where each value starts.
static void index_values(const attrs_item_t* item, uint32_t* positions, char* texts) {
  uint32_t place = 0;
  for (uint32_t i = 0; i < item->count; ++i) {
    positions[i] = place;
    uint64_t header = item->words[place];
    if (header_kind(header) == TPU_ATTR_TEXT) {
      memcpy(texts, item->words + place + 1, header_length(header));
      texts += header_length(header) + 1;
    }
    place += 1 + payload_words(header);
  }
}

static tpu_status_t make_set(const void* key_pointer, void** out_item) {
  const tpu_attrs_builder_t* key = key_pointer;
  size_t text_bytes = 0;
  for (uint32_t place = 0; place < key->size; place += 1 + payload_words(key->words[place])) {
    uint64_t header = key->words[place];
    if (header_kind(header) == TPU_ATTR_TEXT) text_bytes += header_length(header) + 1;
  }
  attrs_item_t *item = NULL, made = {.size = key->size, .count = key->count};
  uint32_t* positions = NULL;
  char* texts = NULL;
  tpu_layout_t layout;
  tpu_layout_init(&layout);
  TPU_LAYOUT_ADD(&layout, item, 1);
  TPU_LAYOUT_COPY(&layout, made.words, key->words, key->size);
  TPU_LAYOUT_ADD(&layout, positions, key->count);
  TPU_LAYOUT_ADD(&layout, texts, text_bytes);
  TPU_RETURN_IF_ERROR(tpu_layout_allocate(&layout, out_item));
  made.positions = positions;
  made.texts = texts;
  index_values(&made, positions, texts);
  *item = made;
  return NULL;
}

tpu_status_t tpu_attrs_intern(const tpu_attrs_builder_t* builder, tpu_attrs_id_t* out_id) {
  *out_id = 0;
  if (builder->overflow) {
    return tpu_status_make(TPU_INVALID_ARGUMENT,
                           "an operation's structural arguments take more than %d words",
                           TPU_ATTRS_MAX_WORDS);
  }
  if (builder->count == 0) return NULL;
  uint64_t hash = builder->size;
  for (uint32_t i = 0; i < builder->size; ++i) hash = tpu_hash_mix(hash, builder->words[i]);
  *out_id = tpu_intern_find(&sets, hash, match_set, builder);
  if (TPU_LIKELY(*out_id != 0)) return NULL;
  return tpu_intern_add(&sets, hash, match_set, make_set, builder, out_id);
}

int tpu_attrs_count(tpu_attrs_id_t id) {
  const attrs_item_t* item = tpu_intern_get(&sets, id);
  return item == NULL ? 0 : (int)item->count;
}

// Header word of a value; NULL when there is no such value.
static const uint64_t* value_at(tpu_attrs_id_t id, int position) {
  const attrs_item_t* item = tpu_intern_get(&sets, id);
  if (item == NULL || position < 0 || (uint32_t)position >= item->count) return NULL;
  return item->words + item->positions[position];
}

// The same when it is of this kind, else NULL.
static const uint64_t* value_of_kind(tpu_attrs_id_t id, int position, tpu_attr_kind_t kind) {
  const uint64_t* value = value_at(id, position);
  return value != NULL && header_kind(value[0]) == kind ? value : NULL;
}

tpu_attr_kind_t tpu_attr_kind(tpu_attrs_id_t id, int position) {
  const uint64_t* value = value_at(id, position);
  return value == NULL ? TPU_ATTR_NONE : header_kind(value[0]);
}

int tpu_attrs_argument_count(tpu_attrs_id_t id) {
  int count = tpu_attrs_count(id);
  while (count > 0 && tpu_attr_kind(id, count - 1) >= TPU_ATTR_COMPLEX) --count;
  return count;
}

// What stands behind the arguments; NULL when nothing of this kind does.
static const uint64_t* value_beside(tpu_attrs_id_t id, tpu_attr_kind_t kind) {
  const uint64_t* value = NULL;
  for (int i = tpu_attrs_count(id) - 1; i >= 0 && value == NULL; --i) {
    if (tpu_attr_kind(id, i) < TPU_ATTR_COMPLEX) break;
    value = value_of_kind(id, i, kind);
  }
  return value;
}

tpu_dtype_t tpu_attrs_default_dtype(tpu_attrs_id_t id) {
  const uint64_t* value = value_beside(id, TPU_ATTR_DEFAULT_DTYPE);
  return value == NULL ? TPU_F32 : (tpu_dtype_t)value[1];
}

tpu_precision_t tpu_attrs_precision(tpu_attrs_id_t id) {
  const uint64_t* value = value_beside(id, TPU_ATTR_PRECISION);
  if (value == NULL || value[1] > TPU_PRECISION_DEFAULT) return TPU_PRECISION_HIGHEST;
  return (tpu_precision_t)value[1];
}

int64_t tpu_attr_int(tpu_attrs_id_t id, int position, int64_t if_none) {
  const uint64_t* value = value_of_kind(id, position, TPU_ATTR_INT);
  return value == NULL ? if_none : (int64_t)value[1];
}

tpu_dtype_t tpu_attr_dtype(tpu_attrs_id_t id, int position, tpu_dtype_t if_none) {
  const uint64_t* value = value_of_kind(id, position, TPU_ATTR_DTYPE);
  return value == NULL ? if_none : (tpu_dtype_t)value[1];
}

double tpu_attr_double(tpu_attrs_id_t id, int position, double if_none) {
  const uint64_t* value = value_of_kind(id, position, TPU_ATTR_DOUBLE);
  double number = if_none;
  if (value != NULL) memcpy(&number, value + 1, sizeof(number));
  return number;
}

int tpu_attr_ints(tpu_attrs_id_t id, int position, const int64_t** out_values) {
  *out_values = NULL;
  const uint64_t* value = value_of_kind(id, position, TPU_ATTR_INTS);
  if (value == NULL || header_length(value[0]) == 0) return 0;
  *out_values = (const int64_t*)(value + 1);
  return (int)header_length(value[0]);
}

const char* tpu_attr_text(tpu_attrs_id_t id, int position) {
  if (value_of_kind(id, position, TPU_ATTR_TEXT) == NULL) return "";
  const attrs_item_t* item = tpu_intern_get(&sets, id);
  const char* text = item->texts;
  for (int i = 0; i < position; ++i) {
    uint64_t header = item->words[item->positions[i]];
    if (header_kind(header) == TPU_ATTR_TEXT) text += header_length(header) + 1;
  }
  return text;
}
