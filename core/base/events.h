/* What the engine does when, for profilers: spans of time, collected while somebody asked for them.
 * Costs one read of a flag where nobody did. Thread-safe.
 */
#ifndef TPU_BASE_EVENTS_H_
#define TPU_BASE_EVENTS_H_

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tpu_event_kind_t {
  TPU_EVENT_FLUSH,      // a window becomes a job: planning, and compiling what is not there
  TPU_EVENT_COMPILE,    // the plugin's compiler makes a program
  TPU_EVENT_LOAD,       // a program comes from the cache on disk
  TPU_EVENT_LAUNCH,     // a program is executed
  TPU_EVENT_HOST_STEP,  // an operation runs on the host
  TPU_EVENT_TO_HOST,    // content is copied to the host
  TPU_EVENT_TO_DEVICE,  // content is copied to the device
  TPU_EVENT_WAIT,       // a thread waits for launched work or for a build
  TPU_EVENT_KIND_COUNT
} tpu_event_kind_t;

typedef struct tpu_event_t {
  tpu_event_kind_t kind;
  int32_t thread;            // the kernel's number of the thread
  int64_t begin_ns, end_ns;  // since 1970
  int64_t size;              // bytes of a transfer or of a program's text; operations of the rest
  char name[64];             // what it was about, cut where it is longer
} tpu_event_t;

/* Lower-case word of the kind, such as "to_host". */
const char* tpu_event_kind_name(tpu_event_kind_t kind);

/* Begins to collect; what was collected before and not taken is dropped. */
void tpu_events_start(void);
/* Ends it and gives what was collected, in the order of the ends; free the array with tpu_free.
 * Above a million events the rest is left out: `*out_dropped` says how many. */
TPU_MUST_USE tpu_status_t tpu_events_stop(tpu_event_t** out_events, size_t* out_count,
                                          size_t* out_dropped);

/* When a span begins: 0 while nobody collects. */
int64_t tpu_event_begin(void);
/* The span that began then has ended; nothing for 0. `name` is copied. */
void tpu_event_end(tpu_event_kind_t kind, int64_t begin_ns, const char* name, int64_t size);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_BASE_EVENTS_H_
