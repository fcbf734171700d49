/* A mutex that cannot fail. Conditions, threads and once are pthread.h's own. */
#ifndef TPU_BASE_THREAD_H_
#define TPU_BASE_THREAD_H_

#include <pthread.h>

typedef pthread_mutex_t tpu_mutex_t;
#define TPU_MUTEX_INIT PTHREAD_MUTEX_INITIALIZER

static inline void tpu_mutex_lock(tpu_mutex_t* mutex) { (void)pthread_mutex_lock(mutex); }
static inline void tpu_mutex_unlock(tpu_mutex_t* mutex) { (void)pthread_mutex_unlock(mutex); }

#endif  // TPU_BASE_THREAD_H_
