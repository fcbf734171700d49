#include <string.h>

#include "base/alloc.h"
#include "compile/compile_internal.h"

enum { FIRST_SLOT_COUNT = 256 };

struct tpui_memory_entry_t {
  tpui_memory_entry_t* next;  // in the slot's chain
  tpu_digest_t key;
  tpu_executable_t* executable;  // NULL while it is being made, and after a failure
  tpu_status_t status;           // why it could not be made; owned
  uint64_t last_use;
  bool pending;
  int waiters;
};

tpu_status_t tpui_memory_create(tpui_memory_cache_t* cache) {
  if (pthread_mutex_init(&cache->mutex, NULL) != 0 ||
      pthread_cond_init(&cache->changed, NULL) != 0) {
    return tpu_status_make(TPU_RESOURCE_EXHAUSTED, "cannot make a mutex");
  }
  void* slots = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc(FIRST_SLOT_COUNT, sizeof(tpui_memory_entry_t*), &slots));
  cache->slots = slots;
  cache->slot_count = FIRST_SLOT_COUNT;
  return NULL;
}

static tpui_memory_entry_t** slot_of(const tpui_memory_cache_t* cache, tpu_digest_t key) {
  return &cache->slots[key.lo & (cache->slot_count - 1)];
}

static void free_entry(tpui_memory_entry_t* entry) {
  tpu_executable_release(entry->executable);
  tpu_status_free(entry->status);
  tpu_free(entry);
}

static void unlink_entry(tpui_memory_cache_t* cache, tpui_memory_entry_t* entry) {
  tpui_memory_entry_t** link = slot_of(cache, entry->key);
  while (*link != NULL && *link != entry) link = &(*link)->next;
  if (*link == NULL) return;
  *link = entry->next;
  cache->entry_count -= 1;
}

tpu_status_t tpui_memory_keys(tpui_memory_cache_t* cache, tpu_digest_t** out_keys,
                              size_t* out_count) {
  *out_keys = NULL;
  *out_count = 0;
  tpu_mutex_lock(&cache->mutex);
  void* keys = NULL;
  tpu_status_t status = tpu_calloc(cache->entry_count + 1, sizeof(tpu_digest_t), &keys);
  *out_keys = keys;
  for (size_t i = 0; i < cache->slot_count && status == NULL; ++i) {
    for (const tpui_memory_entry_t* entry = cache->slots[i]; entry != NULL; entry = entry->next) {
      if (entry->executable != NULL) (*out_keys)[(*out_count)++] = entry->key;
    }
  }
  tpu_mutex_unlock(&cache->mutex);
  return status;
}

/* Entries that are being made stay: their makers hold pointers to them. */
void tpui_memory_clear(tpui_memory_cache_t* cache) {
  tpui_memory_entry_t* dropped = NULL;
  tpu_mutex_lock(&cache->mutex);
  for (size_t i = 0; i < cache->slot_count; ++i) {
    tpui_memory_entry_t** link = &cache->slots[i];
    while (*link != NULL) {
      tpui_memory_entry_t* entry = *link;
      /* A finished entry with waiters is still looked at by threads about to wake up. */
      if (entry->pending || entry->waiters > 0) {
        link = &entry->next;
        continue;
      }
      *link = entry->next;
      entry->next = dropped;
      dropped = entry;
      cache->entry_count -= 1;
    }
  }
  tpu_mutex_unlock(&cache->mutex);
  while (dropped != NULL) {  // the plugin is called without the lock
    tpui_memory_entry_t* entry = dropped;
    dropped = entry->next;
    free_entry(entry);
  }
}

/* A look at all entries: dropping is rare, and loading a program again costs far more. */
bool tpui_memory_drop_oldest(tpui_memory_cache_t* cache) {
  tpui_memory_entry_t* oldest = NULL;
  tpu_mutex_lock(&cache->mutex);
  for (size_t i = 0; i < cache->slot_count; ++i) {
    for (tpui_memory_entry_t* entry = cache->slots[i]; entry != NULL; entry = entry->next) {
      if (entry->pending || entry->waiters > 0 || tpu_executable_is_shared(entry->executable)) {
        continue;
      }
      if (oldest == NULL || entry->last_use < oldest->last_use) oldest = entry;
    }
  }
  if (oldest != NULL) unlink_entry(cache, oldest);
  tpu_mutex_unlock(&cache->mutex);
  if (oldest != NULL) free_entry(oldest);  // the plugin is called without the lock
  return oldest != NULL;
}

void tpui_memory_destroy(tpui_memory_cache_t* cache) {
  if (cache->slots == NULL) return;
  tpui_memory_clear(cache);
  tpu_free(cache->slots);
  cache->slots = NULL;
  (void)pthread_cond_destroy(&cache->changed);
  (void)pthread_mutex_destroy(&cache->mutex);
}

/* Doubles the table; chains stay short. Without memory the chains just get longer. */
static void grow_table(tpui_memory_cache_t* cache) {
  if (cache->entry_count < cache->slot_count) return;
  void* memory = NULL;
  tpu_status_t status = tpu_calloc(cache->slot_count * 2, sizeof(tpui_memory_entry_t*), &memory);
  if (status != NULL) {
    tpu_status_free(status);
    return;
  }
  tpui_memory_entry_t** old = cache->slots;
  size_t old_count = cache->slot_count;
  cache->slots = memory;
  cache->slot_count = old_count * 2;
  for (size_t i = 0; i < old_count; ++i) {
    while (old[i] != NULL) {
      tpui_memory_entry_t* entry = old[i];
      old[i] = entry->next;
      tpui_memory_entry_t** slot = slot_of(cache, entry->key);
      entry->next = *slot;
      *slot = entry;
    }
  }
  tpu_free(old);
}

static tpu_status_t add_pending(tpui_memory_cache_t* cache, tpu_digest_t key,
                                tpui_memory_entry_t** out_entry) {
  void* memory = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc(1, sizeof(tpui_memory_entry_t), &memory));
  grow_table(cache);
  tpui_memory_entry_t* entry = memory;
  entry->key = key;
  entry->pending = true;
  tpui_memory_entry_t** slot = slot_of(cache, key);
  entry->next = *slot;
  *slot = entry;
  cache->entry_count += 1;
  *out_entry = entry;
  return NULL;
}

/* Waits for the thread that makes this entry. */
static tpu_status_t await_entry(tpui_memory_cache_t* cache, tpui_memory_entry_t* entry) {
  entry->waiters += 1;
  while (entry->pending) (void)pthread_cond_wait(&cache->changed, &cache->mutex);
  entry->waiters -= 1;
  if (entry->executable != NULL) return NULL;
  tpu_status_t status = tpu_status_copy(entry->status);
  if (entry->waiters == 0) free_entry(entry);  // failed, so it is out of the table already
  return status;
}

static tpu_status_t find_locked(tpui_memory_cache_t* cache, tpu_digest_t key, bool wait,
                                tpu_executable_t** out_executable,
                                tpui_memory_entry_t** out_entry) {
  tpui_memory_entry_t* entry = *slot_of(cache, key);
  while (entry != NULL && (entry->key.lo != key.lo || entry->key.hi != key.hi)) entry = entry->next;
  if (entry == NULL) return add_pending(cache, key, out_entry);
  if (entry->pending && !wait) return NULL;
  if (entry->pending) TPU_RETURN_IF_ERROR(await_entry(cache, entry));
  *out_executable = entry->executable;
  tpu_executable_retain(entry->executable);
  entry->last_use = ++cache->clock;
  return NULL;
}

tpu_status_t tpui_memory_find(tpui_memory_cache_t* cache, tpu_digest_t key, bool wait,
                              tpu_executable_t** out_executable, tpui_memory_entry_t** out_entry) {
  *out_executable = NULL;
  *out_entry = NULL;
  tpu_mutex_lock(&cache->mutex);
  tpu_status_t status = find_locked(cache, key, wait, out_executable, out_entry);
  tpu_mutex_unlock(&cache->mutex);
  return status;
}

void tpui_memory_finish(tpui_memory_cache_t* cache, tpui_memory_entry_t* entry,
                        tpu_executable_t* executable, tpu_status_t status) {
  tpu_mutex_lock(&cache->mutex);
  entry->pending = false;
  if (executable != NULL) {
    tpu_executable_retain(executable);
    entry->executable = executable;
    entry->last_use = ++cache->clock;
  } else {
    unlink_entry(cache, entry);
    if (entry->waiters > 0) {
      entry->status = tpu_status_copy(status);
    } else {
      free_entry(entry);
    }
  }
  (void)pthread_cond_broadcast(&cache->changed);
  tpu_mutex_unlock(&cache->mutex);
}
