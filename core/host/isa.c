#include "host/isa.h"

#include <stdatomic.h>
#include <stdbool.h>

static atomic_int limit = TPUI_ISA_COUNT - 1;

static tpui_isa_t detect_isa(void) {
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2")) return TPUI_ISA_BASE;
  bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
              __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
  return wide ? TPUI_ISA_AVX512 : TPUI_ISA_AVX2;
#else
  return TPUI_ISA_BASE;
#endif
}

tpui_isa_t tpui_isa(void) {
  static atomic_int found = -1;
  int isa = atomic_load_explicit(&found, memory_order_relaxed);
  if (isa < 0) {
    isa = (int)detect_isa();
    atomic_store_explicit(&found, isa, memory_order_relaxed);
  }
  int most = atomic_load_explicit(&limit, memory_order_relaxed);
  return (tpui_isa_t)(isa < most ? isa : most);
}

void tpui_isa_limit(tpui_isa_t most) { atomic_store(&limit, (int)most); }
