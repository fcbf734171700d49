/* Views at other offsets than the one a program was written for. */
#include "base/alloc.h"
#include "launch/launch.h"
#include "test.h"

static tpu_meta_id_t meta(int rank, const int64_t* sizes, const int64_t* strides) {
  tpu_meta_id_t id = 0;
  TPU_EXPECT_OK(tpu_meta_intern(TPU_F32, rank, sizes, strides, &id));
  return id;
}

/* A step with one packed view and, behind it, one plain number. */
static void make_step(tpu_step_t* step, tpu_packed_slot_t* packed, tpu_meta_id_t base,
                      tpu_meta_id_t view, const tpu_slot_t* slots) {
  packed[0] = (tpu_packed_slot_t){.slot = 1, .factor = 0, .base = base, .view = view};
  packed[1] = (tpu_packed_slot_t){.slot = 0, .factor = -1};
  *step = (tpu_step_t){.int_count = 2, .ints = packed};
  TPU_EXPECT_OK(tpu_step_plan_views(step, slots));
}

static void free_plans(tpu_step_t* step) {
  for (uint32_t i = 0; i < step->int_count; ++i) tpu_free(step->int_plans[i]);
  tpu_free(step->int_plans);
}

TPU_TEST(launch_views_fit_offsets_of_their_structure) {
  tpu_meta_id_t base = meta(1, (const int64_t[]){24}, (const int64_t[]){1});
  tpu_meta_id_t view = meta(1, (const int64_t[]){4}, (const int64_t[]){1});
  tpu_slot_t slots[2] = {{.as_int = 99}, {.as_int = 4}};
  tpu_packed_slot_t packed[2];
  tpu_step_t step;
  make_step(&step, packed, base, view, slots);
  TPU_REQUIRE(step.int_plans[0] != NULL);
  TPU_EXPECT(step.int_plans[1] == NULL);
  int fits = 0;
  for (int64_t offset = 0; offset <= 20; ++offset) {
    slots[1].as_int = offset;
    bool fit = tpu_step_views_fit(&step, slots);
    // The oracle: a plan of its own has the same structure.
    tpu_view_plan_t plan;
    int64_t starts[TPU_VIEW_MAX_FACTORS];
    TPU_EXPECT_OK(tpu_view_plan(tpu_meta_get(base), tpu_meta_get(view), offset, &plan));
    if (tpu_view_plan_same_structure(step.int_plans[0], &plan)) TPU_EXPECT(fit);
    fits += fit;
    // Where it fits, the starts name that offset in the program's factors.
    if (!fit) continue;
    TPU_EXPECT(tpu_view_plan_starts(step.int_plans[0], offset, starts));
    int64_t flat = 0;
    for (int i = 0; i < step.int_plans[0]->factor_count; ++i) {
      flat = flat * step.int_plans[0]->factors[i] + starts[i];
    }
    TPU_EXPECT_EQ(flat, offset);
  }
  TPU_EXPECT(fits >= 2);
  free_plans(&step);
}

/* Columns of a matrix: some offsets cross a row's end and do not fit. */
TPU_TEST(launch_views_refuse_other_structures) {
  tpu_meta_id_t base = meta(2, (const int64_t[]){4, 6}, (const int64_t[]){6, 1});
  tpu_meta_id_t view = meta(2, (const int64_t[]){3, 2}, (const int64_t[]){6, 1});
  tpu_slot_t slots[2] = {{.as_int = 0}, {.as_int = 0}};
  tpu_packed_slot_t packed[2];
  tpu_step_t step;
  make_step(&step, packed, base, view, slots);
  static const struct {
    int64_t offset;
    bool fits;
  } cases[] = {{0, true}, {4, true}, {6, true}, {10, true}, {5, false}};
  for (int i = 0; i < 5; ++i) {
    slots[1].as_int = cases[i].offset;
    TPU_EXPECT_EQ(tpu_step_views_fit(&step, slots), cases[i].fits);
  }
  free_plans(&step);
}

TPU_TEST(launch_views_outside_the_base) {
  tpu_meta_id_t base = meta(1, (const int64_t[]){8}, (const int64_t[]){1});
  tpu_meta_id_t view = meta(1, (const int64_t[]){4}, (const int64_t[]){1});
  tpu_slot_t slots[2] = {{.as_int = 0}, {.as_int = 5}};
  tpu_packed_slot_t packed = {.slot = 1, .factor = 0, .base = base, .view = view};
  tpu_step_t step = {.int_count = 1, .ints = &packed};
  TPU_EXPECT_CODE(tpu_step_plan_views(&step, slots), TPU_OUT_OF_RANGE);
  free_plans(&step);
}

static tpu_status_t plan_views(void* arg) {
  (void)arg;
  tpu_packed_slot_t packed[2];
  tpu_slot_t slots[2] = {{.as_int = 0}, {.as_int = 4}};
  int64_t sizes[2] = {24, 4}, one = 1;
  tpu_meta_id_t base = 0, view = 0;
  tpu_status_t status = tpu_meta_intern(TPU_F32, 1, &sizes[0], &one, &base);
  if (status == NULL) status = tpu_meta_intern(TPU_F32, 1, &sizes[1], &one, &view);
  packed[0] = (tpu_packed_slot_t){.slot = 1, .factor = 0, .base = base, .view = view};
  packed[1] = packed[0];
  tpu_step_t step = {.int_count = 2, .ints = packed};
  if (status == NULL) status = tpu_step_plan_views(&step, slots);
  if (step.int_plans != NULL) free_plans(&step);
  return status;
}

TPU_TEST(launch_out_of_memory) {
  TPU_REQUIRE_OK(plan_views(NULL));
  TPU_EXPECT_EQ(TPU_OOM_SWEEP(plan_views, NULL), 3);
}
