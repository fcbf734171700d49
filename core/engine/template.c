#include "engine/template.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/state.h"

static void* carve(char** cursor, size_t size) {
  void* at = *cursor;
  *cursor += (size + 7) / 8 * 8;
  return at;
}

tpu_status_t tpui_template_create(tpu_engine_t* e, const char* name, size_t words, size_t inputs,
                                  size_t constants, size_t results, tpu_template_t** out_template) {
  *out_template = NULL;
  size_t length = strlen(name) + 1;
  // Each slot belongs to an operand of two words.
  size_t bytes = sizeof(tpu_template_t) + words * 8u + inputs * 4 + constants * 8 + results * 8 +
                 length + 8 * 8;
  void* memory = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc(1, bytes, &memory));
  tpu_template_t* t = memory;
  char* cursor = (char*)(t + 1);
  t->slots = carve(&cursor, words * 4u);
  t->constants = carve(&cursor, constants * sizeof(void*));
  t->words = carve(&cursor, words * sizeof(uint32_t));
  t->input_views = carve(&cursor, inputs * sizeof(tpu_meta_id_t));
  t->results = carve(&cursor, results * sizeof(uint32_t));
  t->result_views = carve(&cursor, results * sizeof(tpu_meta_id_t));
  char* text = carve(&cursor, length);
  memcpy(text, name, length);
  t->name = text;
  t->engine = e;
  *out_template = t;
  return NULL;
}

int tpu_template_result_count(const tpu_template_t* made) { return (int)made->result_count; }
int tpu_template_record_count(const tpu_template_t* made) { return (int)made->record_count; }

void tpui_template_free(tpu_template_t* made) {
  for (uint32_t k = 0; k < made->constant_count; ++k) {
    tpu_value_release(&made->engine->pool, made->constants[k]);
  }
  tpu_free(made);
}

void tpu_template_destroy(tpu_template_t* made) {
  if (made == NULL) return;
  tpu_engine_t* e = made->engine;
  tpu_mutex_lock(&e->lock);
  tpui_template_free(made);
  tpu_mutex_unlock(&e->lock);
}
