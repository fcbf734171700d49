/* View plans (ops/views.h) as text: reading and writing storages through strided views. */
#include <string.h>

#include "lower/axes.h"
#include "lower/builder_internal.h"

/* --- dtype views --- */

static bool is_complex(tpu_dtype_t dtype) { return tpu_dtype_kind(dtype) == TPU_KIND_COMPLEX; }

static tpu_dtype_t complex_part(tpu_dtype_t dtype) { return dtype == TPU_C64 ? TPU_F32 : TPU_F64; }

/* Complex numbers as pairs of floats, in one more dimension of size 2. */
static tpui_hlo_t split_complex(tpui_builder_t* b, tpui_hlo_t x) {
  tpui_hlo_t parts[2] = {tpui_unsqueeze(b, tpui_unary(b, "real", x), x.rank),
                         tpui_unsqueeze(b, tpui_unary(b, "imag", x), x.rank)};
  return tpui_concatenate(b, 2, parts, x.rank);
}

static tpui_hlo_t join_complex(tpui_builder_t* b, tpui_hlo_t flat) {
  int64_t pairs[2] = {flat.sizes[0] / 2, 2};
  tpui_hlo_t x = tpui_reshape(b, flat, 2, pairs);
  tpui_hlo_t real = tpui_squeeze(b, tpui_slice_dim(b, x, 1, 0, 1), 1);
  tpui_hlo_t imag = tpui_squeeze(b, tpui_slice_dim(b, x, 1, 1, 2), 1);
  return tpui_binary(b, "complex", real, imag);
}

/* A flat value's bytes as another dtype; little endian, as in host memory. */
static tpui_hlo_t retype_flat(tpui_builder_t* b, tpui_hlo_t x, tpu_dtype_t dtype) {
  if (!tpui_ok(b) || x.dtype == dtype) return x;
  if (is_complex(x.dtype)) {
    int64_t count[1] = {x.sizes[0] * 2};
    return retype_flat(b, tpui_reshape(b, split_complex(b, x), 1, count), dtype);
  }
  if (is_complex(dtype)) {
    x = retype_flat(b, x, complex_part(dtype));
    return tpui_ok(b) ? join_complex(b, x) : x;
  }
  if (x.dtype == TPU_BOOL) return retype_flat(b, tpui_convert(b, x, TPU_U8), dtype);
  if (dtype == TPU_BOOL) return tpui_convert(b, retype_flat(b, x, TPU_U8), TPU_BOOL);
  int64_t from = (int64_t)tpu_dtype_bytes(x.dtype), to = (int64_t)tpu_dtype_bytes(dtype);
  if (from == to) return tpui_bitcast(b, x, dtype);
  if (from > to) {
    int64_t sizes[2] = {x.sizes[0], from / to}, flat[1] = {x.sizes[0] * (from / to)};
    x = tpui_raw(b, "stablehlo.bitcast_convert", 1, &x, "", "", dtype, 2, sizes);
    return tpui_reshape(b, x, 1, flat);
  }
  int64_t ratio = to / from, sizes[2] = {x.sizes[0] / ratio, ratio};
  // Bytes behind the last whole element are not reachable through this dtype.
  x = tpui_reshape(b, tpui_slice_dim(b, x, 0, 0, sizes[0] * ratio), 2, sizes);
  return tpui_raw(b, "stablehlo.bitcast_convert", 1, &x, "", "", dtype, 1, sizes);
}

/* True when a dtype view keeps sizes: same element size, no complex numbers. */
static bool retype_keeps_sizes(tpu_dtype_t from, tpu_dtype_t to) {
  return tpu_dtype_bytes(from) == tpu_dtype_bytes(to) && !is_complex(from) && !is_complex(to);
}

tpu_status_t tpui_view_base_meta(const tpu_meta_t* base_meta, tpu_dtype_t dtype,
                                 tpu_meta_id_t* out_id) {
  if (base_meta->dtype == dtype || retype_keeps_sizes(base_meta->dtype, dtype)) {
    return tpu_meta_intern(dtype, base_meta->rank, base_meta->sizes, base_meta->strides, out_id);
  }
  int64_t count = tpu_meta_bytes(base_meta) / (int64_t)tpu_dtype_bytes(dtype);
  return tpu_meta_intern_contiguous(dtype, 1, &count, out_id);
}

static tpui_hlo_t read_fixed(tpui_builder_t* b, tpui_hlo_t base, const tpu_meta_t* base_meta,
                             const tpu_meta_t* view, int64_t offset);

static const tpu_meta_t* flat_meta(tpui_builder_t* b, tpu_dtype_t dtype, int64_t count) {
  tpu_meta_id_t id = 0;
  tpui_latch_status(b, tpu_meta_intern_contiguous(dtype, 1, &count, &id));
  return tpui_ok(b) ? tpu_meta_get(id) : NULL;
}

tpui_hlo_t tpui_view_retype(tpui_builder_t* b, tpui_hlo_t base, const tpu_meta_t* base_meta,
                            tpu_dtype_t dtype, const tpu_meta_t** out_meta) {
  tpu_meta_id_t id = 0;
  *out_meta = base_meta;
  if (!tpui_ok(b) || base_meta->dtype == dtype) return base;
  tpui_latch_status(b, tpui_view_base_meta(base_meta, dtype, &id));
  if (!tpui_ok(b)) return tpui_harmless();
  *out_meta = tpu_meta_get(id);
  if (retype_keeps_sizes(base_meta->dtype, dtype)) return tpui_bitcast(b, base, dtype);
  const tpu_meta_t* flat = flat_meta(b, base_meta->dtype, base_meta->numel);
  if (flat == NULL) return tpui_harmless();
  return retype_flat(b, read_fixed(b, base, base_meta, flat, 0), dtype);
}

/* The inverse of tpui_view_retype: back to `base_meta`'s dtype and sizes. */
static tpui_hlo_t retype_back(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t old_base,
                              const tpu_meta_t* base_meta) {
  if (!tpui_ok(b) || x.dtype == base_meta->dtype) return x;
  if (retype_keeps_sizes(x.dtype, base_meta->dtype)) return tpui_bitcast(b, x, base_meta->dtype);
  x = retype_flat(b, x, base_meta->dtype);
  const tpu_meta_t* flat = flat_meta(b, base_meta->dtype, base_meta->numel);
  if (flat == NULL) return tpui_harmless();
  if (x.sizes[0] < base_meta->numel) {  // bytes that the other dtype could not reach
    tpui_hlo_t parts[2] = {x, read_fixed(b, old_base, base_meta, flat, 0)};
    parts[1] = tpui_slice_dim(b, parts[1], 0, x.sizes[0], base_meta->numel);
    x = tpui_concatenate(b, 2, parts, 0);
  }
  return read_fixed(b, x, flat, base_meta, 0);
}

/* --- plans --- */

/* Where a view stands: its plan, and its offset as a number or as arguments of the program. */
typedef struct place_t {
  const tpu_view_plan_t* plan;
  int64_t offset;
  const tpu_packed_slot_t* packed;  // NULL: the offset is fixed
} place_t;

/* The offset in `slot` of a view of what has metadata `base_meta`; a fixed one is planned into
 * `*plan`, dimensions `apart` or not. False after an error. */
static bool find_place(tpui_builder_t* b, const tpu_meta_t* base_meta, const tpu_meta_t* view,
                       uint32_t slot, bool apart, tpu_view_plan_t* plan, place_t* out_place) {
  if (!tpui_ok(b)) return false;
  *out_place = (place_t){plan, b->window->slots[slot].as_int, tpui_packed_slot(b, slot)};
  if (out_place->packed != NULL) {
    out_place->plan = out_place->packed->plan;
  } else {
    tpui_latch_status(b, apart ? tpu_view_plan_apart(base_meta, view, out_place->offset, plan)
                               : tpu_view_plan(base_meta, view, out_place->offset, plan));
  }
  return tpui_ok(b);
}

/* Whether flat indices are needed: no chain expresses the view, or not for offsets that vary. */
static bool is_indexed(const place_t* at) {
  return at->plan->kind == TPU_VIEW_GATHER ||
         (at->packed != NULL && tpu_packed_plan_is_flat(at->plan));
}

/* First index of each factor as rank-0 int64 values; dynamic ones come from the packed vector. */
static void start_values(tpui_builder_t* b, const tpu_packed_slot_t* packed,
                         tpui_hlo_t* out_starts) {
  int32_t position = (int32_t)packed->first;
  for (int i = 0; i < packed->plan->factor_count; ++i) {
    out_starts[i] = tpu_view_factor_is_sliced(packed->plan, i)
                        ? tpui_packed_number(b, false, position++)
                        : tpui_constant_int(b, TPU_I64, 0);
  }
}

/* Base in flat order, as the plan's factors. */
static tpui_hlo_t to_factors(tpui_builder_t* b, tpui_hlo_t base, const tpu_view_plan_t* plan) {
  if (plan->transpose_base) base = tpui_transpose(b, base, plan->base_permutation);
  return tpui_reshape(b, base, plan->factor_count, plan->factors);
}

static tpui_hlo_t from_factors(tpui_builder_t* b, tpui_hlo_t x, const tpu_view_plan_t* plan,
                               const tpu_meta_t* base_meta) {
  if (!plan->transpose_base) return tpui_reshape(b, x, base_meta->rank, base_meta->sizes);
  int64_t sizes[TPU_MAX_RANK];
  int inverse[TPU_MAX_RANK];
  for (int i = 0; i < plan->base_rank; ++i) {
    sizes[i] = base_meta->sizes[plan->base_permutation[i]];
    inverse[plan->base_permutation[i]] = i;
  }
  return tpui_transpose(b, tpui_reshape(b, x, plan->base_rank, sizes), inverse);
}

static void slice_bounds(const tpu_view_plan_t* plan, int64_t* out_limits) {
  for (int i = 0; i < plan->factor_count; ++i) {
    out_limits[i] = plan->counts[i] == 0
                        ? plan->starts[i]
                        : plan->starts[i] + (plan->counts[i] - 1) * plan->steps[i] + 1;
  }
}

static tpui_hlo_t read_chain(tpui_builder_t* b, tpui_hlo_t base, const tpu_meta_t* view,
                             const place_t* at) {
  const tpu_view_plan_t* plan = at->plan;
  tpui_hlo_t x = to_factors(b, base, plan);
  if (plan->slices && at->packed != NULL) {
    tpui_hlo_t starts[TPU_VIEW_MAX_FACTORS];
    start_values(b, at->packed, starts);
    x = tpui_dynamic_slice(b, x, starts, plan->counts);
  } else if (plan->slices) {
    int64_t limits[TPU_VIEW_MAX_FACTORS];
    slice_bounds(plan, limits);
    x = tpui_slice(b, x, plan->starts, limits, plan->steps);
  }
  x = tpui_reshape(b, x, plan->kept_count, plan->kept);
  return tpui_broadcast_in_dim(b, x, view->rank, view->sizes, plan->kept_dims);
}

/* --- views that no chain expresses --- */

/* Flat index of every view element, [numel, 1]. */
static tpui_hlo_t flat_indices(tpui_builder_t* b, const tpu_meta_t* base_meta,
                               const tpu_meta_t* view, const place_t* at) {
  tpu_dtype_t dtype = tpui_index_dtype(base_meta->numel);
  tpui_hlo_t index = tpui_constant_int(b, dtype, at->offset);
  if (at->packed != NULL) {
    index = tpui_convert(b, tpui_packed_number(b, false, (int32_t)at->packed->first), dtype);
  }
  for (int i = 0; i < view->rank; ++i) {
    if (view->sizes[i] == 1 || view->strides[i] == 0) continue;
    tpui_hlo_t along = tpui_iota(b, dtype, view->rank, view->sizes, i);
    index = tpui_binary(b, "add", index,
                        tpui_binary_constant(b, "multiply", along, (double)view->strides[i]));
  }
  int64_t sizes[2] = {view->numel, 1};
  return tpui_reshape(b, tpui_broadcast_to(b, index, view->rank, view->sizes), 2, sizes);
}

/* The base as one flat dimension in storage order. */
static tpui_hlo_t to_flat(tpui_builder_t* b, tpui_hlo_t base, const tpu_meta_t* base_meta) {
  const tpu_meta_t* flat = flat_meta(b, base_meta->dtype, base_meta->numel);
  return flat == NULL ? tpui_harmless() : read_fixed(b, base, base_meta, flat, 0);
}

static tpui_hlo_t read_gather(tpui_builder_t* b, tpui_hlo_t base, const tpu_meta_t* base_meta,
                              const tpu_meta_t* view, const place_t* at) {
  tpui_hlo_t operands[2] = {to_flat(b, base, base_meta), flat_indices(b, base_meta, view, at)};
  int64_t count[1] = {view->numel};
  tpui_hlo_t x = tpui_raw(b, "stablehlo.gather", 2, operands,
                          "dimension_numbers = #stablehlo.gather<collapsed_slice_dims = [0], "
                          "start_index_map = [0], index_vector_dim = 1>, slice_sizes = "
                          "array<i64: 1>, indices_are_sorted = false",
                          "", base.dtype, 1, count);
  return tpui_reshape(b, x, view->rank, view->sizes);
}

/* --- reading --- */

static tpui_hlo_t read_at(tpui_builder_t* b, tpui_hlo_t base, const tpu_meta_t* base_meta,
                          const tpu_meta_t* view, const place_t* at) {
  if (at->plan->kind == TPU_VIEW_IDENTITY) return base;
  if (is_indexed(at)) return read_gather(b, base, base_meta, view, at);
  return read_chain(b, base, view, at);
}

static tpui_hlo_t read_fixed(tpui_builder_t* b, tpui_hlo_t base, const tpu_meta_t* base_meta,
                             const tpu_meta_t* view, int64_t offset) {
  tpu_view_plan_t plan;
  if (!tpui_ok(b)) return tpui_harmless();
  if (view->numel == 0) return tpui_full(b, base.dtype, 0.0, view->rank, view->sizes);
  tpui_latch_status(b, tpu_view_plan(base_meta, view, offset, &plan));
  if (!tpui_ok(b)) return tpui_harmless();
  return read_at(b, base, base_meta, view, &(place_t){&plan, offset, NULL});
}

tpui_hlo_t tpui_view_read(tpui_builder_t* b, tpui_hlo_t base, const tpu_meta_t* base_meta,
                          const tpu_meta_t* view, uint32_t slot) {
  tpu_view_plan_t plan;
  place_t at;
  if (!tpui_ok(b)) return tpui_harmless();
  if (view->numel == 0) return tpui_full(b, view->dtype, 0.0, view->rank, view->sizes);
  const tpu_meta_t* meta = base_meta;
  base = tpui_view_retype(b, base, base_meta, view->dtype, &meta);
  if (!find_place(b, meta, view, slot, false, &plan, &at)) return tpui_harmless();
  return read_at(b, base, meta, view, &at);
}

/* --- axes --- */

/* Kind CHAIN of a plan whose dimensions are apart: one factor for each kept dimension. */
static void axes_of_chain(tpui_builder_t* b, const place_t* at, tpui_axes_t* axes) {
  const tpu_view_plan_t* plan = at->plan;
  axes->array = to_factors(b, axes->base, plan);
  for (int k = 0; k < plan->kept_count; ++k) {
    axes->axes[plan->kept_dims[k]] = k;
    axes->steps[plan->kept_dims[k]] = plan->steps[k];
  }
  for (int k = 0; k < plan->factor_count && at->packed == NULL; ++k) {
    axes->starts[k] = tpui_constant_int(b, TPU_I64, plan->starts[k]);
    axes->moved[k] = plan->starts[k] != 0;
  }
  if (at->packed == NULL) return;
  start_values(b, at->packed, axes->starts);
  for (int k = 0; k < plan->factor_count; ++k) {
    axes->moved[k] = tpu_view_factor_is_sliced(plan, k);
  }
}

/* One axis, the flat order of the content. */
static void axes_of_flat(tpui_builder_t* b, const place_t* at, const tpu_meta_t* view,
                         tpui_axes_t* axes) {
  axes->array = to_flat(b, axes->base, axes->meta);
  for (int i = 0; i < view->rank; ++i) {
    if (view->sizes[i] == 1 || view->strides[i] == 0) continue;
    axes->axes[i] = 0;
    axes->steps[i] = view->strides[i];
  }
  axes->starts[0] = at->packed != NULL ? tpui_packed_number(b, false, (int32_t)at->packed->first)
                                       : tpui_constant_int(b, TPU_I64, at->offset);
  axes->moved[0] = at->packed != NULL || at->offset != 0;
}

static void find_axes(tpui_builder_t* b, const place_t* at, const tpu_meta_t* view,
                      tpui_axes_t* axes) {
  axes->plan = *at->plan;
  if (is_indexed(at)) axes->plan.kind = TPU_VIEW_GATHER;
  axes->rank = view->rank;
  for (int i = 0; i < view->rank; ++i) {
    axes->sizes[i] = view->sizes[i];
    axes->axes[i] = -1;
  }
  if (axes->plan.kind == TPU_VIEW_GATHER) {
    axes_of_flat(b, at, view, axes);
  } else {
    axes_of_chain(b, at, axes);
  }
}

bool tpui_view_axes(const tpui_lowering_t* op, tpui_axes_t* out_axes) {
  tpui_builder_t* b = op->b;
  *out_axes = (tpui_axes_t){.array = tpui_harmless()};
  tpu_view_plan_t plan;
  place_t at;
  uint32_t ref = tpu_record_ref(op->record, 0), slot = tpu_record_slot(op->record, 0);
  if (!tpui_ok(b) || (ref & TPU_REF_VIEW_BIT) == 0) return false;
  const tpu_meta_t* view = tpui_operand_meta(op, 0);
  if (view->numel == 0 || view->rank == 0) return false;
  out_axes->base_meta = tpu_meta_get(tpu_window_ref_meta(b->window, ref));
  out_axes->base = tpui_view_retype(b, tpui_base_value(b, ref), out_axes->base_meta, view->dtype,
                                    &out_axes->meta);
  if (!find_place(b, out_axes->meta, view, slot, true, &plan, &at)) return false;
  if (at.plan->kind == TPU_VIEW_IDENTITY) return false;
  find_axes(b, &at, view, out_axes);
  return tpui_ok(b);
}

/* The content, in the tensor's dtype, from the axes' array. */
static tpui_hlo_t from_axes(tpui_builder_t* b, const tpui_axes_t* axes, tpui_hlo_t array) {
  if (axes->plan.kind != TPU_VIEW_GATHER) return from_factors(b, array, &axes->plan, axes->meta);
  const tpu_meta_t* flat = flat_meta(b, axes->meta->dtype, axes->meta->numel);
  return flat == NULL ? tpui_harmless() : read_fixed(b, array, flat, axes->meta, 0);
}

/* --- writing --- */

/* Update (view sizes) -> the sliced factors. Dimensions that several view elements share take their
 * first element. */
static tpui_hlo_t update_to_counts(tpui_builder_t* b, tpui_hlo_t update, const tpu_meta_t* view,
                                   const tpu_view_plan_t* plan) {
  int order[TPU_MAX_RANK];
  int at = 0;
  bool kept[TPU_MAX_RANK] = {false};
  for (int i = 0; i < plan->kept_count; ++i) {
    order[at++] = plan->kept_dims[i];
    kept[plan->kept_dims[i]] = true;
  }
  for (int i = 0; i < view->rank; ++i) {
    if (kept[i]) continue;
    order[at++] = i;
    update = tpui_slice_dim(b, update, i, 0, 1);
  }
  return tpui_reshape(b, tpui_transpose(b, update, order), plan->factor_count, plan->counts);
}

/* Steps leave holes: the update is spread out and a mask says where it counts. */
static tpui_hlo_t write_stepped(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t update,
                                const tpu_view_plan_t* plan) {
  int64_t high[TPU_VIEW_MAX_FACTORS], inner[TPU_VIEW_MAX_FACTORS], limits[TPU_VIEW_MAX_FACTORS];
  slice_bounds(plan, limits);
  for (int i = 0; i < plan->factor_count; ++i) {
    high[i] = plan->factors[i] - limits[i];
    inner[i] = plan->counts[i] > 1 ? plan->steps[i] - 1 : 0;
  }
  tpui_hlo_t mask = tpui_full(b, TPU_BOOL, 1.0, update.rank, update.sizes);
  mask = tpui_pad(b, mask, tpui_constant(b, TPU_BOOL, 0.0), plan->starts, high, inner);
  update = tpui_pad(b, update, tpui_constant(b, update.dtype, 0.0), plan->starts, high, inner);
  return tpui_select(b, mask, update, x);
}

static tpui_hlo_t write_chain(tpui_builder_t* b, tpui_hlo_t base, const tpu_meta_t* base_meta,
                              const tpu_meta_t* view, const place_t* at, tpui_hlo_t update) {
  const tpu_view_plan_t* plan = at->plan;
  update = update_to_counts(b, update, view, plan);
  if (plan->whole || !plan->slices) return from_factors(b, update, plan, base_meta);
  tpui_hlo_t x = to_factors(b, base, plan);
  if (tpu_view_plan_has_steps(plan)) {
    x = write_stepped(b, x, update, plan);
  } else {
    tpui_hlo_t starts[TPU_VIEW_MAX_FACTORS];
    for (int i = 0; i < plan->factor_count && at->packed == NULL; ++i) {
      starts[i] = tpui_constant_int(b, tpui_index_dtype(base_meta->numel), plan->starts[i]);
    }
    if (at->packed != NULL) start_values(b, at->packed, starts);
    x = tpui_dynamic_update_slice(b, x, update, starts);
  }
  return from_factors(b, x, plan, base_meta);
}

/* Whether the holes of a stepped view are so much larger than it is that going round them, place by
 * place, beats one pass over the content: about 1 us for each place, 4 bytes a ns for a pass. */
static bool is_sparse(const place_t* at, const tpu_meta_t* base_meta, const tpu_meta_t* view) {
  return tpu_view_plan_has_steps(at->plan) && view->numel < tpu_meta_bytes(base_meta) / 4096;
}

/* As a scatter of slices that are as long as the view allows. */
static tpui_hlo_t write_axes(tpui_builder_t* b, tpui_hlo_t base, const tpu_meta_t* base_meta,
                             const tpu_meta_t* view, const place_t* at, tpui_hlo_t update) {
  tpui_axes_t axes = {.base = base, .base_meta = base_meta, .meta = base_meta};
  tpu_view_plan_t apart;
  place_t place = *at;
  if (at->packed == NULL) {
    place.plan = &apart;
    tpui_latch_status(b, tpu_view_plan_apart(base_meta, view, at->offset, &apart));
    if (!tpui_ok(b)) return tpui_harmless();
  }
  find_axes(b, &place, view, &axes);
  return from_axes(b, &axes, tpui_axes_scatter(b, "set", &axes, &(tpui_pick_t){0}, update));
}

tpui_hlo_t tpui_view_write(tpui_builder_t* b, tpui_hlo_t base, const tpu_meta_t* base_meta,
                           const tpu_meta_t* view, uint32_t slot, tpui_hlo_t update) {
  tpu_view_plan_t plan;
  place_t at;
  if (!tpui_ok(b) || view->numel == 0) return base;
  const tpu_meta_t* meta = base_meta;
  tpui_hlo_t x = tpui_view_retype(b, base, base_meta, view->dtype, &meta);
  update = tpui_convert(b, update, view->dtype);
  update = tpui_broadcast_to(b, update, view->rank, view->sizes);
  if (!find_place(b, meta, view, slot, false, &plan, &at)) return tpui_harmless();
  if (at.plan->kind == TPU_VIEW_IDENTITY) {
    x = update;
  } else if (is_indexed(&at) || is_sparse(&at, meta, view)) {
    x = write_axes(b, x, meta, view, &at, update);
  } else {
    x = write_chain(b, x, meta, view, &at, update);
  }
  return retype_back(b, x, base, base_meta);
}

void tpui_view_write_result(const tpui_lowering_t* op, tpui_hlo_t value) {
  tpui_builder_t* b = op->b;
  uint32_t ref = tpu_record_ref(op->record, 0);
  tpui_hlo_t base = tpui_base_value(b, ref);
  const tpu_meta_t* base_meta = tpu_meta_get(tpu_window_ref_meta(b->window, ref));
  value = tpui_view_write(b, base, base_meta, tpui_operand_meta(op, 0),
                          tpu_record_slot(op->record, 0), value);
  if (tpui_ok(b)) b->values[op->record->first_value] = value;
}

void tpui_view_set_axes(const tpui_lowering_t* op, const tpui_axes_t* axes, tpui_hlo_t array) {
  tpui_builder_t* b = op->b;
  if (!tpui_ok(b)) return;
  tpui_hlo_t old = tpui_base_value(b, tpu_record_ref(op->record, 0));
  tpui_hlo_t content = retype_back(b, from_axes(b, axes, array), old, axes->base_meta);
  if (tpui_ok(b)) b->values[op->record->first_value] = content;
}
