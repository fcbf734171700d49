/* Lanes: what threads record side by side, and what happens where their tensors meet. */
#include <math.h>

#include "engine/flush.h"
#include "engine_support.h"

/* --- a thread that does what it is told, step by step --- */

typedef void (*job_t)(void* argument);

typedef struct other_t {
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t turn;
  job_t job;  // NULL: done
  void* argument;
  bool ends;
} other_t;

static void* other_main(void* pointer) {
  other_t* other = pointer;
  (void)pthread_mutex_lock(&other->lock);
  for (;;) {
    while (other->job == NULL && !other->ends) (void)pthread_cond_wait(&other->turn, &other->lock);
    if (other->job == NULL) break;
    other->job(other->argument);
    other->job = NULL;
    (void)pthread_cond_broadcast(&other->turn);
  }
  (void)pthread_mutex_unlock(&other->lock);
  return NULL;
}

static void other_begin(other_t* other) {
  *other = (other_t){0};
  (void)pthread_mutex_init(&other->lock, NULL);
  (void)pthread_cond_init(&other->turn, NULL);
  TPU_EXPECT(pthread_create(&other->thread, NULL, other_main, other) == 0);
}

static void other_do(other_t* other, job_t job, void* argument) {
  (void)pthread_mutex_lock(&other->lock);
  other->job = job;
  other->argument = argument;
  (void)pthread_cond_broadcast(&other->turn);
  while (other->job != NULL) (void)pthread_cond_wait(&other->turn, &other->lock);
  (void)pthread_mutex_unlock(&other->lock);
}

static void other_end(other_t* other) {
  (void)pthread_mutex_lock(&other->lock);
  other->ends = true;
  (void)pthread_cond_broadcast(&other->turn);
  (void)pthread_mutex_unlock(&other->lock);
  (void)pthread_join(other->thread, NULL);
  (void)pthread_cond_destroy(&other->turn);
  (void)pthread_mutex_destroy(&other->lock);
}

/* What it is told to do: one call of the engine. */
typedef struct step_t {
  world_t* w;
  tensor_t x, y, made;
  float number;
} step_t;

static void do_add(void* p) {
  ((step_t*)p)->made = world_binary(((step_t*)p)->w, TPU_OP_ADD, ((step_t*)p)->x, ((step_t*)p)->y);
}
static void do_scale(void* p) {
  step_t* s = p;
  s->made = world_scale(s->w, TPU_OP_MUL, s->x, s->number);
}
static void do_update(void* p) {
  step_t* s = p;
  world_update_by(s->w, TPU_OP_ADD, s->x, s->number);
}
static void do_update_impossible(void* p) {
  step_t* s = p;
  world_update_impossible(s->w, s->x);
}
/* All of x, without reading it. */
static void do_overwrite_impossible(void* p) {
  step_t* s = p;
  tensor_t other = world_range(s->w, 7, 0);
  tpu_operand_t operands[2] = {operand_of(s->y), operand_of(other)};
  TPU_EXPECT_OK(world_try(s->w, TPU_OP_DIV, TPU_CALL_OUT, 2, operands, &s->x));
  drop(&other);
}
static void do_flush(void* p) { world_flush(((step_t*)p)->w); }
static void do_read(void* p) {
  step_t* s = p;
  EXPECT_CONTENT(s->w, s->x, s->number, 1);
}

/* Records made side by side are two windows, and both are known however their records mix. */
TPU_TEST(lanes_windows_do_not_mix) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 8, 1);
  other_t other;
  other_begin(&other);
  for (int round = 0; round < 4; ++round) {
    step_t first = {.w = &w, .x = a, .y = a}, second = {.w = &w, .y = a};
    tensor_t b = world_binary(&w, TPU_OP_MUL, a, a);
    other_do(&other, do_add, &first);
    tensor_t c = {0};
    if (round % 2 == 0) c = world_binary(&w, TPU_OP_SUB, b, a);
    second.x = first.made;
    other_do(&other, do_add, &second);
    if (round % 2 == 1) c = world_binary(&w, TPU_OP_SUB, b, a);
    EXPECT_WINDOW(&w,
                  "%0 = mul(ext0, ext0) -> f32[8]\n"
                  "%1 = sub(%0, ext0) -> f32[8]\n");
    if (round < 2) {
      world_flush(&w), other_do(&other, do_flush, &first);
    } else {
      other_do(&other, do_flush, &first), world_flush(&w);
    }
    TPU_EXPECT_EQ(world_waiting(&w), 0u);
    drop(&b), drop(&c), drop(&first.made), drop(&second.made);
  }
  tpu_engine_stats_t stats = world_stats(&w);
  TPU_EXPECT_EQ(stats.flushes, 8);
  TPU_EXPECT_EQ(stats.window_plans, 2);
  TPU_EXPECT_EQ(stats.predicted, 8);  // what follows a window is known once it was seen to
  other_end(&other);
  drop(&a);
  world_close(&w);
}

/* A flush launches what its thread recorded; a sync, and who touches it, also what others did. */
TPU_TEST(lanes_flushes_and_syncs) {
  world_t w;
  if (!world_open_real(&w, TPU_MODE_FUSED)) return;
  tensor_t a = world_range(&w, 8, 1);
  other_t other;
  other_begin(&other);
  step_t s = {.w = &w, .x = a, .number = 3};
  other_do(&other, do_scale, &s);
  world_flush(&w);
  TPU_EXPECT_EQ(tpu_storage_state(s.made.storage), TPU_STORAGE_RECORDED);
  world_sync(&w);
  TPU_EXPECT_EQ(tpu_storage_state(s.made.storage), TPU_STORAGE_READY);
  EXPECT_CONTENT(&w, s.made, 3, 3);
  drop(&s.made);
  for (int way = 0; way < 4; ++way) {
    other_do(&other, do_scale, &s);
    tensor_t b = world_scale(&w, TPU_OP_ADD, a, 1), made = s.made;
    if (way == 0) EXPECT_CONTENT(&w, made, 3, 3);                              // read
    if (way == 1) world_update(&w, TPU_OP_ADD, b, made);                       // as an operand
    if (way == 2) world_update_by(&w, TPU_OP_ADD, view_of(made, 2, 4, 1), 1);  // written
    if (way == 3) TPU_EXPECT_OK(tpu_storage_resize(made.storage, 64));
    TPU_EXPECT(tpu_storage_state(b.storage) == TPU_STORAGE_RECORDED);
    step_t look = {.w = &w, .x = b, .number = 2};
    if (way == 0) other_do(&other, do_read, &look);
    if (way == 1) EXPECT_CONTENT(&w, b, 5, 4);
    if (way == 2) EXPECT_CONTENT(&w, view_of(made, 1, 2, 1), 6, 4);
    if (way == 3) EXPECT_CONTENT(&w, made, 3, 3);
    drop(&b), drop(&s.made);
  }
  TPU_EXPECT_OK(tpu_engine_set_mode(w.engine, TPU_MODE_STRICT));
  other_end(&other);
  drop(&a);
  world_close(&w);
}

/* Both windows read the same tensor more than once: each numbers it once. */
TPU_TEST(lanes_share_inputs) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tensor_t a = world_range(&w, 8, 1), b = world_range(&w, 8, 2);
  other_t other;
  other_begin(&other);
  step_t first = {.w = &w, .x = b, .y = a}, second = {.w = &w, .x = a, .y = b};
  tensor_t c = world_binary(&w, TPU_OP_ADD, a, b);
  other_do(&other, do_add, &first);
  tensor_t d = world_binary(&w, TPU_OP_ADD, b, a);
  other_do(&other, do_add, &second);
  tensor_t e = world_binary(&w, TPU_OP_MUL, a, a);
  EXPECT_WINDOW(&w,
                "%0 = add(ext0, ext1) -> f32[8]\n"
                "%1 = add(ext1, ext0) -> f32[8]\n"
                "%2 = mul(ext0, ext0) -> f32[8]\n");
  world_sync(&w);
  other_end(&other);
  drop(&a), drop(&b), drop(&c), drop(&d), drop(&e), drop(&first.made), drop(&second.made);
  world_close(&w);
}

/* One thread writes in place what the other one's window reads: it reads what was there before. */
TPU_TEST(lanes_reads_before_a_write) {
  world_t w;
  if (!world_open_real(&w, TPU_MODE_FUSED)) return;
  other_t other;
  other_begin(&other);
  for (int size = 8; size <= 70000; size += 69992) {
    for (int order = 0; order < 2; ++order) {
      tensor_t a = world_range(&w, size, 1), b = world_scale(&w, TPU_OP_ADD, a, 1);
      step_t s = {.w = &w, .x = a, .number = 100};
      other_do(&other, do_update, &s);
      if (order == 0) other_do(&other, do_flush, &s);
      EXPECT_CONTENT(&w, b, 2, 1);
      EXPECT_CONTENT(&w, a, 101, 1);
      drop(&a), drop(&b);
    }
  }
  other_end(&other);
  world_close(&w);
}

/* A write fails whose old content another window reads, and would be the last one to do so: the
 * tensor has it afterwards, since that window must not take it. */
TPU_TEST(lanes_failed_write_goes_back) {
  world_t w;
  if (!world_open_real(&w, TPU_MODE_FUSED)) return;
  other_t other;
  other_begin(&other);
  for (int order = 0; order < 4; ++order) {
    tensor_t a = world_range(&w, 8, 1), b = world_scale(&w, TPU_OP_ADD, a, 1);
    tensor_t c = world_range(&w, 8, 9);
    step_t s = {.w = &w, .x = a, .y = c};
    other_do(&other, order < 2 ? do_update_impossible : do_overwrite_impossible, &s);
    if (order % 2 == 0) other_do(&other, do_flush, &s);
    EXPECT_CONTENT(&w, b, 2, 1);
    tpu_status_free(tpu_engine_flush(w.engine, true));
    EXPECT_CONTENT(&w, a, 1, 1);
    // A later window of another thread meant to go back to the failed content.
    other_do(&other, do_update_impossible, &s);
    other_do(&other, do_flush, &s);
    tpu_status_free(tpu_engine_flush(w.engine, true));
    world_update_by(&w, TPU_OP_ADD, a, 1);
    EXPECT_CONTENT(&w, a, 2, 1);
    drop(&a), drop(&b), drop(&c);
  }
  other_end(&other);
  world_close(&w);
}

static int count_lanes(const world_t* w) {
  int count = 0;
  for (const tpui_lane_t* lane = w->engine->lanes; lane != NULL; lane = lane->next) ++count;
  return count;
}

/* A thread ends with records that wait: they are launched for whoever needs them, by the next
 * flush, or by the next thread, which gets the lane. */
TPU_TEST(lanes_of_threads_that_end) {
  world_t w;
  if (!world_open_real(&w, TPU_MODE_FUSED)) return;
  tensor_t a = world_range(&w, 8, 1);
  for (int round = 0; round < 9; ++round) {
    other_t other;
    step_t s = {.w = &w, .x = a, .number = 2};
    other_begin(&other);
    other_do(&other, do_scale, &s);
    other_end(&other);
    TPU_EXPECT_EQ(tpu_storage_state(s.made.storage), TPU_STORAGE_RECORDED);
    if (round % 3 == 0) {
      world_flush(&w);
      TPU_EXPECT_EQ(tpu_storage_state(s.made.storage), TPU_STORAGE_READY);
    } else if (round % 3 == 1) {
      step_t next = {.w = &w, .x = a, .number = 1};
      other_begin(&other);
      other_do(&other, do_read, &next);
      other_end(&other);
      TPU_EXPECT_EQ(tpu_storage_state(s.made.storage), TPU_STORAGE_READY);
    }
    EXPECT_CONTENT(&w, s.made, 2, 2);
    drop(&s.made);
    TPU_EXPECT_EQ(count_lanes(&w), 2);
  }
  drop(&a);
  world_close(&w);
}

/* The engine goes before the thread that has a lane of it, and with records that wait. */
TPU_TEST(lanes_outlived_by_their_threads) {
  other_t other;
  other_begin(&other);
  for (int round = 0; round < 3; ++round) {
    world_t w;
    TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
    tensor_t a = world_range(&w, 8, 1);
    step_t s = {.w = &w, .x = a, .number = 2};
    other_do(&other, do_scale, &s);
    drop(&a), drop(&s.made);
    world_close(&w);
  }
  other_end(&other);
}

/* --- threads that work for others --- */

static _Thread_local int64_t current_task;
static int64_t task_number(void) { return current_task; }

typedef struct task_step_t {
  step_t step;
  int64_t task;
  job_t job;
} task_step_t;

static void do_in_task(void* p) {
  task_step_t* s = p;
  current_task = s->task;
  s->job(&s->step);
  current_task = 0;
}

static tensor_t helper_adds(other_t* helper, world_t* w, int64_t task, tensor_t x, tensor_t y) {
  task_step_t s = {.step = {.w = w, .x = x, .y = y}, .task = task, .job = do_add};
  other_do(helper, do_in_task, &s);
  return s.step.made;
}

/* The window of a training step is one, also where autograd's thread records a part of it. */
TPU_TEST(lanes_helper_records_for_the_only_thread) {
  world_t w;
  TPU_REQUIRE(world_open(&w, TPU_PLATFORM_CPU, TPU_MODE_FUSED));
  tpu_engine_set_task(w.engine, task_number);
  other_t helper;
  other_begin(&helper);
  tensor_t a = world_range(&w, 8, 1);
  for (int64_t task = 1; task < 40; ++task) {
    tensor_t b = world_scale(&w, TPU_OP_MUL, a, 2);
    if (task % 2 == 0) world_flush(&w);  // then nothing that it reads is recorded anywhere
    tensor_t c = helper_adds(&helper, &w, task, a, a), d = helper_adds(&helper, &w, task, b, c);
    tensor_t e = world_binary(&w, TPU_OP_SUB, d, a);
    TPU_EXPECT_EQ(world_waiting(&w), task % 2 == 0 ? 3u : 4u);
    world_flush(&w);
    drop(&b), drop(&c), drop(&d), drop(&e);
  }
  TPU_EXPECT_EQ(count_lanes(&w), 1);
  TPU_EXPECT_EQ(world_stats(&w).window_plans, 3);
  other_end(&helper);
  drop(&a);
  world_close(&w);
}

/* With two askers the helper's records go to the one whose records the task began with. */
TPU_TEST(lanes_helper_of_several_threads) {
  world_t w;
  if (!world_open_real(&w, TPU_MODE_FUSED)) return;
  tpu_engine_set_task(w.engine, task_number);
  other_t helper, other;
  other_begin(&other), other_begin(&helper);
  tensor_t a = world_range(&w, 8, 1);
  for (int64_t task = 1; task < 9; task += 2) {
    step_t s = {.w = &w, .x = a, .number = 3};
    other_do(&other, do_scale, &s);
    tensor_t mine = world_scale(&w, TPU_OP_MUL, a, 2);
    // In turns; some of what they read is nobody's.
    tensor_t b = helper_adds(&helper, &w, task, mine, a);
    tensor_t c = helper_adds(&helper, &w, task + 1, a, s.made);
    tensor_t d = helper_adds(&helper, &w, task, a, a);
    tensor_t e = helper_adds(&helper, &w, task + 1, a, a);
    TPU_EXPECT_EQ(world_waiting(&w), 3u);
    world_flush(&w);
    TPU_EXPECT_EQ(tpu_storage_state(d.storage), TPU_STORAGE_READY);
    TPU_EXPECT_EQ(tpu_storage_state(e.storage), TPU_STORAGE_RECORDED);
    other_do(&other, do_flush, &s);
    TPU_EXPECT_EQ(tpu_storage_state(e.storage), TPU_STORAGE_READY);
    EXPECT_CONTENT(&w, b, 3, 3);
    EXPECT_CONTENT(&w, c, 4, 4);
    drop(&mine), drop(&b), drop(&c), drop(&d), drop(&e), drop(&s.made);
  }
  // What cannot be told apart is recorded for itself, and whoever needs it has it launched.
  tensor_t f = helper_adds(&helper, &w, 50, a, a);
  TPU_EXPECT_EQ(world_waiting(&w), 0u);
  tensor_t g = world_binary(&w, TPU_OP_ADD, f, a);
  EXPECT_CONTENT(&w, g, 3, 3);
  other_end(&helper), other_end(&other);
  drop(&a), drop(&f), drop(&g);
  world_close(&w);
}

/* --- many at once --- */

enum { SHARED = 4, WORKERS = 3 };

typedef struct board_t {
  world_t* w;
  pthread_mutex_t lock;
  tensor_t tensors[SHARED];
  float first[SHARED], step[SHARED];  // what they hold: first + i * step
  int64_t size;
} board_t;

typedef struct player_t {
  world_t w;  // a copy: `asked` is the thread's own
  board_t* board;
  uint64_t random;
  int rounds;
} player_t;

static void renew(player_t* p, int x, float first) {
  board_t* b = p->board;
  drop(&b->tensors[x]);
  b->tensors[x] = world_range(&p->w, b->size, first);
  b->first[x] = first, b->step[x] = 1;
}

/* Replaced by a tensor that this thread computes; another one will find it there. */
static void hand_over(player_t* p, int x) {
  board_t* b = p->board;
  int y = (x + 1) % SHARED, z = (x + 2) % SHARED;
  drop(&b->tensors[x]);
  b->tensors[x] = world_binary(&p->w, TPU_OP_SUB, b->tensors[y], b->tensors[z]);
  b->first[x] = b->first[y] - b->first[z];
  b->step[x] = b->step[y] - b->step[z];
}

static void play(player_t* p) {
  board_t* b = p->board;
  int x = (int)tpu_test_random_range(&p->random, 0, SHARED - 1);
  int y = (int)tpu_test_random_range(&p->random, 0, SHARED - 1);
  float number = (float)tpu_test_random_range(&p->random, -3, 3);
  switch (tpu_test_random_range(&p->random, 0, 6)) {
    case 0:
      world_update(&p->w, TPU_OP_ADD, b->tensors[x], b->tensors[y]);
      b->first[x] += b->first[y], b->step[x] += b->step[y];
      break;
    case 1:
      world_update_by(&p->w, TPU_OP_ADD, b->tensors[x], number);
      b->first[x] += number;
      break;
    case 2: hand_over(p, x); break;
    case 3: renew(p, x, number); break;
    case 4: world_flush(&p->w); break;
    case 5:
      if (number == 0) world_sync(&p->w);
      break;
    default: EXPECT_CONTENT(&p->w, b->tensors[x], b->first[x], b->step[x]);
  }
  // Numbers stay exact.
  if (fabsf(b->step[x]) > 50 || fabsf(b->first[x]) > 1e5f) renew(p, x, number);
}

static void* play_rounds(void* pointer) {
  player_t* p = pointer;
  for (int round = 0; round < p->rounds; ++round) {
    (void)pthread_mutex_lock(&p->board->lock);
    play(p);
    (void)pthread_mutex_unlock(&p->board->lock);
  }
  return NULL;
}

/* Threads take turns with the same tensors: the order is that of their records. */
TPU_TEST(lanes_program_order_of_shared_tensors) {
  for (int64_t size = 8; size <= 70000; size += 69992) {
    world_t w;
    if (!world_open_real(&w, TPU_MODE_FUSED)) return;
    board_t board = {.w = &w, .size = size, .lock = PTHREAD_MUTEX_INITIALIZER};
    for (int i = 0; i < SHARED; ++i) {
      board.tensors[i] = world_range(&w, size, (float)i);
      board.first[i] = (float)i, board.step[i] = 1;
    }
    pthread_t threads[WORKERS];
    player_t players[WORKERS];
    for (int i = 0; i < WORKERS; ++i) {
      players[i] = (player_t){w, &board, 11 + (uint64_t)i, size == 8 ? 40 : 15};
      TPU_REQUIRE(pthread_create(&threads[i], NULL, play_rounds, &players[i]) == 0);
    }
    for (int i = 0; i < WORKERS; ++i) (void)pthread_join(threads[i], NULL);
    for (int i = 0; i < SHARED; ++i) {
      EXPECT_CONTENT(&w, board.tensors[i], board.first[i], board.step[i]);
      drop(&board.tensors[i]);
    }
    world_close(&w);
  }
}
