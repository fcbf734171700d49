#include <stdarg.h>
#include <time.h>

#include "like_internal.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;

void like_lock(void) { (void)pthread_mutex_lock(&mutex); }
void like_unlock(void) { (void)pthread_mutex_unlock(&mutex); }

void* like_new(size_t size) {
  void* memory = calloc(1, size);
  if (memory == NULL) {
    fprintf(stderr, "tpu_like: out of memory\n");
    _exit(98);
  }
  return memory;
}

/* --- errors --- */

typedef struct like_error_object_t {
  int code;
  char text[4096];
} like_error_object_t;

pjrt_error_t* like_error(int code, const char* format, ...) {
  like_error_object_t* error = like_new(sizeof(*error));
  error->code = code;
  va_list args;
  va_start(args, format);
  (void)vsnprintf(error->text, sizeof(error->text), format, args);
  va_end(args);
  return (pjrt_error_t*)error;
}

pjrt_error_t* like_error_copy(const pjrt_error_t* error) {
  if (error == NULL) return NULL;
  like_error_object_t* copy = like_new(sizeof(*copy));
  memcpy(copy, error, sizeof(*copy));
  return (pjrt_error_t*)copy;
}

void like_error_free(pjrt_error_t* error) { free(error); }

pjrt_error_t* like_Error_Destroy(void* pointer) {
  pjrt_error_destroy_args_t* args = pointer;
  like_error_free(args->error);
  return NULL;
}

pjrt_error_t* like_Error_Message(void* pointer) {
  pjrt_error_message_args_t* args = pointer;
  args->message = ((const like_error_object_t*)args->error)->text;
  args->message_size = strlen(args->message);
  return NULL;
}

pjrt_error_t* like_Error_GetCode(void* pointer) {
  pjrt_error_get_code_args_t* args = pointer;
  args->code = ((const like_error_object_t*)args->error)->code;
  return NULL;
}

/* --- events --- */

typedef struct like_callback_t {
  struct like_callback_t* next;
  void (*run)(pjrt_error_t* error, void* user_arg);
  void* user_arg;
} like_callback_t;

struct like_event_t {
  int references;
  bool done;
  pjrt_error_t* error;
  like_callback_t* callbacks;
};

like_event_t* like_event_new(void) {
  like_event_t* event = like_new(sizeof(*event));
  event->references = 1;
  return event;
}

like_event_t* like_event_retain(like_event_t* event) {
  like_lock();
  event->references += 1;
  like_unlock();
  return event;
}

void like_event_release(like_event_t* event) {
  like_lock();
  bool last = --event->references == 0;
  like_unlock();
  if (!last) return;
  like_error_free(event->error);
  free(event);
}

void like_event_set(like_event_t* event, pjrt_error_t* error) {
  like_lock();
  event->done = true;
  event->error = error;
  like_callback_t* callbacks = event->callbacks;
  event->callbacks = NULL;
  (void)pthread_cond_broadcast(&changed);
  like_unlock();
  while (callbacks != NULL) {
    like_callback_t* next = callbacks->next;
    callbacks->run(like_error_copy(error), callbacks->user_arg);
    free(callbacks);
    callbacks = next;
  }
}

pjrt_error_t* like_event_wait(like_event_t* event) {
  like_lock();
  while (!event->done) (void)pthread_cond_wait(&changed, &mutex);
  pjrt_error_t* error = like_error_copy(event->error);
  like_unlock();
  return error;
}

pjrt_error_t* like_Event_Destroy(void* pointer) {
  pjrt_event_destroy_args_t* args = pointer;
  like_event_release((like_event_t*)args->event);
  return NULL;
}

pjrt_error_t* like_Event_IsReady(void* pointer) {
  pjrt_event_is_ready_args_t* args = pointer;
  like_lock();
  args->is_ready = ((like_event_t*)args->event)->done;
  like_unlock();
  return NULL;
}

pjrt_error_t* like_Event_Await(void* pointer) {
  pjrt_event_await_args_t* args = pointer;
  return like_event_wait((like_event_t*)args->event);
}

pjrt_error_t* like_Event_OnReady(void* pointer) {
  pjrt_event_on_ready_args_t* args = pointer;
  like_event_t* event = (like_event_t*)args->event;
  like_lock();
  bool done = event->done;
  if (!done) {
    like_callback_t* callback = like_new(sizeof(*callback));
    *callback = (like_callback_t){event->callbacks, args->callback, args->user_arg};
    event->callbacks = callback;
  }
  like_unlock();
  if (done) args->callback(like_error_copy(event->error), args->user_arg);
  return NULL;
}

/* --- queues --- */

typedef struct like_job_t {
  struct like_job_t* next;
  void (*run)(void* data);
  void* data;
} like_job_t;

static void pause_like_a_device(void) {
  int64_t delay = like_value(LIKE_delay_us);
  struct timespec time = {.tv_sec = delay / 1000000, .tv_nsec = delay % 1000000 * 1000};
  if (delay > 0) (void)nanosleep(&time, NULL);
}

static void* serve(void* pointer) {
  like_queue_t* queue = pointer;
  like_lock();
  for (;;) {
    while (queue->first == NULL && !queue->ends) (void)pthread_cond_wait(&changed, &mutex);
    like_job_t* job = queue->first;
    if (job == NULL) break;
    queue->first = job->next;
    if (queue->first == NULL) queue->last = NULL;
    like_unlock();
    pause_like_a_device();
    job->run(job->data);
    free(job);
    like_lock();
  }
  like_unlock();
  return NULL;
}

void like_queue_begin(like_queue_t* queue) {
  if (pthread_create(&queue->thread, NULL, serve, queue) != 0) {
    fprintf(stderr, "tpu_like: no thread\n");
    _exit(98);
  }
}

void like_queue_push(like_queue_t* queue, void (*run)(void* data), void* data) {
  like_job_t* job = like_new(sizeof(*job));
  *job = (like_job_t){.run = run, .data = data};
  like_lock();
  *(queue->last != NULL ? &queue->last->next : &queue->first) = job;
  queue->last = job;
  (void)pthread_cond_broadcast(&changed);
  like_unlock();
}

void like_queue_end(like_queue_t* queue) {
  like_lock();
  queue->ends = true;
  (void)pthread_cond_broadcast(&changed);
  like_unlock();
  (void)pthread_join(queue->thread, NULL);
}
