/* The engine used from many threads at once; meant to run under ThreadSanitizer as well. */
#include <stdatomic.h>

#include "engine/flush.h"
#include "engine_support.h"

enum { MAX_THREADS = 8 };

typedef struct worker_t {
  world_t world;  // a copy: `asked` is the thread's own
  int index;
  int rounds;
  tensor_t shared;
  atomic_bool* stop;
} worker_t;

static void run_threads(world_t* world, int count, int rounds, tensor_t shared,
                        void* (*body)(void* worker), void (*meanwhile)(world_t* world)) {
  pthread_t threads[MAX_THREADS];
  static worker_t workers[MAX_THREADS];
  static atomic_bool stop;
  atomic_store(&stop, false);
  for (int i = 0; i < count; ++i) {
    workers[i] = (worker_t){*world, i, rounds, shared, &stop};
    TPU_REQUIRE(pthread_create(&threads[i], NULL, body, &workers[i]) == 0);
  }
  if (meanwhile != NULL) meanwhile(world);
  atomic_store(&stop, true);
  for (int i = 0; i < count; ++i) (void)pthread_join(threads[i], NULL);
}

/* Each thread has tensors of its own; small and large windows, known and new ones. */
static void* use_own_tensors(void* pointer) {
  worker_t* worker = pointer;
  world_t* w = &worker->world;
  uint64_t random = 77 + (uint64_t)worker->index;
  for (int round = 0; round < worker->rounds; ++round) {
    int64_t size = tpu_test_random_range(&random, 0, 3) == 0 ? 70000 : 8 + worker->index;
    tensor_t a = world_range(w, size, 1), b = world_scale(w, TPU_OP_MUL, a, round % 5);
    world_update(w, TPU_OP_ADD, b, a);
    if (round % 3 == 0) world_flush(w);
    tensor_t c = world_binary(w, round % 7 == 0 ? TPU_OP_SUB : TPU_OP_DIV, b, a);
    world_update_by(w, TPU_OP_ADD, view_of(c, 1, 4, 1), round);
    if (round % 4 == 0) TPU_EXPECT_OK(tpu_storage_resize(b.storage, size * 8));
    if (round % 5 == 0) world_flush(w);
    EXPECT_CONTENT(w, a, 1, 1);
    EXPECT_CONTENT(w, c, 0, 0);
    EXPECT_CONTENT(w, b, 0, 0);
    drop(&a), drop(&b), drop(&c);
  }
  return NULL;
}

static void disturb(world_t* w) {
  for (int i = 0; i < 40; ++i) {
    if (i % 8 == 0) tpu_engine_clear_cache(w->engine);
    if (i % 10 == 0) {
      TPU_EXPECT_OK(tpu_engine_set_mode(w->engine, i % 20 == 0 ? TPU_MODE_STRICT : TPU_MODE_FUSED));
    }
    (void)tpu_engine_mode(w->engine);
    (void)world_stats(w);
    (void)world_compiles(w);
    world_sync(w);
  }
}

TPU_TEST(threads_with_tensors_of_their_own) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  run_threads(&w, 4, 60, (tensor_t){0}, use_own_tensors, NULL);
  world_sync(&w);
  world_close(&w);
}

TPU_TEST(threads_while_modes_and_caches_change) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  run_threads(&w, 3, 40, (tensor_t){0}, use_own_tensors, disturb);
  world_sync(&w);
  world_close(&w);
}

/* All threads write and read one tensor: the order is theirs, but every read is whole. */
static void* use_shared_tensor(void* pointer) {
  worker_t* worker = pointer;
  world_t* w = &worker->world;
  static _Thread_local float numbers[70000];
  for (int round = 0; round < worker->rounds; ++round) {
    tensor_t x = worker->shared;
    int64_t size = tpu_meta_get(x.view)->numel, one = 1;
    tpu_meta_id_t view = 0;
    TPU_EXPECT_OK(tpu_storage_view(x.storage, TPU_F32, 1, &size, &one, &view));
    TPU_EXPECT_EQ(view, x.view);
    if (worker->index % 2 == 0) {
      world_update_by(w, TPU_OP_ADD, x, 1);
      if (round % 3 == 0) world_flush(w);
    } else {
      tensor_t y = world_scale(w, TPU_OP_MUL, x, 2);
      TPU_EXPECT_OK(world_read(w, x, numbers));
      for (int64_t i = 1; i < size; ++i) {
        if (numbers[i] == numbers[0] || numbers[i] == numbers[0] + (float)i) continue;
        tpu_test_fail(__FILE__, __LINE__, "a torn read at %lld", (long long)i);
        break;
      }
      drop(&y);
    }
    tpu_storage_retain(x.storage);
    tpu_storage_release(x.storage);
  }
  return NULL;
}

TPU_TEST(threads_share_a_small_tensor) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t x = world_range(&w, 64, 1);
  run_threads(&w, 4, 150, x, use_shared_tensor, NULL);
  drop(&x);
  world_close(&w);
}

TPU_TEST(threads_share_a_large_tensor) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t x = world_range(&w, 70000, 1);
  run_threads(&w, 4, 60, x, use_shared_tensor, NULL);
  drop(&x);
  world_close(&w);
}

/* Finding a storage by address while its last reference goes away. */
static void* find_storages(void* pointer) {
  worker_t* worker = pointer;
  char* around = tpu_storage_address(worker->shared.storage);
  uint64_t random = 5 + (uint64_t)worker->index;
  while (!atomic_load(worker->stop)) {
    // Ranges of 256 bytes stand side by side.
    const char* address = around + 256 * tpu_test_random_range(&random, -8, 8);
    tpu_storage_t* found = tpu_storage_find(worker->world.engine, address);
    if (found != NULL) TPU_EXPECT(tpu_storage_nbytes(found) == 128);
    tpu_storage_release(found);
  }
  return NULL;
}

static void create_and_drop(world_t* w) {
  tensor_t live[6] = {0};
  for (int i = 0; i < 20000; ++i) {
    int k = i % 6;
    drop(&live[k]);
    live[k] = world_empty(w, 32);
  }
  // No two live storages are the same object.
  for (int a = 0; a < 6; ++a) {
    for (int b = 0; b < a; ++b) TPU_EXPECT(live[a].storage != live[b].storage);
  }
  for (int i = 0; i < 6; ++i) drop(&live[i]);
}

TPU_TEST(threads_find_and_release_storages) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t x = world_empty(&w, 32);
  run_threads(&w, 3, 0, x, find_storages, create_and_drop);
  drop(&x);
  world_close(&w);
}

/* Failures in between: they reach whoever reads what failed, and nobody else hangs or crashes. */
static void* use_and_fail(void* pointer) {
  worker_t* worker = pointer;
  world_t* w = &worker->world;
  for (int round = 0; round < worker->rounds; ++round) {
    int64_t size = round % 4 == 0 ? 70000 : 8;
    tensor_t a = world_range(w, size, 1), b = world_range(w, size, 2);
    bool fails = (round + worker->index) % 3 == 0;
    if (fails) {
      world_update_impossible(w, b);
    } else {
      world_update(w, TPU_OP_ADD, b, a);
    }
    if (round % 2 == 0) world_flush(w);
    if (fails) {  // a read that the failure reaches tells it; the next finds the former content
      static _Thread_local float numbers[70000];
      tpu_status_free(world_read(w, b, numbers));
    }
    EXPECT_CONTENT(w, b, fails ? 2 : 0, fails ? 1 : 0);
    if (fails && round % 5 == 0) tpu_status_free(tpu_engine_flush(w->engine, true));
    drop(&a), drop(&b);
  }
  return NULL;
}

TPU_TEST(threads_with_failures) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  run_threads(&w, 4, 40, (tensor_t){0}, use_and_fail, NULL);
  tpu_status_free(tpu_engine_flush(w.engine, true));
  world_close(&w);
}

/* --- the queue, seen from inside --- */

static tpu_status_t flush_and_look(world_t* w, const tpu_value_t* value, tpu_value_state_t* out) {
  tpui_lane_t* lane;
  TPU_RETURN_IF_ERROR(tpui_lane_look(w->engine, &lane));  // while it is locked, nothing lands
  tpu_status_t status = tpui_flush(lane);
  *out = value->state;
  tpu_mutex_unlock(&w->engine->lock);
  return status;
}

TPU_TEST(queue_large_windows_do_not_block_recording) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 70000, 1), small = world_range(&w, 8, 1);
  tpu_value_state_t state = TPU_VALUE_FAILED;
  for (int i = 0; i < 20; ++i) {
    tensor_t b = world_binary(&w, TPU_OP_ADD, a, a);
    TPU_EXPECT_OK(flush_and_look(&w, b.storage->value, &state));
    TPU_EXPECT_EQ(state, TPU_VALUE_LAUNCHED);
    // The next window reads what is in flight, also under a view and in place.
    tensor_t c = world_scale(&w, TPU_OP_MUL, b, 2);
    world_update(&w, TPU_OP_ADD, view_of(b, 3, 8, 2), small);
    EXPECT_CONTENT(&w, c, 0, 0);
    EXPECT_CONTENT(&w, b, 0, 0);
    drop(&b), drop(&c);
  }
  // A small window alone runs at once.
  tensor_t d = world_binary(&w, TPU_OP_ADD, small, small);
  world_sync(&w);
  d = (drop(&d), world_binary(&w, TPU_OP_ADD, small, small));
  TPU_EXPECT_OK(flush_and_look(&w, d.storage->value, &state));
  TPU_EXPECT_EQ(state, TPU_VALUE_READY);
  drop(&a), drop(&small), drop(&d);
  world_close(&w);
}

TPU_TEST(queue_many_windows_in_flight) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 70000, 1);
  for (int i = 0; i < 60; ++i) {
    world_update_by(&w, TPU_OP_ADD, a, i);
    world_flush(&w);
  }
  EXPECT_CONTENT(&w, a, 0, 0);
  // Dropped while in flight.
  tensor_t b = world_binary(&w, TPU_OP_MUL, a, a);
  world_flush(&w);
  drop(&b), drop(&a);
  world_sync(&w);
  world_close(&w);
}

/* Destroying the engine runs what is queued. */
TPU_TEST(queue_engine_destroyed_with_windows_in_flight) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 70000, 1);
  for (int i = 0; i < 3; ++i) {
    world_update_by(&w, TPU_OP_ADD, a, 1);
    world_flush(&w);
  }
  drop(&a);
  world_close(&w);
}

static bool always_stop(void) { return true; }

/* The user stops a wait for content that comes later, and one for a program that runs. */
TPU_TEST(threads_stopped_waits) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_TPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 8, 1);
  world_sync(&w);
  w.fake->delay(400000);
  tensor_t b = world_binary(&w, TPU_OP_ADD, a, a);
  world_flush(&w);
  tpu_engine_set_stop(w.engine, always_stop);
  float numbers[8];
  TPU_EXPECT_CODE(tpu_engine_flush(w.engine, true), TPU_CANCELLED);
  TPU_EXPECT_CODE(world_read(&w, b, numbers), TPU_CANCELLED);
  tpu_engine_set_stop(w.engine, NULL);
  world_sync(&w);
  EXPECT_CONTENT(&w, b, 0, 0);
  drop(&a), drop(&b);
  w.fake->delay(0);

  enum { LARGE = 1 << 17 };  // worth the launch thread
  a = world_range(&w, LARGE, 1);
  w.fake->hold(true);
  b = world_binary(&w, TPU_OP_ADD, a, a);
  world_flush(&w);
  tpu_engine_set_stop(w.engine, always_stop);
  TPU_EXPECT_CODE(tpu_engine_flush(w.engine, true), TPU_CANCELLED);
  tensor_t c = world_binary(&w, TPU_OP_MUL, b, a);
  TPU_EXPECT_CODE(tpu_engine_flush(w.engine, true), TPU_CANCELLED);
  TPU_EXPECT_CODE(tpu_engine_set_mode(w.engine, TPU_MODE_STRICT), TPU_CANCELLED);
  w.fake->hold(false);
  tpu_engine_set_stop(w.engine, NULL);
  EXPECT_CONTENT(&w, c, 0, 0);
  drop(&a), drop(&b), drop(&c);
  world_close(&w);
}
