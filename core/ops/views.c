#include "ops/views.h"

#include <string.h>

/* How the factors are found.
 *
 * Let N be the base's element count. Only flat positions matter, so the base's own dimensions do
 * not constrain anything. View dimensions of size 1 and of stride 0 are broadcast; the others are
 * sorted by stride and neighbours that continue each other (stride == inner size * inner stride)
 * are merged into one run, because the last reshape can split it again.
 *
 * A factorisation is a chain of cuts N = C[0], C[1], ... where each divides the one before, and the
 * run k (size n, stride s) lives between C[k] and C[k+1]. It works exactly when for every k
 *
 *   C[k+1] divides s   and   offset mod C[k] + (n - 1) * s < C[k]      (no carry out of the factor)
 *
 * The second condition does not mention C[k+1], and when it holds for some divisor of C[k] it holds
 * for C[k] too. So the largest cut, C[k+1] = gcd(s, C[k]), is always right and no search is needed:
 * if this choice fails, no chain exists. It also gives the smallest steps, s / C[k+1].
 *
 * Afterwards factors are cut at the base's own dimensions where this costs nothing: then slices act
 * on dimensions that the base has, and tiled device layouts need not be flattened to one. */

typedef struct run_t {
  int64_t size;
  int64_t stride;
} run_t;

static int64_t greatest_common_divisor(int64_t a, int64_t b) {
  while (b != 0) {
    int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

// Sorts `dims` (indices of dimensions) by descending stride, stable.
static void sort_by_stride(int* dims, int count, const int64_t* strides) {
  for (int i = 1; i < count; ++i) {
    int dim = dims[i];
    int place = i;
    for (; place > 0 && strides[dims[place - 1]] < strides[dim]; --place) {
      dims[place] = dims[place - 1];
    }
    dims[place] = dim;
  }
}

// Dimensions of size 1 have no place in flat order: they stay where they are, so that a base which
// differs from row-major only in them needs no transpose.
static void plan_base(const tpu_meta_t* base, tpu_view_plan_t* plan) {
  int dims[TPU_MAX_RANK];
  int count = 0;
  plan->base_rank = base->rank;
  for (int i = 0; i < base->rank; ++i) {
    plan->base_permutation[i] = i;
    if (base->sizes[i] > 1) dims[count++] = i;
  }
  if (base->numel == 0) return;
  sort_by_stride(dims, count, base->strides);
  int next = 0;
  for (int i = 0; i < base->rank; ++i) {
    if (base->sizes[i] > 1) plan->base_permutation[i] = dims[next++];
    if (plan->base_permutation[i] != i) plan->transpose_base = true;
  }
}

static void add_factor(tpu_view_plan_t* plan, int64_t factor, int64_t start, int64_t count,
                       int64_t step) {
  int k = plan->factor_count++;
  plan->factors[k] = factor;
  plan->starts[k] = start;
  plan->counts[k] = count;
  plan->steps[k] = step;
}

// Notes the view's dimensions that are not broadcast, in flat order.
static void plan_kept(const tpu_meta_t* view, tpu_view_plan_t* plan) {
  for (int i = 0; i < view->rank; ++i) {
    if (view->sizes[i] > 1 && view->strides[i] > 0) plan->kept_dims[plan->kept_count++] = i;
  }
  sort_by_stride(plan->kept_dims, plan->kept_count, view->strides);
  for (int i = 0; i < plan->kept_count; ++i) plan->kept[i] = view->sizes[plan->kept_dims[i]];
}

// Kept dimensions as runs; those that continue each other are merged unless they stay `apart`.
// Returns the number of runs.
static int find_runs(const tpu_meta_t* view, const tpu_view_plan_t* plan, bool apart,
                     run_t runs[TPU_MAX_RANK]) {
  int count = 0;
  for (int i = 0; i < plan->kept_count; ++i) {
    int64_t size = plan->kept[i];
    int64_t stride = view->strides[plan->kept_dims[i]];
    if (!apart && count > 0 && runs[count - 1].stride % size == 0 &&
        runs[count - 1].stride / size == stride) {
      runs[count - 1].size *= size;
      runs[count - 1].stride = stride;
    } else {
      runs[count++] = (run_t){size, stride};
    }
  }
  return count;
}

// The greedy choice of cuts. False when no chain exists.
static bool plan_factors(const run_t* runs, int run_count, int64_t numel, int64_t offset,
                         tpu_view_plan_t* plan) {
  int64_t cut = numel;
  for (int k = 0; k < run_count; ++k) {
    int64_t inside = offset % cut;
    if ((runs[k].size - 1) * runs[k].stride >= cut - inside) return false;
    int64_t next = greatest_common_divisor(runs[k].stride, cut);
    add_factor(plan, cut / next, inside / next, runs[k].size, runs[k].stride / next);
    cut = next;
  }
  // What is left below the innermost run is one position; so is all of a view of one element.
  if (cut > 1 || run_count == 0) add_factor(plan, cut, offset % cut, 1, 1);
  return true;
}

typedef struct digit_t {
  int64_t factor, start, count, step;
} digit_t;

// Replaces factor k by two, `outer` around `inner`.
static void replace_factor(tpu_view_plan_t* plan, int k, digit_t outer, digit_t inner) {
  int64_t* const columns[] = {plan->factors, plan->starts, plan->counts, plan->steps};
  const int64_t outer_row[] = {outer.factor, outer.start, outer.count, outer.step};
  const int64_t inner_row[] = {inner.factor, inner.start, inner.count, inner.step};
  size_t behind = (size_t)(plan->factor_count - k - 1);
  for (int c = 0; c < 4; ++c) {
    memmove(columns[c] + k + 2, columns[c] + k + 1, behind * sizeof(int64_t));
    columns[c][k] = outer_row[c];
    columns[c][k + 1] = inner_row[c];
  }
  ++plan->factor_count;
}

// Cuts factor k so that its inner part has `inner` positions, if the slice allows it: either all of
// the slice lies in one inner part, or it consists of whole inner parts.
static void split_factor(tpu_view_plan_t* plan, int k, int64_t inner) {
  int64_t start = plan->starts[k], count = plan->counts[k], step = plan->steps[k];
  int64_t outer = plan->factors[k] / inner;
  digit_t around = {outer, start / inner, 1, 1};
  if (start % inner + (count - 1) * step < inner) {
    replace_factor(plan, k, around, (digit_t){inner, start % inner, count, step});
  } else if (step == 1 && start % inner == 0 && count % inner == 0) {
    around.count = count / inner;
    replace_factor(plan, k, around, (digit_t){inner, 0, inner, 1});
  }
}

// Cuts the flat space at `unit`, where a dimension of the base begins.
static void split_at(tpu_view_plan_t* plan, int64_t unit) {
  int64_t below = 1;  // unit of factor k
  for (int k = plan->factor_count - 1; k >= 0; --k) {
    int64_t above = below * plan->factors[k];
    if (unit > below && unit < above) {
      if (unit % below == 0 && above % unit == 0) split_factor(plan, k, unit / below);
      return;
    }
    below = above;
  }
}

static bool has_slices(const tpu_view_plan_t* plan) {
  for (int k = 0; k < plan->factor_count; ++k) {
    if (tpu_view_factor_is_sliced(plan, k)) return true;
  }
  return false;
}

bool tpu_view_plan_has_steps(const tpu_view_plan_t* plan) {
  for (int k = 0; k < plan->factor_count; ++k) {
    if (tpu_view_factor_is_sliced(plan, k) && plan->steps[k] != 1 && plan->counts[k] > 1) {
      return true;
    }
  }
  return false;
}

// A view without elements: nothing of the flat space, shaped like the view.
static void plan_empty(const tpu_meta_t* base, const tpu_meta_t* view, tpu_view_plan_t* plan) {
  plan->kind = TPU_VIEW_CHAIN;
  add_factor(plan, base->numel, 0, 0, 1);
  plan->slices = base->numel != 0;
  plan->whole = base->numel == 0;
  plan->kept_count = view->rank;
  for (int i = 0; i < view->rank; ++i) {
    plan->kept[i] = view->sizes[i];
    plan->kept_dims[i] = i;
  }
}

static void plan_chain(const tpu_meta_t* base, const tpu_meta_t* view, int64_t offset, bool apart,
                       tpu_view_plan_t* plan) {
  run_t runs[TPU_MAX_RANK];
  plan_kept(view, plan);
  int run_count = find_runs(view, plan, apart, runs);
  if (!plan_factors(runs, run_count, base->numel, offset, plan)) {
    plan->kind = TPU_VIEW_GATHER;
    plan->factor_count = 0;
    plan->kept_count = 0;
    add_factor(plan, base->numel, 0, base->numel, 1);
    return;
  }
  plan->kind = TPU_VIEW_CHAIN;
  plan->slices = has_slices(plan);
  // Strides that tile [0, N) without overlap are those of a dense tensor; nothing else is whole.
  plan->whole = !plan->slices && view->numel == base->numel;
  if (!plan->slices || apart) return;
  for (int i = 0; i < base->rank; ++i) {
    if (base->sizes[i] > 1) split_at(plan, base->strides[i]);
  }
}

// Strides of dimensions of size 1 do not count.
static bool is_identity(const tpu_meta_t* base, const tpu_meta_t* view, int64_t offset) {
  if (base->rank != view->rank) return false;
  if (offset != 0 && base->numel != 0) return false;
  for (int i = 0; i < base->rank; ++i) {
    if (base->sizes[i] != view->sizes[i]) return false;
    bool strides_matter = base->numel != 0 && base->sizes[i] > 1;
    if (strides_matter && base->strides[i] != view->strides[i]) return false;
  }
  return true;
}

static tpu_status_t make_plan(const tpu_meta_t* base, const tpu_meta_t* view, int64_t offset,
                              bool apart, tpu_view_plan_t* out_plan) {
  memset(out_plan, 0, sizeof(*out_plan));
  if (!base->dense) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "a storage's content must be dense");
  }
  plan_base(base, out_plan);
  if (view->numel == 0) {
    plan_empty(base, view, out_plan);
  } else if (offset < 0 || view->span > base->numel || offset > base->numel - view->span) {
    return tpu_status_make(TPU_OUT_OF_RANGE,
                           "a view of %lld elements from offset %lld needs more than the %lld "
                           "elements of its storage",
                           (long long)view->span, (long long)offset, (long long)base->numel);
  } else {
    plan_chain(base, view, offset, apart, out_plan);
  }
  if (is_identity(base, view, offset)) out_plan->kind = TPU_VIEW_IDENTITY;
  return NULL;
}

tpu_status_t tpu_view_plan(const tpu_meta_t* base, const tpu_meta_t* view, int64_t offset,
                           tpu_view_plan_t* out_plan) {
  return make_plan(base, view, offset, false, out_plan);
}

tpu_status_t tpu_view_plan_apart(const tpu_meta_t* base, const tpu_meta_t* view, int64_t offset,
                                 tpu_view_plan_t* out_plan) {
  return make_plan(base, view, offset, true, out_plan);
}

bool tpu_view_plan_starts(const tpu_view_plan_t* plan, int64_t offset, int64_t* out_starts) {
  memcpy(out_starts, plan->starts, (size_t)plan->factor_count * sizeof(*out_starts));
  if (plan->kind != TPU_VIEW_CHAIN) return true;
  bool fits = offset >= 0;
  for (int k = plan->factor_count - 1; k >= 0 && fits; --k) {
    if (plan->counts[k] == 0) return true;  // no elements: nothing depends on the offset
    out_starts[k] = offset % plan->factors[k];
    offset /= plan->factors[k];
    fits = out_starts[k] + (plan->counts[k] - 1) * plan->steps[k] < plan->factors[k];
  }
  return fits && offset == 0;
}
