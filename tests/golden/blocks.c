#include "blocks.h"

#include <stdint.h>
#include <string.h>

/* A bit per byte of code, counted from an address in this program's code. */
#define MOST_BYTES (1u << 24)
static uint8_t seen[MOST_BYTES / 8];

/* What the compiler calls at the start of each block. */
void __sanitizer_cov_trace_pc(void);
void __sanitizer_cov_trace_pc(void) {
  uintptr_t at = (uintptr_t)__builtin_return_address(0);
  uintptr_t base = (uintptr_t)golden_blocks_reset - MOST_BYTES / 2;
  size_t place = (size_t)(at - base);
  if (place < MOST_BYTES) seen[place / 8] |= (uint8_t)(1u << place % 8);
}

void golden_blocks_reset(void) { memset(seen, 0, sizeof(seen)); }

void golden_blocks_print(FILE* out) {
  for (size_t i = 0; i < MOST_BYTES; i += seen[i / 8] >> i % 8 > 1 ? 1 : 8 - i % 8) {
    if (seen[i / 8] >> i % 8 & 1) (void)fprintf(out, "%zu ", i);
  }
  (void)fputc('\n', out);
}
