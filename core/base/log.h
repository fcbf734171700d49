/* Logging to stderr by topic. Silent unless TORCH_TPU_LOG names the topic. */
#ifndef TPU_BASE_LOG_H_
#define TPU_BASE_LOG_H_

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tpu_log_topic_t {
  TPU_LOG_FLUSH,
  TPU_LOG_COMPILE,
  TPU_LOG_LAUNCH,
  TPU_LOG_CACHE,
  TPU_LOG_TRACE,
  TPU_LOG_FALLBACK,
  TPU_LOG_TOPIC_COUNT
} tpu_log_topic_t;

/* Cheap: one table read after the first call. */
bool tpu_log_enabled(tpu_log_topic_t topic);
/* One line; the topic's name goes in front. Does nothing when the topic is off. */
void tpu_log(tpu_log_topic_t topic, const char* format, ...) TPU_PRINTF(2, 3);

/* Monotonic clock in nanoseconds. */
int64_t tpu_clock_ns(void);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_BASE_LOG_H_
