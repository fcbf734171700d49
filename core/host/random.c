#include "host/random.h"

#include "host/distributions.h"
#include "host/philox.h"
#include "host/plain_arithmetic.h"

bool tpu_random_takes(tpu_random_kind_t kind, tpu_dtype_t math, tpu_dtype_t result) {
  if (math != TPU_F32 && math != TPU_F64) return false;
  bool plain = result == TPU_F32 || result == TPU_F16 || result == TPU_BF16;
  if (kind == TPU_RANDOM_BERNOULLI || kind == TPU_RANDOM_INTEGERS) {
    return plain || result == TPU_F64 || tpu_dtype_is_integral(result);
  }
  return math == TPU_F64 ? result == TPU_F64 : plain;
}

int64_t tpu_random_greatest_integer(tpu_dtype_t dtype) {
  switch (dtype) {
    case TPU_BOOL: return 1;
    case TPU_F16: return 1 << 11;
    case TPU_BF16: return 1 << 8;
    case TPU_F32: return 1 << 24;
    case TPU_F64: return (int64_t)1 << 53;
    case TPU_U8: return UINT8_MAX;
    case TPU_I8: return INT8_MAX;
    case TPU_I16: return INT16_MAX;
    case TPU_U16: return UINT16_MAX;
    case TPU_I32: return INT32_MAX;
    case TPU_U32: return UINT32_MAX;
    default: return INT64_MAX;
  }
}

/* A number as a chunk of equal parameters. */
static void repeat_number(tpu_dtype_t math, double number, int64_t count, void* out) {
  for (int64_t i = 0; i < TPUI_CHUNK && i < count; ++i) {
    if (math == TPU_F64) {
      ((double*)out)[i] = number;
    } else {
      ((float*)out)[i] = (float)number;
    }
  }
}

static const void* parameter_at(const tpu_random_draw_t* draw, const tpu_random_parameter_t* p,
                                const void* repeated, int64_t element) {
  if (p->elements == NULL) return repeated;
  return (const char*)p->elements + (size_t)element * tpu_dtype_bytes(draw->math);
}

/* Words of the elements from `first` on, a multiple of 4. */
static void draw_words(const tpu_random_draw_t* draw, uint32_t stream, int64_t first, int count,
                       uint32_t* out) {
  uint64_t block = (uint64_t)first / 4, blocks = ((uint64_t)count + 3) / 4;
  if (draw->wide) {
    uint64_t high = block + ((UINT64_C(0x80000000) + ((uint64_t)stream << 24)) << 32);
    tpui_philox(draw->seed, draw->offset, high, true, (int64_t)blocks, out);
  } else {
    tpui_philox(draw->seed, draw->offset + block, stream, false, (int64_t)blocks, out);
  }
}

static void fill_range(const tpu_random_draw_t* draw, tpu_dtype_t result, int64_t first,
                       int64_t last, char* out) {
  uint32_t words[TPUI_CHUNK], low[TPUI_CHUNK];
  double a[TPUI_CHUNK], b[TPUI_CHUNK];
  size_t bytes = tpu_dtype_bytes(result);
  bool two = tpui_chunk_needs_low(draw);
  repeat_number(draw->math, draw->a.number, last - first, a);
  repeat_number(draw->math, draw->b.number, last - first, b);
  for (int64_t i = first; i < last; i += TPUI_CHUNK) {
    int count = last - i < TPUI_CHUNK ? (int)(last - i) : TPUI_CHUNK;
    draw_words(draw, 0, i, count, words);
    if (two) draw_words(draw, 1, i, count, low);
    const tpui_chunk_t chunk = {
        .draw = draw,
        .result = result,
        .count = count,
        .drawn = (count + 4 * TPUI_PHILOX_GROUP - 1) & -(4 * TPUI_PHILOX_GROUP),
        .words = words,
        .low = two ? low : words,
        .a = parameter_at(draw, &draw->a, a, i),
        .b = parameter_at(draw, &draw->b, b, i),
        .out = out + (size_t)(i - first) * bytes,
    };
    tpui_chunk_fill(&chunk);
  }
}

tpu_status_t tpu_random_fill(const tpu_random_draw_t* draw, tpu_dtype_t result, int64_t first,
                             int64_t last, void* out) {
  if (!tpu_random_takes(draw->kind, draw->math, result) || first % 4 != 0) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "random %s numbers in %s from element %lld on",
                           tpu_dtype_name(result), tpu_dtype_name(draw->math), (long long)first);
  }
  fenv_t environment;
  tpui_plain_arithmetic_begin(&environment);
  fill_range(draw, result, first, last, out);
  tpui_plain_arithmetic_end(&environment);
  return NULL;
}
