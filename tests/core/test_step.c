/* Steps: what they take from programs, what they own, when values are given back. */
#include <string.h>

#include "launch/step.h"
#include "ops/op_ids.h"
#include "partition/partition.h"
#include "test.h"
#include "trace/recorder.h"

enum { MOST_VALUES = 64 };

typedef struct fixture_t {
  tpu_value_pool_t pool;
  tpu_recorder_t recorder;
  tpu_meta_id_t meta;
  tpu_value_t* externals[2];
  tpu_value_t* values[MOST_VALUES];
  uint32_t value_count;
  uint8_t live[MOST_VALUES], dead[2];
  tpu_window_t window;
} fixture_t;

/* Random adds of earlier values and two externals; some results stay live. */
static void open_fixture(fixture_t* f, uint32_t count, uint64_t* seed) {
  memset(f, 0, sizeof(*f));
  tpu_recorder_init(&f->recorder, &f->pool);
  TPU_EXPECT_OK(tpu_meta_intern_contiguous(TPU_F32, 1, (const int64_t[]){8}, &f->meta));
  for (int i = 0; i < 2; ++i) {
    TPU_EXPECT_OK(tpu_value_create(&f->pool, f->meta, &f->externals[i]));
    tpu_value_fulfil(&f->pool, f->externals[i], NULL);
  }
  for (; f->value_count < count; ++f->value_count) {
    TPU_EXPECT_OK(tpu_recorder_begin(&f->recorder, 2, 1));
    for (int k = 0; k < 2; ++k) {
      int64_t source = tpu_test_random_range(seed, -2, (int64_t)f->value_count - 1);
      tpu_recorder_tensor(&f->recorder, source < 0 ? f->externals[-1 - source] : f->values[source],
                          f->meta, 0);
    }
    TPU_EXPECT_OK(tpu_recorder_commit(&f->recorder, TPU_OP_ADD, 2, 1, 0, 0, TPU_F32, &f->meta,
                                      &f->values[f->value_count]));
    f->live[f->value_count] = tpu_test_random_range(seed, 0, 3) == 0;
  }
  f->live[count - 1] = 1;
  tpu_recorder_window(&f->recorder, &f->window);
}

static void close_fixture(fixture_t* f) {
  for (uint32_t i = 0; i < f->value_count; ++i) tpu_value_release(&f->pool, f->values[i]);
  for (int i = 0; i < 2; ++i) tpu_value_release(&f->pool, f->externals[i]);
  tpu_recorder_free(&f->recorder);
  tpu_value_pool_free(&f->pool);
}

static tpu_status_t make_steps(const fixture_t* f, tpu_partition_t* partition, tpu_step_t* steps) {
  tpu_partition_options_t options = {.max_records = 4, .min_records = 1};
  TPU_RETURN_IF_ERROR(tpu_partition(&f->window, f->live, f->dead, NULL, &options, partition));
  tpu_status_t status = NULL;
  for (uint32_t p = 0; p < partition->program_count && status == NULL; ++p) {
    tpu_lowered_t lowered = {0};
    const tpu_check_t check = {.span = 1};
    status = tpu_packed_add_double(&lowered.packed, p);
    if (status == NULL && p % 2 == 0) status = tpu_checks_add(&lowered.checks, &check);
    if (status == NULL) {
      status = tpu_step_make(&partition->programs[p], &lowered, &(tpu_step_runner_t){0}, &steps[p]);
    }
    TPU_EXPECT(status != NULL || (lowered.packed.doubles == NULL && lowered.checks == NULL));
    tpu_lowered_free(&lowered);
  }
  if (status == NULL) {
    status = tpu_steps_plan_releases(steps, partition->program_count, f->live, f->value_count);
  }
  return status;
}

static void expect_like_program(const fixture_t* f, const tpu_step_t* step,
                                const tpu_program_t* program, uint32_t p) {
  TPU_EXPECT_EQ(step->op, TPU_OP_ADD);
  TPU_EXPECT_EQ(step->record_count, program->record_count);
  TPU_REQUIRE(step->input_count == program->input_count);
  TPU_REQUIRE(step->output_count == program->output_count);
  for (uint32_t i = 0; i < step->input_count; ++i) {
    TPU_EXPECT_EQ(step->inputs[i], program->inputs[i].ref);
    TPU_EXPECT_EQ(step->donatable[i], program->inputs[i].donatable);
  }
  TPU_EXPECT(step->donatable[step->input_count] == 0 &&
             step->donatable[step->input_count + 1] == 0);
  for (uint32_t i = 0; i < step->output_count; ++i) {
    TPU_EXPECT_EQ(step->outputs[i], program->outputs[i]);
    TPU_EXPECT_EQ(step->output_bytes[i], tpu_meta_bytes(tpu_meta_get(f->meta)));
  }
  TPU_EXPECT(step->packed.double_count == 1 && step->packed.doubles[0] == p);
}

static bool step_touches(const tpu_step_t* step, uint32_t value) {
  for (uint32_t i = 0; i < step->output_count; ++i) {
    if (step->outputs[i] == value) return true;
  }
  for (uint32_t i = 0; i < step->input_count; ++i) {
    if (step->inputs[i] == tpu_ref_make(TPU_REF_WINDOW, value)) return true;
  }
  return false;
}

/* A value that is not live is given back once, by the last step that reads or makes it. */
static void expect_releases(const fixture_t* f, const tpu_step_t* steps, uint32_t count) {
  for (uint32_t value = 0; value < f->value_count; ++value) {
    uint32_t last = UINT32_MAX, releases = 0;
    for (uint32_t s = 0; s < count; ++s) {
      if (step_touches(&steps[s], value)) last = s;
    }
    for (uint32_t s = 0; s < count; ++s) {
      for (uint32_t i = 0; i < steps[s].release_count; ++i) {
        if (steps[s].releases[i] != value) continue;
        ++releases;
        TPU_EXPECT_EQ(s, last);
      }
    }
    TPU_EXPECT_EQ(releases, last != UINT32_MAX && !f->live[value] ? 1 : 0);
  }
}

TPU_TEST(step_is_its_program_and_gives_back_what_nobody_needs) {
  uint64_t seed = 11;
  for (int round = 0; round < 100; ++round) {
    fixture_t f;
    open_fixture(&f, (uint32_t)tpu_test_random_range(&seed, 1, MOST_VALUES), &seed);
    tpu_partition_t partition = {0};
    tpu_step_t steps[MOST_VALUES] = {{0}};
    TPU_EXPECT_OK(make_steps(&f, &partition, steps));
    for (uint32_t p = 0; p < partition.program_count; ++p) {
      expect_like_program(&f, &steps[p], &partition.programs[p], p);
    }
    expect_releases(&f, steps, partition.program_count);
    for (uint32_t p = 0; p < partition.program_count; ++p) tpu_step_free(&steps[p]);
    tpu_partition_free(&partition);
    close_fixture(&f);
  }
}

static tpu_status_t make_and_free(void* arg) {
  tpu_partition_t partition = {0};
  tpu_step_t steps[MOST_VALUES] = {{0}};
  tpu_status_t status = make_steps(arg, &partition, steps);
  for (uint32_t p = 0; p < MOST_VALUES; ++p) tpu_step_free(&steps[p]);
  tpu_partition_free(&partition);
  return status;
}

TPU_TEST(step_survives_every_lost_allocation) {
  uint64_t seed = 12;
  fixture_t f;
  open_fixture(&f, 20, &seed);
  TPU_EXPECT(TPU_OOM_SWEEP(make_and_free, &f) > 10);
  close_fixture(&f);
}

/* What the step was to own does not leak when there is no step. */
TPU_TEST(step_takes_the_error_also_when_it_fails) {
  uint64_t seed = 13;
  fixture_t f;
  open_fixture(&f, 1, &seed);
  tpu_partition_t partition = {0};
  tpu_partition_options_t options = {.max_records = 4, .min_records = 1};
  TPU_REQUIRE_OK(tpu_partition(&f.window, f.live, f.dead, NULL, &options, &partition));
  int64_t live = tpu_alloc_live_count();
  tpu_lowered_t lowered = {0};
  tpu_status_t error = tpu_status_make(TPU_INTERNAL, "why it was not compiled");
  tpu_step_t step;
  tpu_alloc_fail_at(1);
  const tpu_step_runner_t runner = {.error = error};
  TPU_EXPECT_CODE(tpu_step_make(&partition.programs[0], &lowered, &runner, &step),
                  TPU_RESOURCE_EXHAUSTED);
  TPU_EXPECT(step.error == NULL && step.memory == NULL);
  TPU_EXPECT_EQ(tpu_alloc_live_count(), live);
  tpu_partition_free(&partition);
  close_fixture(&f);
}
