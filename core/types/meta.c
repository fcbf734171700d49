#include "types/meta.h"

#include <string.h>

#include "base/alloc.h"
#include "base/hash.h"
#include "base/intern.h"

static tpu_intern_t metas = TPU_INTERN_INIT;

typedef struct meta_key_t {
  tpu_dtype_t dtype;
  int rank;
  const int64_t* sizes;
  const int64_t* strides;
} meta_key_t;

typedef struct meta_item_t {
  tpu_meta_t meta;
  int64_t dims[];  // sizes, then strides
} meta_item_t;

static bool match_meta(const void* item, const void* key) {
  const tpu_meta_t* meta = item;
  const meta_key_t* wanted = key;
  return meta->dtype == wanted->dtype &&
         tpu_meta_matches(meta, wanted->rank, wanted->sizes, wanted->strides);
}

// Sizes and strides run through two independent chains, so that their multiplications overlap.
static uint64_t hash_key(const meta_key_t* key) {
  uint64_t sizes = (uint64_t)key->dtype << 8 | (uint64_t)key->rank;
  uint64_t strides = 0x2545f4914f6cdd1dull;
  for (int i = 0; i < key->rank; ++i) {
    sizes = tpu_hash_mix(sizes, (uint64_t)key->sizes[i]);
    strides = tpu_hash_mix(strides, (uint64_t)key->strides[i]);
  }
  return tpu_hash_mix(sizes, strides);
}

static tpu_status_t overflow_error(tpu_dtype_t dtype) {
  return tpu_status_make(TPU_INVALID_ARGUMENT,
                         "a %s tensor of these sizes and strides has more bytes than int64 holds",
                         tpu_dtype_name(dtype));
}

static tpu_status_t check_key(const meta_key_t* key) {
  if (tpu_dtype_bytes(key->dtype) == 0) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "tensor metadata needs a dtype");
  }
  for (int i = 0; i < key->rank; ++i) {
    if (key->sizes[i] < 0 || key->strides[i] < 0) {
      return tpu_status_make(TPU_INVALID_ARGUMENT,
                             "dimension %d has size %lld and stride %lld: neither may be negative",
                             i, (long long)key->sizes[i], (long long)key->strides[i]);
    }
  }
  return NULL;
}

static bool has_no_elements(const meta_key_t* key) {
  for (int i = 0; i < key->rank; ++i) {
    if (key->sizes[i] == 0) return true;
  }
  return false;
}

// Sets numel and span. False when the bytes of either overflow int64.
static bool measure_meta(const meta_key_t* key, tpu_meta_t* meta) {
  meta->numel = 0;
  meta->span = 0;
  if (has_no_elements(key)) return true;  // huge other sizes do no harm then
  meta->numel = 1;
  meta->span = 1;
  for (int i = 0; i < key->rank; ++i) {
    int64_t reach;
    if (__builtin_mul_overflow(meta->numel, key->sizes[i], &meta->numel) ||
        __builtin_mul_overflow(key->sizes[i] - 1, key->strides[i], &reach) ||
        __builtin_add_overflow(meta->span, reach, &meta->span)) {
      return false;
    }
  }
  int64_t bytes;
  int64_t unit = (int64_t)tpu_dtype_bytes(key->dtype);
  return !__builtin_mul_overflow(meta->numel, unit, &bytes) &&
         !__builtin_mul_overflow(meta->span, unit, &bytes);
}

static bool is_contiguous(const tpu_meta_t* meta) {
  if (meta->numel == 0) return true;
  int64_t expected = 1;
  for (int i = meta->rank - 1; i >= 0; --i) {
    if (meta->sizes[i] == 1) continue;
    if (meta->strides[i] != expected) return false;
    expected *= meta->sizes[i];
  }
  return true;
}

static bool is_row_major(const tpu_meta_t* meta) {
  int64_t expected = 1;
  for (int i = meta->rank - 1; i >= 0; --i) {
    if (meta->strides[i] != expected) return false;
    if (meta->sizes[i] > 1 && __builtin_mul_overflow(expected, meta->sizes[i], &expected)) {
      return false;
    }
  }
  return true;
}

// Without gaps and overlaps: starting at stride 1, each next dimension continues where the ones
// before it end.
static bool is_dense(const tpu_meta_t* meta) {
  int64_t reached = 1;
  while (reached < meta->numel) {
    int next = -1;
    for (int i = 0; i < meta->rank && next < 0; ++i) {
      if (meta->sizes[i] > 1 && meta->strides[i] == reached) next = i;
    }
    if (next < 0) return false;
    reached *= meta->sizes[next];
  }
  return true;
}

static tpu_status_t make_meta(const void* key_pointer, void** out_item) {
  const meta_key_t* key = key_pointer;
  TPU_RETURN_IF_ERROR(check_key(key));
  tpu_meta_t meta = {.dtype = key->dtype, .rank = (uint8_t)key->rank};
  if (!measure_meta(key, &meta)) return overflow_error(key->dtype);
  size_t rank = (size_t)key->rank;
  TPU_RETURN_IF_ERROR(tpu_calloc(1, sizeof(meta_item_t) + 2 * rank * sizeof(int64_t), out_item));
  meta_item_t* item = *out_item;
  if (rank > 0) {
    memcpy(item->dims, key->sizes, rank * sizeof(int64_t));
    memcpy(item->dims + rank, key->strides, rank * sizeof(int64_t));
  }
  meta.sizes = item->dims;
  meta.strides = item->dims + rank;
  meta.contiguous = is_contiguous(&meta);
  meta.row_major = is_row_major(&meta);
  meta.dense = is_dense(&meta);
  item->meta = meta;
  return NULL;
}

tpu_status_t tpu_meta_intern(tpu_dtype_t dtype, int rank, const int64_t* sizes,
                             const int64_t* strides, tpu_meta_id_t* out_id) {
  *out_id = 0;
  if (TPU_UNLIKELY((unsigned)rank > TPU_MAX_RANK)) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "a tensor of %d dimensions; at most %d work", rank,
                           TPU_MAX_RANK);
  }
  meta_key_t key = {dtype, rank, sizes, strides};
  uint64_t hash = hash_key(&key);
  *out_id = tpu_intern_find(&metas, hash, match_meta, &key);
  if (TPU_LIKELY(*out_id != 0)) return NULL;
  return tpu_intern_add(&metas, hash, match_meta, make_meta, &key, out_id);
}

tpu_status_t tpu_meta_intern_contiguous(tpu_dtype_t dtype, int rank, const int64_t* sizes,
                                        tpu_meta_id_t* out_id) {
  *out_id = 0;
  int64_t strides[TPU_MAX_RANK];
  int64_t stride = 1;
  // Wrong ranks are refused by tpu_meta_intern before it looks at the strides.
  for (int i = (unsigned)rank > TPU_MAX_RANK ? -1 : rank - 1; i >= 0; --i) {
    strides[i] = stride;
    if (sizes[i] > 1 && __builtin_mul_overflow(stride, sizes[i], &stride)) {
      return overflow_error(dtype);
    }
  }
  return tpu_meta_intern(dtype, rank, sizes, strides, out_id);
}

const tpu_meta_t* tpu_meta_get(tpu_meta_id_t id) { return tpu_intern_get(&metas, id); }
