/* Words lie in 64-bit lanes of which only the lower half counts: the widening multiplication
 * ignores the upper half, so a round is two multiplications, two shifts and exclusive ors, and no
 * shuffles. The compiler's own vector code for 32-bit lanes takes 2.5 times as long.
 */
#include "host/philox.h"

#include <string.h>

#include "host/isa.h"
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { ROUNDS = 10 };
static const uint32_t factor0 = 0xd2511f53u, factor1 = 0xcd9e8d57u;
static const uint32_t bump0 = 0x9e3779b9u, bump1 = 0xbb67ae85u;

typedef struct start_t {
  uint64_t low, high;            // counter of block 0
  uint64_t low_mask, high_mask;  // of the block's number, which is added
  uint64_t key0[ROUNDS], key1[ROUNDS];
} start_t;

/* `lanes` blocks at a time, from vectors of 64-bit lanes. */
#define PHILOX_BLOCKS(vector_t, lanes, native_t, multiply)                                    \
  const vector_t none = {0};                                                                  \
  vector_t number;                                                                            \
  for (int l = 0; l < (lanes); ++l) number[l] = (uint64_t)l;                                  \
  for (int64_t i = 0; i < blocks; i += (lanes)) {                                             \
    vector_t low = (number & s->low_mask) + s->low, high = (number & s->high_mask) + s->high; \
    vector_t c0 = low, c1 = low >> 32, c2 = high, c3 = high >> 32;                            \
    for (int round = 0; round < ROUNDS; ++round) {                                            \
      vector_t p0 = (vector_t)multiply((native_t)c0, (native_t)(none + factor0));             \
      vector_t p1 = (vector_t)multiply((native_t)c2, (native_t)(none + factor1));             \
      c0 = (p1 >> 32) ^ c1 ^ s->key0[round];                                                  \
      c1 = p1;                                                                                \
      c2 = (p0 >> 32) ^ c3 ^ s->key1[round];                                                  \
      c3 = p0;                                                                                \
    }                                                                                         \
    vector_t first = (c0 & 0xffffffffu) | c1 << 32, second = (c2 & 0xffffffffu) | c3 << 32;   \
    uint64_t words[2 * (lanes)];                                                              \
    for (int l = 0; l < (lanes); ++l) {                                                       \
      words[2 * l] = first[l];                                                                \
      words[2 * l + 1] = second[l];                                                           \
    }                                                                                         \
    memcpy(out + 4 * i, words, sizeof(words));                                                \
    number += (lanes);                                                                        \
  }

#if defined(__x86_64__)

typedef uint64_t lanes2_t __attribute__((vector_size(16)));
typedef uint64_t lanes4_t __attribute__((vector_size(32)));
typedef uint64_t lanes8_t __attribute__((vector_size(64)));

static void blocks_base(const start_t* s, int64_t blocks, uint32_t* out){
    PHILOX_BLOCKS(lanes2_t, 2, __m128i, _mm_mul_epu32)} TPUI_TARGET_AVX2
    static void blocks_avx2(const start_t* s, int64_t blocks, uint32_t* out){
        PHILOX_BLOCKS(lanes4_t, 4, __m256i, _mm256_mul_epu32)} TPUI_TARGET_AVX512
    static void blocks_avx512(const start_t* s, int64_t blocks, uint32_t* out) {
  PHILOX_BLOCKS(lanes8_t, 8, __m512i, _mm512_mul_epu32)
}

#else

typedef uint64_t lanes2_t __attribute__((vector_size(16)));

static inline lanes2_t multiply_low(lanes2_t x, lanes2_t y) { return (x & 0xffffffffu) * y; }

static void blocks_base(const start_t* s, int64_t blocks,
                        uint32_t* out){PHILOX_BLOCKS(lanes2_t, 2, lanes2_t, multiply_low)}
#define blocks_avx2 blocks_base
#define blocks_avx512 blocks_base

#endif

void tpui_philox(uint64_t key, uint64_t low, uint64_t high, bool count_high, int64_t blocks,
                 uint32_t* out) {
  static void (*const functions[TPUI_ISA_COUNT])(const start_t*, int64_t, uint32_t*) = {
      blocks_base, blocks_avx2, blocks_avx512};
  uint64_t mask = count_high ? UINT64_MAX : 0;
  start_t start = {.low = low, .high = high, .low_mask = ~mask, .high_mask = mask};
  for (uint32_t round = 0; round < ROUNDS; ++round) {
    start.key0[round] = (uint32_t)key + round * bump0;  // modulo 2^32
    start.key1[round] = (uint32_t)(key >> 32) + round * bump1;
  }
  functions[tpui_isa()](&start, (blocks + TPUI_PHILOX_GROUP - 1) & -TPUI_PHILOX_GROUP, out);
}
