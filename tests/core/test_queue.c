/* The launch queue: order, what happens to items at the end, and to those that cannot start. */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <unistd.h>

#include "launch/queue.h"
#include "test.h"

enum { ITEMS = 2000 };

typedef struct item_t {
  tpu_queue_item_t head;
  int number;
  int delay_us;
} item_t;

static int order[ITEMS];
static atomic_int done;
static pthread_t ran_on;

static void run_item(tpu_queue_item_t* head) {
  item_t* item = (item_t*)head;
  if (item->delay_us > 0) (void)usleep((useconds_t)item->delay_us);
  ran_on = pthread_self();
  order[atomic_load(&done)] = item->number;
  atomic_fetch_add(&done, 1);
}

static item_t items[ITEMS];

static void push_items(tpu_queue_t* queue, int count, int first_delay_us) {
  atomic_store(&done, 0);
  for (int i = 0; i < count; ++i) {
    items[i] = (item_t){.head = {.run = run_item}, .number = i};
    if (i == 0) items[i].delay_us = first_delay_us;
    TPU_EXPECT_OK(tpu_queue_push(queue, &items[i].head));
  }
}

static void expect_order(int count) {
  TPU_EXPECT_EQ(atomic_load(&done), count);
  for (int i = 0; i < count; ++i) TPU_EXPECT_EQ(order[i], i);
}

TPU_TEST(queue_runs_in_order_on_its_thread) {
  tpu_queue_t* queue = NULL;
  TPU_REQUIRE_OK(tpu_queue_create(&queue));
  push_items(queue, ITEMS, 0);
  for (int i = 0; i < 10000 && atomic_load(&done) < ITEMS; ++i) (void)usleep(100);
  expect_order(ITEMS);
  TPU_EXPECT(!pthread_equal(ran_on, pthread_self()));
  tpu_queue_destroy(queue);
}

TPU_TEST(queue_destroy_runs_what_is_left) {
  tpu_queue_t* queue = NULL;
  TPU_REQUIRE_OK(tpu_queue_create(&queue));
  push_items(queue, 500, 20000);  // all others wait behind the first
  tpu_queue_destroy(queue);
  expect_order(500);
}

TPU_TEST(queue_without_items_has_no_thread) {
  tpu_queue_t* queue = NULL;
  TPU_REQUIRE_OK(tpu_queue_create(&queue));
  tpu_queue_destroy(queue);
  tpu_queue_destroy(NULL);
}

/* A thread cannot start when its stack cannot be had; the item then never runs. */
TPU_TEST(queue_start_failure) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  tpu_test_skip("sanitizers need address space of their own");
#else
  tpu_queue_t* queue = NULL;
  TPU_REQUIRE_OK(tpu_queue_create(&queue));
  atomic_store(&done, 0);
  items[0] = (item_t){.head = {.run = run_item}, .number = 0};
  struct rlimit old, none;
  TPU_REQUIRE(getrlimit(RLIMIT_AS, &old) == 0);
  none = old;
  none.rlim_cur = 1 << 20;  // less than what is mapped already
  TPU_REQUIRE(setrlimit(RLIMIT_AS, &none) == 0);
  tpu_status_t status = tpu_queue_push(queue, &items[0].head);
  TPU_REQUIRE(setrlimit(RLIMIT_AS, &old) == 0);
  if (status == NULL) tpu_test_skip("a stack was left over from an earlier thread");
  if (status != NULL) {
    TPU_EXPECT_CODE(status, TPU_RESOURCE_EXHAUSTED);
    TPU_EXPECT_EQ(atomic_load(&done), 0);
    TPU_EXPECT_OK(tpu_queue_push(queue, &items[0].head));  // and it works once there is memory
  }
  tpu_queue_destroy(queue);
  TPU_EXPECT_EQ(atomic_load(&done), 1);
#endif
}

static tpu_status_t create_queue(void* arg) {
  (void)arg;
  tpu_queue_t* queue = NULL;
  tpu_status_t status = tpu_queue_create(&queue);
  tpu_queue_destroy(queue);
  return status;
}

TPU_TEST(queue_out_of_memory) { TPU_EXPECT_EQ(TPU_OOM_SWEEP(create_queue, NULL), 1); }
