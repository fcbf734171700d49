/* Dtypes: one table, dtype_table.def. */
#ifndef TPU_TYPES_DTYPE_H_
#define TPU_TYPES_DTYPE_H_

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tpu_dtype_t {
  TPU_DTYPE_INVALID = 0,
#define TPU_DTYPE(id, torch_name, torch_code, hlo, pjrt_code, bytes, kind, nonfinite) TPU_##id,
#include "types/dtype_table.def"
#undef TPU_DTYPE
  TPU_DTYPE_COUNT
} tpu_dtype_t;

/* Order is PyTorch's promotion order of categories. */
typedef enum tpu_dtype_kind_t {
  TPU_KIND_BOOL,
  TPU_KIND_UNSIGNED,
  TPU_KIND_SIGNED,
  TPU_KIND_FLOAT,
  TPU_KIND_COMPLEX,
} tpu_dtype_kind_t;

/* All accept TPU_DTYPE_INVALID: "invalid", "", 0, -1. */
const char* tpu_dtype_name(tpu_dtype_t dtype);  // "float32", as PyTorch prints it without "torch."
const char* tpu_dtype_hlo(tpu_dtype_t dtype);   // StableHLO element type, such as "f32"
size_t tpu_dtype_bytes(tpu_dtype_t dtype);      // bytes per element in host memory
int tpu_dtype_pjrt(tpu_dtype_t dtype);          // PJRT_Buffer_Type
int tpu_dtype_torch(tpu_dtype_t dtype);         // c10::ScalarType
tpu_dtype_kind_t tpu_dtype_kind(tpu_dtype_t dtype);

/* TPU_DTYPE_INVALID when the table has no such c10::ScalarType. */
tpu_dtype_t tpu_dtype_from_torch(int torch_code);
tpu_dtype_t tpu_dtype_from_pjrt(int pjrt_code);

/* False when `size` bytes of numbers of this dtype contain NaN or infinity. */
bool tpu_dtype_all_finite(tpu_dtype_t dtype, const void* data, size_t size);

static inline bool tpu_dtype_is_float(tpu_dtype_t dtype) {
  return tpu_dtype_kind(dtype) == TPU_KIND_FLOAT;
}
/* bool counts as integral. */
static inline bool tpu_dtype_is_integral(tpu_dtype_t dtype) {
  return tpu_dtype_kind(dtype) < TPU_KIND_FLOAT;
}

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_TYPES_DTYPE_H_
