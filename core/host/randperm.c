/* Random permutations. Numbers are put at random places of what is already there (Fisher and Yates,
 * from the inside out). That wants all of the result in a cache, so long ones are first dealt out
 * to buckets at random, in order, and each bucket is shuffled on its own (Rao and Sandelius). What
 * comes out depends on seed, offset and length alone: bucket of number i is word i of stream 0, the
 * place of the result's number k word k of stream 1 (in one bucket: of stream 0).
 */
#include "base/alloc.h"
#include "host/philox.h"
#include "host/random.h"
#include "host/random_call.h"
#include "host/scratch.h"

enum {
  CHUNK = 1024,
  DIRECT = 1 << 16,  // longest result without buckets
  BUCKET_BITS = 12,  // log2 of a bucket's numbers, where MAX_BITS allows
  MAX_BITS = 10,     // of a bucket's number: where they end stays in the nearest cache
  RANGE = 1 << 16,   // numbers worth another thread
  MAX_RANGES = 64,
};

typedef struct task_t {
  uint64_t seed, offset, count;
  tpu_dtype_t result;
  void* out;
  int bits;         // of a bucket's number
  uint64_t range;   // numbers of a range
  uint64_t* next;   // [ranges][buckets]: where a range puts its next number of a bucket
  uint64_t* ends;   // [buckets]
  uint32_t* dealt;  // [count]: numbers by bucket
} task_t;

/* Words `first` ... of a stream, at most CHUNK and up to `last`; returns how many. `out` must have
 * room for CHUNK + 4; the first word is at the place returned. */
static uint64_t draw_words(const task_t* t, uint32_t stream, uint64_t first, uint64_t last,
                           uint32_t* buffer, const uint32_t** out) {
  uint64_t start = first & ~UINT64_C(3), count = last - first < CHUNK ? last - first : CHUNK;
  uint64_t blocks = (first - start + count + 3) / 4;
  tpui_philox(t->seed, t->offset + start / 4, stream, false, (int64_t)blocks, buffer);
  *out = buffer + (first - start);
  return count;
}

/* --- shuffling --- */

/* One of the first `count` places. The rest of the division is at most count / 2^32 of a chance. */
static uint64_t place_of(uint32_t word, uint64_t count) { return (word * count) >> 32; }

#define SHUFFLE(name, type)                                                                   \
  static void shuffle_##name(type* out, uint64_t done, uint64_t count, const uint32_t* words, \
                             const uint32_t* numbers) {                                       \
    for (uint64_t i = 0; i < count; ++i) {                                                    \
      uint64_t place = place_of(words[i], done + i + 1);                                      \
      out[done + i] = out[place];                                                             \
      out[place] = (type)(numbers != NULL ? numbers[i] : done + i);                           \
    }                                                                                         \
  }
SHUFFLE(i64, int64_t)
SHUFFLE(i32, int32_t)

/* Results [first, last): `numbers` in random order, or 0, 1, ... where it is NULL. */
static void shuffle_bins(const task_t* t, uint32_t stream, uint64_t first, uint64_t last,
                         const uint32_t* numbers) {
  uint32_t buffer[CHUNK + 4 * TPUI_PHILOX_GROUP];
  const uint32_t* words;
  for (uint64_t at = first; at < last;) {
    uint64_t count = draw_words(t, stream, at, last, buffer, &words), done = at - first;
    const uint32_t* taken = numbers != NULL ? numbers + done : NULL;
    if (t->result == TPU_I64) {
      shuffle_i64((int64_t*)t->out + first, done, count, words, taken);
    } else {
      shuffle_i32((int32_t*)t->out + first, done, count, words, taken);
    }
    at += count;
  }
}

/* --- buckets --- */

static uint64_t range_end(const task_t* t, int64_t r) {
  uint64_t end = ((uint64_t)r + 1) * t->range;
  return end < t->count ? end : t->count;
}

static tpu_status_t count_ranges(void* arg, int64_t first_range, int64_t last_range) {
  const task_t* t = arg;
  uint32_t buffer[CHUNK + 4 * TPUI_PHILOX_GROUP];
  const uint32_t* words;
  for (int64_t r = first_range; r < last_range; ++r) {
    uint64_t* counts = t->next + ((uint64_t)r << t->bits);
    for (uint64_t at = (uint64_t)r * t->range, end = range_end(t, r); at < end;) {
      uint64_t count = draw_words(t, 0, at, end, buffer, &words);
      for (uint64_t i = 0; i < count; ++i) ++counts[words[i] >> (32 - t->bits)];
      at += count;
    }
  }
  return NULL;
}

/* From counts to places: buckets in order, and in each bucket the ranges. */
static void place_ranges(const task_t* t, uint64_t ranges) {
  uint64_t buckets = UINT64_C(1) << t->bits, sum = 0;
  for (uint64_t b = 0; b < buckets; ++b) {
    for (uint64_t r = 0; r < ranges; ++r) {
      uint64_t* next = &t->next[(r << t->bits) + b];
      uint64_t count = *next;
      *next = sum;
      sum += count;
    }
    t->ends[b] = sum;
  }
}

static tpu_status_t deal_ranges(void* arg, int64_t first_range, int64_t last_range) {
  const task_t* t = arg;
  uint32_t buffer[CHUNK + 4 * TPUI_PHILOX_GROUP];
  const uint32_t* words;
  for (int64_t r = first_range; r < last_range; ++r) {
    uint64_t* next = t->next + ((uint64_t)r << t->bits);
    for (uint64_t at = (uint64_t)r * t->range, end = range_end(t, r); at < end;) {
      uint64_t count = draw_words(t, 0, at, end, buffer, &words);
      for (uint64_t i = 0; i < count; ++i) {
        t->dealt[next[words[i] >> (32 - t->bits)]++] = (uint32_t)(at + i);
      }
      at += count;
    }
  }
  return NULL;
}

static tpu_status_t shuffle_buckets(void* arg, int64_t first_bucket, int64_t last_bucket) {
  const task_t* t = arg;
  for (int64_t b = first_bucket; b < last_bucket; ++b) {
    uint64_t first = b > 0 ? t->ends[b - 1] : 0;
    shuffle_bins(t, 1, first, t->ends[b], t->dealt + first);
  }
  return NULL;
}

static tpu_status_t deal_and_shuffle(const tpu_host_call_t* call, task_t* t, uint64_t ranges) {
  int64_t buckets = INT64_C(1) << t->bits;
  TPU_RETURN_IF_ERROR(tpu_host_parallel(call, (int64_t)ranges, 1, count_ranges, t));
  place_ranges(t, ranges);
  TPU_RETURN_IF_ERROR(tpu_host_parallel(call, (int64_t)ranges, 1, deal_ranges, t));
  return tpu_host_parallel(call, buckets, buckets / MAX_RANGES, shuffle_buckets, t);
}

static tpu_status_t permute_by_buckets(const tpu_host_call_t* call, task_t* t) {
  while (t->bits < MAX_BITS && t->count >> (t->bits + BUCKET_BITS) > 0) ++t->bits;
  uint64_t ranges = (t->count + RANGE - 1) / RANGE;
  if (ranges > MAX_RANGES) ranges = MAX_RANGES;
  t->range = ((t->count + ranges - 1) / ranges + CHUNK - 1) / CHUNK * CHUNK;
  void *places = NULL, *dealt = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc((ranges + 1) << t->bits, sizeof(uint64_t), &places));
  t->next = places;
  t->ends = t->next + (ranges << t->bits);
  tpu_status_t status = tpui_scratch_take(t->count * sizeof(uint32_t), &dealt);
  t->dealt = dealt;
  if (status == NULL) status = deal_and_shuffle(call, t, ranges);
  tpui_scratch_give(dealt);
  tpu_free(places);
  return status;
}

static tpu_status_t permute_numbers(const tpu_host_call_t* call, uint64_t seed, uint64_t offset,
                                    tpu_dtype_t result, int64_t count, void* out) {
  int64_t most = result == TPU_I64 ? INT64_C(1) << 32 : INT64_C(1) << 31;
  if ((result != TPU_I64 && result != TPU_I32) || count < 0 || count > most) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "a permutation of %lld numbers as %s",
                           (long long)count, tpu_dtype_name(result));
  }
  task_t task = {
      .seed = seed, .offset = offset, .count = (uint64_t)count, .result = result, .out = out};
  if (task.count > DIRECT) return permute_by_buckets(call, &task);
  shuffle_bins(&task, 0, 0, task.count, NULL);
  return NULL;
}

tpu_status_t tpu_random_permutation(uint64_t seed, uint64_t offset, tpu_dtype_t result,
                                    int64_t count, void* out) {
  const tpu_host_call_t alone = {.frame = NULL};
  return permute_numbers(&alone, seed, offset, result, count, out);
}

/* seed, offset (uint64) -> [n] int64 or int32. */
tpu_status_t tpui_host_randperm(const tpu_host_call_t* call) {
  uint64_t seed, offset;
  TPU_RETURN_IF_ERROR(tpui_random_state(call, &seed, &offset));
  const tpu_host_buffer_t* out = &call->results[0];
  if (out->rank != 1) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "a permutation of rank %d", out->rank);
  }
  return permute_numbers(call, seed, offset, out->dtype, out->sizes[0], out->data);
}
