#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/device_internal.h"

/* program_ops for the CPU: XLA:CPU recomputes long elementwise chains in every consumer, so
 * programs are cut (docs/decisions/001-partition.md). TPU and CUDA fuse without that, and gain from
 * more room. */
static const tpu_platform_t platforms[] = {
    {.kind = TPU_PLATFORM_CPU,
     .name = "cpu",
     .program_ops = 64,
     .host_addressable = true,
     .fast_compile_small = true},
    {.kind = TPU_PLATFORM_TPU,
     .name = "tpu",
     .program_ops = 4096,
     .host_addressable = false,
     .fast_compile_small = false},
    {.kind = TPU_PLATFORM_CUDA,
     .name = "cuda",
     .program_ops = 4096,
     .host_addressable = false,
     .fast_compile_small = false},
};

const tpu_platform_t* tpui_platform(tpu_platform_kind_t kind) {
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
