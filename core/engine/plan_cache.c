#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "base/layout.h"
#include "engine/plan.h"

/* A plan takes about 520 bytes for each record of its window (what its host steps need included),
 * and as much as four of them itself. More than this (260 MiB) is not one program's steady state;
 * the half that was used longest ago goes. */
#define MAX_RECORDS (1 << 19)
#define RECORDS_OF_A_PLAN 4

void tpui_variant_free_steps(tpui_variant_t* variant) {
  for (uint32_t i = 0; i < variant->step_count; ++i) tpu_step_free(&variant->steps[i]);
  tpu_free(variant->steps);
  variant->steps = NULL;
  variant->step_count = 0;
}

void tpui_variant_free(tpui_variant_t* variant) {
  if (variant == NULL) return;
  tpui_variant_free_steps(variant);
  tpu_free(variant);
}

void tpui_plan_free(tpui_plan_t* plan) {
  for (int i = 0; i < plan->variant_count; ++i) tpui_variant_free(plan->variants[i]);
  tpui_variant_free(plan->interpreted);
  tpui_build_free(plan->build);
  tpu_free(plan);
}

void tpui_plan_cache_clear(tpui_plan_cache_t* cache) {
  for (size_t i = 0; i < cache->capacity; ++i) {
    if (cache->plans[i] != NULL) tpui_plan_free(cache->plans[i]);
  }
  tpu_free(cache->plans);
  *cache = (tpui_plan_cache_t){0};
}

uint64_t tpui_plan_hash(const tpu_window_t* w) {
  uint64_t hash = tpu_hash_bytes(w->words, (size_t)w->word_count * sizeof(uint32_t), w->word_count);
  return tpu_hash_bytes(w->external_metas, (size_t)w->external_count * sizeof(tpu_meta_id_t), hash);
}

bool tpui_plan_completes(const tpui_plan_t* plan, const tpu_window_t* w) {
  const tpu_window_t* p = &plan->window;
  return p->word_count == w->word_count && p->external_count == w->external_count &&
         memcmp(p->external_metas, w->external_metas,
                (size_t)w->external_count * sizeof(tpu_meta_id_t)) == 0;
}

static bool is_equal(const tpui_plan_t* plan, const tpu_window_t* w) {
  return tpui_plan_completes(plan, w) &&
         memcmp(plan->window.words, w->words, (size_t)w->word_count * sizeof(uint32_t)) == 0;
}

static size_t first_slot(const tpui_plan_cache_t* cache, uint64_t hash) {
  return hash & (cache->capacity - 1);
}

tpui_plan_t* tpui_plan_find(const tpui_plan_cache_t* cache, const tpu_window_t* window,
                            uint64_t hash) {
  if (cache->count == 0) return NULL;
  size_t i = first_slot(cache, hash);
  for (; cache->plans[i] != NULL; i = (i + 1) & (cache->capacity - 1)) {
    if (cache->plans[i]->hash == hash && is_equal(cache->plans[i], window)) {
      return cache->plans[i];
    }
  }
  return NULL;
}

static uint64_t records_of(const tpu_window_t* window) {
  return (uint64_t)window->record_count + RECORDS_OF_A_PLAN;
}

static void insert_plan(tpui_plan_cache_t* cache, tpui_plan_t* plan) {
  size_t i = first_slot(cache, plan->hash);
  while (cache->plans[i] != NULL) i = (i + 1) & (cache->capacity - 1);
  cache->plans[i] = plan;
  ++cache->count;
  cache->records += records_of(&plan->window);
}

/* Rebuilds the table with room for one more, leaving out plans last used before `horizon`. Plans
 * point at each other as expected successors, so those links are cut first. */
static tpu_status_t rebuild_table(tpui_plan_cache_t* cache, uint64_t horizon) {
  tpui_plan_cache_t next = {.clock = cache->clock,
                            .capacity = cache->capacity < 64 ? 64 : cache->capacity * 2};
  if (horizon > 0) next.capacity = cache->capacity;
  TPU_RETURN_IF_ERROR(tpu_calloc(next.capacity, sizeof(tpui_plan_t*), (void**)&next.plans));
  for (size_t i = 0; i < cache->capacity; ++i) {
    tpui_plan_t* plan = cache->plans[i];
    if (plan == NULL) continue;
    if (horizon > 0) plan->next = NULL;
    if (plan->last_use < horizon && plan->build == NULL) {
      tpui_plan_free(plan);
    } else {
      insert_plan(&next, plan);
    }
  }
  tpu_free(cache->plans);
  *cache = next;
  return NULL;
}

typedef struct use_t {
  uint64_t when, records;
} use_t;

static int compare_uses(const void* a, const void* b) {
  const use_t *x = a, *y = b;
  return x->when < y->when ? -1 : x->when > y->when;
}

/* The first use after those that have half of all records. */
static uint64_t middle_use(const use_t* uses, size_t count, uint64_t records) {
  uint64_t seen = 0;
  for (size_t i = 0; i < count; ++i) {
    seen += uses[i].records;
    if (seen >= records / 2) return uses[i].when + 1;
  }
  return 0;
}

tpu_status_t tpui_plan_cache_halve(tpui_plan_cache_t* cache, uint64_t newest, bool* out_dropped) {
  use_t* uses = NULL;
  size_t count = 0, before = cache->count;
  *out_dropped = false;
  if (before == 0) return NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc(before, sizeof(*uses), (void**)&uses));
  for (size_t i = 0; i < cache->capacity; ++i) {
    const tpui_plan_t* plan = cache->plans[i];
    if (plan != NULL) uses[count++] = (use_t){plan->last_use, records_of(&plan->window)};
  }
  qsort(uses, count, sizeof(*uses), compare_uses);
  uint64_t horizon = middle_use(uses, count, cache->records);
  tpu_free(uses);
  tpu_status_t status = rebuild_table(cache, horizon < newest ? horizon : newest);
  *out_dropped = cache->count < before;
  return status;
}

static tpu_status_t make_room(tpui_plan_cache_t* cache, const tpu_window_t* window,
                              bool* out_dropped) {
  if (cache->records + records_of(window) > MAX_RECORDS) {
    TPU_RETURN_IF_ERROR(tpui_plan_cache_halve(cache, UINT64_MAX, out_dropped));
  }
  return (cache->count + 1) * 2 > cache->capacity ? rebuild_table(cache, 0) : NULL;
}

/* An empty plan with a copy of the window, in one block. */
tpu_status_t tpui_plan_make(const tpu_window_t* w, tpui_plan_t** out_plan) {
  tpu_window_t copy = *w;
  copy.slots = NULL;
  tpui_plan_t *plan = NULL, seen = {0};
  void* memory = NULL;
  tpu_layout_t layout;
  tpu_layout_init(&layout);
  TPU_LAYOUT_ADD(&layout, plan, 1);
  TPU_LAYOUT_COPY(&layout, copy.words, w->words, w->word_count);
  TPU_LAYOUT_COPY(&layout, copy.record_words, w->record_words, w->record_count);
  TPU_LAYOUT_COPY(&layout, copy.record_values, w->record_values, w->record_count);
  TPU_LAYOUT_COPY(&layout, copy.record_slots, w->record_slots, w->record_count);
  TPU_LAYOUT_COPY(&layout, copy.value_metas, w->value_metas, w->value_count);
  TPU_LAYOUT_COPY(&layout, copy.value_records, w->value_records, w->value_count);
  TPU_LAYOUT_COPY(&layout, copy.external_metas, w->external_metas, w->external_count);
  TPU_LAYOUT_ADD(&layout, seen.seen_slots, w->slot_count);
  TPU_LAYOUT_ADD(&layout, seen.seen_varied, w->slot_count);
  TPU_LAYOUT_ADD(&layout, seen.seen_live, w->value_count);
  TPU_RETURN_IF_ERROR(tpu_layout_allocate(&layout, &memory));
  *plan = seen;
  plan->window = copy;
  plan->most_interpretations = tpui_tier_interpretations(&copy);
  *out_plan = plan;
  return NULL;
}

tpu_status_t tpui_plan_add(tpui_plan_cache_t* cache, const tpu_window_t* window, uint64_t hash,
                           tpui_plan_t** out_plan, bool* out_dropped) {
  *out_plan = NULL;
  *out_dropped = false;
  TPU_RETURN_IF_ERROR(make_room(cache, window, out_dropped));
  tpui_plan_t* plan = NULL;
  TPU_RETURN_IF_ERROR(tpui_plan_make(window, &plan));
  plan->hash = hash;
  plan->last_use = cache->clock;
  insert_plan(cache, plan);
  *out_plan = plan;
  return NULL;
}

bool tpui_variant_gives(const tpui_variant_t* variant, const tpu_window_t* window,
                        const tpu_slot_t* slots, const uint8_t* live) {
  for (uint32_t s = 0; s < window->slot_count; ++s) {
    if (!variant->slot_dynamic[s] && variant->slot_values[s].bits != slots[s].bits) return false;
  }
  for (uint32_t v = 0; v < window->value_count; ++v) {
    if (live[v] && !variant->live[v]) return false;
  }
  for (uint32_t i = 0; i < variant->step_count; ++i) {
    if (!tpu_packed_fits(&variant->steps[i].packed, slots)) return false;
  }
  return true;
}

/* What a variant gives beyond what is needed was not worth its stores and its memory. One of single
 * ops gives everything, since nothing better could be compiled. */
static bool gives_too_much(const tpui_plan_t* plan, const tpui_variant_t* variant,
                           const uint8_t* live) {
  if (!tpui_plan_is_exact(plan) || variant->single) return false;
  uint32_t wanted = 0;
  for (uint32_t v = 0; v < plan->window.value_count; ++v) wanted += live[v];
  return variant->output_count > wanted;
}

bool tpui_variant_fits(const tpui_variant_t* variant, const tpu_window_t* window,
                       const tpu_slot_t* slots, const uint8_t* live) {
  // Broken: the reason may be gone, so it is tried again.
  return !variant->broken && tpui_variant_gives(variant, window, slots, live);
}

tpui_variant_t* tpui_plan_fit(const tpui_plan_t* plan, const tpu_slot_t* slots,
                              const uint8_t* live) {
  tpui_variant_t* best = NULL;
  for (int i = 0; i < plan->variant_count; ++i) {
    tpui_variant_t* variant = plan->variants[i];
    if (best != NULL && best->output_count <= variant->output_count) continue;
    if (tpui_variant_fits(variant, &plan->window, slots, live)) best = variant;
  }
  if (TPU_UNLIKELY(best != NULL && gives_too_much(plan, best, live))) return NULL;
  return best;
}
