#include <string.h>

#include "base/hash.h"
#include "test.h"

static tpu_digest_t digest_of(const void* data, size_t size) {
  tpu_digest_state_t state;
  tpu_digest_begin(&state);
  tpu_digest_update(&state, data, size);
  return tpu_digest_end(&state);
}

static bool same(tpu_digest_t a, tpu_digest_t b) { return a.lo == b.lo && a.hi == b.hi; }

TPU_TEST(hash_digest_does_not_depend_on_the_pieces) {
  uint8_t data[100];
  for (size_t i = 0; i < sizeof(data); ++i) data[i] = (uint8_t)(i * 37);
  tpu_digest_t whole = digest_of(data, sizeof(data));
  for (size_t piece = 1; piece < 40; ++piece) {
    tpu_digest_state_t state;
    tpu_digest_begin(&state);
    for (size_t at = 0; at < sizeof(data); at += piece) {
      tpu_digest_update(&state, data + at, piece < sizeof(data) - at ? piece : sizeof(data) - at);
    }
    tpu_digest_update(&state, NULL, 0);
    TPU_EXPECT(same(tpu_digest_end(&state), whole));
  }
}

// Keys on disk outlive the process: these values may change only together with the cache's version.
TPU_TEST(hash_digest_is_stable) {
  char hex[33];
  tpu_digest_hex(digest_of("", 0), hex);
  TPU_EXPECT_TEXT(hex, "4f958a52e54e16b3a899ffd64fd61b13");
  tpu_digest_hex(digest_of("StableHLO, 23 bytes here", 24), hex);
  TPU_EXPECT_TEXT(hex, "b74ce9258b55f80a58a502ee0daa284a");
}

static int bits_of(uint64_t word) { return __builtin_popcountll(word); }

TPU_TEST(hash_digest_one_bit_changes_half_of_all_bits) {
  uint8_t data[64] = {0};
  tpu_digest_t zero = digest_of(data, sizeof(data));
  int fewest = 128;
  int64_t sum = 0;
  for (int bit = 0; bit < 512; ++bit) {
    data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    tpu_digest_t other = digest_of(data, sizeof(data));
    data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    int changed = bits_of(zero.lo ^ other.lo) + bits_of(zero.hi ^ other.hi);
    fewest = changed < fewest ? changed : fewest;
    sum += changed;
  }
  TPU_EXPECT(fewest > 35);
  TPU_EXPECT(sum / 512 > 60 && sum / 512 < 68);
}

TPU_TEST(hash_digest_tells_lengths_apart) {
  static const uint8_t zeros[200];
  tpu_digest_t digests[200];
  for (size_t i = 0; i < 200; ++i) {
    digests[i] = digest_of(zeros, i);
    for (size_t j = 0; j < i; ++j) TPU_EXPECT(!same(digests[i], digests[j]));
  }
}

TPU_TEST(hash_bytes_depends_on_everything) {
  uint8_t data[24] = {0};
  uint64_t zero = tpu_hash_bytes(data, 24, 1);
  TPU_EXPECT(zero == tpu_hash_bytes(data, 24, 1));
  TPU_EXPECT(zero != tpu_hash_bytes(data, 24, 2));
  TPU_EXPECT(zero != tpu_hash_bytes(data, 23, 1));
  for (int i = 0; i < 24; ++i) {
    data[i] = 1;
    TPU_EXPECT(zero != tpu_hash_bytes(data, 24, 1));
    data[i] = 0;
  }
}
