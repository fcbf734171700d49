#include "base/hash.h"

#include <string.h>

// Byte by byte, so that digests are equal on big-endian machines; compilers make one load of it.
static uint64_t load_le64(const uint8_t* bytes) {
  uint64_t word = 0;
  for (int i = 7; i >= 0; --i) word = word << 8 | bytes[i];
  return word;
}

uint64_t tpu_hash_bytes(const void* data, size_t size, uint64_t seed) {
  const uint8_t* bytes = data;
  uint64_t hash = tpu_hash_mix(seed, size);
  for (; size >= 8; size -= 8, bytes += 8) hash = tpu_hash_mix(hash, load_le64(bytes));
  if (size > 0) {
    uint8_t tail[8] = {0};
    memcpy(tail, bytes, size);
    hash = tpu_hash_mix(hash, load_le64(tail));
  }
  return hash;
}

/* The digest: two 64-bit lanes, 16 bytes a step. Every step is a bijection of (a, b) for a fixed
 * block and of the block for a fixed (a, b), so two inputs that differ in one block never collide
 * and the state never loses entropy. */

#define LANE_A 0x9fb21c651e98df25ull
#define LANE_B 0xa0761d6478bd642full

static uint64_t rotate_left(uint64_t word, int bits) { return word << bits | word >> (64 - bits); }

static void digest_block(tpu_digest_state_t* state, const uint8_t block[16]) {
  uint64_t lo = load_le64(block), hi = load_le64(block + 8);
  state->a ^= rotate_left(lo * LANE_A, 29) * LANE_B;
  state->a = (rotate_left(state->a, 26) + state->b) * 5 + 0x38b34ae5;
  state->b ^= rotate_left(hi * LANE_B, 35) * LANE_A;
  state->b = (rotate_left(state->b, 31) + state->a) * 9 + 0x52dce729;
}

static uint64_t avalanche_bits(uint64_t word) {
  word ^= word >> 32;
  word *= 0xe9846af9b1a615d5ull;
  word ^= word >> 29;
  word *= 0xd6e8feb86659fd93ull;
  return word ^ word >> 32;
}

void tpu_digest_begin(tpu_digest_state_t* state) {
  *state = (tpu_digest_state_t){.a = 0x243f6a8885a308d3ull, .b = 0x13198a2e03707344ull};
}

void tpu_digest_update(tpu_digest_state_t* state, const void* data, size_t size) {
  const uint8_t* bytes = data;
  state->length += size;
  if (state->tail_size > 0) {
    size_t room = 16u - state->tail_size;
    size_t part = size < room ? size : room;
    if (part > 0) memcpy(state->tail + state->tail_size, bytes, part);
    state->tail_size = (uint8_t)(state->tail_size + part);
    bytes += part;
    size -= part;
    if (state->tail_size < 16) return;
    digest_block(state, state->tail);
    state->tail_size = 0;
  }
  for (; size >= 16; size -= 16, bytes += 16) digest_block(state, bytes);
  if (size > 0) memcpy(state->tail, bytes, size);
  state->tail_size = (uint8_t)size;
}

tpu_digest_t tpu_digest_end(tpu_digest_state_t* state) {
  if (state->tail_size > 0) {
    memset(state->tail + state->tail_size, 0, 16u - state->tail_size);
    digest_block(state, state->tail);
  }
  // Zero padding is told apart by the length.
  uint64_t a = state->a ^ state->length, b = state->b ^ rotate_left(state->length, 32);
  a += b;
  b += a;
  a = avalanche_bits(a);
  b = avalanche_bits(b);
  a += b;
  b += a;
  return (tpu_digest_t){.lo = a, .hi = b};
}

void tpu_digest_hex(tpu_digest_t digest, char out_hex[33]) {
  static const char hex[] = "0123456789abcdef";
  for (int i = 0; i < 16; ++i) {
    out_hex[i] = hex[digest.hi >> (60 - 4 * i) & 15];
    out_hex[16 + i] = hex[digest.lo >> (60 - 4 * i) & 15];
  }
  out_hex[32] = '\0';
}
