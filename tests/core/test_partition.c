/* Partition and recorder, with windows made by hand: no plugin, no numbers. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "ops/op_ids.h"
#include "partition/partition.h"
#include "test.h"
#include "trace/recorder.h"

/* A window under construction; `live` storages are the references the test holds. */
typedef struct fixture_t {
  tpu_value_pool_t pool;
  tpu_recorder_t recorder;
  tpu_meta_id_t meta;
  tpu_value_t* held[4096];
  int held_count;
} fixture_t;

static tpu_meta_id_t vector(int64_t size) {
  tpu_meta_id_t meta = 0;
  TPU_EXPECT_OK(tpu_meta_intern_contiguous(TPU_F32, 1, &size, &meta));
  return meta;
}

static void open_fixture(fixture_t* f) {
  memset(f, 0, sizeof(*f));
  tpu_recorder_init(&f->recorder, &f->pool);
  f->meta = vector(8);
}

static void close_fixture(fixture_t* f) {
  for (int i = 0; i < f->held_count; ++i) tpu_value_release(&f->pool, f->held[i]);
  tpu_recorder_free(&f->recorder);
  tpu_value_pool_free(&f->pool);
}

static tpu_value_t* hold(fixture_t* f, tpu_value_t* value) {
  f->held[f->held_count++] = value;
  return value;
}

static tpu_value_t* external(fixture_t* f) {
  tpu_value_t* value = NULL;
  TPU_EXPECT_OK(tpu_value_create(&f->pool, f->meta, &value));
  tpu_value_fulfil(&f->pool, value, NULL);
  return hold(f, value);
}

static tpu_value_t* binary(fixture_t* f, tpu_op_t op, tpu_value_t* x, tpu_value_t* y) {
  tpu_value_t* result = NULL;
  TPU_EXPECT_OK(tpu_recorder_begin(&f->recorder, 2, 1));
  tpu_recorder_tensor(&f->recorder, x, x->meta, 0);
  tpu_recorder_tensor(&f->recorder, y, y->meta, 0);
  TPU_EXPECT_OK(tpu_recorder_commit(&f->recorder, op, 2, 1, 0, 0, TPU_F32, &f->meta, &result));
  return result;
}

static tpu_status_t partition(fixture_t* f, uint32_t max, bool single, tpu_partition_t* out) {
  tpu_window_t window;
  tpu_recorder_window(&f->recorder, &window);
  uint8_t* live = calloc(window.value_count + 1, 1);
  uint8_t* dead = calloc(window.external_count + 1, 1);
  for (uint32_t v = 0; v < window.value_count; ++v) live[v] = f->recorder.values[v] != NULL;
  for (uint32_t i = 0; i < window.external_count; ++i) {
    dead[i] = f->recorder.externals[i]->refs == 1;
  }
  tpu_partition_options_t options = {.max_records = max, .min_records = max / 4, .single = single};
  tpu_status_t status = tpu_partition(&window, live, dead, NULL, &options, out);
  free(live);
  free(dead);
  return status;
}

/* What must hold for every partition, whatever the window. */
static void expect_sound(fixture_t* f, const tpu_partition_t* p, uint32_t max) {
  tpu_window_t w;
  tpu_recorder_window(&f->recorder, &w);
  int* made_by = malloc(sizeof(int) * (w.value_count + 1));
  bool* done = calloc(w.record_count + 1, 1);
  for (uint32_t v = 0; v < w.value_count; ++v) made_by[v] = -1;
  for (uint32_t k = 0; k < p->program_count; ++k) {
    const tpu_program_t* program = &p->programs[k];
    TPU_EXPECT(program->record_count > 0 && program->record_count <= max);
    for (uint32_t i = 0; i < program->record_count; ++i) {
      tpu_record_t r;
      tpu_window_record(&w, program->records[i], &r);
      TPU_EXPECT(!done[program->records[i]]);
      done[program->records[i]] = true;
      for (int o = 0; o < r.operand_count; ++o) {
        uint32_t ref = tpu_record_ref(&r, o) & ~TPU_REF_VIEW_BIT, index = tpu_ref_index(ref);
        bool listed = false;
        for (uint32_t n = 0; n < program->input_count; ++n) {
          listed |= program->inputs[n].ref == ref;
        }
        bool inside = tpu_ref_kind(ref) == TPU_REF_WINDOW && made_by[index] == (int)k;
        TPU_EXPECT(inside != listed);  // made here before, or an input: exactly one
        if (tpu_ref_kind(ref) == TPU_REF_WINDOW) TPU_EXPECT(made_by[index] >= 0);
      }
      for (int o = 0; o < r.result_count; ++o) made_by[r.first_value + (uint32_t)o] = (int)k;
    }
  }
  bool* leaves = calloc(w.value_count + 1, 1);
  for (uint32_t k = 0; k < p->program_count; ++k) {
    for (uint32_t i = 0; i < p->programs[k].output_count; ++i) {
      uint32_t value = p->programs[k].outputs[i];
      TPU_EXPECT_EQ(made_by[value], (int)k);
      leaves[value] = true;
    }
  }
  for (uint32_t k = 0; k < p->program_count; ++k) {
    for (uint32_t n = 0; n < p->programs[k].input_count; ++n) {
      uint32_t ref = p->programs[k].inputs[n].ref;
      if (tpu_ref_kind(ref) == TPU_REF_WINDOW) TPU_EXPECT(leaves[tpu_ref_index(ref)]);
    }
  }
  for (uint32_t v = 0; v < w.value_count; ++v) {
    if (f->recorder.values[v] != NULL) TPU_EXPECT(leaves[v]);
  }
  free(made_by);
  free(done);
  free(leaves);
}

/* A residual layer of 10 records that reads two weights. */
static tpu_value_t* layer(fixture_t* f, tpu_value_t* x) {
  static const tpu_op_t ops[9] = {TPU_OP_MUL, TPU_OP_ADD, TPU_OP_MUL, TPU_OP_SUB, TPU_OP_MUL,
                                  TPU_OP_ADD, TPU_OP_SUB, TPU_OP_SUB, TPU_OP_MUL};
  tpu_value_t *w0 = external(f), *w1 = external(f), *h = x;
  for (int i = 0; i < 9; ++i) {
    tpu_value_t* next = binary(f, ops[i], h, i % 2 ? w0 : w1);
    if (h != x) tpu_value_release(&f->pool, h);
    h = next;
  }
  tpu_value_t* out = binary(f, TPU_OP_ADD, x, h);
  tpu_value_release(&f->pool, h);
  return out;
}

static void record_layers(fixture_t* f, int count) {
  tpu_value_t* x = external(f);
  for (int i = 0; i < count; ++i) {
    tpu_value_t* next = layer(f, x);
    if (i > 0) tpu_value_release(&f->pool, x);
    x = next;
  }
  hold(f, x);
}

/* Programs that differ in their records' ops count as different. */
static int distinct_programs(fixture_t* f, const tpu_partition_t* p) {
  tpu_window_t w;
  tpu_recorder_window(&f->recorder, &w);
  int distinct = 0;
  for (uint32_t a = 0; a < p->program_count; ++a) {
    bool seen = false;
    for (uint32_t b = 0; b < a && !seen; ++b) {
      const tpu_program_t *x = &p->programs[a], *y = &p->programs[b];
      seen = x->record_count == y->record_count && x->input_count == y->input_count;
      for (uint32_t i = 0; i < x->record_count && seen; ++i) {
        seen = w.words[w.record_words[x->records[i]]] == w.words[w.record_words[y->records[i]]];
      }
    }
    distinct += !seen;
  }
  return distinct;
}

TPU_TEST(partition_repeats_share_programs) {
  int distinct[2];
  const int depths[2] = {6, 24};
  for (int i = 0; i < 2; ++i) {
    fixture_t f;
    open_fixture(&f);
    record_layers(&f, depths[i]);
    tpu_partition_t p;
    TPU_EXPECT_OK(partition(&f, 16, false, &p));
    expect_sound(&f, &p, 16);
    // Cut where one value crosses: two weights and the residual come in, the residual goes out.
    const tpu_program_t* middle = &p.programs[p.program_count / 2];
    TPU_EXPECT_EQ(middle->record_count, 10u);
    TPU_EXPECT_EQ(middle->input_count, 3u);
    TPU_EXPECT_EQ(middle->output_count, 1u);
    distinct[i] = distinct_programs(&f, &p);
    tpu_partition_free(&p);
    close_fixture(&f);
  }
  TPU_EXPECT_EQ(distinct[0], distinct[1]);
}

TPU_TEST(partition_is_deterministic) {
  fixture_t f;
  open_fixture(&f);
  record_layers(&f, 7);
  tpu_partition_t a, b;
  TPU_EXPECT_OK(partition(&f, 16, false, &a));
  TPU_EXPECT_OK(partition(&f, 16, false, &b));
  TPU_EXPECT_EQ(a.program_count, b.program_count);
  for (uint32_t i = 0; i < a.program_count; ++i) {
    TPU_EXPECT_EQ(a.programs[i].record_count, b.programs[i].record_count);
  }
  tpu_partition_free(&a);
  tpu_partition_free(&b);
  close_fixture(&f);
}

TPU_TEST(partition_drops_dead_records) {
  fixture_t f;
  open_fixture(&f);
  tpu_value_t* x = external(&f);
  tpu_value_t* dead = binary(&f, TPU_OP_MUL, x, x);
  hold(&f, binary(&f, TPU_OP_ADD, x, x));
  tpu_value_release(&f.pool, binary(&f, TPU_OP_SUB, dead, x));
  tpu_value_release(&f.pool, dead);
  tpu_partition_t p;
  TPU_EXPECT_OK(partition(&f, 16, false, &p));
  TPU_EXPECT_EQ(p.program_count, 1u);
  TPU_EXPECT_EQ(p.programs[0].record_count, 1u);
  tpu_partition_free(&p);
  close_fixture(&f);
}

TPU_TEST(partition_donates_what_nobody_holds) {
  fixture_t f;
  open_fixture(&f);
  tpu_value_t* kept = external(&f);
  tpu_value_t* given = external(&f);
  hold(&f, binary(&f, TPU_OP_ADD, given, kept));
  // The test lets go of `given`: only the window holds it now.
  tpu_value_release(&f.pool, given);
  f.held[1] = NULL;
  tpu_partition_t p;
  TPU_EXPECT_OK(partition(&f, 16, false, &p));
  TPU_EXPECT(p.programs[0].inputs[0].donatable);
  TPU_EXPECT(!p.programs[0].inputs[1].donatable);
  tpu_partition_free(&p);
  close_fixture(&f);
}

/* Optimizers run op by op over all parameters; the programs should be parameter by parameter. */
TPU_TEST(partition_orders_optimizers_by_parameter) {
  enum { PARAMETERS = 12, STEPS = 6 };
  fixture_t f;
  open_fixture(&f);
  tpu_value_t *p[PARAMETERS], *g[PARAMETERS];
  for (int i = 0; i < PARAMETERS; ++i) p[i] = external(&f), g[i] = external(&f);
  for (int s = 0; s < STEPS; ++s) {
    for (int i = 0; i < PARAMETERS; ++i) {
      tpu_value_t* next = binary(&f, s % 2 ? TPU_OP_ADD : TPU_OP_MUL, p[i], g[i]);
      if (s > 0) tpu_value_release(&f.pool, p[i]);
      p[i] = next;
    }
  }
  for (int i = 0; i < PARAMETERS; ++i) hold(&f, p[i]);
  tpu_partition_t partitioned;
  TPU_EXPECT_OK(partition(&f, 2 * STEPS, false, &partitioned));
  expect_sound(&f, &partitioned, 2 * STEPS);
  for (uint32_t i = 0; i < partitioned.program_count; ++i) {
    const tpu_program_t* program = &partitioned.programs[i];
    // Each whole parameter brings two inputs and one output; nothing crosses programs.
    TPU_EXPECT_EQ(program->record_count % STEPS, 0u);
    TPU_EXPECT_EQ(program->output_count, program->record_count / STEPS);
  }
  tpu_partition_free(&partitioned);
  close_fixture(&f);
}

/* One-element values go first in a long run, but not before what they are made of: an element of a
 * tensor that the run itself makes comes after that tensor. */
TPU_TEST(partition_small_values_stay_behind_their_sources) {
  fixture_t f;
  open_fixture(&f);
  tpu_meta_id_t one = vector(1);
  tpu_value_t *p = external(&f), *x = binary(&f, TPU_OP_ADD, p, p), *element = NULL, *small = NULL;
  TPU_EXPECT_OK(tpu_recorder_begin(&f.recorder, 1, 1));
  tpu_recorder_tensor(&f.recorder, x, one, 3);
  TPU_EXPECT_OK(tpu_recorder_commit(&f.recorder, TPU_OP_NEG, 1, 1, 0, 0, TPU_F32, &one, &element));
  TPU_EXPECT_OK(tpu_recorder_begin(&f.recorder, 1, 1));
  tpu_recorder_tensor(&f.recorder, element, one, 0);
  TPU_EXPECT_OK(tpu_recorder_commit(&f.recorder, TPU_OP_EXP, 1, 1, 0, 0, TPU_F32, &one, &small));
  for (int i = 0; i < 30; ++i) hold(&f, binary(&f, TPU_OP_MUL, p, x));
  hold(&f, small);
  tpu_partition_t partitioned;
  TPU_EXPECT_OK(partition(&f, 64, false, &partitioned));
  expect_sound(&f, &partitioned, 64);
  tpu_partition_free(&partitioned);
  tpu_value_release(&f.pool, x);
  tpu_value_release(&f.pool, element);
  close_fixture(&f);
}

/* A pointwise record on values of any size, read whole or by one element, or none at all. */
static tpu_value_t* random_pointwise(fixture_t* f, tpu_meta_id_t one, tpu_value_t** values,
                                     int count) {
  int operands = rand() % 5 == 0 ? 0 : 2;
  bool small = rand() % 3 == 0;
  tpu_meta_id_t meta = small ? one : f->meta;
  tpu_value_t* result = NULL;
  TPU_EXPECT_OK(tpu_recorder_begin(&f->recorder, operands, 1));
  for (int k = 0; k < operands; ++k) {
    tpu_value_t* x = values[rand() % count];
    bool element = small || x->meta == one;
    tpu_recorder_tensor(&f->recorder, x, element ? one : x->meta, x->meta == one ? 0 : element);
  }
  TPU_EXPECT_OK(tpu_recorder_commit(&f->recorder, operands > 0 ? TPU_OP_ADD : TPU_OP_STORAGE_ZERO,
                                    operands, 1, 0, 0, TPU_F32, &meta, &result));
  return result;
}

TPU_TEST(partition_of_random_pointwise_runs_is_sound) {
  srand(11);
  for (int round = 0; round < 60; ++round) {
    fixture_t f;
    open_fixture(&f);
    tpu_meta_id_t one = vector(1);
    tpu_value_t* values[400];
    int count = 0;
    for (int i = 0; i < 3; ++i) values[count++] = external(&f);
    int records = 24 + rand() % 300;
    for (int i = 0; i < records; ++i) {
      tpu_value_t* next = random_pointwise(&f, one, values, count);
      values[count++] = hold(&f, next);
    }
    tpu_partition_t p;
    TPU_EXPECT_OK(partition(&f, 4 + (uint32_t)rand() % 60, false, &p));
    expect_sound(&f, &p, 64);
    tpu_partition_free(&p);
    close_fixture(&f);
  }
}

/* Records `count` ops, each chosen by `choose`, and gives the period that is found. */
static uint32_t period_of(int count, int (*choose)(int i)) {
  static const tpu_op_t ops[4] = {TPU_OP_ADD, TPU_OP_MUL, TPU_OP_SUB, TPU_OP_MM};
  fixture_t f;
  open_fixture(&f);
  tpu_value_t* x = external(&f);
  for (int i = 0; i < count; ++i) {
    tpu_value_release(&f.pool, binary(&f, ops[choose(i)], x, x));
  }
  tpu_window_t window;
  tpu_recorder_window(&f.recorder, &window);
  uint32_t period = 77;
  TPU_EXPECT_OK(tpu_partition_period(&window, &period));
  close_fixture(&f);
  return period;
}

static int choose_turns_of_7(int i) { return i % 7 == 3 ? 1 : i % 7 == 5 ? 2 : 0; }
static int choose_late_turns(int i) { return i < 150 ? i * i % 4 : choose_turns_of_7(i); }
static int choose_one(int i) { return i * 0; }
static int choose_broken(int i) { return i == 395 ? 3 : choose_turns_of_7(i); }

TPU_TEST(partition_period_of_loops) {
  TPU_EXPECT_EQ(period_of(400, choose_turns_of_7), 7u);
  TPU_EXPECT_EQ(period_of(403, choose_turns_of_7), 7u);  // in the middle of a turn
  TPU_EXPECT_EQ(period_of(400, choose_late_turns), 7u);  // the first half may be anything
  TPU_EXPECT_EQ(period_of(400, choose_one), 1u);
  TPU_EXPECT_EQ(period_of(60, choose_turns_of_7), 0u);   // too short to tell
  TPU_EXPECT_EQ(period_of(200, choose_late_turns), 0u);  // too few turns yet
  TPU_EXPECT_EQ(period_of(400, choose_broken), 0u);
  TPU_EXPECT_EQ(period_of(1, choose_one), 0u);
}

TPU_TEST(partition_of_random_windows_is_sound) {
  srand(7);
  for (int round = 0; round < 60; ++round) {
    fixture_t f;
    open_fixture(&f);
    tpu_value_t* values[400];
    int count = 0;
    for (int i = 0; i < 3; ++i) values[count++] = external(&f);
    int records = 1 + rand() % 300;
    for (int i = 0; i < records; ++i) {
      tpu_value_t *x = values[rand() % count], *y = values[rand() % count];
      values[count++] = binary(&f, rand() % 3 ? TPU_OP_ADD : TPU_OP_MM, x, y);
    }
    for (int i = 3; i < count; ++i) {
      if (rand() % 4 == 0) hold(&f, values[i]);
    }
    for (int i = 3; i < count; ++i) {
      bool held = false;
      for (int k = 0; k < f.held_count; ++k) held |= f.held[k] == values[i];
      if (!held) tpu_value_release(&f.pool, values[i]);
    }
    uint32_t max = 1 + (uint32_t)(rand() % 40);
    bool single = rand() % 8 == 0;
    tpu_partition_t p;
    TPU_EXPECT_OK(partition(&f, max, single, &p));
    expect_sound(&f, &p, single ? 1 : max);
    tpu_partition_free(&p);
    close_fixture(&f);
  }
}

TPU_TEST(partition_survives_every_failing_allocation) {
  fixture_t f;
  open_fixture(&f);
  record_layers(&f, 6);
  for (int n = 1;; ++n) {
    int64_t before = tpu_alloc_live_count();
    tpu_partition_t p;
    tpu_alloc_fail_at(n);
    tpu_status_t status = partition(&f, 16, false, &p);
    tpu_alloc_fail_at(0);
    if (status == NULL) {
      tpu_partition_free(&p);
      TPU_EXPECT(n > 3);  // some allocation did fail before
      break;
    }
    TPU_EXPECT_CODE(status, TPU_RESOURCE_EXHAUSTED);
    TPU_EXPECT_EQ(tpu_alloc_live_count(), before);
  }
  close_fixture(&f);
}

TPU_TEST(recorder_matches_an_equal_window_and_only_that) {
  fixture_t f;
  open_fixture(&f);
  tpu_value_t *x = external(&f), *y = external(&f);
  hold(&f, binary(&f, TPU_OP_ADD, x, y));
  hold(&f, binary(&f, TPU_OP_MUL, x, y));
  tpu_window_t window;
  tpu_recorder_window(&f.recorder, &window);
  uint32_t* words = malloc(window.word_count * sizeof(uint32_t));
  memcpy(words, window.words, window.word_count * sizeof(uint32_t));
  window.words = words;
  for (int i = 2; i < 4; ++i) tpu_value_fail(f.held[i], tpu_status_make(TPU_INTERNAL, "test"), 1);
  tpu_recorder_reset(&f.recorder, &window);
  hold(&f, binary(&f, TPU_OP_ADD, x, y));
  TPU_EXPECT(f.recorder.predicted == &window);
  hold(&f, binary(&f, TPU_OP_SUB, x, y));
  TPU_EXPECT(f.recorder.predicted == NULL);
  for (int i = 4; i < 6; ++i) tpu_value_fail(f.held[i], tpu_status_make(TPU_INTERNAL, "test"), 1);
  free(words);
  close_fixture(&f);
}

/* A layer of few records that is expensive to run is a program of its own: XLA:CPU recomputes long
 * residual chains, and a launch costs nothing beside a matrix product. */
static tpu_value_t* scaled_and_moved(fixture_t* f, tpu_value_t* x, double first, double second) {
  for (int i = 0; i < 2; ++i) {
    tpu_value_t* result = NULL;
    TPU_EXPECT_OK(tpu_recorder_begin(&f->recorder, 2, 1));
    tpu_recorder_tensor(&f->recorder, x, x->meta, 0);
    tpu_recorder_scalar(&f->recorder, TPU_F64, true, 0,
                        (tpu_slot_t){.as_double = i == 0 ? first : second});
    TPU_EXPECT_OK(tpu_recorder_commit(&f->recorder, i == 0 ? TPU_OP_MUL : TPU_OP_ADD, 2, 1, 0, 0,
                                      TPU_F32, &f->meta, &result));
    hold(f, result);
    x = result;
  }
  return x;
}

static void share(fixture_t* f, uint8_t* dynamic) {
  tpu_window_t window;
  tpu_partition_t p;
  TPU_REQUIRE_OK(partition(f, 2, false, &p));
  tpu_recorder_window(&f->recorder, &window);
  TPU_EXPECT_OK(tpu_partition_share(&window, &p, dynamic));
  tpu_partition_free(&p);
}

/* Three programs of two records that differ in one number, and one of another kind. */
TPU_TEST(partition_numbers_that_differ_between_repeats_are_shared) {
  fixture_t f;
  open_fixture(&f);
  tpu_value_t* x = external(&f);
  for (int i = 0; i < 3; ++i) x = scaled_and_moved(&f, x, 2.0, 3.0 + i);
  hold(&f, binary(&f, TPU_OP_SUB, x, x));
  uint8_t dynamic[6] = {0};
  share(&f, dynamic);
  static const uint8_t expected[6] = {0, 1, 0, 1, 0, 1};
  TPU_EXPECT(memcmp(dynamic, expected, sizeof(expected)) == 0);
  close_fixture(&f);
  open_fixture(&f);
  x = external(&f);
  for (int i = 0; i < 3; ++i) x = scaled_and_moved(&f, x, 2.0, 3.0);
  memset(dynamic, 0, sizeof(dynamic));
  share(&f, dynamic);
  static const uint8_t none[6] = {0};
  TPU_EXPECT(memcmp(dynamic, none, sizeof(none)) == 0);
  close_fixture(&f);
}

TPU_TEST(partition_leaves_heavy_layers_alone) {
  fixture_t f;
  open_fixture(&f);
  int64_t sizes[2] = {512, 512};
  TPU_EXPECT_OK(tpu_meta_intern_contiguous(TPU_F32, 2, sizes, &f.meta));
  tpu_value_t* x = external(&f);
  for (int i = 0; i < 12; ++i) {
    tpu_value_t* h = binary(&f, TPU_OP_MM, x, external(&f));
    tpu_value_t* next = binary(&f, TPU_OP_ADD, h, x);
    tpu_value_release(&f.pool, h);
    if (i > 0) tpu_value_release(&f.pool, x);
    x = next;
  }
  hold(&f, x);
  tpu_partition_t p;
  TPU_EXPECT_OK(partition(&f, 64, false, &p));
  expect_sound(&f, &p, 64);
  TPU_EXPECT_EQ(p.program_count, 12u);
  tpu_partition_free(&p);
  close_fixture(&f);
}
