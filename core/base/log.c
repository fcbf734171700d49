#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/env.h"
#include "base/thread.h"

static const char* const topic_names[TPU_LOG_TOPIC_COUNT] = {
    [TPU_LOG_FLUSH] = "flush", [TPU_LOG_COMPILE] = "compile", [TPU_LOG_LAUNCH] = "launch",
    [TPU_LOG_CACHE] = "cache", [TPU_LOG_TRACE] = "trace",     [TPU_LOG_FALLBACK] = "fallback",
};

// Topics that are on, for the text they were parsed from. Texts of the environment table live
// forever and an override gives another pointer, so comparing pointers notices every change.
static const char never_read[] = "";
static _Atomic(const char*) parsed_text = never_read;
static _Atomic unsigned parsed_topics;
static tpu_mutex_t parse_lock = TPU_MUTEX_INIT;

static unsigned topic_bit(const char* word, size_t size) {
  for (unsigned i = 0; i < TPU_LOG_TOPIC_COUNT; ++i) {
    if (strlen(topic_names[i]) == size && memcmp(topic_names[i], word, size) == 0) return 1u << i;
  }
  fprintf(stderr, "torch_tpu: %s has no topic \"%.*s\"\n", tpu_env_name(TPU_ENV_LOG), (int)size,
          word);
  return 0;
}

static unsigned parse_topics(const char* text) {
  unsigned topics = 0;
  while (text != NULL && *text != '\0') {
    size_t size = strcspn(text, ", ");
    if (size > 0) topics |= topic_bit(text, size);
    text += size;
    text += strspn(text, ", ");
  }
  return topics;
}

bool tpu_log_enabled(tpu_log_topic_t topic) {
  if ((unsigned)topic >= TPU_LOG_TOPIC_COUNT) return false;
  const char* text = tpu_env_text(TPU_ENV_LOG);
  if (TPU_UNLIKELY(atomic_load_explicit(&parsed_text, memory_order_acquire) != text)) {
    tpu_mutex_lock(&parse_lock);
    if (atomic_load_explicit(&parsed_text, memory_order_relaxed) != text) {
      atomic_store_explicit(&parsed_topics, parse_topics(text), memory_order_relaxed);
      atomic_store_explicit(&parsed_text, text, memory_order_release);
    }
    tpu_mutex_unlock(&parse_lock);
  }
  return (atomic_load_explicit(&parsed_topics, memory_order_relaxed) >> topic & 1u) != 0;
}

void tpu_log(tpu_log_topic_t topic, const char* format, ...) {
  if (!tpu_log_enabled(topic)) return;
  va_list args;
  va_start(args, format);
  // One lock over the pieces, so that lines of two threads do not mix.
  flockfile(stderr);
  fprintf(stderr, "torch_tpu %s: ", topic_names[topic]);
  vfprintf(stderr, format, args);
  fputc('\n', stderr);
  funlockfile(stderr);
  va_end(args);
}

int64_t tpu_clock_ns(void) {
  struct timespec now;
  if (clock_gettime(CLOCK_MONOTONIC, &now) != 0) return 0;
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}
