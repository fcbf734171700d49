/* Plans are run on small arrays of flat positions and compared with the definition of a view:
 * view[i] = flat[offset + sum(i * stride)]. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ops/views.h"
#include "test.h"
#include "view_support.h"

enum { MAX_ELEMENTS = 8192 };

/* --- the oracle --- */

// Row-major counting. False after the last index.
static bool next_index(int rank, const int64_t* sizes, int64_t* index) {
  for (int i = rank - 1; i >= 0; --i) {
    if (++index[i] < sizes[i]) return true;
    index[i] = 0;
  }
  return false;
}

static int64_t flat_position(int rank, const int64_t* index, const int64_t* strides,
                             int64_t offset) {
  for (int i = 0; i < rank; ++i) offset += index[i] * strides[i];
  return offset;
}

// The base after step 1 must hold its flat positions in order.
static bool base_is_flat(const tpu_meta_t* base, const tpu_view_plan_t* plan) {
  int64_t sizes[TPU_MAX_RANK], strides[TPU_MAX_RANK], index[TPU_MAX_RANK] = {0};
  bool identity = true;
  for (int i = 0; i < base->rank; ++i) {
    sizes[i] = base->sizes[plan->base_permutation[i]];
    strides[i] = base->strides[plan->base_permutation[i]];
    identity = identity && plan->base_permutation[i] == i;
  }
  if (plan->base_rank != base->rank || plan->transpose_base == identity) return false;
  for (int64_t expected = 0; expected < base->numel; ++expected) {
    if (flat_position(base->rank, index, strides, 0) != expected) return false;
    next_index(base->rank, sizes, index);
  }
  return true;
}

// Steps 2 and 3: positions that the slice picks, in order. Returns their number, or -1 when the
// plan breaks one of its rules.
static int64_t sliced_positions(const tpu_meta_t* base, const tpu_view_plan_t* plan,
                                int64_t* positions) {
  int64_t strides[TPU_VIEW_MAX_FACTORS], index[TPU_VIEW_MAX_FACTORS] = {0};
  int64_t product = 1, count = 1, start = 0;
  bool slices = false;
  for (int k = plan->factor_count - 1; k >= 0; --k) {
    if (plan->counts[k] > 0 &&
        plan->starts[k] + (plan->counts[k] - 1) * plan->steps[k] >= plan->factors[k]) {
      return -1;
    }
    if (plan->starts[k] < 0 || plan->steps[k] < 1) return -1;
    strides[k] = product * plan->steps[k];
    start += product * plan->starts[k];
    product *= plan->factors[k];
    count *= plan->counts[k];
    slices = slices || plan->counts[k] != plan->factors[k];
  }
  if (product != base->numel || slices != plan->slices || count > MAX_ELEMENTS) return -1;
  for (int64_t n = 0; n < count; ++n) {
    positions[n] = flat_position(plan->factor_count, index, strides, start);
    next_index(plan->factor_count, plan->counts, index);
  }
  return count;
}

static bool reaches_all_once(const tpu_meta_t* base, const tpu_meta_t* view, int64_t offset) {
  static uint8_t seen[MAX_ELEMENTS];
  memset(seen, 0, sizeof(seen));
  int64_t index[TPU_MAX_RANK] = {0};
  if (view->numel != base->numel) return false;
  for (int64_t n = 0; n < view->numel; ++n) {
    if (seen[flat_position(view->rank, index, view->strides, offset)]++) return false;
    next_index(view->rank, view->sizes, index);
  }
  return true;
}

// Step 4: what the view's elements come from.
static bool chain_is_right(const tpu_meta_t* base, const tpu_meta_t* view, int64_t offset,
                           const tpu_view_plan_t* plan) {
  static int64_t positions[MAX_ELEMENTS];
  int64_t kept_strides[TPU_MAX_RANK] = {0}, index[TPU_MAX_RANK] = {0};
  int64_t kept_count = 1;
  for (int i = plan->kept_count - 1; i >= 0; --i) {
    if (plan->kept[i] != view->sizes[plan->kept_dims[i]]) return false;
    kept_strides[plan->kept_dims[i]] = kept_count;
    kept_count *= plan->kept[i];
  }
  if (sliced_positions(base, plan, positions) != kept_count) return false;
  for (int64_t n = 0; n < view->numel; ++n) {
    int64_t wanted = flat_position(view->rank, index, view->strides, offset);
    if (positions[flat_position(view->rank, index, kept_strides, 0)] != wanted) return false;
    next_index(view->rank, view->sizes, index);
  }
  return true;
}

static bool plan_is_right(const tpu_meta_t* base, const tpu_meta_t* view, int64_t offset,
                          const tpu_view_plan_t* plan) {
  if (!base_is_flat(base, plan)) return false;
  if (plan->whole != reaches_all_once(base, view, offset)) return false;
  if (plan->kind == TPU_VIEW_GATHER) return !plan->slices && plan->kept_count == 0;
  return chain_is_right(base, view, offset, plan);
}

/* --- random views --- */

typedef struct view_t {
  int rank;
  int64_t sizes[TPU_MAX_RANK];
  int64_t strides[TPU_MAX_RANK];
  int64_t offset;
} view_t;

static uint64_t random_state = 0x1234567;

static int64_t pick(int64_t low, int64_t high) {
  return tpu_test_random_range(&random_state, low, high);
}

static const tpu_meta_t* meta_of(const view_t* view) {
  tpu_meta_id_t id;
  TPU_EXPECT_OK(tpu_meta_intern(TPU_F32, view->rank, view->sizes, view->strides, &id));
  return tpu_meta_get(id);
}

// A dense tensor; its dimensions lie in random order in memory when `permuted`.
static view_t random_base(bool permuted) {
  view_t base = {.rank = (int)pick(0, 4)};
  int order[4] = {0, 1, 2, 3};
  for (int i = base.rank - 1; i > 0 && permuted; --i) {
    int j = (int)pick(0, i), keep = order[i];
    order[i] = order[j];
    order[j] = keep;
  }
  int64_t stride = 1;
  for (int i = 0; i < base.rank; ++i) base.sizes[i] = pick(1, base.rank < 3 ? 24 : 7);
  for (int i = base.rank - 1; i >= 0; --i) {
    base.strides[order[i]] = stride;
    stride *= base.sizes[order[i]];
  }
  return base;
}

static void insert_dim(view_t* view, int at, int64_t size, int64_t stride) {
  for (int i = view->rank; i > at; --i) {
    view->sizes[i] = view->sizes[i - 1];
    view->strides[i] = view->strides[i - 1];
  }
  view->sizes[at] = size;
  view->strides[at] = stride;
  ++view->rank;
}

static void remove_dim(view_t* view, int at) {
  --view->rank;
  for (int i = at; i < view->rank; ++i) {
    view->sizes[i] = view->sizes[i + 1];
    view->strides[i] = view->strides[i + 1];
  }
}

static void swap_dims(view_t* view, int a, int b) {
  int64_t size = view->sizes[a], stride = view->strides[a];
  view->sizes[a] = view->sizes[b];
  view->strides[a] = view->strides[b];
  view->sizes[b] = size;
  view->strides[b] = stride;
}

static void slice_dim(view_t* view, int d, int64_t start, int64_t stop, int64_t step) {
  view->offset += start * view->strides[d];
  view->sizes[d] = stop > start ? (stop - start + step - 1) / step : 0;
  view->strides[d] *= step;
}

typedef enum step_t {
  SWAP,
  NARROW,
  STEPPED,
  SELECT,
  UNSQUEEZE,
  EXPAND,
  SPLIT,
  MERGE,
  DIAGONAL,
  UNFOLD,
  STEP_COUNT
} step_t;

// Applies one random step of this kind where it is possible.
static void apply(view_t* view, step_t step) {
  if (view->rank == 0 && step != UNSQUEEZE) return;
  int d = view->rank > 0 ? (int)pick(0, view->rank - 1) : 0;
  int64_t size = view->sizes[d];
  switch (step) {
    case SWAP: swap_dims(view, d, (int)pick(0, view->rank - 1)); break;
    case NARROW: {
      // Empty slices now and then: all that follows is empty as well.
      int64_t start = pick(0, size > 0 ? size - 1 : 0);
      slice_dim(view, d, start, pick(0, 50) == 0 ? start : pick(start + (size > start), size), 1);
      break;
    }
    case STEPPED: slice_dim(view, d, pick(0, size / 3), size, pick(1, 4)); break;
    case SELECT:
      if (size == 0) break;
      view->offset += pick(0, size - 1) * view->strides[d];
      remove_dim(view, d);
      break;
    case UNSQUEEZE:
      if (view->rank < 7) insert_dim(view, (int)pick(0, view->rank), 1, pick(0, 9));
      break;
    case EXPAND:
      if (size != 1) break;
      view->sizes[d] = pick(1, 3);
      view->strides[d] = 0;
      break;
    case SPLIT: {
      int64_t inner = pick(1, 4);
      if (view->rank >= 7 || size == 0 || size % inner != 0) break;
      view->sizes[d] = inner;
      insert_dim(view, d, size / inner, view->strides[d] * inner);
      break;
    }
    case MERGE:
      if (d + 1 >= view->rank || view->strides[d] != view->sizes[d + 1] * view->strides[d + 1]) {
        break;
      }
      view->sizes[d + 1] *= size;
      remove_dim(view, d);
      break;
    case DIAGONAL: {
      if (view->rank < 2) break;
      swap_dims(view, d, view->rank - 1);
      int last = view->rank - 1;
      if (view->sizes[last - 1] < view->sizes[last]) view->sizes[last] = view->sizes[last - 1];
      view->strides[last] += view->strides[last - 1];
      remove_dim(view, last - 1);
      break;
    }
    case UNFOLD: {
      if (size < 2 || view->rank >= 7) break;
      int64_t window = pick(1, size), hop = pick(1, 3), stride = view->strides[d];
      view->sizes[d] = (size - window) / hop + 1;
      view->strides[d] *= hop;
      insert_dim(view, view->rank, window, stride);
      break;
    }
    default: break;
  }
}

static const char* print_view(const view_t* view) {
  static char texts[2][512];
  static int turn;
  char* text = texts[turn ^= 1];
  int n = snprintf(text, 512, "offset %lld", (long long)view->offset);
  for (int i = 0; i < view->rank; ++i) {
    n += snprintf(text + n, 512 - (size_t)n, " %lld:%lld", (long long)view->sizes[i],
                  (long long)view->strides[i]);
  }
  return text;
}

// Plans, checks, and says whether a gather was needed.
static bool check_view(const view_t* base, const view_t* view, tpu_view_plan_t* out_plan) {
  const tpu_meta_t* base_meta = meta_of(base);
  const tpu_meta_t* view_meta = meta_of(view);
  if (base_meta == NULL || view_meta == NULL || view_meta->numel > MAX_ELEMENTS) return false;
  TPU_EXPECT_OK(tpu_view_plan(base_meta, view_meta, view->offset, out_plan));
  if (!plan_is_right(base_meta, view_meta, view->offset, out_plan)) {
    tpu_test_fail(__FILE__, __LINE__, "wrong plan for base (%s), view (%s)", print_view(base),
                  print_view(view));
  }
  return out_plan->kind == TPU_VIEW_GATHER;
}

// Stage i applies up to four steps of the kinds stages[i][0]..stages[i][1]. Returns the number of
// gathers.
static int run_chains(int chains, int stage_count, const step_t (*stages)[2], bool permuted) {
  int gathers = 0, substantial = 0;
  tpu_view_plan_t plan;
  for (int c = 0; c < chains; ++c) {
    view_t base = random_base(permuted), view = base;
    for (int s = 0; s < stage_count; ++s) {
      for (int64_t n = pick(0, 4); n > 0; --n) {
        apply(&view, (step_t)pick(stages[s][0], stages[s][1]));
      }
    }
    bool gather = check_view(&base, &view, &plan);
    if (gather && gathers == 0) {
      printf("  first gather: base (%s), view (%s)\n", print_view(&base), print_view(&view));
    }
    gathers += gather;
    substantial += meta_of(&view)->numel > 3 && view.rank > 1;
  }
  TPU_EXPECT(substantial > chains / 3);
  return gathers;
}

TPU_TEST(views_chains_of_common_kinds_need_no_gather) {
  // Splits and merges come before slices here; what a slice leaves may be split only when the
  // number of elements allows it (next test).
  static const step_t stages[][2] = {{SPLIT, MERGE}, {SWAP, EXPAND}, {SWAP, EXPAND}};
  TPU_EXPECT_EQ(run_chains(20000, 3, stages, false), 0);
  TPU_EXPECT_EQ(run_chains(20000, 3, stages, true), 0);
}

TPU_TEST(views_reshapes_of_slices_need_no_gather) {
  static const step_t stages[][2] = {{SWAP, EXPAND}, {SPLIT, MERGE}, {SPLIT, MERGE}, {SWAP, SWAP}};
  TPU_EXPECT_EQ(run_chains(20000, 4, stages, true), 0);
}

TPU_TEST(views_any_chain_is_right) {
  static const step_t stages[][2] = {{SWAP, MERGE}, {SWAP, UNFOLD}, {SWAP, MERGE}};
  int gathers = run_chains(40000, 3, stages, true);
  printf("  %d of 40000 mixed chains (diagonals and windows among them) gather\n", gathers);
  TPU_EXPECT(gathers > 0);
  static const step_t reshaped[][2] = {{SWAP, MERGE}, {SWAP, MERGE}, {SWAP, MERGE}};
  gathers = run_chains(40000, 3, reshaped, true);
  printf("  %d of 40000 chains gather that slice what a reshape made of a slice\n", gathers);
}

static view_t random_strides(int64_t numel) {
  view_t view = {.rank = (int)pick(0, 4)};
  int64_t room = numel - 1;
  for (int i = 0; i < view.rank; ++i) {
    view.sizes[i] = pick(1, 5);
    view.strides[i] = pick(0, view.sizes[i] > 1 ? room / (view.sizes[i] - 1) : numel);
    room -= (view.sizes[i] - 1) * view.strides[i];
  }
  view.offset = pick(0, room);
  return view;
}

TPU_TEST(views_random_strides_are_right) {
  tpu_view_plan_t plan;
  for (int n = 0; n < 40000; ++n) {
    view_t base = random_base(true);
    view_t view = random_strides(meta_of(&base)->numel);
    (void)check_view(&base, &view, &plan);
  }
}

// All chains of cuts, for the claim that the greedy choice finds one whenever there is one.
// Dimensions are not merged here: that merging never hurts is part of the claim.
static bool any_chain(const tpu_meta_t* view, const int* dims, int count, int64_t cut,
                      int64_t offset) {
  if (count == 0) return true;
  int64_t size = view->sizes[dims[0]], stride = view->strides[dims[0]];
  if (offset % cut + (size - 1) * stride >= cut) return false;
  for (int64_t next = 1; next <= stride; ++next) {
    if (cut % next == 0 && stride % next == 0 &&
        any_chain(view, dims + 1, count - 1, next, offset)) {
      return true;
    }
  }
  return false;
}

TPU_TEST(views_gather_only_without_a_chain) {
  tpu_view_plan_t plan;
  int gathers = 0;
  for (int n = 0; n < 20000; ++n) {
    view_t base = random_base(true);
    view_t view = random_strides(meta_of(&base)->numel);
    if (!check_view(&base, &view, &plan)) continue;
    ++gathers;
    const tpu_meta_t* meta = meta_of(&view);
    int dims[4], count = 0;
    for (int i = 0; i < meta->rank; ++i) {
      if (meta->sizes[i] < 2 || meta->strides[i] == 0) continue;
      int at = count++;
      for (; at > 0 && meta->strides[dims[at - 1]] < meta->strides[i]; --at) {
        dims[at] = dims[at - 1];
      }
      dims[at] = i;
    }
    if (any_chain(meta, dims, count, meta_of(&base)->numel, view.offset)) {
      tpu_test_fail(__FILE__, __LINE__, "needless gather: base (%s), view (%s)", print_view(&base),
                    print_view(&view));
    }
  }
  TPU_EXPECT(gathers > 1000);
}

/* --- named cases --- */

static tpu_view_plan_t plan_of(view_t base, view_t view) {
  tpu_view_plan_t plan = {0};
  (void)check_view(&base, &view, &plan);
  return plan;
}

TPU_TEST(views_identity_and_whole) {
  view_t base = {2, {3, 4}, {4, 1}, 0};
  TPU_EXPECT_EQ(plan_of(base, base).kind, TPU_VIEW_IDENTITY);
  TPU_EXPECT(plan_of(base, base).whole);
  view_t transposed = {2, {4, 3}, {1, 4}, 0};
  TPU_EXPECT_EQ(plan_of(base, transposed).kind, TPU_VIEW_CHAIN);
  TPU_EXPECT(plan_of(base, transposed).whole);
  TPU_EXPECT(!plan_of(base, transposed).slices);
  TPU_EXPECT(plan_of(transposed, base).transpose_base);
  TPU_EXPECT(plan_of(base, (view_t){1, {12}, {1}, 0}).whole);
  TPU_EXPECT(!plan_of(base, (view_t){1, {11}, {1}, 0}).whole);
  // As many elements as the base, but not each once.
  TPU_EXPECT(!plan_of(base, (view_t){2, {3, 4}, {4, 0}, 0}).whole);
  view_t one = {3, {1, 1, 1}, {7, 9, 1}, 0};
  TPU_EXPECT_EQ(plan_of((view_t){3, {1, 1, 1}, {1, 1, 1}, 0}, one).kind, TPU_VIEW_IDENTITY);
  TPU_EXPECT(plan_of((view_t){0}, one).whole);
}

TPU_TEST(views_slices_act_on_the_dimensions_of_the_base) {
  view_t base = {3, {4, 5, 6}, {30, 6, 1}, 0};
  tpu_view_plan_t plan = plan_of(base, (view_t){2, {5, 6}, {6, 1}, 60});  // base[2]
  TPU_EXPECT_EQ(plan.factor_count, 3);
  TPU_EXPECT_EQ(plan.starts[0], 2);
  TPU_EXPECT_EQ(plan.counts[0], 1);
  TPU_EXPECT_EQ(plan.counts[1], 5);
  plan = plan_of(base, (view_t){3, {2, 5, 6}, {30, 6, 1}, 30});  // base[1:3]
  TPU_EXPECT_EQ(plan.factor_count, 3);
  TPU_EXPECT_EQ(plan.starts[0], 1);
  TPU_EXPECT_EQ(plan.counts[0], 2);
  plan = plan_of(base, (view_t){2, {4, 6}, {30, 1}, 18});  // base[:, 3]
  TPU_EXPECT_EQ(plan.factor_count, 3);
  TPU_EXPECT_EQ(plan.starts[1], 3);
  TPU_EXPECT_EQ(plan.counts[0], 4);
}

TPU_TEST(views_odd_sizes_are_stepped_not_gathered) {
  view_t base = {2, {5, 7}, {7, 1}, 0};
  tpu_view_plan_t plan = plan_of(base, (view_t){2, {3, 4}, {14, 2}, 0});  // base[::2, ::2]
  TPU_EXPECT_EQ(plan.kind, TPU_VIEW_CHAIN);
  TPU_EXPECT_EQ(plan.factor_count, 2);
  TPU_EXPECT_EQ(plan.steps[0], 2);
  TPU_EXPECT_EQ(plan.steps[1], 2);
  // Even sizes are cut instead, so that nothing is stepped.
  plan = plan_of((view_t){1, {8}, {1}, 0}, (view_t){1, {4}, {2}, 1});
  TPU_EXPECT_EQ(plan.factor_count, 2);
  TPU_EXPECT_EQ(plan.steps[0], 1);
  TPU_EXPECT_EQ(plan.starts[1], 1);
}

TPU_TEST(views_windows_gather) {
  view_t base = {1, {10}, {1}, 0};
  TPU_EXPECT_EQ(plan_of(base, (view_t){2, {8, 3}, {1, 1}, 0}).kind, TPU_VIEW_GATHER);
  TPU_EXPECT_EQ(plan_of(base, (view_t){2, {4, 3}, {2, 1}, 0}).kind, TPU_VIEW_GATHER);
}

TPU_TEST(views_refuse_what_lies_outside) {
  view_t base_view = {2, {3, 4}, {4, 1}, 0};
  const tpu_meta_t* base = meta_of(&base_view);
  view_t row = {1, {4}, {1}, 0}, none = {1, {0}, {1}, 0}, gaps = {2, {3, 4}, {8, 1}, 0};
  tpu_view_plan_t plan;
  TPU_EXPECT_OK(tpu_view_plan(base, meta_of(&row), 8, &plan));
  TPU_EXPECT_CODE(tpu_view_plan(base, meta_of(&row), 9, &plan), TPU_OUT_OF_RANGE);
  TPU_EXPECT_CODE(tpu_view_plan(base, meta_of(&row), -1, &plan), TPU_OUT_OF_RANGE);
  TPU_EXPECT_CODE(tpu_view_plan(base, meta_of(&row), INT64_MAX, &plan), TPU_OUT_OF_RANGE);
  TPU_EXPECT_CODE(tpu_view_plan(base, meta_of(&gaps), 0, &plan), TPU_OUT_OF_RANGE);
  TPU_EXPECT_CODE(tpu_view_plan(meta_of(&gaps), meta_of(&row), 0, &plan), TPU_INVALID_ARGUMENT);
  TPU_EXPECT_OK(tpu_view_plan(base, meta_of(&none), 1000, &plan));
  TPU_EXPECT_EQ(plan.kind, TPU_VIEW_CHAIN);
}

TPU_TEST(views_same_structure_for_other_offsets) {
  view_t base = {2, {6, 8}, {8, 1}, 0};
  tpu_view_plan_t first = plan_of(base, (view_t){1, {8}, {1}, 0});
  for (int64_t row = 1; row < 6; ++row) {
    tpu_view_plan_t other = plan_of(base, (view_t){1, {8}, {1}, 8 * row});
    TPU_EXPECT(same_structure(&first, &other));
    TPU_EXPECT_EQ(other.starts[0], row);
  }
  first = plan_of(base, (view_t){2, {6, 3}, {8, 1}, 0});
  for (int64_t column = 1; column < 6; ++column) {
    tpu_view_plan_t other = plan_of(base, (view_t){2, {6, 3}, {8, 1}, column});
    TPU_EXPECT(same_structure(&first, &other));
  }
  tpu_view_plan_t rows = plan_of(base, (view_t){2, {3, 8}, {8, 1}, 8});
  TPU_EXPECT(!same_structure(&first, &rows));
}

// A plan moved to another offset reads the right elements or says that it cannot; an offset whose
// own plan has the same structure always works.
TPU_TEST(views_starts_for_other_offsets) {
  int moved = 0, refused = 0;
  for (int n = 0; n < 30000; ++n) {
    view_t base = random_base(true), view = base;
    for (int64_t steps = pick(1, 5); steps > 0; --steps) apply(&view, (step_t)pick(SWAP, MERGE));
    const tpu_meta_t* base_meta = meta_of(&base);
    const tpu_meta_t* meta = meta_of(&view);
    tpu_view_plan_t plan, own;
    TPU_REQUIRE_OK(tpu_view_plan(base_meta, meta, view.offset, &plan));
    int64_t other = pick(0, base_meta->numel - meta->span);
    TPU_REQUIRE_OK(tpu_view_plan(base_meta, meta, other, &own));
    bool fits = tpu_view_plan_starts(&plan, other, plan.starts);
    if (fits && !plan_is_right(base_meta, meta, other, &plan)) {
      view.offset = other;
      tpu_test_fail(__FILE__, __LINE__, "wrong starts for base (%s), view (%s)", print_view(&base),
                    print_view(&view));
    }
    TPU_EXPECT(fits || !same_structure(&plan, &own));
    moved += fits;
    refused += !fits;
  }
  TPU_EXPECT(moved > 10000);
  TPU_EXPECT(refused > 1000);
}
