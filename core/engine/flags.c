#include "engine/flags.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/errors.h"

/* Flags that may wait; each is a buffer of the device with a few numbers. */
#define MOST_WATCHED 256

void tpui_flags_watch(tpu_engine_t* e, tpu_job_t* job) {
  if (TPU_LIKELY(job->flag_count == 0)) return;
  size_t count = e->watched_count + job->flag_count;
  tpu_status_t status =
      tpu_grow((void**)&e->watched, &e->watched_capacity, count, sizeof(*e->watched));
  if (status == NULL) {
    memcpy(e->watched + e->watched_count, job->flags, job->flag_count * sizeof(*e->watched));
    e->watched_count = count;
  } else {
    for (size_t i = 0; i < job->flag_count; ++i) tpu_flag_drop(&job->flags[i]);
    tpui_keep_pending(e, status, 0);
  }
  job->flag_count = 0;
}

/* Looks at the oldest flag, which leaves the list. */
static tpu_status_t look_at_oldest(tpu_engine_t* e) {
  tpu_flag_t flag = e->watched[0];
  --e->watched_count;
  memmove(e->watched, e->watched + 1, e->watched_count * sizeof(flag));
  tpu_mutex_unlock(&e->lock);
  tpu_status_t status = tpu_flag_look(&flag);
  tpu_flag_drop(&flag);
  tpu_mutex_lock(&e->lock);
  return status;
}

tpu_status_t tpui_flags_look(tpu_engine_t* e, uint64_t last_run) {
  tpu_status_t first = NULL;
  while (e->watched_count > 0 && tpu_buffer_run(e->watched[0].buffer) <= last_run) {
    tpu_status_t status = look_at_oldest(e);
    if (first == NULL) {
      first = status;
    } else {
      tpu_status_free(status);
    }
  }
  return first;
}

void tpui_flags_bound(tpu_engine_t* e) {
  while (e->watched_count > MOST_WATCHED) {
    tpu_status_t status = look_at_oldest(e);
    if (status != NULL) tpui_keep_pending(e, status, 0);
  }
}

void tpui_flags_free(tpu_engine_t* e) {
  for (size_t i = 0; i < e->watched_count; ++i) tpu_flag_drop(&e->watched[i]);
  tpu_free(e->watched);
}
