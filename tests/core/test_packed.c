/* How slots become numbers of a program's packed vectors, at other offsets than the one that the
 * program was written for too. */
#include "base/alloc.h"
#include "lower/packed.h"
#include "test.h"
#include "view_support.h"

static tpu_meta_id_t meta(int rank, const int64_t* sizes, const int64_t* strides) {
  tpu_meta_id_t id = 0;
  TPU_EXPECT_OK(tpu_meta_intern(TPU_F32, rank, sizes, strides, &id));
  return id;
}

/* Slot 1 is the offset of `view`; slot 0, behind it, a plain number. */
static void pack_view(tpu_packed_t* packed, tpu_meta_id_t base, tpu_meta_id_t view,
                      int64_t offset) {
  tpu_view_plan_t plan;
  *packed = (tpu_packed_t){0};
  TPU_EXPECT_OK(tpu_view_plan(tpu_meta_get(base), tpu_meta_get(view), offset, &plan));
  TPU_EXPECT_OK(tpu_packed_add_offset(packed, 1, &plan));
  TPU_EXPECT_OK(tpu_packed_add_int(packed, 0));
}

TPU_TEST(packed_numbers_keep_their_order) {
  tpu_packed_t packed = {0};
  const tpu_slot_t slots[4] = {
      {.as_double = 0.5}, {.as_int = 11}, {.as_double = 2.5}, {.as_int = 33}};
  TPU_EXPECT_OK(tpu_packed_add_double(&packed, 2));
  TPU_EXPECT_OK(tpu_packed_add_int(&packed, 3));
  TPU_EXPECT_OK(tpu_packed_add_double(&packed, 0));
  TPU_EXPECT_OK(tpu_packed_add_int(&packed, 1));
  TPU_REQUIRE(packed.double_count == 2 && packed.int_count == 2);
  double doubles[2];
  int64_t ints[2];
  tpu_packed_fill_doubles(&packed, slots, doubles);
  TPU_EXPECT(doubles[0] == 2.5 && doubles[1] == 0.5);
  TPU_EXPECT(tpu_packed_fill_ints(&packed, slots, ints));
  TPU_EXPECT(ints[0] == 33 && ints[1] == 11);
  tpu_packed_free(&packed);
}

TPU_TEST(packed_views_fit_offsets_of_their_structure) {
  tpu_meta_id_t base = meta(1, (const int64_t[]){24}, (const int64_t[]){1});
  tpu_meta_id_t view = meta(1, (const int64_t[]){4}, (const int64_t[]){1});
  tpu_slot_t slots[2] = {{.as_int = 99}};
  tpu_packed_t packed;
  pack_view(&packed, base, view, 4);
  const tpu_view_plan_t* plan = packed.slots[0].plan;
  TPU_REQUIRE(plan != NULL && packed.slots[1].plan == NULL);
  TPU_REQUIRE(packed.int_count <= 8);
  int fits = 0;
  for (int64_t offset = 0; offset <= 20; ++offset) {
    slots[1].as_int = offset;
    bool fit = tpu_packed_fits(&packed, slots);
    // The oracle: a plan of its own has the same structure.
    tpu_view_plan_t own;
    TPU_EXPECT_OK(tpu_view_plan(tpu_meta_get(base), tpu_meta_get(view), offset, &own));
    if (same_structure(plan, &own)) TPU_EXPECT(fit);
    fits += fit;
    int64_t numbers[8];
    TPU_EXPECT_EQ(tpu_packed_fill_ints(&packed, slots, numbers), fit);
    if (!fit) continue;
    // Where it fits, the starts name that offset in the program's factors.
    int64_t flat = 0, at = 0;
    for (int k = 0; k < plan->factor_count; ++k) {
      flat *= plan->factors[k];
      if (tpu_view_factor_is_sliced(plan, k)) flat += numbers[at++];
    }
    TPU_EXPECT_EQ(flat, offset);
    TPU_EXPECT_EQ(numbers[at], 99);
    TPU_EXPECT_EQ(at + 1, packed.int_count);
  }
  TPU_EXPECT(fits >= 2);
  tpu_packed_free(&packed);
}

/* Columns of a matrix: some offsets cross a row's end and do not fit. */
TPU_TEST(packed_views_refuse_other_structures) {
  tpu_meta_id_t base = meta(2, (const int64_t[]){4, 6}, (const int64_t[]){6, 1});
  tpu_meta_id_t view = meta(2, (const int64_t[]){3, 2}, (const int64_t[]){6, 1});
  tpu_slot_t slots[2] = {{.as_int = 0}, {.as_int = 0}};
  tpu_packed_t packed;
  pack_view(&packed, base, view, 0);
  static const struct {
    int64_t offset;
    bool fits;
  } cases[] = {{0, true}, {4, true}, {6, true}, {10, true}, {5, false}};
  for (int i = 0; i < 5; ++i) {
    slots[1].as_int = cases[i].offset;
    TPU_EXPECT_EQ(tpu_packed_fits(&packed, slots), cases[i].fits);
  }
  tpu_packed_free(&packed);
}

/* Steps and gathers take the offset itself, and serve every offset. */
TPU_TEST(packed_views_travel_flat) {
  tpu_meta_id_t base = meta(1, (const int64_t[]){24}, (const int64_t[]){1});
  tpu_meta_id_t views[2] = {
      meta(1, (const int64_t[]){3}, (const int64_t[]){5}),        // a step
      meta(2, (const int64_t[]){3, 4}, (const int64_t[]){2, 1}),  // windows that overlap
  };
  for (int i = 0; i < 2; ++i) {
    tpu_packed_t packed;
    pack_view(&packed, base, views[i], 1);
    TPU_REQUIRE(packed.int_count == 2);
    TPU_EXPECT(tpu_packed_plan_is_flat(packed.slots[0].plan));
    for (int64_t offset = 0; offset <= 13; ++offset) {
      tpu_slot_t slots[2] = {{.as_int = -7}, {.as_int = offset}};
      int64_t numbers[2];
      TPU_EXPECT(tpu_packed_fits(&packed, slots));
      TPU_EXPECT(tpu_packed_fill_ints(&packed, slots, numbers));
      TPU_EXPECT(numbers[0] == offset && numbers[1] == -7);
    }
    tpu_packed_free(&packed);
  }
}

/* A view of everything, in another order: there is one offset, and nothing to pass. */
TPU_TEST(packed_views_without_a_slice_take_no_number) {
  tpu_meta_id_t base = meta(2, (const int64_t[]){4, 6}, (const int64_t[]){6, 1});
  tpu_meta_id_t view = meta(2, (const int64_t[]){6, 4}, (const int64_t[]){1, 6});
  tpu_packed_t packed;
  pack_view(&packed, base, view, 0);
  TPU_EXPECT_EQ(packed.int_count, 1);
  const tpu_slot_t slots[2] = {{.as_int = 5}, {.as_int = 0}};
  int64_t number = 0;
  TPU_EXPECT(tpu_packed_fill_ints(&packed, slots, &number));
  TPU_EXPECT_EQ(number, 5);
  tpu_packed_free(&packed);
}

static tpu_status_t pack_all(void* arg) {
  (void)arg;
  tpu_packed_t packed = {0};
  tpu_view_plan_t plan;
  int64_t sizes[2] = {24, 4}, one = 1;
  tpu_meta_id_t base = 0, view = 0;
  tpu_status_t status = tpu_meta_intern(TPU_F32, 1, &sizes[0], &one, &base);
  if (status == NULL) status = tpu_meta_intern(TPU_F32, 1, &sizes[1], &one, &view);
  if (status == NULL) status = tpu_view_plan(tpu_meta_get(base), tpu_meta_get(view), 4, &plan);
  if (status == NULL) status = tpu_packed_add_double(&packed, 0);
  if (status == NULL) status = tpu_packed_add_int(&packed, 1);
  if (status == NULL) status = tpu_packed_add_offset(&packed, 2, &plan);
  tpu_packed_free(&packed);
  return status;
}

TPU_TEST(packed_out_of_memory) {
  TPU_REQUIRE_OK(pack_all(NULL));
  TPU_EXPECT_EQ(TPU_OOM_SWEEP(pack_all, NULL), 3);
}
