/* Functions compiled for several instruction sets. Internal to host/.
 *
 * The build targets the oldest machine; loops that gain from wider vectors exist once per set, and
 * a table picks at run time. All of them give the same bits: the files that use this are compiled
 * without contraction of multiply and add (CMakeLists.txt).
 */
#ifndef TPU_HOST_ISA_H_
#define TPU_HOST_ISA_H_

typedef enum tpui_isa_t {
  TPUI_ISA_BASE,  // what the compiler was told to build for
  TPUI_ISA_AVX2,
  TPUI_ISA_AVX512,
  TPUI_ISA_COUNT
} tpui_isa_t;

/* The best set of this machine, or the one set as limit. */
tpui_isa_t tpui_isa(void);
/* For tests: nothing above `most` is used from here on. */
void tpui_isa_limit(tpui_isa_t most);

#if defined(__x86_64__)
#define TPUI_TARGET_AVX2 __attribute__((target("avx2")))
#define TPUI_TARGET_AVX512 __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq")))
#else
#define TPUI_TARGET_AVX2
#define TPUI_TARGET_AVX512
#endif

/* Defines `name`, a table of functions with `parameters` by tpui_isa_t. Each is `body arguments`
 * with everything that it calls inlined and compiled for its set. */
#define TPUI_ISA_TABLE(name, body, parameters, arguments)                           \
  __attribute__((flatten)) static void name##_base parameters { body arguments; }   \
  TPUI_TARGET_AVX2                                                                  \
  __attribute__((flatten)) static void name##_avx2 parameters { body arguments; }   \
  TPUI_TARGET_AVX512                                                                \
  __attribute__((flatten)) static void name##_avx512 parameters { body arguments; } \
  static void(*const name[TPUI_ISA_COUNT]) parameters = {name##_base, name##_avx2, name##_avx512};

#endif  // TPU_HOST_ISA_H_
