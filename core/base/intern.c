#include "base/intern.h"

#include "base/alloc.h"

// Needs the lock (or a table that nobody else sees yet).
static void insert_slot(tpui_intern_table_t* table, uint64_t index_hash, uint64_t slot) {
  uint64_t i = index_hash & table->mask;
  while (atomic_load_explicit(&table->slots[i], memory_order_relaxed) != 0) {
    i = (i + 1) & table->mask;
  }
  atomic_store_explicit(&table->slots[i], slot, memory_order_release);
}

static uint64_t chunk_capacity(int chunk) { return 1ull << (chunk + TPUI_INTERN_CHUNK_BITS); }

// Where an id lives: its chunk (NULL: not allocated yet) and the place in it.
typedef struct place_t {
  int chunk;
  uint64_t index;
  const void** items;
} place_t;

static place_t find_place(tpu_intern_t* intern, uint32_t id) {
  uint64_t shifted = (uint64_t)(id - 1) + (1u << TPUI_INTERN_CHUNK_BITS);
  int level = 63 - __builtin_clzll(shifted);
  int chunk = level - TPUI_INTERN_CHUNK_BITS;
  const void** items = atomic_load_explicit(&intern->chunks[chunk], memory_order_relaxed);
  return (place_t){chunk, shifted - (1ull << level), items};
}

// A slot of the table keeps only the upper half of its hash; growing needs all of it. So a chunk
// holds the items' pointers and behind them their hashes.
static uint64_t* hash_of(place_t place) {
  return (uint64_t*)(void*)(place.items + chunk_capacity(place.chunk)) + place.index;
}

// Needs the lock. Keeps the table at most half full.
static tpu_status_t make_room(tpu_intern_t* intern, uint32_t id) {
  place_t place = find_place(intern, id);
  if (place.items == NULL) {
    void* memory;
    TPU_RETURN_IF_ERROR(
        tpu_calloc(chunk_capacity(place.chunk), sizeof(void*) + sizeof(uint64_t), &memory));
    atomic_store_explicit(&intern->chunks[place.chunk], memory, memory_order_relaxed);
  }
  tpui_intern_table_t* old = atomic_load_explicit(&intern->table, memory_order_relaxed);
  if (old != NULL && (uint64_t)id * 2 <= old->mask + 1) return NULL;
  uint64_t slots = old == NULL ? 1024 : (old->mask + 1) * 2;
  void* memory;
  TPU_RETURN_IF_ERROR(
      tpu_calloc(1, sizeof(tpui_intern_table_t) + slots * sizeof(uint64_t), &memory));
  tpui_intern_table_t* table = memory;
  table->outgrown = old;
  table->mask = slots - 1;
  for (uint32_t other = 1; other < id; ++other) {
    uint64_t hash = *hash_of(find_place(intern, other));
    insert_slot(table, hash, hash >> 32 << 32 | other);
  }
  atomic_store_explicit(&intern->table, table, memory_order_release);
  return NULL;
}

static tpu_status_t add_locked(tpu_intern_t* intern, uint64_t hash, tpui_intern_make_t make,
                               const void* key, uint32_t* out_id) {
  uint32_t id = atomic_load_explicit(&intern->count, memory_order_relaxed) + 1;
  if (id == UINT32_MAX) return tpu_status_make(TPU_RESOURCE_EXHAUSTED, "all 32-bit ids are in use");
  TPU_RETURN_IF_ERROR(make_room(intern, id));
  void* item;
  TPU_RETURN_IF_ERROR(make(key, &item));
  place_t place = find_place(intern, id);
  place.items[place.index] = item;
  *hash_of(place) = hash;
  // The count first: whoever finds the slot may get the id.
  atomic_store_explicit(&intern->count, id, memory_order_release);
  insert_slot(atomic_load_explicit(&intern->table, memory_order_relaxed), hash,
              hash >> 32 << 32 | id);
  *out_id = id;
  return NULL;
}

tpu_status_t tpu_intern_add(tpu_intern_t* intern, uint64_t hash, tpui_intern_match_t match,
                            tpui_intern_make_t make, const void* key, uint32_t* out_id) {
  tpu_mutex_lock(&intern->lock);
  *out_id = tpu_intern_find(intern, hash, match, key);
  tpu_status_t status = *out_id != 0 ? NULL : add_locked(intern, hash, make, key, out_id);
  tpu_mutex_unlock(&intern->lock);
  return status;
}
