/* Work sharing with the plugin's thread pool. */
#include <stdatomic.h>

#include "base/alloc.h"
#include "base/thread.h"
#include "host/host_internal.h"

enum { MAX_HELPERS = 64, RANGES_PER_THREAD = 4 };

/* Owned by everyone who may still look at it: a helper can start after the caller has left. What it
 * finds then is that no range is left; `work` and `arg` are not touched. */
typedef struct job_t {
  atomic_int references;
  atomic_llong next;  // first index that nobody has taken
  long long count, step;
  tpu_host_work_t work;
  void* arg;

  tpu_mutex_t mutex;
  pthread_cond_t idle;
  int busy;             // guarded by mutex: helpers inside work_off
  tpu_status_t status;  // guarded by mutex: the first failure
} job_t;

static void release_job(job_t* job) {
  if (atomic_fetch_sub(&job->references, 1) != 1) return;
  (void)pthread_cond_destroy(&job->idle);
  (void)pthread_mutex_destroy(&job->mutex);
  tpu_status_free(job->status);
  tpu_free(job);
}

static void work_off(job_t* job) {
  for (;;) {
    long long first = atomic_fetch_add(&job->next, job->step);
    if (first >= job->count) return;
    long long last = job->count - first < job->step ? job->count : first + job->step;
    tpu_status_t status = job->work(job->arg, first, last);
    if (status == NULL) continue;
    atomic_store(&job->next, job->count);  // the others may stop
    tpu_mutex_lock(&job->mutex);
    if (job->status == NULL) {
      job->status = status;
      status = NULL;
    }
    tpu_mutex_unlock(&job->mutex);
    tpu_status_free(status);
  }
}

/* Being counted as busy comes before taking a range, so the caller cannot leave in between. */
static void help_job(void* data) {
  job_t* job = data;
  tpu_mutex_lock(&job->mutex);
  ++job->busy;
  tpu_mutex_unlock(&job->mutex);
  work_off(job);
  tpu_mutex_lock(&job->mutex);
  if (--job->busy == 0) (void)pthread_cond_signal(&job->idle);
  tpu_mutex_unlock(&job->mutex);
  release_job(job);
}

static void destroy_error(const ffi_api_t* api, ffi_error_t* error) {
  ffi_error_destroy_args_t args = {.struct_size = PJRT_STRUCT_SIZE(ffi_error_destroy_args_t, error),
                                   .error = error};
  // Returns nothing; the step over void(*)(void) tells the compiler that the change is meant.
  ((void (*)(void*))(void (*)(void))api->slots[FFI_SLOT_ERROR_DESTROY])(&args);
}

/* Threads of the pool; 0 when there is none to ask. */
static int pool_threads(const ffi_call_t* frame) {
  size_t end = offsetof(ffi_api_t, slots) + FFI_SLOT_COUNT * sizeof(ffi_function_t);
  if (frame == NULL || frame->api->struct_size < end) return 0;
  int64_t count = 0;
  ffi_thread_count_args_t args = {.struct_size = PJRT_STRUCT_SIZE(ffi_thread_count_args_t, count),
                                  .context = frame->context,
                                  .count = &count};
  ffi_error_t* error = frame->api->slots[FFI_SLOT_THREAD_POOL_COUNT](&args);
  if (error == NULL) return count > MAX_HELPERS ? MAX_HELPERS : (int)count;
  destroy_error(frame->api, error);
  return 0;
}

static tpu_status_t make_job(long long count, long long step, tpu_host_work_t work, void* arg,
                             job_t** out) {
  TPU_RETURN_IF_ERROR(tpu_calloc(1, sizeof(job_t), (void**)out));
  job_t* job = *out;
  atomic_init(&job->references, 1);
  atomic_init(&job->next, 0);
  job->count = count;
  job->step = step;
  job->work = work;
  job->arg = arg;
  (void)pthread_mutex_init(&job->mutex, NULL);
  (void)pthread_cond_init(&job->idle, NULL);
  return NULL;
}

/* False when the pool does not take it: the caller then does more itself. */
static bool schedule_job(const ffi_call_t* frame, job_t* job) {
  ffi_schedule_args_t args = {.struct_size = PJRT_STRUCT_SIZE(ffi_schedule_args_t, data),
                              .context = frame->context,
                              .task = help_job,
                              .data = job};
  atomic_fetch_add(&job->references, 1);
  ffi_error_t* error = frame->api->slots[FFI_SLOT_THREAD_POOL_SCHEDULE](&args);
  if (error == NULL) return true;
  destroy_error(frame->api, error);
  release_job(job);
  return false;
}

static tpu_status_t finish_job(job_t* job) {
  work_off(job);
  tpu_mutex_lock(&job->mutex);
  while (job->busy > 0) (void)pthread_cond_wait(&job->idle, &job->mutex);
  tpu_status_t status = job->status;
  job->status = NULL;
  tpu_mutex_unlock(&job->mutex);
  release_job(job);
  return status;
}

tpu_status_t tpu_host_parallel(const tpu_host_call_t* call, int64_t count, int64_t grain,
                               tpu_host_work_t work, void* arg) {
  if (count <= 0) return NULL;
  if (grain < 1) grain = 1;
  int64_t pieces = count / grain;
  int threads = pieces > 1 ? pool_threads(call->frame) : 0;
  if (threads < 2) return work(arg, 0, count);
  int64_t wanted = (int64_t)threads * RANGES_PER_THREAD;
  if (pieces > wanted) pieces = wanted;
  job_t* job = NULL;
  TPU_RETURN_IF_ERROR(make_job(count, (count + pieces - 1) / pieces, work, arg, &job));
  // This thread is one of the workers.
  for (int i = 1; i < threads && i < pieces; ++i) {
    if (!schedule_job(call->frame, job)) break;
  }
  return finish_job(job);
}
