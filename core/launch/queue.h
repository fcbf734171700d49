/* A first-in first-out queue with one thread, so that recording the next window overlaps with
 * running this one. Items run exactly once, in order, on the queue's thread, also while the queue
 * is being destroyed. The thread starts with the first item.
 */
#ifndef TPU_LAUNCH_QUEUE_H_
#define TPU_LAUNCH_QUEUE_H_

#include "base/status.h"

typedef struct tpu_queue_t tpu_queue_t;

/* Embedded in what is queued; `run` may free it. */
typedef struct tpu_queue_item_t {
  void (*run)(struct tpu_queue_item_t* item);
  struct tpu_queue_item_t* next;
} tpu_queue_item_t;

TPU_MUST_USE tpu_status_t tpu_queue_create(tpu_queue_t** out_queue);
/* Runs what is left, then ends the thread. */
void tpu_queue_destroy(tpu_queue_t* queue);

/* If this fails (no thread could be started), the item never runs. */
TPU_MUST_USE tpu_status_t tpu_queue_push(tpu_queue_t* queue, tpu_queue_item_t* item);

#endif  // TPU_LAUNCH_QUEUE_H_
