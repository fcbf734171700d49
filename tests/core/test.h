/* The C test harness. A test file holds any number of
 *
 *   TPU_TEST(folder_what_it_shows) { ... TPU_EXPECT(...); ... }
 *
 * which register themselves; tpu_core_tests runs all of them, or those whose names contain one of
 * its arguments (`--list` prints the names). Failed expectations are printed with their place and
 * do not end the test; TPU_REQUIRE does.
 */
#ifndef TPU_TESTS_CORE_TEST_H_
#define TPU_TESTS_CORE_TEST_H_

#include <stdbool.h>
#include <stdint.h>

#include "base/alloc.h"
#include "base/alloc_hooks.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tpu_test_t {
  const char* name;
  void (*run)(void);
  struct tpu_test_t* next;
} tpu_test_t;

void tpu_test_register(tpu_test_t* test);

/* Marks the running test as failed and prints the line. */
void tpu_test_fail(const char* file, int line, const char* format, ...) TPU_PRINTF(3, 4);
/* Whether the running test has failed so far: what a forked child of it ends with. */
bool tpu_test_failed(void);
/* The running test ends as neither passed nor failed, unless it failed already. */
void tpu_test_skip(const char* reason);

bool tpu_test_check_equal(const char* file, int line, const char* what, int64_t a, int64_t b);
bool tpu_test_check_text(const char* file, int line, const char* what, const char* a,
                         const char* b);
/* Takes `status`. */
bool tpu_test_check_code(const char* file, int line, const char* what, tpu_status_t status,
                         tpu_status_code_t code);

/* Runs `body(arg)` again and again, failing its first allocation, its second and so on, until it
 * gets through without a failure. Each failed run must return TPU_RESOURCE_EXHAUSTED, or succeed
 * when it can do without that memory; every run must give back all memory. Run `body` once before
 * when it fills something that stays (an interned item, the environment table). Returns the number
 * of allocations that were made to fail. */
int tpu_test_oom_sweep(const char* file, int line, tpu_status_t (*body)(void* arg), void* arg);

/* Where a random test begins: the same in every run, or TORCH_TPU_TEST_SEED. Prints it. */
uint64_t tpu_test_seed(void);

/* A small random generator, the same everywhere: state must not be 0. */
static inline uint64_t tpu_test_random(uint64_t* state) {
  uint64_t x = *state;
  x ^= x << 13;
  x ^= x >> 7;
  x ^= x << 17;
  *state = x;
  return x * 0x2545f4914f6cdd1dull;
}
/* In [low, high]. */
static inline int64_t tpu_test_random_range(uint64_t* state, int64_t low, int64_t high) {
  return low + (int64_t)((tpu_test_random(state) >> 16) % (uint64_t)(high - low + 1));
}

#ifdef __cplusplus
}  // extern "C"
#endif

#define TPU_TEST(test_name)                                             \
  static void test_##test_name(void);                                   \
  __attribute__((constructor)) static void register_##test_name(void) { \
    static tpu_test_t test = {#test_name, test_##test_name, 0};         \
    tpu_test_register(&test);                                           \
  }                                                                     \
  static void test_##test_name(void)

#define TPU_EXPECT(cond)                                                   \
  do {                                                                     \
    if (!(cond)) tpu_test_fail(__FILE__, __LINE__, "expected: %s", #cond); \
  } while (0)
/* Ends the test (a function that returns void) when the condition does not hold. */
#define TPU_REQUIRE(cond)                                       \
  do {                                                          \
    if (!(cond)) {                                              \
      tpu_test_fail(__FILE__, __LINE__, "required: %s", #cond); \
      return;                                                   \
    }                                                           \
  } while (0)
/* Integers and pointers. */
#define TPU_EXPECT_EQ(a, b) \
  (void)tpu_test_check_equal(__FILE__, __LINE__, #a " == " #b, (int64_t)(a), (int64_t)(b))
#define TPU_EXPECT_TEXT(a, b) (void)tpu_test_check_text(__FILE__, __LINE__, #a " == " #b, a, b)
/* Both take the status. */
#define TPU_EXPECT_OK(status) \
  (void)tpu_test_check_code(__FILE__, __LINE__, #status, (status), TPU_OK)
#define TPU_EXPECT_CODE(status, code) \
  (void)tpu_test_check_code(__FILE__, __LINE__, #status, (status), (code))
#define TPU_REQUIRE_OK(status)                                                       \
  do {                                                                               \
    if (!tpu_test_check_code(__FILE__, __LINE__, #status, (status), TPU_OK)) return; \
  } while (0)
#define TPU_OOM_SWEEP(body, arg) tpu_test_oom_sweep(__FILE__, __LINE__, (body), (arg))

#endif  // TPU_TESTS_CORE_TEST_H_
