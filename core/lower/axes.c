#include "lower/axes.h"

#include <string.h>

#include "lower/builder_internal.h"
#include "lower/gather.h"

tpui_axes_t tpui_axes_whole(tpui_builder_t* b, tpui_hlo_t x) {
  x = tpui_at_least_1d(b, x);
  tpui_axes_t result = {.array = x, .rank = x.rank};
  for (int i = 0; i < x.rank; ++i) {
    result.sizes[i] = x.sizes[i];
    result.axes[i] = i;
    result.steps[i] = 1;
  }
  return result;
}

tpui_axes_t tpui_axes_operand(const tpui_lowering_t* op) {
  tpui_axes_t result;
  if (tpui_view_axes(op, &result)) return result;
  return tpui_axes_whole(op->b, tpui_operand(op, 0));
}

tpui_axes_t tpui_axes_target(const tpui_lowering_t* op, tpu_dtype_t dtype) {
  tpui_axes_t result;
  const tpu_meta_t* meta = tpui_operand_meta(op, 0);
  bool through = tpui_writes_through(op) && meta->dtype == dtype;
  if (through && tpui_view_axes(op, &result)) return result;
  return tpui_axes_whole(op->b, tpui_operand_as(op, 0, dtype));
}

void tpui_axes_set_result(const tpui_lowering_t* op, const tpui_axes_t* x, tpui_hlo_t array) {
  if (x->meta == NULL) {
    tpui_set_result_reshaped(op, 0, array);
  } else {
    tpui_view_set_axes(op, x, array);
  }
}

/* --- slices and their places --- */

/* Updates (results, read the other way) in the order in which they are scattered: dimensions that
 * count slices, then those of a slice, which ascend by axis. */
typedef struct order_t {
  int rank;                           // of the updates
  int64_t sizes[2 * TPU_MAX_RANK];    // their sizes as the operation has them
  int dims[2 * TPU_MAX_RANK];         // tensor's dimension, or -1 - i for dimension i of the shape
  int order[2 * TPU_MAX_RANK];        // permutation of them
  int batch_count;                    // dimensions in front that count slices
  int slice_axes[TPU_MAX_RANK];       // axis of each slice dimension, after neighbours are merged
  int64_t slice_sizes[TPU_MAX_RANK];  // its positions
  int slice_count;
  bool same;  // the permutation and the merging change nothing but where dimensions stand
} order_t;

static bool is_picked(const tpui_pick_t* pick, int dim) {
  for (int k = 0; k < pick->count; ++k) {
    if (pick->dims[k] == dim) return true;
  }
  return false;
}

static void list_dims(const tpui_axes_t* x, const tpui_pick_t* pick, order_t* o) {
  int whole = 0;
  for (int d = 0; d <= x->rank; ++d) {
    if (d < x->rank && is_picked(pick, d)) continue;
    for (int i = 0; whole == pick->at && i < pick->rank; ++i) {
      o->sizes[o->rank] = pick->sizes[i];
      o->dims[o->rank++] = -1 - i;
    }
    ++whole;
    if (d == x->rank) break;
    o->sizes[o->rank] = x->sizes[d];
    o->dims[o->rank++] = d;
  }
}

/* The whole dimension on `axis` that goes on where `run` positions end, or -1. */
static int next_of_run(const tpui_axes_t* x, const order_t* o, int axis, int64_t run) {
  for (int i = 0; i < o->rank; ++i) {
    int d = o->dims[i];
    if (d < 0 || x->axes[d] != axis || x->steps[d] != run) continue;
    if (x->sizes[d] > 1 || x->meta == NULL) return i;
  }
  return -1;
}

/* Slices are as large as they can be: of each axis the positions that follow each other. */
static void find_slices(const tpui_axes_t* x, order_t* o) {
  bool sliced[2 * TPU_MAX_RANK] = {false};
  int inner[2 * TPU_MAX_RANK], count = 0, last = -1;
  o->same = true;
  for (int axis = 0; axis < x->array.rank; ++axis) {
    int64_t run = 1;
    int begin = count;
    for (int i; (i = next_of_run(x, o, axis, run)) >= 0 && !sliced[i]; run *= o->sizes[i]) {
      sliced[i] = true;
      inner[count++] = i;
    }
    if (count == begin) continue;
    o->slice_axes[o->slice_count] = axis;
    o->slice_sizes[o->slice_count++] = run;
    o->same = o->same && count == begin + 1 && inner[begin] > last;
    last = inner[begin];
    for (int i = begin, j = count - 1; i < j; ++i, --j) {  // found from the inside out
      int swap = inner[i];
      inner[i] = inner[j];
      inner[j] = swap;
    }
  }
  for (int i = 0; i < o->rank; ++i) {
    if (!sliced[i]) o->order[o->batch_count++] = i;
  }
  memcpy(o->order + o->batch_count, inner, (size_t)count * sizeof *inner);
}

/* Adds `value` (broadcast to the slices' counts) to the component of `axis`. */
static void add_part(tpui_builder_t* b, tpui_hlo_t* components, bool* given, int axis,
                     tpui_hlo_t value) {
  components[axis] = given[axis] ? tpui_add(b, components[axis], value) : value;
  given[axis] = true;
}

static tpui_hlo_t scale_index(tpui_builder_t* b, tpui_hlo_t index, int64_t step) {
  return step == 1 ? index : tpui_mul(b, index, tpui_constant_int(b, TPU_I64, step));
}

typedef struct places_t {
  int rank;  // dimensions that count slices
  int64_t sizes[2 * TPU_MAX_RANK];
  int shape_dims[TPU_MAX_RANK];  // where the common shape's dimensions stand among them
} places_t;

static places_t find_places(const order_t* o) {
  places_t p = {.rank = o->batch_count};
  for (int i = 0; i < o->batch_count; ++i) {
    int at = o->order[i];
    p.sizes[i] = o->sizes[at];
    if (o->dims[at] < 0) p.shape_dims[-1 - o->dims[at]] = i;
  }
  return p;
}

/* An index of the common shape among the dimensions that count slices. */
static tpui_hlo_t spread_index(tpui_builder_t* b, const tpui_pick_t* pick, const places_t* places,
                               tpui_hlo_t index) {
  index = tpui_broadcast_to(b, index, pick->rank, pick->sizes);
  return tpui_broadcast_in_dim(b, index, places->rank, places->sizes, places->shape_dims);
}

/* Scattering drops what leaves the array; what leaves the tensor and stays in it is sent out. */
static bool leaves_unseen(const tpui_axes_t* x, const tpui_pick_t* pick, int k) {
  int dim = pick->dims[k], axis = x->axes[dim];
  if (x->meta == NULL) return false;
  if (axis < 0 || x->moved[axis] || x->steps[dim] != 1) return true;
  return x->array.sizes[axis] != x->sizes[dim];
}

static tpui_hlo_t is_inside(tpui_builder_t* b, tpui_hlo_t index, int64_t size) {
  tpui_hlo_t below = tpui_compare(b, "LT", index, tpui_constant_int(b, TPU_I64, size));
  return tpui_binary(b, "and", tpui_compare_constant(b, "GE", index, 0), below);
}

/* First position of every slice on every axis where it is not 0, and these axes. */
static tpui_hlo_t find_starts(tpui_builder_t* b, const tpui_axes_t* x, const tpui_pick_t* pick,
                              const order_t* o, bool drop, tpui_gather_dims_t* dims) {
  places_t places = find_places(o);
  tpui_hlo_t components[TPU_VIEW_MAX_FACTORS], valid = tpui_harmless();
  bool given[TPU_VIEW_MAX_FACTORS] = {false}, check = false;
  for (int k = 0; k < pick->count; ++k) {
    int axis = x->axes[pick->dims[k]];
    tpui_hlo_t index = spread_index(b, pick, &places, pick->indices[k]);
    if (axis >= 0)
      add_part(b, components, given, axis, scale_index(b, index, x->steps[pick->dims[k]]));
    if (!drop || !leaves_unseen(x, pick, k)) continue;
    tpui_hlo_t here = is_inside(b, index, x->sizes[pick->dims[k]]);
    valid = check ? tpui_binary(b, "and", valid, here) : here;
    check = true;
  }
  for (int i = 0; i < o->batch_count; ++i) {
    int d = o->dims[o->order[i]];
    if (d < 0 || x->axes[d] < 0 || x->sizes[d] == 1) continue;
    tpui_hlo_t index = tpui_iota(b, TPU_I64, places.rank, places.sizes, i);
    add_part(b, components, given, x->axes[d], scale_index(b, index, x->steps[d]));
  }
  for (int axis = 0; axis < x->array.rank; ++axis) {
    if (x->moved[axis]) add_part(b, components, given, axis, x->starts[axis]);
    bool needed = axis == x->array.rank - 1 && dims->map_count == 0;
    if (needed && !given[axis]) components[axis] = tpui_constant_int(b, TPU_I64, 0);
    if (needed || given[axis]) dims->index_map[dims->map_count++] = axis;
  }
  // One component outside is enough.
  tpui_hlo_t* first = &components[dims->index_map[0]];
  if (check) *first = tpui_select(b, valid, *first, tpui_constant_int(b, TPU_I64, -1));
  dims->index_vector_dim = places.rank;
  int64_t sizes[2 * TPU_MAX_RANK + 1];
  memcpy(sizes, places.sizes, sizeof places.sizes);
  sizes[places.rank] = 1;
  for (int k = 0; k < dims->map_count; ++k) {
    tpui_hlo_t* component = &components[dims->index_map[k]];
    *component = tpui_broadcast_to(b, *component, places.rank, places.sizes);
    if (dims->map_count == 1) return *component;
    components[k] = tpui_reshape(b, *component, places.rank + 1, sizes);
  }
  return tpui_concatenate(b, dims->map_count, components, places.rank);
}

/* Dimension numbers but for the index map, and the sizes of a slice of the array. */
static void describe_slices(const tpui_axes_t* x, const order_t* o, tpui_gather_dims_t* dims,
                            int64_t* slice_sizes) {
  for (int k = 0; k < o->slice_count; ++k) {
    int64_t place = o->batch_count + k;
    for (int i = 0; o->same && i < o->rank; ++i) {
      if (o->order[o->batch_count + k] == i) place = i;
    }
    dims->window_dims[dims->window_count++] = place;
  }
  int next = 0;
  for (int axis = 0; axis < x->array.rank; ++axis) {
    bool sliced = next < o->slice_count && o->slice_axes[next] == axis;
    slice_sizes[axis] = sliced ? o->slice_sizes[next++] : 1;
    if (!sliced) dims->collapsed_dims[dims->collapsed_count++] = axis;
  }
}

/* Sizes in scattering order, with the dimensions of a slice merged where they share an axis. */
static int merged_sizes(const order_t* o, int64_t* out_sizes) {
  for (int i = 0; o->same && i < o->rank; ++i) out_sizes[i] = o->sizes[i];
  if (o->same) return o->rank;
  for (int i = 0; i < o->batch_count; ++i) out_sizes[i] = o->sizes[o->order[i]];
  for (int k = 0; k < o->slice_count; ++k) out_sizes[o->batch_count + k] = o->slice_sizes[k];
  return o->batch_count + o->slice_count;
}

static order_t find_order(const tpui_axes_t* x, const tpui_pick_t* pick) {
  order_t o = {0};
  list_dims(x, pick, &o);
  find_slices(x, &o);
  return o;
}

tpui_hlo_t tpui_axes_gather(tpui_builder_t* b, const tpui_axes_t* x, const tpui_pick_t* pick) {
  if (!tpui_ok(b)) return x->array;
  order_t o = find_order(x, pick);
  tpui_gather_dims_t dims = {0};
  int64_t slices[TPU_VIEW_MAX_FACTORS], sizes[2 * TPU_MAX_RANK];
  tpui_hlo_t starts = find_starts(b, x, pick, &o, false, &dims);
  describe_slices(x, &o, &dims, slices);
  int rank = merged_sizes(&o, sizes);
  tpui_hlo_t result = tpui_gather(b, x->array, starts, &dims, slices, rank, sizes);
  if (o.same) return result;
  int back[2 * TPU_MAX_RANK];
  for (int i = 0; i < o.rank; ++i) {
    back[o.order[i]] = i;
    sizes[i] = o.sizes[o.order[i]];
  }
  return tpui_transpose(b, tpui_reshape(b, result, o.rank, sizes), back);
}

tpui_hlo_t tpui_axes_scatter(tpui_builder_t* b, const char* kind, const tpui_axes_t* x,
                             const tpui_pick_t* pick, tpui_hlo_t updates) {
  if (!tpui_ok(b)) return x->array;
  order_t o = find_order(x, pick);
  tpui_gather_dims_t dims = {0};
  int64_t slices[TPU_VIEW_MAX_FACTORS], sizes[2 * TPU_MAX_RANK];
  tpui_hlo_t starts = find_starts(b, x, pick, &o, true, &dims);
  describe_slices(x, &o, &dims, slices);
  int rank = merged_sizes(&o, sizes);
  if (!o.same) updates = tpui_transpose(b, updates, o.order);
  updates = tpui_reshape(b, updates, rank, sizes);
  return tpui_scatter(b, kind, x->array, starts, updates, &dims);
}

int64_t tpui_axes_rows(const tpui_axes_t* x) {
  tpui_pick_t all = {0};
  order_t o = find_order(x, &all);
  int64_t rows = 1;
  for (int i = 0; i < o.batch_count; ++i) rows *= o.sizes[o.order[i]];
  return rows;
}
