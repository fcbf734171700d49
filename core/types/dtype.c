#include "types/dtype.h"

#include <string.h>

typedef struct dtype_row_t {
  const char* name;
  const char* hlo;
  int16_t torch_code;
  int16_t pjrt_code;
  uint8_t bytes;
  uint8_t kind;
  uint64_t nonfinite;
} dtype_row_t;

static const dtype_row_t rows[TPU_DTYPE_COUNT] = {
    [TPU_DTYPE_INVALID] = {"invalid", "", -1, -1, 0, TPU_KIND_BOOL, 0},
#define TPU_DTYPE(id, torch_name, torch_code, hlo, pjrt_code, bytes, kind, nonfinite) \
  [TPU_##id] = {torch_name, hlo, torch_code, pjrt_code, bytes, kind, nonfinite},
#include "types/dtype_table.def"
#undef TPU_DTYPE
};

static const dtype_row_t* table_row(tpu_dtype_t dtype) {
  return &rows[(unsigned)dtype < TPU_DTYPE_COUNT ? dtype : TPU_DTYPE_INVALID];
}

const char* tpu_dtype_name(tpu_dtype_t dtype) { return table_row(dtype)->name; }
const char* tpu_dtype_hlo(tpu_dtype_t dtype) { return table_row(dtype)->hlo; }
size_t tpu_dtype_bytes(tpu_dtype_t dtype) { return table_row(dtype)->bytes; }
int tpu_dtype_pjrt(tpu_dtype_t dtype) { return table_row(dtype)->pjrt_code; }
int tpu_dtype_torch(tpu_dtype_t dtype) { return table_row(dtype)->torch_code; }
tpu_dtype_kind_t tpu_dtype_kind(tpu_dtype_t dtype) {
  return (tpu_dtype_kind_t)table_row(dtype)->kind;
}

// From a code back to the row: switches over the table's own constants, so that two rows with one
// code do not compile.
tpu_dtype_t tpu_dtype_from_torch(int torch_code) {
  switch (torch_code) {
#define TPU_DTYPE(id, torch_name, torch_code, hlo, pjrt_code, bytes, kind, nonfinite) \
  case torch_code: return TPU_##id;
#include "types/dtype_table.def"
#undef TPU_DTYPE
    default: return TPU_DTYPE_INVALID;
  }
}

tpu_dtype_t tpu_dtype_from_pjrt(int pjrt_code) {
  switch (pjrt_code) {
#define TPU_DTYPE(id, torch_name, torch_code, hlo, pjrt_code, bytes, kind, nonfinite) \
  case pjrt_code: return TPU_##id;
#include "types/dtype_table.def"
#undef TPU_DTYPE
    default: return TPU_DTYPE_INVALID;
  }
}

bool tpu_dtype_all_finite(tpu_dtype_t dtype, const void* data, size_t size) {
  const uint64_t mask = table_row(dtype)->nonfinite;
  if (mask == 0) return true;
  const size_t width =
      table_row(dtype)->bytes / (table_row(dtype)->kind == TPU_KIND_COMPLEX ? 2u : 1u);
  for (size_t at = 0; at + width <= size; at += width) {
    uint64_t bits = 0;  // little endian: no other hosts have plugins
    memcpy(&bits, (const char*)data + at, width);
    if ((bits & mask) == mask) return false;
  }
  return true;
}
