/* Values -> keys. All in integers: the plugin runs with denormals flushed to zero, which would make
 * float comparisons lump them together. */
#include <string.h>

#include "host/order.h"
#include "host/wide.h"

/* Sign, magnitude: negative numbers are turned around, -0 becomes 0, NaN the greatest key. */
#define FLOAT_KEY(name, type, sign, infinity)                                  \
  static inline type name(type bits) {                                         \
    type magnitude = (type)(bits & (type) ~(sign));                            \
    if (magnitude > (infinity)) return (type) ~(type)0;                        \
    if (magnitude == 0) bits = 0;                                              \
    return (type)((bits & (sign)) != 0 ? (type)~bits : (type)(bits | (sign))); \
  }
FLOAT_KEY(key_f16, uint16_t, 0x8000u, 0x7c00u)
FLOAT_KEY(key_bf16, uint16_t, 0x8000u, 0x7f80u)
FLOAT_KEY(key_f32, uint32_t, 0x80000000u, 0x7f800000u)
FLOAT_KEY(key_f64, uint64_t, UINT64_C(1) << 63, UINT64_C(0x7ff) << 52)

static inline uint32_t key_bool(uint8_t x) { return x != 0; }
static inline uint32_t key_u8(uint8_t x) { return x; }
static inline uint32_t key_u16(uint16_t x) { return x; }
static inline uint32_t key_u32(uint32_t x) { return x; }
static inline uint64_t key_u64(uint64_t x) { return x; }
static inline uint32_t key_i8(int8_t x) { return (uint32_t)(x + 128); }
static inline uint32_t key_i16(int16_t x) { return (uint32_t)(x + 32768); }
static inline uint32_t key_i32(uint32_t x) { return x ^ 0x80000000u; }
static inline uint64_t key_i64(uint64_t x) { return x ^ UINT64_C(1) << 63; }

#define PACK(name, type)                                                                   \
  static void pack_##name(const void* line, int64_t count, uint32_t flip, uint64_t* out) { \
    const type* x = line;                                                                  \
    for (int64_t i = 0; i < count; ++i) {                                                  \
      uint32_t key = (uint32_t)key_##name(x[i]) ^ flip;                                    \
      out[i] = (uint64_t)key << 32 | (uint32_t)i;                                          \
    }                                                                                      \
  }
PACK(bool, uint8_t)
PACK(u8, uint8_t)
PACK(i8, int8_t)
PACK(u16, uint16_t)
PACK(i16, int16_t)
PACK(f16, uint16_t)
PACK(bf16, uint16_t)
PACK(u32, uint32_t)
PACK(i32, uint32_t)
PACK(f32, uint32_t)

typedef struct range_t {
  uint64_t least, greatest;
} range_t;

#define WIDE(name)                                                                             \
  static range_t range_##name(const uint64_t* x, int64_t count, uint64_t flip) {               \
    range_t r = {UINT64_MAX, 0};                                                               \
    for (int64_t i = 0; i < count; ++i) {                                                      \
      uint64_t key = key_##name(x[i]) ^ flip;                                                  \
      r.least = key < r.least ? key : r.least;                                                 \
      r.greatest = key > r.greatest ? key : r.greatest;                                        \
    }                                                                                          \
    return r;                                                                                  \
  }                                                                                            \
  static void head_##name(const uint64_t* x, int64_t count, uint64_t flip, uint64_t least,     \
                          int shift, uint64_t* out) {                                          \
    for (int64_t i = 0; i < count; ++i) {                                                      \
      uint64_t key = ((key_##name(x[i]) ^ flip) - least) >> shift;                             \
      out[i] = key << 32 | (uint32_t)i;                                                        \
    }                                                                                          \
  }                                                                                            \
  static uint64_t one_##name(uint64_t x) { return key_##name(x); }                             \
  static void wide_##name(const uint64_t* x, int64_t count, uint64_t flip, tpui_wide_t* out) { \
    for (int64_t i = 0; i < count; ++i) {                                                      \
      out[i] = (tpui_wide_t){key_##name(x[i]) ^ flip, (uint64_t)i};                            \
    }                                                                                          \
  }
WIDE(i64)
WIDE(u64)
WIDE(f64)

/* Positions of the greatest key so far; the latest of equal ones. `turn` is xored to the elements,
 * `flip` to the keys. */
#define RUNNING(name, type, key_type)                                                       \
  static void running_##name(const void* line, int64_t count, uint64_t turn, uint64_t flip, \
                             int64_t* out) {                                                \
    const type* x = line;                                                                   \
    key_type best = 0;                                                                      \
    int64_t at = 0;                                                                         \
    for (int64_t i = 0; i < count; ++i) {                                                   \
      key_type key = (key_type)key_##name((type)(x[i] ^ (type)turn)) ^ (key_type)flip;      \
      at = key >= best ? i : at;                                                            \
      best = key >= best ? key : best;                                                      \
      out[i] = at;                                                                          \
    }                                                                                       \
  }
RUNNING(bool, uint8_t, uint32_t)
RUNNING(u8, uint8_t, uint32_t)
RUNNING(i8, int8_t, uint32_t)
RUNNING(u16, uint16_t, uint32_t)
RUNNING(i16, int16_t, uint32_t)
RUNNING(f16, uint16_t, uint32_t)
RUNNING(bf16, uint16_t, uint32_t)
RUNNING(u32, uint32_t, uint32_t)
RUNNING(i32, uint32_t, uint32_t)
RUNNING(f32, uint32_t, uint32_t)
RUNNING(i64, uint64_t, uint64_t)
RUNNING(u64, uint64_t, uint64_t)
RUNNING(f64, uint64_t, uint64_t)

typedef struct key_type_t {
  void (*running)(const void* line, int64_t count, uint64_t turn, uint64_t flip, int64_t* out);
  void (*pack)(const void* line, int64_t count, uint32_t flip, uint64_t* out);
  range_t (*range)(const uint64_t* x, int64_t count, uint64_t flip);
  void (*head)(const uint64_t* x, int64_t count, uint64_t flip, uint64_t least, int shift,
               uint64_t* out);
  uint64_t (*one)(uint64_t x);
  void (*wide)(const uint64_t* x, int64_t count, uint64_t flip, tpui_wide_t* out);
} key_type_t;

static const key_type_t key_types[TPU_DTYPE_COUNT] = {
    [TPU_BOOL] = {running_bool, pack_bool, NULL, NULL, NULL, NULL},
    [TPU_U8] = {running_u8, pack_u8, NULL, NULL, NULL, NULL},
    [TPU_I8] = {running_i8, pack_i8, NULL, NULL, NULL, NULL},
    [TPU_U16] = {running_u16, pack_u16, NULL, NULL, NULL, NULL},
    [TPU_I16] = {running_i16, pack_i16, NULL, NULL, NULL, NULL},
    [TPU_F16] = {running_f16, pack_f16, NULL, NULL, NULL, NULL},
    [TPU_BF16] = {running_bf16, pack_bf16, NULL, NULL, NULL, NULL},
    [TPU_U32] = {running_u32, pack_u32, NULL, NULL, NULL, NULL},
    [TPU_I32] = {running_i32, pack_i32, NULL, NULL, NULL, NULL},
    [TPU_F32] = {running_f32, pack_f32, NULL, NULL, NULL, NULL},
    [TPU_I64] = {running_i64, NULL, range_i64, head_i64, one_i64, wide_i64},
    [TPU_U64] = {running_u64, NULL, range_u64, head_u64, one_u64, wide_u64},
    [TPU_F64] = {running_f64, NULL, range_f64, head_f64, one_f64, wide_f64},
};

bool tpui_order_takes(tpu_dtype_t dtype) {
  const key_type_t* type = &key_types[dtype];
  return type->pack != NULL || type->wide != NULL;
}

bool tpui_order_is_wide(tpu_dtype_t dtype) { return key_types[dtype].wide != NULL; }

int tpui_order_pack_heads(tpu_dtype_t dtype, const void* line, int64_t count, bool descending,
                          uint64_t* out_packed) {
  const key_type_t* type = &key_types[dtype];
  if (type->pack != NULL) {
    type->pack(line, count, descending ? UINT32_MAX : 0, out_packed);
    return 0;
  }
  // Indices, token ids and labels are 64-bit numbers that lie close together.
  uint64_t flip = descending ? UINT64_MAX : 0;
  range_t range = type->range(line, count, flip);
  int shift = 0;
  while (count > 0 && (range.greatest - range.least) >> shift > UINT32_MAX) ++shift;
  type->head(line, count, flip, range.least, shift, out_packed);
  return shift;
}

uint64_t tpui_order_wide_key(tpu_dtype_t dtype, const void* line, int64_t position,
                             bool descending) {
  uint64_t key = key_types[dtype].one(((const uint64_t*)line)[position]);
  return descending ? ~key : key;
}

void tpui_order_running(tpu_dtype_t dtype, const void* line, int64_t count, bool least,
                        int64_t* out_positions) {
  // Floats are turned around by their sign, so that NaN stays the greatest: it wins both ways.
  bool is_float = tpu_dtype_is_float(dtype);
  uint64_t sign = UINT64_C(1) << (8 * tpu_dtype_bytes(dtype) - 1);
  key_types[dtype].running(line, count, least && is_float ? sign : 0,
                           least && !is_float ? UINT64_MAX : 0, out_positions);
}

void tpui_order_widen(tpu_dtype_t dtype, const void* line, int64_t count, bool descending,
                      tpui_wide_t* out) {
  key_types[dtype].wide(line, count, descending ? UINT64_MAX : 0, out);
}

#define GATHER(type)                                                                      \
  static void gather_##type(const type* x, int64_t count, const int64_t* at, type* out) { \
    for (int64_t k = 0; k < count; ++k) out[k] = x[at[k]];                                \
  }
GATHER(uint8_t)
GATHER(uint16_t)
GATHER(uint32_t)
GATHER(uint64_t)

void tpui_order_gather(tpu_dtype_t dtype, const void* line, int64_t count, const int64_t* positions,
                       void* out) {
  switch (tpu_dtype_bytes(dtype)) {
    case 1: gather_uint8_t(line, count, positions, out); break;
    case 2: gather_uint16_t(line, count, positions, out); break;
    case 4: gather_uint32_t(line, count, positions, out); break;
    default: gather_uint64_t(line, count, positions, out);
  }
}
