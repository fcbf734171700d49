/* Hashing: a fast 64-bit mixer for tables in memory and a 128-bit digest for cache keys on disk. */
#ifndef TPU_BASE_HASH_H_
#define TPU_BASE_HASH_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Folds one word into a running hash. Not stable between versions: memory only. */
static inline uint64_t tpu_hash_mix(uint64_t hash, uint64_t word) {
  __extension__ typedef unsigned __int128 u128_t;
  u128_t product = (u128_t)(hash ^ word ^ 0x9e3779b97f4a7c15ull) * 0xd6e8feb86659fd93ull;
  return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Hash of bytes, for tables in memory. */
uint64_t tpu_hash_bytes(const void* data, size_t size, uint64_t seed);

/* 128-bit digest, stable between processes and machines (little endian). */
typedef struct tpu_digest_t {
  uint64_t lo, hi;
} tpu_digest_t;

typedef struct tpu_digest_state_t {
  uint64_t a, b, length;
  uint8_t tail[16];
  uint8_t tail_size;
} tpu_digest_state_t;

void tpu_digest_begin(tpu_digest_state_t* state);
void tpu_digest_update(tpu_digest_state_t* state, const void* data, size_t size);
tpu_digest_t tpu_digest_end(tpu_digest_state_t* state);
/* Writes 32 lower-case hex digits and a NUL. */
void tpu_digest_hex(tpu_digest_t digest, char out_hex[33]);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_BASE_HASH_H_
