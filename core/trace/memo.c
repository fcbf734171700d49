#include "trace/memo.h"

#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"

/* Signatures that are kept, about 100 bytes each. What is asked after that is learnt again. */
#define MOST_ENTRIES (1 << 17)

typedef struct entry_t {
  uint64_t hash;
  uint32_t signature;  // index into words
  uint32_t size;       // 0: empty entry
  uint32_t answer;     // index into words
} entry_t;

struct tpu_memo_t {
  entry_t* entries;  // open addressing, capacity a power of two
  size_t count, capacity;
  uint32_t* words;
  size_t word_count, word_capacity;
};

tpu_status_t tpu_memo_create(tpu_memo_t** out_memo) {
  *out_memo = NULL;
  void* memory = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc(1, sizeof(tpu_memo_t), &memory));
  *out_memo = memory;
  return NULL;
}

void tpu_memo_destroy(tpu_memo_t* memo) {
  if (memo == NULL) return;
  tpu_free(memo->entries);
  tpu_free(memo->words);
  tpu_free(memo);
}

static uint64_t hash_words(const uint32_t* words, size_t size) {
  uint64_t hash = size;
  for (size_t i = 0; i < size; ++i) hash = tpu_hash_mix(hash, words[i]);
  return hash;
}

static entry_t* probe_entry(const tpu_memo_t* memo, uint64_t hash, const uint32_t* signature,
                            size_t size) {
  for (size_t i = hash & (memo->capacity - 1);; i = (i + 1) & (memo->capacity - 1)) {
    entry_t* entry = &memo->entries[i];
    if (entry->size == 0) return entry;
    if (entry->hash == hash && entry->size == size &&
        memcmp(memo->words + entry->signature, signature, size * sizeof(uint32_t)) == 0) {
      return entry;
    }
  }
}

const uint32_t* tpu_memo_find(const tpu_memo_t* memo, const uint32_t* signature, size_t size) {
  if (memo->count == 0) return NULL;
  const entry_t* entry = probe_entry(memo, hash_words(signature, size), signature, size);
  return entry->size == 0 ? NULL : memo->words + entry->answer;
}

static tpu_status_t grow_table(tpu_memo_t* memo) {
  size_t capacity = memo->capacity == 0 ? 1024 : memo->capacity * 2;
  void* fresh = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc(capacity, sizeof(entry_t), &fresh));
  tpu_memo_t next = *memo;
  next.entries = fresh;
  next.capacity = capacity;
  for (size_t i = 0; i < memo->capacity; ++i) {
    const entry_t* e = &memo->entries[i];
    if (e->size != 0) *probe_entry(&next, e->hash, memo->words + e->signature, e->size) = *e;
  }
  tpu_free(memo->entries);
  *memo = next;
  return NULL;
}

static uint32_t append_words(tpu_memo_t* memo, const uint32_t* words, size_t size) {
  uint32_t at = (uint32_t)memo->word_count;
  memcpy(memo->words + at, words, size * sizeof(uint32_t));
  memo->word_count += size;
  return at;
}

tpu_status_t tpu_memo_learn(tpu_memo_t* memo, const uint32_t* signature, size_t size,
                            const uint32_t* answer, size_t answer_size) {
  if (memo->count == MOST_ENTRIES) {  // a program whose calls never repeat: begin anew
    memset(memo->entries, 0, memo->capacity * sizeof(entry_t));
    memo->count = memo->word_count = 0;
  }
  if ((memo->count + 1) * 2 > memo->capacity) TPU_RETURN_IF_ERROR(grow_table(memo));
  TPU_RETURN_IF_ERROR(tpu_grow((void**)&memo->words, &memo->word_capacity,
                               memo->word_count + size + answer_size, sizeof(uint32_t)));
  uint64_t hash = hash_words(signature, size);
  entry_t* entry = probe_entry(memo, hash, signature, size);
  if (entry->size != 0) {  // known already: the newest answer holds
    memcpy(memo->words + entry->answer, answer, answer_size * sizeof(uint32_t));
    return NULL;
  }
  uint32_t at = append_words(memo, signature, size);
  *entry = (entry_t){.hash = hash,
                     .signature = at,
                     .size = (uint32_t)size,
                     .answer = append_words(memo, answer, answer_size)};
  ++memo->count;
  return NULL;
}
