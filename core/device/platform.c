#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "device/device_internal.h"

static const tpu_platform_t platforms[] = {
    {
        .kind = TPU_PLATFORM_CPU,
        .name = "cpu",
        // Long elementwise chains are recomputed in every consumer, so programs are cut
        // (docs/decisions/001-partition.md). TPU and CUDA gain from more room.
        .program_ops = 64,
        .repeat_ops = 16,
        .host_addressable = true,
        .fast_compile_small = true,
        .slow_grouped_conv = true,  // 2x up to 16 groups; depthwise 3x3 is 5x slower than its sums
        .slow_half_conv = true,     // computed in float32 whatever its operands are
        .slow_pointwise_conv = true,  // 7x
        .slow_edge_conv = true,       // 512 channels, 3x3 on a 2x2 map: 0.6 s instead of 0.03
        .slow_transposed_dot = true,  // 1.5x for the gradient of a weight
        .cheap_small_dots = true,     // a quarter of the rows takes a quarter of the time
        .repeats_fused_work = true,   // the exponentials of a softmax, once per consumer
        .slow_windows = true,         // 5x for a 3x3 max pool
        .slow_scatter = true,         // a serial loop
        .slow_pair_sort = true,       // several times: only a plain "less than" has a fast path
    },
    {
        .kind = TPU_PLATFORM_TPU,
        .name = "tpu",
        .program_ops = 4096,
        .repeat_ops = 16,
        // Figures: estimates of libtpu 0.0.52 for v5e.
        .no_wide_products = true,       // "X64 rewriting not implemented"
        .low_default_precision = true,  // one pass in bfloat16; six for all bits
        .cheap_small_dots = true,    // causal attention of 1,024 tokens in four: 0.46x the cycles,
                                     // no temporaries, 3x the compile time
        .repeats_fused_work = true,  // softmax of 1,024 keys: 1.2x the cycles of joined sums
        .slow_scatter = true,        // its indices are sorted, a loop follows; the gradient of a
                                     // max pool compiled for over 49 s, the comparison for 1
    },
    {
        .kind = TPU_PLATFORM_CUDA,
        .name = "cuda",
        .program_ops = 4096,
        .repeat_ops = 16,
        .low_default_precision = true,  // TF32
    },
};

const tpu_platform_t* tpu_platform_get(tpu_platform_kind_t kind) {
  for (size_t i = 0; i < sizeof(platforms) / sizeof(platforms[0]); ++i) {
    if (platforms[i].kind == kind) return &platforms[i];
  }
  return NULL;
}

void tpui_platform_cpu_model(char* out_text, size_t size) {
  (void)snprintf(out_text, size, "unknown");
  FILE* file = fopen("/proc/cpuinfo", "re");
  if (file == NULL) return;
  char line[256];
  while (fgets(line, sizeof(line), file) != NULL) {
    char* value = strchr(line, ':');
    if (value == NULL || strncmp(line, "model name", 10) != 0) continue;
    value += value[1] == ' ' ? 2 : 1;
    value[strcspn(value, "\n")] = '\0';
    (void)snprintf(out_text, size, "%s", value);
    break;
  }
  (void)fclose(file);
}

int64_t tpui_platform_host_memory(void) {
  long pages = sysconf(_SC_PHYS_PAGES);
  long page_size = sysconf(_SC_PAGE_SIZE);
  int64_t bytes = pages > 0 && page_size > 0 ? (int64_t)pages * page_size : 0;
  FILE* file = fopen("/sys/fs/cgroup/memory.max", "re");
  if (file == NULL) return bytes;
  char line[64] = "";
  if (fgets(line, sizeof(line), file) != NULL) {
    int64_t limit = strtoll(line, NULL, 10);  // "max" gives 0
    if (limit > 0 && (bytes == 0 || limit < bytes)) bytes = limit;
  }
  (void)fclose(file);
  return bytes;
}

bool tpui_platform_host_grants(int64_t bytes) {
  // Nothing is touched, so that this costs two calls of the kernel.
  void* memory =
      mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  (void)munmap(memory, (size_t)bytes);
  return true;
}
