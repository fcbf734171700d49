/* Random permutations: positions in the order of random keys. A key is 64 random bits whose low
 * ones are replaced by the position, which makes keys distinct and the order independent of
 * threads.
 *
 * Random keys fall evenly, so distributing them by their next bits sorts them down to one or two
 * per bin, which an insertion sort puts in order. Above the size of a cache they are first
 * distributed into buckets that fit.
 */
#include "base/alloc.h"
#include "host/philox.h"
#include "host/random.h"
#include "host/random_call.h"
#include "host/scratch.h"

enum {
  CHUNK = 1024,
  MAX_BITS = 11,          // of one distribution: bins whose open ends the cache can hold
  BUCKET_BITS = 9,        // log2 of the keys in a bucket, where MAX_BITS allows
  DIRECT_KEYS = 1 << 14,  // up to here without buckets
  RANGE_KEYS = 1 << 16,   // worth another thread
  MAX_RANGES = 64,
  TINY_KEYS = 24,  // insertion sort alone
};

typedef struct task_t {
  uint64_t seed, offset, count;
  uint64_t place_mask;  // the bits of a key that are its position
  tpu_dtype_t result;
  void* out;
  int bits;  // of a key that name its bucket
  uint64_t range_keys;
  uint64_t* starts;  // [ranges][buckets]: where a range puts its next key of a bucket
  uint64_t* ends;    // [buckets]
  uint64_t* keys;    // [count]
  uint64_t largest;  // keys in the largest bucket
} task_t;

/* --- keys --- */

/* Random words of keys [first, first + CHUNK): the upper or the lower half. */
static void draw_half(const task_t* t, uint64_t first, bool lower, uint32_t* out) {
  uint64_t rest = t->count - first, count = rest < CHUNK ? rest : CHUNK;
  tpui_philox(t->seed, t->offset + first / 4, lower, false, (int64_t)((count + 3) / 4), out);
}

/* Keys are ordered as signed numbers; with the sign bit turned they are as unsigned ones. */
static uint64_t make_key(const task_t* t, uint32_t high, uint32_t low, uint64_t place) {
  uint64_t bits = (uint64_t)(high ^ 0x80000000u) << 32 | low;
  return (bits & ~t->place_mask) | place;
}

static uint64_t draw_keys(const task_t* t, uint64_t first, uint64_t last, uint64_t* out) {
  uint32_t high[CHUNK], low[CHUNK];
  uint64_t count = last - first < CHUNK ? last - first : CHUNK;
  draw_half(t, first, false, high);
  draw_half(t, first, true, low);
  for (uint64_t i = 0; i < count; ++i) out[i] = make_key(t, high[i], low[i], first + i);
  return count;
}

/* --- sorting --- */

static void insertion_sort(uint64_t* keys, uint64_t count) {
  for (uint64_t i = 1; i < count; ++i) {
    uint64_t key = keys[i], k = i;
    for (; k > 0 && keys[k - 1] > key; --k) keys[k] = keys[k - 1];
    keys[k] = key;
  }
}

static void write_places(const task_t* t, const uint64_t* keys, uint64_t count, uint64_t at) {
  if (t->result == TPU_I64) {
    int64_t* out = (int64_t*)t->out + at;
    for (uint64_t i = 0; i < count; ++i) out[i] = (int64_t)(keys[i] & t->place_mask);
  } else {
    int32_t* out = (int32_t*)t->out + at;
    for (uint64_t i = 0; i < count; ++i) out[i] = (int32_t)(keys[i] & t->place_mask);
  }
}

static int log2_of(uint64_t x) {
  int log = 0;
  while (x >> 1 >> log != 0) ++log;
  return log;
}

/* Writes the places of keys that agree in all bits from `top` on, which belong at result `at`.
 * `other` has room for as many; both are overwritten. */
static void sort_keys(const task_t* t, uint64_t* keys, uint64_t* other, uint64_t count, int top,
                      uint64_t at) {
  if (count <= TINY_KEYS) {
    insertion_sort(keys, count);
    write_places(t, keys, count, at);
    return;
  }
  int bits = log2_of(count);
  if (bits > MAX_BITS) bits = MAX_BITS;
  if (bits > top) bits = top;
  int shift = top - bits;
  uint64_t ends[1 << MAX_BITS], bins = UINT64_C(1) << bits, sum = 0;
  for (uint64_t b = 0; b < bins; ++b) ends[b] = 0;
  for (uint64_t i = 0; i < count; ++i) ++ends[keys[i] >> shift & (bins - 1)];
  for (uint64_t b = 0; b < bins; ++b) {
    uint64_t size = ends[b];
    ends[b] = sum;
    sum += size;
  }
  for (uint64_t i = 0; i < count; ++i) other[ends[keys[i] >> shift & (bins - 1)]++] = keys[i];
  if (count >> bits <= 4) {  // each bin is a few keys
    insertion_sort(other, count);
    write_places(t, other, count, at);
    return;
  }
  for (uint64_t b = 0, first = 0; b < bins; first = ends[b++]) {
    sort_keys(t, other + first, keys + first, ends[b] - first, shift, at + first);
  }
}

/* --- buckets --- */

static tpu_status_t count_range(void* arg, int64_t first_range, int64_t last_range) {
  const task_t* t = arg;
  uint32_t high[CHUNK];
  for (int64_t r = first_range; r < last_range; ++r) {
    uint64_t* counts = t->starts + ((uint64_t)r << t->bits);
    uint64_t first = (uint64_t)r * t->range_keys, last = first + t->range_keys;
    if (last > t->count) last = t->count;
    for (; first < last; first += CHUNK) {
      uint64_t count = last - first < CHUNK ? last - first : CHUNK;
      draw_half(t, first, false, high);
      for (uint64_t i = 0; i < count; ++i) ++counts[(high[i] ^ 0x80000000u) >> (32 - t->bits)];
    }
  }
  return NULL;
}

static tpu_status_t distribute_range(void* arg, int64_t first_range, int64_t last_range) {
  const task_t* t = arg;
  uint64_t keys[CHUNK];
  for (int64_t r = first_range; r < last_range; ++r) {
    uint64_t* starts = t->starts + ((uint64_t)r << t->bits);
    uint64_t first = (uint64_t)r * t->range_keys, last = first + t->range_keys;
    if (last > t->count) last = t->count;
    while (first < last) {
      uint64_t count = draw_keys(t, first, last, keys);
      for (uint64_t i = 0; i < count; ++i) t->keys[starts[keys[i] >> (64 - t->bits)]++] = keys[i];
      first += count;
    }
  }
  return NULL;
}

static tpu_status_t sort_buckets(void* arg, int64_t first_bucket, int64_t last_bucket) {
  const task_t* t = arg;
  void* other = NULL;
  TPU_RETURN_IF_ERROR(tpui_scratch_take(t->largest * sizeof(uint64_t), &other));
  for (int64_t b = first_bucket; b < last_bucket; ++b) {
    uint64_t first = b > 0 ? t->ends[b - 1] : 0;
    sort_keys(t, t->keys + first, other, t->ends[b] - first, 64 - t->bits, first);
  }
  tpui_scratch_give(other);
  return NULL;
}

/* From counts to starts: buckets in order, and in each bucket the ranges. */
static void place_buckets(task_t* t, uint64_t ranges) {
  uint64_t buckets = UINT64_C(1) << t->bits, sum = 0;
  for (uint64_t b = 0; b < buckets; ++b) {
    uint64_t first = sum;
    for (uint64_t r = 0; r < ranges; ++r) {
      uint64_t size = t->starts[(r << t->bits) + b];
      t->starts[(r << t->bits) + b] = sum;
      sum += size;
    }
    t->ends[b] = sum;
    if (sum - first > t->largest) t->largest = sum - first;
  }
}

static tpu_status_t sort_by_buckets(const tpu_host_call_t* call, task_t* t, uint64_t ranges) {
  int64_t buckets = INT64_C(1) << t->bits;
  TPU_RETURN_IF_ERROR(tpu_host_parallel(call, (int64_t)ranges, 1, count_range, t));
  place_buckets(t, ranges);
  TPU_RETURN_IF_ERROR(tpu_host_parallel(call, (int64_t)ranges, 1, distribute_range, t));
  return tpu_host_parallel(call, buckets, buckets / MAX_RANGES, sort_buckets, t);
}

static tpu_status_t permute_large(const tpu_host_call_t* call, task_t* t) {
  int bits = log2_of(t->count) - BUCKET_BITS;
  t->bits = bits < MAX_BITS ? bits : MAX_BITS;
  uint64_t ranges = (t->count + RANGE_KEYS - 1) / RANGE_KEYS;
  if (ranges > MAX_RANGES) ranges = MAX_RANGES;
  t->range_keys = ((t->count + ranges - 1) / ranges + CHUNK - 1) / CHUNK * CHUNK;
  void* tables = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc((ranges + 1) << t->bits, sizeof(uint64_t), &tables));
  t->starts = tables;
  t->ends = t->starts + (ranges << t->bits);
  void* keys = NULL;
  tpu_status_t status = tpui_scratch_take(t->count * sizeof(uint64_t), &keys);
  t->keys = keys;
  if (status == NULL) status = sort_by_buckets(call, t, ranges);
  tpui_scratch_give(keys);
  tpu_free(tables);
  return status;
}

static tpu_status_t permute_small(const task_t* t) {
  void* memory = NULL;
  TPU_RETURN_IF_ERROR(tpui_scratch_take(2 * t->count * sizeof(uint64_t), &memory));
  uint64_t* keys = memory;
  for (uint64_t i = 0; i < t->count;) i += draw_keys(t, i, t->count, keys + i);
  sort_keys(t, keys, keys + t->count, t->count, 64, 0);
  tpui_scratch_give(memory);
  return NULL;
}

static tpu_status_t permute(const tpu_host_call_t* call, uint64_t seed, uint64_t offset,
                            tpu_dtype_t result, int64_t count, void* out) {
  bool fits = result == TPU_I64 || (result == TPU_I32 && count <= INT64_C(1) << 31);
  if (!fits || count < 0) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "a permutation of %lld numbers as %s",
                           (long long)count, tpu_dtype_name(result));
  }
  task_t task = {
      .seed = seed, .offset = offset, .count = (uint64_t)count, .result = result, .out = out};
  while (task.place_mask + 1 < task.count) task.place_mask = task.place_mask * 2 + 1;
  return task.count > DIRECT_KEYS ? permute_large(call, &task) : permute_small(&task);
}

tpu_status_t tpu_random_permutation(uint64_t seed, uint64_t offset, tpu_dtype_t result,
                                    int64_t count, void* out) {
  const tpu_host_call_t alone = {.frame = NULL};
  return permute(&alone, seed, offset, result, count, out);
}

/* seed, offset (uint64) -> [n] int64 or int32. */
tpu_status_t tpui_host_randperm(const tpu_host_call_t* call) {
  uint64_t seed, offset;
  TPU_RETURN_IF_ERROR(tpui_random_state(call, &seed, &offset));
  const tpu_host_buffer_t* out = &call->results[0];
  if (out->rank != 1) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "a permutation of rank %d", out->rank);
  }
  return permute(call, seed, offset, out->dtype, out->sizes[0], out->data);
}
