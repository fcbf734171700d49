/* Metadata and views of any size: sizes and strides up to the ends of the range, offsets anywhere.
 * tests/core/test_views.c compares plans of small views with what a view means. */
#include <string.h>

#include "ops/views.h"
#include "test.h"

enum { ROUNDS = 40000 };

__extension__ typedef __int128 int128_t;

typedef struct dims_t {
  int rank;
  int64_t sizes[TPU_MAX_RANK + 2], strides[TPU_MAX_RANK + 2];
} dims_t;

static uint64_t state;

static int64_t pick(int64_t low, int64_t high) { return tpu_test_random_range(&state, low, high); }

static int64_t random_number(void) {
  static const int64_t large[] = {INT64_MAX,   INT64_MIN, -1,        INT32_MAX,
                                  1LL << 32,   1LL << 40, 1LL << 61, 1LL << 62,
                                  (1LL << 20), 12345678,  97,        0};
  return pick(0, 5) == 0 ? large[pick(0, 11)] : pick(0, 6);
}

static dims_t random_dims(void) {
  dims_t d = {.rank = (int)pick(0, pick(0, 20) == 0 ? TPU_MAX_RANK + 2 : 5)};
  for (int i = 0; i < d.rank; ++i) {
    d.sizes[i] = d.rank > 6 ? pick(1, 2) : random_number();
    d.strides[i] = random_number();
  }
  return d;
}

/* Dimensions of a dense tensor, in some order; small ones, or one that is very large. */
static dims_t random_dense(void) {
  dims_t d = {.rank = (int)pick(0, pick(0, 20) == 0 ? TPU_MAX_RANK : 5)};
  int64_t stride = 1;
  for (int left = d.rank; left > 0; --left) {
    int at = (int)pick(0, left - 1);
    for (int i = 0; i < d.rank; ++i) {
      if (d.strides[i] != 0 || at-- > 0) continue;
      d.sizes[i] = pick(1, d.rank > 6 ? 2 : 7);
      if (pick(0, 30) == 0 && stride < 1 << 20) d.sizes[i] = 1LL << pick(20, 36);
      d.strides[i] = stride;
      stride *= d.sizes[i];
      break;
    }
  }
  return d;
}

/* Part of the base: dimensions dropped, halved, stepped, repeated. */
static dims_t random_part(const tpu_meta_t* base) {
  dims_t d = {0};
  for (int i = 0; i < base->rank; ++i) {
    int64_t step = pick(0, 3) == 0 ? pick(0, 3) : 1;
    if (pick(0, 4) == 0) continue;
    d.sizes[d.rank] = pick(0, 2) == 0 ? (base->sizes[i] + 1) / 2 : base->sizes[i];
    d.strides[d.rank++] = base->strides[i] * step;
  }
  return d;
}

/* What the header says about numbers of elements and bytes. */
static bool meta_is_right(const dims_t* d, tpu_dtype_t dtype, tpu_status_code_t code,
                          const tpu_meta_t* meta) {
  int128_t numel = 1, span = 1, most = INT64_MAX / (int64_t)tpu_dtype_bytes(dtype);
  bool legal = d->rank <= TPU_MAX_RANK, empty = false;
  for (int i = 0; i < d->rank && legal; ++i) {
    legal = d->sizes[i] >= 0 && d->strides[i] >= 0;
    empty = empty || d->sizes[i] == 0;
    int128_t reach = ((int128_t)d->sizes[i] - 1) * d->strides[i];
    numel = numel > most ? numel : numel * d->sizes[i];
    span = span > most ? span : span + reach;
  }
  legal = legal && (empty || (numel <= most && span <= most));
  if (!legal) return code == TPU_INVALID_ARGUMENT && meta == NULL;
  return code == TPU_OK && meta != NULL && meta->numel == (empty ? 0 : (int64_t)numel) &&
         meta->span == (empty ? 0 : (int64_t)span);
}

static const tpu_meta_t* intern(const dims_t* d) {
  tpu_dtype_t dtype = (tpu_dtype_t)pick(1, TPU_DTYPE_COUNT - 1);
  tpu_meta_id_t id = 0, again = 0;
  tpu_status_t status = tpu_meta_intern(dtype, d->rank, d->sizes, d->strides, &id);
  const tpu_meta_t* meta = tpu_meta_get(id);
  if (!meta_is_right(d, dtype, tpu_status_code(status), meta)) {
    tpu_test_fail(__FILE__, __LINE__, "metadata of rank %d: %s", d->rank,
                  tpu_status_message(status));
  }
  tpu_status_free(status);
  if (meta != NULL) {
    TPU_EXPECT_OK(tpu_meta_intern(dtype, d->rank, d->sizes, d->strides, &again));
    TPU_EXPECT_EQ(id, again);
    TPU_EXPECT(!meta->row_major || meta->contiguous);
    TPU_EXPECT(!meta->contiguous || meta->dense);
  }
  return meta;
}

TPU_TEST(fuzz_metas) {
  state = tpu_test_seed();
  for (int n = 0; n < ROUNDS && !tpu_test_failed(); ++n) {
    dims_t d = random_dims();
    (void)intern(&d);
  }
}

/* Starts, counts and steps stay inside the factors, and the factors make up the base. */
static bool plan_is_inside(const tpu_meta_t* base, const tpu_meta_t* view,
                           const tpu_view_plan_t* plan) {
  int128_t product = 1, kept = 1;
  if (plan->factor_count < 0 || plan->factor_count > TPU_VIEW_MAX_FACTORS) return false;
  for (int k = 0; k < plan->factor_count; ++k) {
    int128_t last = plan->starts[k] + (int128_t)(plan->counts[k] - 1) * plan->steps[k];
    product *= plan->factors[k];
    if (plan->starts[k] < 0 || plan->counts[k] < 0 || plan->steps[k] < 1) return false;
    if (plan->counts[k] > 0 && last >= plan->factors[k]) return false;
  }
  for (int i = 0; i < plan->kept_count; ++i) {
    if (plan->kept_dims[i] < 0 || plan->kept_dims[i] >= view->rank) return false;
    kept *= plan->kept[i];
  }
  return product == base->numel && kept <= (view->numel > 1 ? view->numel : 1);
}

/* At another offset inside the base: the plan takes it, with starts that stay inside, or not. */
static bool starts_are_inside(const tpu_meta_t* base, const tpu_meta_t* view,
                              const tpu_view_plan_t* plan) {
  int64_t starts[TPU_VIEW_MAX_FACTORS];
  if (view->numel == 0 || !tpu_view_plan_starts(plan, pick(0, base->numel - view->span), starts)) {
    return true;
  }
  for (int k = 0; k < plan->factor_count && plan->kind == TPU_VIEW_CHAIN; ++k) {
    int128_t last = starts[k] + (int128_t)(plan->counts[k] - 1) * plan->steps[k];
    if (starts[k] < 0 || last >= plan->factors[k]) return false;
  }
  return true;
}

static int64_t random_offset(const tpu_meta_t* base, const tpu_meta_t* view) {
  if (pick(0, 3) == 0) return random_number();
  int64_t room = base->numel - view->span;
  return room > 0 ? pick(-1, room + 1) : pick(0, 1);
}

TPU_TEST(fuzz_view_plans) {
  int planned = 0, refused = 0;
  state = tpu_test_seed();
  for (int n = 0; n < ROUNDS && !tpu_test_failed(); ++n) {
    dims_t base_dims = random_dense();
    const tpu_meta_t* base = intern(&base_dims);
    TPU_REQUIRE(base != NULL && base->dense);
    dims_t view_dims = pick(0, 3) == 0 ? random_dims() : random_part(base);
    const tpu_meta_t* view = intern(&view_dims);
    if (view == NULL) continue;
    tpu_view_plan_t plan;
    int64_t offset = random_offset(base, view);
    bool inside = view->numel == 0 || (offset >= 0 && (int128_t)offset + view->span <= base->numel);
    tpu_status_t status = tpu_view_plan(base, view, offset, &plan);
    TPU_EXPECT_EQ(tpu_status_code(status), (inside ? TPU_OK : TPU_OUT_OF_RANGE));
    if (inside) {
      TPU_EXPECT(plan_is_inside(base, view, &plan));
      TPU_EXPECT(starts_are_inside(base, view, &plan));
    }
    planned += inside;
    refused += !inside;
    tpu_status_free(status);
  }
  TPU_EXPECT(planned > ROUNDS / 4 && refused > ROUNDS / 8);
}
