/* Interning: equal items get equal small ids. Internal to core/ (metadata and attribute sets).
 *
 * Items are never freed and never move. Finding and getting take no lock: the hash table's slots
 * and the chunks behind the ids are published with release stores and only ever added to; a table
 * that was outgrown stays readable, chained behind its successor.
 */
#ifndef TPU_BASE_INTERN_H_
#define TPU_BASE_INTERN_H_

#include <stdatomic.h>

#include "base/status.h"
#include "base/thread.h"

/* Chunk k holds ids [base << k, base << (k + 1)) minus base, so 22 chunks cover all 32-bit ids. */
#define TPUI_INTERN_CHUNK_BITS 10
#define TPUI_INTERN_CHUNKS 22

typedef struct tpui_intern_table_t {
  struct tpui_intern_table_t* outgrown;
  uint64_t mask;             // slots - 1
  _Atomic uint64_t slots[];  // hash's upper 32 bits << 32 | id; 0 is free
} tpui_intern_table_t;

/* Zero-initialise with TPU_INTERN_INIT. */
typedef struct tpu_intern_t {
  tpu_mutex_t lock;
  _Atomic(tpui_intern_table_t*) table;
  _Atomic uint32_t count;  // ids 1..count are in use
  _Atomic(const void**) chunks[TPUI_INTERN_CHUNKS];
} tpu_intern_t;

#define TPU_INTERN_INIT {.lock = TPU_MUTEX_INIT}

/* True when `item` is what `key` describes. */
typedef bool (*tpui_intern_match_t)(const void* item, const void* key);
/* Makes the item for a key, with one tpu_calloc. */
typedef tpu_status_t (*tpui_intern_make_t)(const void* key, void** out_item);

/* The item behind an id; NULL for an id that was never given out. */
static inline const void* tpu_intern_get(tpu_intern_t* intern, uint32_t id) {
  if (id - 1 >= atomic_load_explicit(&intern->count, memory_order_acquire)) return NULL;
  uint64_t place = (uint64_t)(id - 1) + (1u << TPUI_INTERN_CHUNK_BITS);
  int level = 63 - __builtin_clzll(place);
  const void** chunk =
      atomic_load_explicit(&intern->chunks[level - TPUI_INTERN_CHUNK_BITS], memory_order_relaxed);
  return chunk[place - (1ull << level)];
}

/* The id of an item that matches, or 0. Inline, so that a constant `match` is inlined as well. */
static inline uint32_t tpu_intern_find(tpu_intern_t* intern, uint64_t hash,
                                       tpui_intern_match_t match, const void* key) {
  tpui_intern_table_t* table = atomic_load_explicit(&intern->table, memory_order_acquire);
  if (table == NULL) return 0;
  for (uint64_t i = hash & table->mask;; i = (i + 1) & table->mask) {
    uint64_t slot = atomic_load_explicit(&table->slots[i], memory_order_acquire);
    if (slot == 0) return 0;
    if (slot >> 32 != hash >> 32) continue;
    if (match(tpu_intern_get(intern, (uint32_t)slot), key)) return (uint32_t)slot;
  }
}

/* The slow half: takes the lock, looks again, and makes and adds the item if it is still missing.
 * Nothing changes on failure. */
TPU_MUST_USE tpu_status_t tpu_intern_add(tpu_intern_t* intern, uint64_t hash,
                                         tpui_intern_match_t match, tpui_intern_make_t make,
                                         const void* key, uint32_t* out_id);

#endif  // TPU_BASE_INTERN_H_
