#define _GNU_SOURCE  // gettid
#include "base/events.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/thread.h"

#define MOST_EVENTS 1000000

static const char* const kind_names[TPU_EVENT_KIND_COUNT] = {
    "flush", "compile", "load", "launch", "host_step", "to_host", "to_device", "wait",
};

static _Atomic bool collecting;
static tpu_mutex_t lock = TPU_MUTEX_INIT;  // guards the rest
static tpu_event_t* events;
static size_t event_count, event_capacity, dropped;

const char* tpu_event_kind_name(tpu_event_kind_t kind) { return kind_names[kind]; }

static int64_t now_ns(void) {
  struct timespec now;
  (void)clock_gettime(CLOCK_REALTIME, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

void tpu_events_start(void) {
  tpu_mutex_lock(&lock);
  event_count = dropped = 0;
  atomic_store(&collecting, true);
  tpu_mutex_unlock(&lock);
}

tpu_status_t tpu_events_stop(tpu_event_t** out_events, size_t* out_count, size_t* out_dropped) {
  tpu_mutex_lock(&lock);
  atomic_store(&collecting, false);
  *out_events = events;
  *out_count = event_count;
  *out_dropped = dropped;
  events = NULL;
  event_count = event_capacity = dropped = 0;
  tpu_mutex_unlock(&lock);
  return NULL;
}

int64_t tpu_event_begin(void) {
  return TPU_LIKELY(!atomic_load_explicit(&collecting, memory_order_relaxed)) ? 0 : now_ns();
}

/* A span without room is left out: a profiler must not make the work fail. */
static bool make_room(void) {
  if (event_count >= MOST_EVENTS) return false;
  tpu_status_t status =
      tpu_grow((void**)&events, &event_capacity, event_count + 1, sizeof(*events));
  bool ok = status == NULL;
  tpu_status_free(status);
  return ok;
}

void tpu_event_end(tpu_event_kind_t kind, int64_t begin_ns, const char* name, int64_t size) {
  if (TPU_LIKELY(begin_ns == 0)) return;
  tpu_event_t event = {.kind = kind,
                       .thread = (int32_t)gettid(),
                       .begin_ns = begin_ns,
                       .end_ns = now_ns(),
                       .size = size};
  (void)snprintf(event.name, sizeof(event.name), "%s", name);
  tpu_mutex_lock(&lock);
  if (atomic_load(&collecting)) {
    if (make_room()) {
      events[event_count++] = event;
    } else {
      ++dropped;
    }
  }
  tpu_mutex_unlock(&lock);
}
