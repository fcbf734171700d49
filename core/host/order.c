/* Sorting and selecting by keys. Short lines by insertion, others by radix passes from the lowest
 * digit up: no comparisons, no branches that depend on data. */
#include "host/order.h"

#include <string.h>

#include "host/wide.h"

enum { SHORT_LINE = 32 };   // sorted by insertion
enum { LONG_LINE = 4096 };  // worth larger digits
enum { SMALL_DIGIT = 8, LARGE_DIGIT = 11, MAX_PASSES = 8 };
enum { MAX_BUCKETS = 1 << LARGE_DIGIT };

static int bit_length(uint64_t x) { return x == 0 ? 0 : 64 - __builtin_clzll(x); }

/* Passes of equal width that cover `bits` bits. */
static int digit_width(int64_t count, int bits) {
  int widest = count < LONG_LINE ? SMALL_DIGIT : LARGE_DIGIT;
  int passes = (bits + widest - 1) / widest;
  return passes == 0 ? 0 : (bits + passes - 1) / passes;
}

/* Counts -> start places. True when all numbers share one digit: then the pass changes nothing. */
static bool place_buckets(uint32_t* buckets, int count, int64_t total) {
  uint32_t at = 0;
  for (int i = 0; i < count; ++i) {
    uint32_t here = buckets[i];
    if (here == total) return true;
    buckets[i] = at;
    at += here;
  }
  return false;
}

/* --- packed numbers --- */

static void sort_short(uint64_t* a, int64_t count) {
  for (int64_t i = 1; i < count; ++i) {
    uint64_t x = a[i];
    int64_t at = i;
    for (; at > 0 && a[at - 1] > x; --at) a[at] = a[at - 1];
    a[at] = x;
  }
}

typedef struct survey_t {
  uint64_t least, greatest;
  bool sorted;
} survey_t;

static survey_t survey_keys(const uint64_t* a, int64_t count) {
  survey_t s = {a[0], a[0], true};
  for (int64_t i = 1; i < count; ++i) {
    s.sorted &= a[i - 1] <= a[i];
    s.least = a[i] < s.least ? a[i] : s.least;
    s.greatest = a[i] > s.greatest ? a[i] : s.greatest;
  }
  return s;
}

static void radix_pass(const uint64_t* from, uint64_t* to, int64_t count, uint64_t base, int shift,
                       uint64_t mask, uint32_t* places) {
  for (int64_t i = 0; i < count; ++i) {
    to[places[(from[i] - base) >> shift & mask]++] = from[i];
  }
}

uint64_t* tpui_order_sort_packed(uint64_t* a, uint64_t* b, int64_t count) {
  if (count <= SHORT_LINE) {
    sort_short(a, count);
    return a;
  }
  survey_t s = survey_keys(a, count);
  if (s.sorted) return a;
  // Positions are in order already; passes go over the bits in which keys differ.
  uint64_t base = s.least & ~UINT64_C(0xffffffff);
  int bits = bit_length((s.greatest - base) >> 32), width = digit_width(count, bits);
  uint64_t mask = (UINT64_C(1) << width) - 1;
  for (int shift = 32; shift < 32 + bits; shift += width) {
    uint32_t places[MAX_BUCKETS];
    memset(places, 0, sizeof(uint32_t) << width);
    for (int64_t i = 0; i < count; ++i) ++places[(a[i] - base) >> shift & mask];
    if (place_buckets(places, 1 << width, count)) continue;
    radix_pass(a, b, count, base, shift, mask, places);
    uint64_t* swap = a;
    a = b;
    b = swap;
  }
  return a;
}

uint64_t tpui_order_select_packed(uint64_t* a, int64_t count, int64_t rank) {
  while (count > SHORT_LINE) {
    survey_t s = survey_keys(a, count);
    if (s.sorted) return a[rank];
    // The numbers are distinct, so their range has bits to tell them apart and this gets shorter.
    int bits = bit_length(s.greatest - s.least);
    int shift = bits > LARGE_DIGIT ? bits - LARGE_DIGIT : 0;
    uint32_t sizes[MAX_BUCKETS] = {0};
    for (int64_t i = 0; i < count; ++i) ++sizes[(a[i] - s.least) >> shift];
    uint64_t bucket = 0;
    for (; rank >= sizes[bucket]; ++bucket) rank -= sizes[bucket];
    int64_t kept = 0;
    for (int64_t i = 0; i < count; ++i) {
      uint64_t x = a[i];
      a[kept] = x;
      kept += (x - s.least) >> shift == bucket;
    }
    count = kept;
  }
  sort_short(a, count);
  return a[rank];
}

/* --- keys of one byte --- */

void tpui_order_bytes(tpu_dtype_t dtype, const void* line, int64_t count, bool descending,
                      int64_t* out_positions) {
  const uint8_t* x = line;
  uint8_t flip = (uint8_t)((dtype == TPU_I8 ? 0x80 : 0) ^ (descending ? 0xff : 0));
  uint8_t keep = dtype == TPU_BOOL ? 1 : 0xff;
  uint32_t places[256] = {0};
  for (int64_t i = 0; i < count; ++i) ++places[(x[i] & keep) ^ flip];
  (void)place_buckets(places, 256, -1);
  for (int64_t i = 0; i < count; ++i) out_positions[places[(x[i] & keep) ^ flip]++] = i;
}

/* --- wide keys --- */

/* For lines longer than SHORT_LINE. */
static tpui_wide_t* sort_wide(tpui_wide_t* a, tpui_wide_t* b, int64_t count) {
  uint64_t least = a[0].key, greatest = a[0].key;
  for (int64_t i = 1; i < count; ++i) {
    least = a[i].key < least ? a[i].key : least;
    greatest = a[i].key > greatest ? a[i].key : greatest;
  }
  int bits = bit_length(greatest - least), width = digit_width(count, bits);
  uint64_t mask = (UINT64_C(1) << width) - 1;
  for (int shift = 0; shift < bits; shift += width) {
    uint32_t places[MAX_BUCKETS];
    memset(places, 0, sizeof(uint32_t) << width);
    for (int64_t i = 0; i < count; ++i) ++places[(a[i].key - least) >> shift & mask];
    if (place_buckets(places, 1 << width, count)) continue;
    for (int64_t i = 0; i < count; ++i) {
      b[places[(a[i].key - least) >> shift & mask]++] = a[i];
    }
    tpui_wide_t* swap = a;
    a = b;
    b = swap;
  }
  return a;
}

/* --- lines --- */

size_t tpui_order_scratch(tpu_dtype_t dtype, int64_t count) {
  size_t entry = tpui_order_is_wide(dtype) ? sizeof(tpui_wide_t) : sizeof(uint64_t);
  return 2 * entry * (size_t)count;
}

static bool same_keys(tpu_dtype_t dtype, const void* line, const uint64_t* packed, int64_t count) {
  uint64_t key = tpui_order_wide_key(dtype, line, (uint32_t)packed[0], false);
  for (int64_t i = 1; i < count; ++i) {
    if (tpui_order_wide_key(dtype, line, (uint32_t)packed[i], false) != key) return false;
  }
  return true;
}

/* Orders the entries whose heads are equal by their whole keys. False when too many different ones
 * share a head. */
static bool order_ties(tpu_dtype_t dtype, const void* line, bool descending, uint64_t* packed,
                       int64_t count) {
  for (int64_t first = 0, last; first < count; first = last) {
    last = first + 1;
    while (last < count && packed[last] >> 32 == packed[first] >> 32) ++last;
    if (last - first > SHORT_LINE) {
      if (!same_keys(dtype, line, packed + first, last - first)) return false;
      continue;
    }
    for (int64_t i = first + 1; i < last; ++i) {
      uint64_t x = packed[i];
      uint64_t key = tpui_order_wide_key(dtype, line, (uint32_t)x, descending);
      int64_t at = i;
      for (; at > first; --at) {
        uint64_t before = packed[at - 1];
        if (tpui_order_wide_key(dtype, line, (uint32_t)before, descending) <= key) break;
        packed[at] = before;
      }
      packed[at] = x;
    }
  }
  return true;
}

tpui_order_t tpui_order_line(tpu_dtype_t dtype, const void* line, int64_t count, bool descending,
                             void* scratch) {
  uint64_t* packed = scratch;
  int left_out = tpui_order_pack_heads(dtype, line, count, descending, packed);
  packed = tpui_order_sort_packed(packed, packed + count, count);
  if (left_out == 0 || order_ties(dtype, line, descending, packed, count)) {
    return (tpui_order_t){packed, 1};
  }
  tpui_wide_t* wide = scratch;
  tpui_order_widen(dtype, line, count, descending, wide);
  wide = sort_wide(wide, wide + count, count);
  return (tpui_order_t){&wide[0].position, 2};
}
