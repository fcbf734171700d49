/* A window -> the programs that the engine would compile, as text, per platform; no plugin. */
#ifndef TPU_TESTS_GOLDEN_LOWER_WINDOW_H_
#define TPU_TESTS_GOLDEN_LOWER_WINDOW_H_

#include "read_window.h"

/* Facts of a platform that partition/ and lower/ decide by. */
typedef struct golden_platform_t {
  const char* name;  // as in the golden files
  const tpu_platform_t* facts;
  bool host_calls;  // programs may call the C kernels of host/
  uint32_t program_ops;
} golden_platform_t;

#define GOLDEN_PLATFORM_COUNT 4
/* `index` < GOLDEN_PLATFORM_COUNT; 0 is the CPU with the C kernels of host/. */
golden_platform_t golden_platform(int index);

/* SHORT: of a long program the middle is left out, and a digest of all of it stands there. */
typedef enum golden_form_t { GOLDEN_FULL, GOLDEN_SHORT } golden_form_t;

/* Appends the window's programs in order:
 *
 *   program 0: (ext0, %2, f64[slot 1], i64[slot 2: 1 3]) -> (%5)
 *   module @tpu { ... }
 *   program 1: (ext1, %5) -> (%6), text of 0
 *
 * In brackets stands what is packed into the two number vectors (lower/packed.h), for integers with
 * the numbers that the window's slots give. A program that cannot be written has a line "error:
 * CODE: text" in place of its module. */
TPU_MUST_USE tpu_status_t golden_lower(const golden_window_t* window,
                                       const golden_platform_t* platform, golden_form_t form,
                                       tpu_strbuf_t* text);

/* What a case of a golden file holds after its window: "-- cpu, tpu", the platforms that share
 * their programs, and those programs; then the next platforms. */
TPU_MUST_USE tpu_status_t golden_lower_all(const golden_window_t* window, golden_form_t form,
                                           tpu_strbuf_t* text);

/* Lowering column of the op table: "binary" for TPU_OP_MUL. */
const char* golden_lowering_name(tpu_op_t op);

#endif  // TPU_TESTS_GOLDEN_LOWER_WINDOW_H_
