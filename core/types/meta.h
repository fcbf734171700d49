/* Tensor metadata: dtype, sizes and strides, interned to a small id.
 *
 * Equal metadata has equal ids within a process, so comparing tensors' metadata is comparing two
 * words. Ids are never freed; their number is the number of distinct shapes a program ever uses.
 * Storage offsets are not part of it (they may vary at run time). Lookups lock only on a first use.
 */
#ifndef TPU_TYPES_META_H_
#define TPU_TYPES_META_H_

#include "types/dtype.h"

#ifdef __cplusplus
extern "C" {
#endif

#define TPU_MAX_RANK 24

typedef uint32_t tpu_meta_id_t;  // 0 is invalid

typedef struct tpu_meta_t {
  tpu_dtype_t dtype;
  uint8_t rank;
  bool contiguous;  // row-major without gaps (PyTorch's is_contiguous): strides of dimensions with
                    // one element, and all strides of an empty tensor, may be anything
  bool row_major;   // the strides are those of tpu_meta_intern_contiguous
  bool dense;       // non-overlapping and without gaps, in some dimension order
  int64_t numel;
  int64_t span;            // elements from the first to the last one touched, 0 when empty
  const int64_t* sizes;    // `rank` of them, in elements
  const int64_t* strides;  // `rank` of them, in elements, none negative
} tpu_meta_t;

/* Interns metadata. Fails with TPU_INVALID_ARGUMENT for rank > TPU_MAX_RANK, a negative size or
 * stride, an invalid dtype, or when the byte size overflows int64. */
TPU_MUST_USE tpu_status_t tpu_meta_intern(tpu_dtype_t dtype, int rank, const int64_t* sizes,
                                          const int64_t* strides, tpu_meta_id_t* out_id);

/* The same with row-major strides. */
TPU_MUST_USE tpu_status_t tpu_meta_intern_contiguous(tpu_dtype_t dtype, int rank,
                                                     const int64_t* sizes, tpu_meta_id_t* out_id);

/* Metadata behind an id; lives forever. NULL for an id that was never given out. Lock free. */
const tpu_meta_t* tpu_meta_get(tpu_meta_id_t id);

/* True when `meta` has exactly these sizes and strides. Cheap: for the recording path. */
static inline bool tpu_meta_matches(const tpu_meta_t* meta, int rank, const int64_t* sizes,
                                    const int64_t* strides) {
  if (meta->rank != rank) return false;
  for (int i = 0; i < rank; ++i) {
    if (meta->sizes[i] != sizes[i] || meta->strides[i] != strides[i]) return false;
  }
  return true;
}

/* Bytes of a dense tensor with this metadata. */
static inline int64_t tpu_meta_bytes(const tpu_meta_t* meta) {
  return meta->numel * (int64_t)tpu_dtype_bytes(meta->dtype);
}

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_TYPES_META_H_
