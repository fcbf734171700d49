/* Elementwise operations, reductions and dot products. */
#include <stdio.h>
#include <string.h>

#include "lower/builder_internal.h"

/* --- elementwise --- */

static tpu_dtype_t unary_result(const char* name, tpu_dtype_t dtype) {
  if (strcmp(name, "is_finite") == 0) return TPU_BOOL;
  if (tpu_dtype_kind(dtype) != TPU_KIND_COMPLEX) return dtype;
  if (strcmp(name, "abs") == 0 || strcmp(name, "real") == 0 || strcmp(name, "imag") == 0) {
    return dtype == TPU_C64 ? TPU_F32 : TPU_F64;
  }
  return dtype;
}

static tpui_hlo_t dialect_unary(tpui_builder_t* b, const char* dialect, const char* name,
                                tpui_hlo_t x) {
  char full[64];
  snprintf(full, sizeof full, "%s.%s", dialect, name);
  return tpui_raw(b, full, 1, &x, "", "", unary_result(name, x.dtype), x.rank, x.sizes);
}

tpui_hlo_t tpui_unary(tpui_builder_t* b, const char* name, tpui_hlo_t x) {
  return dialect_unary(b, "stablehlo", name, x);
}

tpui_hlo_t tpui_chlo(tpui_builder_t* b, const char* name, tpui_hlo_t x) {
  return dialect_unary(b, "chlo", name, x);
}

static bool same_dtypes(tpui_builder_t* b, const char* name, tpui_hlo_t x, tpui_hlo_t y) {
  if (tpui_ok(b) && x.dtype != y.dtype) {
    tpui_fail(b, TPU_INTERNAL, "%s of %s and %s", name, tpu_dtype_name(x.dtype),
              tpu_dtype_name(y.dtype));
  }
  return tpui_ok(b);
}

tpui_hlo_t tpui_binary(tpui_builder_t* b, const char* name, tpui_hlo_t x, tpui_hlo_t y) {
  char full[64];
  if (!same_dtypes(b, name, x, y)) return tpui_harmless();
  tpui_broadcast_pair(b, &x, &y);
  tpui_hlo_t operands[2] = {x, y};
  snprintf(full, sizeof full, "stablehlo.%s", name);
  tpu_dtype_t dtype = x.dtype;
  if (strcmp(name, "complex") == 0) dtype = x.dtype == TPU_F32 ? TPU_C64 : TPU_C128;
  return tpui_raw(b, full, 2, operands, "", "", dtype, x.rank, x.sizes);
}

tpui_hlo_t tpui_binary_constant(tpui_builder_t* b, const char* name, tpui_hlo_t x, double y) {
  return tpui_binary(b, name, x, tpui_constant(b, x.dtype, y));
}

tpui_hlo_t tpui_compare(tpui_builder_t* b, const char* direction, tpui_hlo_t x, tpui_hlo_t y) {
  if (!same_dtypes(b, "compare", x, y)) return tpui_harmless();
  tpui_broadcast_pair(b, &x, &y);
  tpui_hlo_t operands[2] = {x, y};
  return tpui_raw(
      b, "stablehlo.compare", 2, operands,
      tpui_text(b, "comparison_direction = #stablehlo<comparison_direction %s>", direction), "",
      TPU_BOOL, x.rank, x.sizes);
}

tpui_hlo_t tpui_compare_constant(tpui_builder_t* b, const char* direction, tpui_hlo_t x, double y) {
  return tpui_compare(b, direction, x, tpui_constant(b, x.dtype, y));
}

tpui_hlo_t tpui_select(tpui_builder_t* b, tpui_hlo_t condition, tpui_hlo_t if_true,
                       tpui_hlo_t if_false) {
  if (!same_dtypes(b, "select", if_true, if_false)) return tpui_harmless();
  if (condition.dtype != TPU_BOOL) condition = tpui_convert(b, condition, TPU_BOOL);
  tpui_broadcast_pair(b, &if_true, &if_false);
  tpui_broadcast_pair(b, &condition, &if_true);
  tpui_broadcast_pair(b, &if_true, &if_false);
  tpui_hlo_t operands[3] = {condition, if_true, if_false};
  return tpui_raw(b, "stablehlo.select", 3, operands, "", "", if_true.dtype, if_true.rank,
                  if_true.sizes);
}

tpui_hlo_t tpui_is_nan(tpui_builder_t* b, tpui_hlo_t x) {
  if (tpu_dtype_is_integral(x.dtype)) return tpui_full(b, TPU_BOOL, 0.0, x.rank, x.sizes);
  return tpui_compare(b, "NE", x, x);
}

/* --- reductions --- */

static tpui_hlo_t reduce_identity(tpui_builder_t* b, const char* kind, tpu_dtype_t dtype) {
  if (strcmp(kind, "add") == 0 || strcmp(kind, "or") == 0) return tpui_constant(b, dtype, 0.0);
  if (strcmp(kind, "multiply") == 0) return tpui_constant(b, dtype, 1.0);
  if (strcmp(kind, "and") == 0) return tpui_constant_int(b, dtype, dtype == TPU_BOOL ? 1 : -1);
  if (strcmp(kind, "maximum") == 0) return tpui_lowest(b, dtype);
  if (strcmp(kind, "minimum") == 0) return tpui_highest(b, dtype);
  tpui_fail(b, TPU_INTERNAL, "no reduction \"%s\"", kind);
  return tpui_harmless();
}

/* Marks reduced dimensions; sorted, as the text must not depend on the caller's order. */
static bool mark_dims(tpui_builder_t* b, tpui_hlo_t x, int count, const int* dims, bool* marked) {
  memset(marked, 0, sizeof(bool) * TPUI_MAX_HLO_RANK);
  for (int i = 0; i < count; ++i) {
    if (dims[i] < 0 || dims[i] >= x.rank || marked[dims[i]]) {
      tpui_fail(b, TPU_INTERNAL, "reduction over dimension %d of %d", dims[i], x.rank);
      return false;
    }
    marked[dims[i]] = true;
  }
  return tpui_ok(b);
}

tpui_hlo_t tpui_reduce(tpui_builder_t* b, const char* kind, tpui_hlo_t x, int count,
                       const int* dims) {
  bool marked[TPUI_MAX_HLO_RANK];
  int64_t sizes[TPUI_MAX_HLO_RANK], reduced[TPUI_MAX_HLO_RANK];
  int rank = 0, reduced_count = 0;
  if (!mark_dims(b, x, count, dims, marked)) return tpui_harmless();
  if (count == 0) return x;
  bool narrow = x.dtype == TPU_F16 || x.dtype == TPU_BF16;
  if (narrow && (strcmp(kind, "add") == 0 || strcmp(kind, "multiply") == 0)) {
    // Sums of 16-bit floats are accumulated in float32, as PyTorch does.
    tpu_dtype_t dtype = x.dtype;
    return tpui_convert(b, tpui_reduce(b, kind, tpui_convert(b, x, TPU_F32), count, dims), dtype);
  }
  for (int i = 0; i < x.rank; ++i) {
    if (marked[i])
      reduced[reduced_count++] = i;
    else
      sizes[rank++] = x.sizes[i];
  }
  tpui_hlo_t operands[2] = {x, reduce_identity(b, kind, x.dtype)};
  return tpui_raw(b, "stablehlo.reduce", 2, operands,
                  tpui_text(b, "dimensions = %s", tpui_text_array(b, reduced_count, reduced)),
                  tpui_text_combiner(b, kind, x.dtype), x.dtype, rank, sizes);
}

tpui_hlo_t tpui_reduce_keep(tpui_builder_t* b, const char* kind, tpui_hlo_t x, int count,
                            const int* dims) {
  int64_t sizes[TPUI_MAX_HLO_RANK];
  for (int i = 0; i < x.rank; ++i) sizes[i] = x.sizes[i];
  for (int i = 0; i < count; ++i) {
    if (dims[i] >= 0 && dims[i] < x.rank) sizes[dims[i]] = 1;
  }
  return tpui_reshape(b, tpui_reduce(b, kind, x, count, dims), x.rank, sizes);
}

/* Region over (value, index) pairs: the first argument wins when its value is more extreme, or
 * equal with a smaller index; NaN is more extreme than any number. */
static const char* arg_region(tpui_builder_t* b, const char* direction, tpu_dtype_t dtype,
                              tpu_dtype_t index_dtype) {
  const char* v = tpui_text_type(b, (tpui_type_t){dtype, 0, NULL});
  const char* i = tpui_text_type(b, (tpui_type_t){index_dtype, 0, NULL});
  bool is_float = tpu_dtype_is_float(dtype);
  const char* compare =
      "%%%s = \"stablehlo.compare\"(%%%s, %%%s) <{comparison_direction = "
      "#stablehlo<comparison_direction %s>}> : (%s, %s) -> tensor<i1>\n";
  tpu_strbuf_t t = {0};
  tpu_strbuf_printf(&t, "({\n^bb0(%%l: %s, %%li: %s, %%r: %s, %%ri: %s):\n", v, i, v, i);
  tpu_strbuf_printf(&t, compare, "better", "l", "r", direction, v, v);
  tpu_strbuf_printf(&t, compare, "equal", "l", "r", "EQ", v, v);
  tpu_strbuf_printf(&t, compare, "first", "li", "ri", "LT", i, i);
  const char* bools = "(tensor<i1>, tensor<i1>) -> tensor<i1>";
  const char *win = "better", *tie = "equal";
  if (is_float) {
    tpu_strbuf_printf(&t, compare, "lnan", "l", "l", "NE", v, v);
    tpu_strbuf_printf(&t, compare, "rok", "r", "r", "EQ", v, v);
    tpu_strbuf_printf(&t, "%%lonly = \"stablehlo.and\"(%%lnan, %%rok) : %s\n", bools);
    tpu_strbuf_printf(&t, "%%win = \"stablehlo.or\"(%%better, %%lonly) : %s\n", bools);
    tpu_strbuf_printf(&t, compare, "rnan", "r", "r", "NE", v, v);
    tpu_strbuf_printf(&t, "%%both = \"stablehlo.and\"(%%lnan, %%rnan) : %s\n", bools);
    tpu_strbuf_printf(&t, "%%tie = \"stablehlo.or\"(%%equal, %%both) : %s\n", bools);
    win = "win";
    tie = "tie";
  }
  tpu_strbuf_printf(&t, "%%early = \"stablehlo.and\"(%%%s, %%first) : %s\n", tie, bools);
  tpu_strbuf_printf(&t, "%%take = \"stablehlo.or\"(%%%s, %%early) : %s\n", win, bools);
  tpu_strbuf_printf(&t,
                    "%%v = \"stablehlo.select\"(%%take, %%l, %%r) : (tensor<i1>, %s, %s) -> %s\n"
                    "%%i = \"stablehlo.select\"(%%take, %%li, %%ri) : (tensor<i1>, %s, %s) -> %s\n"
                    "\"stablehlo.return\"(%%v, %%i) : (%s, %s) -> ()\n})",
                    v, v, v, i, i, i, v, i);
  tpui_latch_status(b, tpu_strbuf_status(&t));
  const char* text = tpui_text(b, "%s", tpu_strbuf_text(&t));
  tpu_strbuf_free(&t);
  return text;
}

void tpui_arg_reduce(tpui_builder_t* b, const char* direction, tpui_hlo_t x, int dim,
                     tpui_hlo_t* out_value, tpui_hlo_t* out_index) {
  int64_t sizes[TPUI_MAX_HLO_RANK], dims[1] = {dim};
  bool marked[TPUI_MAX_HLO_RANK];
  *out_value = *out_index = tpui_harmless();
  if (!mark_dims(b, x, 1, &dim, marked)) return;
  int rank = 0;
  for (int i = 0; i < x.rank; ++i) {
    if (i != dim) sizes[rank++] = x.sizes[i];
  }
  tpu_dtype_t index_dtype = tpui_index_dtype(x.sizes[dim]);
  bool greatest = strcmp(direction, "GT") == 0;
  // The neutral pair loses every tie because its index is the largest one.
  tpui_hlo_t operands[4] = {x, tpui_iota(b, index_dtype, x.rank, x.sizes, dim),
                            greatest ? tpui_lowest(b, x.dtype) : tpui_highest(b, x.dtype),
                            tpui_highest(b, index_dtype)};
  tpui_type_t types[2] = {{x.dtype, rank, sizes}, {index_dtype, rank, sizes}};
  tpui_hlo_t results[2];
  tpui_raw_multi(b, "stablehlo.reduce", 4, operands,
                 tpui_text(b, "dimensions = %s", tpui_text_array(b, 1, dims)),
                 arg_region(b, direction, x.dtype, index_dtype), 2, types, results);
  *out_value = results[0];
  *out_index = results[1];
}

/* --- matrices --- */

const char* tpui_text_precision(const tpui_builder_t* b, tpu_dtype_t dtype) {
  static const char* const texts[] = {
      [TPU_PRECISION_HIGHEST] =
          "precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]",
      [TPU_PRECISION_HIGH] =
          "precision_config = [#stablehlo<precision HIGH>, #stablehlo<precision HIGH>]",
      [TPU_PRECISION_DEFAULT] =
          "precision_config = [#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]",
  };
  bool asked = dtype == TPU_F32 || dtype == TPU_C64;
  return texts[asked ? b->precision : TPU_PRECISION_HIGHEST];
}

static const char* dims_text(tpui_builder_t* b, const char* name, int count, const int* dims) {
  int64_t values[TPUI_MAX_HLO_RANK];
  if (count == 0) return "";
  for (int i = 0; i < count; ++i) values[i] = dims[i];
  return tpui_text(b, "%s = [%s], ", name, tpui_text_ints(b, count, values));
}

/* Appends x's dimensions that are neither batch nor contracting. */
static int free_sizes(tpui_hlo_t x, int batch_count, const int* batch, int contract_count,
                      const int* contract, int at, int64_t* sizes) {
  for (int i = 0; i < x.rank; ++i) {
    bool used = false;
    for (int j = 0; j < batch_count; ++j) used = used || batch[j] == i;
    for (int j = 0; j < contract_count; ++j) used = used || contract[j] == i;
    if (!used) sizes[at++] = x.sizes[i];
  }
  return at;
}

/* Places operand x of a product in the space of all products of two elements: batch, x's and y's
 * free dimensions, then what contracts. `free_at` is where its free dimensions begin there. */
static tpui_hlo_t spread_operand(tpui_builder_t* b, tpui_hlo_t x, int batch_count, const int* batch,
                                 int contract_count, const int* contract, int free_at, int rank,
                                 const int64_t* sizes) {
  int dims[TPUI_MAX_HLO_RANK];
  for (int i = 0; i < x.rank; ++i) dims[i] = -1;
  for (int j = 0; j < batch_count; ++j) dims[batch[j]] = j;
  for (int j = 0; j < contract_count; ++j) dims[contract[j]] = rank - contract_count + j;
  for (int i = 0; i < x.rank; ++i) {
    if (dims[i] < 0) dims[i] = free_at++;
  }
  return tpui_broadcast_in_dim(b, x, rank, sizes, dims);
}

/* dot_general by elementwise products and a sum, which a compiler fuses. `sizes` are the result's,
 * with room for the contracting ones. */
static tpui_hlo_t summed_product(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t y, int batch_count,
                                 const int* x_batch, const int* y_batch, int contract_count,
                                 const int* x_contract, const int* y_contract, tpu_dtype_t dtype,
                                 int rank, int64_t* sizes) {
  int summed[TPUI_MAX_HLO_RANK];
  for (int i = 0; i < contract_count; ++i) {
    summed[i] = rank + i;
    sizes[rank + i] = x.sizes[x_contract[i]];
  }
  int all = rank + contract_count, y_free = x.rank - contract_count;
  x = spread_operand(b, tpui_convert(b, x, dtype), batch_count, x_batch, contract_count, x_contract,
                     batch_count, all, sizes);
  y = spread_operand(b, tpui_convert(b, y, dtype), batch_count, y_batch, contract_count, y_contract,
                     y_free, all, sizes);
  return tpui_reduce(b, "add", tpui_mul(b, x, y), contract_count, summed);
}

static bool is_wide_integer(tpu_dtype_t dtype) { return dtype == TPU_I64 || dtype == TPU_U64; }

tpui_hlo_t tpui_dot_general(tpui_builder_t* b, tpui_hlo_t x, tpui_hlo_t y, int batch_count,
                            const int* x_batch, const int* y_batch, int contract_count,
                            const int* x_contract, const int* y_contract,
                            tpu_dtype_t result_dtype) {
  int64_t sizes[3 * TPUI_MAX_HLO_RANK];
  uint64_t x_seen = 0, y_seen = 0;
  if (!same_dtypes(b, "dot_general", x, y)) return tpui_harmless();
  for (int i = 0; i < batch_count + contract_count; ++i) {
    int m = i < batch_count ? x_batch[i] : x_contract[i - batch_count];
    int n = i < batch_count ? y_batch[i] : y_contract[i - batch_count];
    bool inside = m >= 0 && m < x.rank && n >= 0 && n < y.rank;
    bool once = inside && (x_seen >> m & 1) == 0 && (y_seen >> n & 1) == 0;
    if (once) {
      x_seen |= (uint64_t)1 << m;
      y_seen |= (uint64_t)1 << n;
    }
    if (!once || x.sizes[m] != y.sizes[n]) {
      tpui_fail(b, TPU_INTERNAL, "dot_general of [%s] and [%s]", tpui_text_ints(b, x.rank, x.sizes),
                tpui_text_ints(b, y.rank, y.sizes));
      return tpui_harmless();
    }
  }
  int rank = 0;
  for (int i = 0; i < batch_count; ++i) sizes[rank++] = x.sizes[x_batch[i]];
  rank = free_sizes(x, batch_count, x_batch, contract_count, x_contract, rank, sizes);
  rank = free_sizes(y, batch_count, y_batch, contract_count, y_contract, rank, sizes);
  if (is_wide_integer(result_dtype) && tpui_target(b)->no_wide_products) {
    return summed_product(b, x, y, batch_count, x_batch, y_batch, contract_count, x_contract,
                          y_contract, result_dtype, rank, sizes);
  }
  const char* numbers =
      tpui_text(b, "%s%s%s%s", dims_text(b, "lhs_batching_dimensions", batch_count, x_batch),
                dims_text(b, "rhs_batching_dimensions", batch_count, y_batch),
                dims_text(b, "lhs_contracting_dimensions", contract_count, x_contract),
                dims_text(b, "rhs_contracting_dimensions", contract_count, y_contract));
  int length = (int)strlen(numbers) >= 2 ? (int)strlen(numbers) - 2 : 0;
  const char* attributes = tpui_text(b, "dot_dimension_numbers = #stablehlo.dot<%.*s>, %s", length,
                                     numbers, tpui_text_precision(b, x.dtype));
  tpui_hlo_t operands[2] = {x, y};
  return tpui_raw(b, "stablehlo.dot_general", 2, operands, attributes, "", result_dtype, rank,
                  sizes);
}
