/* The pool's list of content that nobody waited for, against a plain model of it. */
#include "test.h"
#include "trace/value.h"

enum { MOST = 40 };

typedef struct model_t {
  tpu_value_pool_t pool;
  tpu_value_t* values[MOST];  // all READY
  int value_count;
  tpu_value_t* listed[MOST];  // oldest first
  int listed_count;
} model_t;

static void model_remove(model_t* m, const tpu_value_t* value) {
  int kept = 0;
  for (int i = 0; i < m->listed_count; ++i) {
    if (m->listed[i] != value) m->listed[kept++] = m->listed[i];
  }
  m->listed_count = kept;
}

static void model_add(model_t* m) {
  tpu_value_t* value = NULL;
  TPU_REQUIRE_OK(tpu_value_create(&m->pool, 1, &value));
  tpu_value_fulfil(&m->pool, value, NULL);
  m->values[m->value_count++] = value;
  m->listed[m->listed_count++] = value;
}

static void model_release(model_t* m, int at) {
  model_remove(m, m->values[at]);
  tpu_value_release(&m->pool, m->values[at]);
  m->values[at] = m->values[--m->value_count];
}

static void model_give(model_t* m, tpu_value_t* value) {
  bool given = !value->given;
  tpu_value_set_given(&m->pool, value, given);
  if (value->awaited) return;
  model_remove(m, value);
  if (!given) m->listed[m->listed_count++] = value;
}

static void expect_list(const model_t* m) {
  const tpu_value_t *value = m->pool.oldest, *older = NULL;
  for (int i = 0; i < m->listed_count; ++i) {
    TPU_REQUIRE(value == m->listed[i] && value->ready.older == older);
    older = value;
    value = value->ready.newer;
  }
  TPU_EXPECT(value == NULL && m->pool.newest == older);
  TPU_EXPECT_EQ(m->pool.unawaited_count, (size_t)m->listed_count);
}

TPU_TEST(value_list_holds_what_nobody_waited_for) {
  model_t m = {0};
  uint64_t seed = 20;
  for (int step = 0; step < 20000; ++step) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    uint32_t number = (uint32_t)(seed >> 33);
    if (m.value_count == 0 || (number % 4 == 0 && m.value_count < MOST)) {
      model_add(&m);
    } else {
      int at = (int)(number / 4 % (uint32_t)m.value_count);
      switch (number % 4) {
        case 1:
          tpu_value_set_awaited(&m.pool, m.values[at]);
          model_remove(&m, m.values[at]);
          break;
        case 2: model_give(&m, m.values[at]); break;
        default: model_release(&m, at);
      }
    }
    expect_list(&m);
  }
  while (m.value_count > 0) model_release(&m, m.value_count - 1);
  expect_list(&m);
  tpu_value_pool_free(&m.pool);
}

/* Taken by a program before it is there: nobody waits for it when it comes. */
TPU_TEST(value_given_before_it_is_ready) {
  tpu_value_pool_t pool = {0};
  tpu_value_t* value = NULL;
  TPU_REQUIRE_OK(tpu_value_create(&pool, 1, &value));
  value->state = TPU_VALUE_LAUNCHED;
  tpu_value_set_given(&pool, value, true);
  tpu_value_fulfil(&pool, value, NULL);
  TPU_EXPECT(pool.oldest == NULL && pool.unawaited_count == 0);
  tpu_value_set_given(&pool, value, false);
  TPU_EXPECT(pool.oldest == value && pool.newest == value);
  tpu_value_release(&pool, value);
  TPU_EXPECT(pool.oldest == NULL && pool.newest == NULL && pool.unawaited_count == 0);
  tpu_value_pool_free(&pool);
}
