#include "launch/queue.h"

#include <string.h>

#include "base/alloc.h"
#include "base/thread.h"

struct tpu_queue_t {
  pthread_mutex_t lock;
  pthread_cond_t wake;
  tpu_queue_item_t *head, *tail;
  pthread_t thread;
  bool started, stopping;
};

tpu_status_t tpu_queue_create(tpu_queue_t** out_queue) {
  *out_queue = NULL;
  tpu_queue_t* queue = NULL;
  TPU_RETURN_IF_ERROR(tpu_calloc(1, sizeof(*queue), (void**)&queue));
  (void)pthread_mutex_init(&queue->lock, NULL);
  (void)pthread_cond_init(&queue->wake, NULL);
  *out_queue = queue;
  return NULL;
}

static tpu_queue_item_t* wait_for_item(tpu_queue_t* queue) {
  tpu_mutex_lock(&queue->lock);
  while (queue->head == NULL && !queue->stopping) {
    (void)pthread_cond_wait(&queue->wake, &queue->lock);
  }
  tpu_queue_item_t* item = queue->head;
  if (item != NULL) {
    queue->head = item->next;
    if (queue->head == NULL) queue->tail = NULL;
  }
  tpu_mutex_unlock(&queue->lock);
  return item;
}

static void* thread_main(void* argument) {
  tpu_queue_t* queue = argument;
  for (tpu_queue_item_t* item; (item = wait_for_item(queue)) != NULL;) item->run(item);
  return NULL;
}

tpu_status_t tpu_queue_push(tpu_queue_t* queue, tpu_queue_item_t* item) {
  tpu_status_t status = NULL;
  item->next = NULL;
  tpu_mutex_lock(&queue->lock);
  if (!queue->started) {
    int error = pthread_create(&queue->thread, NULL, thread_main, queue);
    queue->started = error == 0;
    if (error != 0) {
      status = tpu_status_make(TPU_RESOURCE_EXHAUSTED, "launch thread: %s", strerror(error));
    }
  }
  if (status == NULL) {
    if (queue->tail != NULL) queue->tail->next = item;
    if (queue->head == NULL) queue->head = item;
    queue->tail = item;
    (void)pthread_cond_signal(&queue->wake);
  }
  tpu_mutex_unlock(&queue->lock);
  return status;
}

void tpu_queue_destroy(tpu_queue_t* queue) {
  if (queue == NULL) return;
  tpu_mutex_lock(&queue->lock);
  queue->stopping = true;
  (void)pthread_cond_signal(&queue->wake);
  tpu_mutex_unlock(&queue->lock);
  if (queue->started) (void)pthread_join(queue->thread, NULL);
  (void)pthread_cond_destroy(&queue->wake);
  (void)pthread_mutex_destroy(&queue->lock);
  tpu_free(queue);
}
