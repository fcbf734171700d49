/* Status: the result of everything that can fail. One word; NULL means success.
 *
 * A failed status owns its text and is freed by exactly one of: tpu_status_free, tpu_status_join,
 * or handing it to the caller. Making a status never fails: when memory is out, a static status
 * with code TPU_RESOURCE_EXHAUSTED and a fixed text is returned instead.
 */
#ifndef TPU_BASE_STATUS_H_
#define TPU_BASE_STATUS_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Numbers equal PJRT_Error_Code, so nothing is translated on the way up. */
typedef enum tpu_status_code_e {
  TPU_OK = 0,
  TPU_CANCELLED = 1,
  TPU_UNKNOWN = 2,
  TPU_INVALID_ARGUMENT = 3,
  TPU_DEADLINE_EXCEEDED = 4,
  TPU_NOT_FOUND = 5,
  TPU_ALREADY_EXISTS = 6,
  TPU_PERMISSION_DENIED = 7,
  TPU_RESOURCE_EXHAUSTED = 8,
  TPU_FAILED_PRECONDITION = 9,
  TPU_ABORTED = 10,
  TPU_OUT_OF_RANGE = 11,
  TPU_UNIMPLEMENTED = 12,
  TPU_INTERNAL = 13,
  TPU_UNAVAILABLE = 14,
  TPU_DATA_LOSS = 15,
  TPU_UNAUTHENTICATED = 16,
} tpu_status_code_t;

typedef struct tpu_status_s* tpu_status_t;

#if defined(__GNUC__)
#define TPU_MUST_USE __attribute__((warn_unused_result))
#define TPU_PRINTF(fmt_arg, first_arg) __attribute__((format(printf, fmt_arg, first_arg)))
#define TPU_LIKELY(x) __builtin_expect(!!(x), 1)
#define TPU_UNLIKELY(x) __builtin_expect(!!(x), 0)
#else
#define TPU_MUST_USE
#define TPU_PRINTF(fmt_arg, first_arg)
#define TPU_LIKELY(x) (x)
#define TPU_UNLIKELY(x) (x)
#endif

/* Makes a failed status. `code` must not be TPU_OK. */
TPU_MUST_USE tpu_status_t tpu_status_make(tpu_status_code_t code, const char* format, ...)
    TPU_PRINTF(2, 3);

/* Puts context in front of the text: "context: text". Takes and returns `status`; NULL stays
 * NULL. */
TPU_MUST_USE tpu_status_t tpu_status_annotate(tpu_status_t status, const char* format, ...)
    TPU_PRINTF(2, 3);

/* Joins two results, keeping the first failure's code and both texts. Takes both. */
TPU_MUST_USE tpu_status_t tpu_status_join(tpu_status_t first, tpu_status_t second);

/* Deep copy; NULL stays NULL. */
TPU_MUST_USE tpu_status_t tpu_status_copy(tpu_status_t status);

/* TPU_OK for NULL. */
tpu_status_code_t tpu_status_code(tpu_status_t status);

/* Never NULL; "" for success. Lives as long as `status`. */
const char* tpu_status_message(tpu_status_t status);

/* Fixed upper-case name of a code, such as "INVALID_ARGUMENT". */
const char* tpu_status_code_name(tpu_status_code_t code);

/* Frees a status; NULL is fine. */
void tpu_status_free(tpu_status_t status);

#define TPU_RETURN_IF_ERROR(expr)                              \
  do {                                                         \
    tpu_status_t tpu_status_ = (expr);                         \
    if (TPU_UNLIKELY(tpu_status_ != NULL)) return tpu_status_; \
  } while (0)

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_BASE_STATUS_H_
