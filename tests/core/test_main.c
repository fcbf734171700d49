#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "test.h"

typedef enum outcome_t { PASSED, FAILED, SKIPPED } outcome_t;

static tpu_test_t* first_test;
static tpu_test_t** last_link = &first_test;
static const char* running = "";
static outcome_t outcome;

void tpu_test_register(tpu_test_t* test) {
  *last_link = test;
  last_link = &test->next;
}

void tpu_test_fail(const char* file, int line, const char* format, ...) {
  va_list args;
  va_start(args, format);
  printf("%s:%d: %s: ", file, line, running);
  vprintf(format, args);
  printf("\n");
  va_end(args);
  outcome = FAILED;
}

bool tpu_test_failed(void) { return outcome == FAILED; }

void tpu_test_skip(const char* reason) {
  printf("skipped: %s: %s\n", running, reason);
  if (outcome == PASSED) outcome = SKIPPED;
}

bool tpu_test_check_equal(const char* file, int line, const char* what, int64_t a, int64_t b) {
  if (a == b) return true;
  tpu_test_fail(file, line, "expected %s, got %lld and %lld", what, (long long)a, (long long)b);
  return false;
}

bool tpu_test_check_text(const char* file, int line, const char* what, const char* a,
                         const char* b) {
  if (a != NULL && b != NULL && strcmp(a, b) == 0) return true;
  tpu_test_fail(file, line, "expected %s, got \"%s\" and \"%s\"", what, a != NULL ? a : "(null)",
                b != NULL ? b : "(null)");
  return false;
}

bool tpu_test_check_code(const char* file, int line, const char* what, tpu_status_t status,
                         tpu_status_code_t code) {
  bool same = tpu_status_code(status) == code;
  if (!same) {
    tpu_test_fail(file, line, "%s: expected %s, got %s: %s", what, tpu_status_code_name(code),
                  tpu_status_code_name(tpu_status_code(status)), tpu_status_message(status));
  }
  tpu_status_free(status);
  return same;
}

int tpu_test_oom_sweep(const char* file, int line, tpu_status_t (*body)(void* arg), void* arg) {
  enum { LIMIT = 100000 };
  for (int n = 1; n < LIMIT; ++n) {
    int64_t live = tpu_alloc_live_count();
    tpu_alloc_fail_at(n);
    tpu_status_t status = body(arg);
    bool failed_one = !tpu_alloc_fail_pending();
    tpu_alloc_fail_at(0);
    tpu_status_code_t code = tpu_status_code(status);
    if (code != TPU_OK && (code != TPU_RESOURCE_EXHAUSTED || !failed_one)) {
      tpu_test_fail(file, line, "allocation %d: %s: %s", n, tpu_status_code_name(code),
                    tpu_status_message(status));
    }
    tpu_status_free(status);
    if (tpu_alloc_live_count() != live) {
      tpu_test_fail(file, line, "allocation %d: %lld blocks were not given back", n,
                    (long long)(tpu_alloc_live_count() - live));
    }
    if (!failed_one) return n - 1;
  }
  tpu_test_fail(file, line, "still failing allocations after %d runs", LIMIT);
  return LIMIT;
}

uint64_t tpu_test_seed(void) {
  const char* text = getenv("TORCH_TPU_TEST_SEED");
  uint64_t seed = text != NULL ? strtoull(text, NULL, 0) : 0;
  if (seed == 0) seed = 0x5eed5eed;
  printf("  %s: TORCH_TPU_TEST_SEED=%llu\n", running, (unsigned long long)seed);
  return seed;
}

static bool wanted(const char* name, int filter_count, char** filters) {
  for (int i = 0; i < filter_count; ++i) {
    if (strstr(name, filters[i]) != NULL) return true;
  }
  return filter_count == 0;
}

static outcome_t run_test(const tpu_test_t* test) {
  running = test->name;
  outcome = PASSED;
  int64_t begin = tpu_clock_ns();
  test->run();
  int64_t milliseconds = (tpu_clock_ns() - begin) / 1000000;
  static const char* const words[] = {"ok", "FAILED", "skipped"};
  printf("%-8s %s", words[outcome], test->name);
  if (milliseconds >= 100) printf(" (%lld ms)", (long long)milliseconds);
  printf("\n");
  return outcome;
}

int main(int argc, char** argv) {
  setvbuf(stdout, NULL, _IOLBF, 0);  // a crash must not swallow the names before it
  bool list = argc == 2 && strcmp(argv[1], "--list") == 0;
  int counts[3] = {0};
  for (const tpu_test_t* test = first_test; test != NULL; test = test->next) {
    if (list) {
      printf("%s\n", test->name);
    } else if (wanted(test->name, argc - 1, argv + 1)) {
      ++counts[run_test(test)];
    }
  }
  if (list) return 0;
  printf("%d passed, %d failed\n", counts[PASSED], counts[FAILED]);
  bool ran_any = counts[PASSED] + counts[FAILED] + counts[SKIPPED] > 0;
  return counts[FAILED] == 0 && ran_any ? 0 : 1;
}
