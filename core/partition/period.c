/* Does a window repeat itself from some point on? That is a loop that never asks for a result. */
#include "base/alloc.h"
#include "partition/stages.h"

/* A tail shorter than this agrees with something by accident. */
#define MIN_TAIL 64

/* How far back from the end the sequence repeats with period p. */
static uint32_t tail_length(const uint64_t* signatures, uint32_t count, uint32_t p) {
  uint32_t length = 0;
  while (length + p < count &&
         signatures[count - 1 - length] == signatures[count - 1 - length - p]) {
    ++length;
  }
  return length;
}

tpu_status_t tpu_partition_period(const tpu_window_t* window, uint32_t* out_period) {
  *out_period = 0;
  uint32_t count = window->record_count;
  uint64_t* signatures = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc(count, sizeof(uint64_t), (void**)&signatures));
  for (uint32_t i = 0; i < count; ++i) signatures[i] = tpui_partition_signature(window, i);
  for (uint32_t p = 1; p <= count / 3 && *out_period == 0; ++p) {
    // The first loop turns may differ (optimizer state is made), so half the window is enough.
    uint32_t length = tail_length(signatures, count, p);
    if (length >= MIN_TAIL && length >= p && length >= count / 2) *out_period = p;
  }
  tpu_free(signatures);
  return NULL;
}
