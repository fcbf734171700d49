#include "engine/template.h"

#include <string.h>

#include "base/alloc.h"
#include "base/layout.h"
#include "engine/state.h"

tpu_status_t tpui_template_create(tpu_engine_t* e, const char* name,
                                  const tpui_template_room_t* room, tpu_template_t** out_template) {
  *out_template = NULL;
  tpu_template_t *block = NULL, made = {.engine = e};
  void* memory = NULL;
  tpu_layout_t layout;
  tpu_layout_init(&layout);
  TPU_LAYOUT_ADD(&layout, block, 1);
  TPU_LAYOUT_COPY(&layout, made.name, name, strlen(name) + 1);
  // Each slot belongs to an operand, which takes two words.
  TPU_LAYOUT_ADD(&layout, made.words, room->words);
  TPU_LAYOUT_ADD(&layout, made.slots, room->words / 2);
  TPU_LAYOUT_ADD(&layout, made.random_slots, room->words / 2);
  TPU_LAYOUT_ADD(&layout, made.input_views, room->inputs);
  TPU_LAYOUT_ADD(&layout, made.writes, room->inputs);
  TPU_LAYOUT_ADD(&layout, made.constants, room->constants);
  TPU_LAYOUT_ADD(&layout, made.results, room->results);
  TPU_RETURN_IF_ERROR(tpu_layout_allocate(&layout, &memory));
  *block = made;
  *out_template = block;
  return NULL;
}

int tpu_template_result_count(const tpu_template_t* made) { return (int)made->result_count; }
int tpu_template_record_count(const tpu_template_t* made) { return (int)made->record_count; }
bool tpu_template_writes(const tpu_template_t* made, int k) { return made->writes[k] != 0; }

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
