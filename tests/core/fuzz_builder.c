/* Random calls of the StableHLO builder. Whatever the shapes, a call gives a sound value or latches
 * an error; after an error nothing is written any more; what was written without one compiles. */
#include <stdlib.h>
#include <string.h>

#include "base/env.h"
#include "compile/compile.h"
#include "lower/builder_internal.h"
#include "test.h"

enum { PROGRAMS = 6000, CALLS = 14, CALLS_AFTER_ERROR = 4, MAX_VALUES = 32, ARGUMENTS = 5 };
/* Arrays of the calls: more than any valid rank, since wrong ranks are given too. */
enum { ROOM = TPUI_MAX_HLO_RANK + 16 };

typedef struct world_t {
  uint64_t state;
  int wildness;  // one number of so many is a wrong one; 0: none
  tpu_program_t program;
  tpu_window_t window;
  tpui_builder_t b;
  tpui_hlo_t values[MAX_VALUES];
  int count;
} world_t;

static int64_t pick(world_t* w, int64_t low, int64_t high) {
  return tpu_test_random_range(&w->state, low, high);
}

static bool is_wild(world_t* w) { return w->wildness > 0 && pick(w, 1, w->wildness) == 1; }

/* `number`, or now and then something else. */
static int64_t maybe(world_t* w, int64_t number) {
  static const int64_t others[] = {-1, 0, 1, 2, 7, 1 << 20, INT32_MAX, INT64_MAX, INT64_MIN};
  if (!is_wild(w)) return number;
  return pick(w, 0, 1) == 0 ? number + pick(w, -2, 2) : others[pick(w, 0, 8)];
}

static int maybe_dim(world_t* w, int64_t dim) {
  int64_t number = maybe(w, dim);
  return number > INT32_MAX ? INT32_MAX : number < -1000 ? -1000 : (int)number;
}

static int any_dim(world_t* w, int rank) {
  return maybe_dim(w, rank > 0 ? pick(w, 0, rank - 1) : 0);
}

/* --- values --- */

static const tpu_dtype_t dtypes[] = {TPU_F32, TPU_I32, TPU_BOOL, TPU_BF16, TPU_C64};

static tpu_dtype_t random_dtype(world_t* w) { return dtypes[pick(w, 0, 4)]; }

static int random_sizes(world_t* w, int64_t* sizes) {
  int rank = (int)pick(w, 0, is_wild(w) ? ROOM - 1 : 3);
  for (int i = 0; i < rank; ++i) sizes[i] = maybe(w, pick(w, rank > 4 ? 1 : 0, rank > 4 ? 1 : 4));
  return rank;
}

static tpui_hlo_t any_value(world_t* w) { return w->values[pick(w, 0, w->count - 1)]; }

/* One of the values with this dtype, or at least a conversion to it. */
static tpui_hlo_t value_of(world_t* w, tpu_dtype_t dtype) {
  if (is_wild(w)) return any_value(w);
  for (int tries = 0; tries < 8; ++tries) {
    tpui_hlo_t x = any_value(w);
    if (x.dtype == dtype) return x;
  }
  return tpui_convert(&w->b, any_value(w), dtype);
}

/* A value that broadcasts with x: x's sizes with some replaced by 1, from a constant. */
static tpui_hlo_t partner(world_t* w, tpui_hlo_t x) {
  int64_t sizes[ROOM] = {0};
  if (is_wild(w)) return any_value(w);
  for (int i = 0; i < x.rank; ++i) sizes[i] = pick(w, 0, 2) == 0 ? 1 : x.sizes[i];
  return tpui_full(&w->b, x.dtype, 2, x.rank, sizes);
}

/* The first operation of the list that the dtype has. */
static const char* op_for(world_t* w, tpu_dtype_t dtype, bool binary) {
  static const char* const names[2][4][3] = {
      // bool, integers, floats, complex numbers
      {{"not", "not", "not"},
       {"negate", "not", "abs"},
       {"exponential", "tanh", "negate"},
       {"negate", "real", "imag"}},
      {{"and", "or", "xor"},
       {"add", "maximum", "and"},
       {"multiply", "maximum", "subtract"},
       {"add", "multiply", "subtract"}},
  };
  tpu_dtype_kind_t kind = tpu_dtype_kind(dtype);
  int row = kind == TPU_KIND_BOOL ? 0 : kind < TPU_KIND_FLOAT ? 1 : kind == TPU_KIND_FLOAT ? 2 : 3;
  return names[binary][row][pick(w, 0, 2)];
}

/* --- calls --- */

typedef tpui_hlo_t (*call_t)(world_t* w);

static tpui_hlo_t call_constant(world_t* w) {
  tpu_dtype_t dtype = random_dtype(w);
  if (pick(w, 0, 1) == 0) return tpui_constant(&w->b, dtype, (double)maybe(w, pick(w, 0, 3)) / 2);
  return tpui_constant_int(&w->b, dtype, maybe(w, pick(w, 0, 1)));
}

static tpui_hlo_t call_full(world_t* w) {
  int64_t sizes[ROOM];
  int rank = random_sizes(w, sizes);
  return tpui_full(&w->b, random_dtype(w), 1.5, rank, sizes);
}

static tpui_hlo_t call_iota(world_t* w) {
  int64_t sizes[ROOM];
  int rank = random_sizes(w, sizes);
  if (rank == 0) sizes[rank++] = 3;
  return tpui_iota(&w->b, pick(w, 0, 1) == 0 ? TPU_I32 : TPU_F32, rank, sizes, any_dim(w, rank));
}

static tpui_hlo_t call_constant_ints(world_t* w) {
  int64_t numbers[4] = {1, -2, INT64_MAX, 0};
  return tpui_constant_ints(&w->b, TPU_I64, (int)pick(w, 0, 4), numbers);
}

static tpui_hlo_t call_convert(world_t* w) {
  return tpui_convert(&w->b, any_value(w), random_dtype(w));
}

static tpui_hlo_t call_bitcast(world_t* w) {
  tpui_hlo_t x = value_of(w, TPU_F32);
  return tpui_bitcast(&w->b, x, is_wild(w) ? random_dtype(w) : TPU_I32);
}

static tpui_hlo_t call_reshape(world_t* w) {
  tpui_hlo_t x = any_value(w);
  int64_t sizes[ROOM + 1];
  if (is_wild(w)) return tpui_reshape(&w->b, x, random_sizes(w, sizes), sizes);
  int rank = 0, at = (int)pick(w, 0, x.rank);
  for (int i = 0; i <= x.rank; ++i) {
    if (i == at) sizes[rank++] = 1;
    if (i < x.rank) sizes[rank++] = x.sizes[i];
  }
  return tpui_reshape(&w->b, x, rank, sizes);
}

static tpui_hlo_t call_transpose(world_t* w) {
  tpui_hlo_t x = any_value(w);
  int order[ROOM];
  for (int i = 0; i < x.rank; ++i) order[i] = i;
  for (int i = x.rank - 1; i > 0; --i) {
    int j = (int)pick(w, 0, i), keep = order[i];
    order[i] = order[j];
    order[j] = keep;
  }
  for (int i = 0; i < x.rank; ++i) order[i] = maybe_dim(w, order[i]);
  return tpui_transpose(&w->b, x, order);
}

static tpui_hlo_t call_broadcast(world_t* w) {
  tpui_hlo_t x = any_value(w);
  int64_t sizes[ROOM];
  int dims[ROOM], rank = x.rank + (int)pick(w, 0, 2), at = 0;
  for (int i = 0; i < rank; ++i) {
    bool from_x = at < x.rank && (rank - i == x.rank - at || pick(w, 0, 1) == 0);
    if (from_x) dims[at] = maybe_dim(w, i);
    int64_t size = from_x && x.sizes[at] != 1 ? x.sizes[at] : pick(w, 0, 3);
    sizes[i] = maybe(w, size);
    at += from_x;
  }
  return tpui_broadcast_in_dim(&w->b, x, rank, sizes, dims);
}

static tpui_hlo_t call_broadcast_to(world_t* w) {
  int64_t sizes[ROOM];
  tpui_hlo_t x = any_value(w);
  if (is_wild(w)) return tpui_broadcast_to(&w->b, x, random_sizes(w, sizes), sizes);
  sizes[0] = 2;
  for (int i = 0; i < x.rank; ++i) sizes[1 + i] = x.sizes[i];
  return tpui_broadcast_to(&w->b, x, x.rank + 1, sizes);
}

static tpui_hlo_t call_unsqueeze(world_t* w) {
  tpui_hlo_t x = any_value(w);
  return tpui_unsqueeze(&w->b, x, maybe_dim(w, pick(w, 0, x.rank)));
}

static tpui_hlo_t call_squeeze(world_t* w) {
  tpui_hlo_t x = tpui_unsqueeze(&w->b, any_value(w), 0);
  return tpui_squeeze(&w->b, x, maybe_dim(w, 0));
}

static tpui_hlo_t call_unary(world_t* w) {
  tpui_hlo_t x = any_value(w);
  return tpui_unary(&w->b, op_for(w, x.dtype, false), x);
}

static tpui_hlo_t call_binary(world_t* w) {
  tpui_hlo_t x = any_value(w), y = partner(w, x);
  return tpui_binary(&w->b, op_for(w, x.dtype, true), x, y);
}

static tpui_hlo_t call_compare(world_t* w) {
  tpui_hlo_t x = any_value(w), y = partner(w, x);
  bool is_complex = tpu_dtype_kind(x.dtype) == TPU_KIND_COMPLEX;
  return tpui_compare(&w->b, is_complex ? "EQ" : "LT", x, y);
}

static tpui_hlo_t call_select(world_t* w) {
  tpui_hlo_t x = any_value(w), y = partner(w, x);
  tpui_hlo_t condition = is_wild(w) ? any_value(w) : tpui_compare(&w->b, "EQ", x, y);
  return tpui_select(&w->b, condition, x, y);
}

static tpui_hlo_t call_is_nan(world_t* w) { return tpui_is_nan(&w->b, any_value(w)); }

static tpui_hlo_t call_slice(world_t* w) {
  tpui_hlo_t x = any_value(w);
  int64_t starts[ROOM], limits[ROOM], steps[ROOM];
  for (int i = 0; i < x.rank; ++i) {
    int64_t limit = pick(w, 0, x.sizes[i]);
    limits[i] = maybe(w, limit);
    starts[i] = maybe(w, pick(w, 0, limit));
    steps[i] = maybe(w, pick(w, 1, 3));
  }
  return tpui_slice(&w->b, x, starts, limits, pick(w, 0, 1) == 0 ? steps : NULL);
}

static tpui_hlo_t call_slice_dim(world_t* w) {
  tpui_hlo_t x = tpui_unsqueeze(&w->b, any_value(w), 0);
  int64_t start = maybe(w, 0), limit = maybe(w, 1);
  return tpui_slice_dim(&w->b, x, maybe_dim(w, 0), start, limit);
}

/* Starts for each dimension: integers of rank 0, or anything. */
static void random_starts(world_t* w, tpui_hlo_t x, tpui_hlo_t* starts) {
  for (int i = 0; i < x.rank; ++i) {
    starts[i] = is_wild(w) ? any_value(w) : tpui_constant_int(&w->b, TPU_I32, pick(w, -1, 5));
  }
}

static tpui_hlo_t call_dynamic_slice(world_t* w) {
  tpui_hlo_t x = any_value(w), starts[ROOM];
  int64_t sizes[ROOM];
  random_starts(w, x, starts);
  for (int i = 0; i < x.rank; ++i) sizes[i] = maybe(w, pick(w, 0, x.sizes[i]));
  return tpui_dynamic_slice(&w->b, x, starts, sizes);
}

static tpui_hlo_t call_dynamic_update_slice(world_t* w) {
  tpui_hlo_t x = any_value(w), starts[ROOM], update;
  int64_t sizes[ROOM];
  random_starts(w, x, starts);
  for (int i = 0; i < x.rank; ++i) sizes[i] = pick(w, 0, x.sizes[i]);
  update = is_wild(w) ? any_value(w) : tpui_full(&w->b, x.dtype, 1, x.rank, sizes);
  return tpui_dynamic_update_slice(&w->b, x, update, starts);
}

static tpui_hlo_t call_pad(world_t* w) {
  tpui_hlo_t x = any_value(w);
  int64_t low[ROOM], high[ROOM], interior[ROOM];
  for (int i = 0; i < x.rank; ++i) {
    low[i] = maybe(w, pick(w, x.sizes[i] > 0 ? -1 : 0, 2));
    high[i] = maybe(w, pick(w, 0, 2));
    interior[i] = maybe(w, pick(w, 0, 2));
  }
  tpui_hlo_t value = is_wild(w) ? any_value(w) : tpui_constant(&w->b, x.dtype, 1);
  return tpui_pad(&w->b, x, value, low, high, pick(w, 0, 1) == 0 ? interior : NULL);
}

static tpui_hlo_t call_concatenate(world_t* w) {
  tpui_hlo_t parts[3];
  int count = (int)pick(w, is_wild(w) ? 0 : 1, 3);
  parts[0] = tpui_unsqueeze(&w->b, any_value(w), 0);
  for (int i = 1; i < 3; ++i) parts[i] = is_wild(w) ? any_value(w) : parts[0];
  return tpui_concatenate(&w->b, count, parts, any_dim(w, parts[0].rank));
}

/* Some of the dimensions below `rank`, in any order. */
static int random_dims(world_t* w, int rank, int* dims) {
  int count = 0;
  for (int i = 0; i < rank; ++i) {
    if (pick(w, 0, 1) == 0) continue;
    dims[count] = dims[0];
    dims[0] = i;
    ++count;
  }
  for (int i = 0; i < count; ++i) dims[i] = maybe_dim(w, dims[i]);
  if (is_wild(w)) {
    while (count < ROOM && pick(w, 0, 20) != 0) dims[count++] = 0;
  }
  return count;
}

static tpui_hlo_t call_reverse(world_t* w) {
  int dims[ROOM];
  tpui_hlo_t x = any_value(w);
  int count = random_dims(w, x.rank, dims);
  return tpui_reverse(&w->b, x, count, dims);
}

static tpui_hlo_t call_reduce(world_t* w) {
  static const char* const kinds[3][2] = {{"and", "or"}, {"add", "minimum"}, {"add", "multiply"}};
  int dims[ROOM];
  tpui_hlo_t x = any_value(w);
  int count = random_dims(w, x.rank, dims);
  tpu_dtype_kind_t kind = tpu_dtype_kind(x.dtype);
  int row = kind == TPU_KIND_BOOL ? 0 : kind == TPU_KIND_COMPLEX ? 2 : 1;
  const char* name = kinds[row][pick(w, 0, 1)];
  if (is_wild(w)) name = "nonsense";
  return pick(w, 0, 1) == 0 ? tpui_reduce(&w->b, name, x, count, dims)
                            : tpui_reduce_keep(&w->b, name, x, count, dims);
}

static tpui_hlo_t call_arg_reduce(world_t* w) {
  tpui_hlo_t x = tpui_unsqueeze(&w->b, value_of(w, TPU_F32), 0), value, index;
  tpui_arg_reduce(&w->b, pick(w, 0, 1) == 0 ? "GT" : "LT", x, any_dim(w, x.rank), &value, &index);
  return pick(w, 0, 1) == 0 ? value : index;
}

static tpui_hlo_t call_dot(world_t* w) {
  tpui_hlo_t x = value_of(w, TPU_F32);
  int dims[2][ROOM], batch = 0, contract = 0, split = (int)pick(w, 0, x.rank);
  for (int i = 0; i < x.rank; ++i) {
    if (pick(w, 0, 1) == 0) continue;
    if (i < split) {
      dims[0][batch++] = maybe_dim(w, i);
    } else {
      dims[1][contract++] = maybe_dim(w, i);
    }
  }
  tpui_hlo_t y = is_wild(w) ? any_value(w) : x;
  return tpui_dot_general(&w->b, x, y, batch, dims[0], dims[0], contract, dims[1], dims[1],
                          TPU_F32);
}

static const call_t calls[] = {
    call_constant,      call_full,          call_iota,
    call_constant_ints, call_convert,       call_bitcast,
    call_reshape,       call_transpose,     call_broadcast,
    call_broadcast_to,  call_unsqueeze,     call_squeeze,
    call_unary,         call_binary,        call_compare,
    call_select,        call_is_nan,        call_slice,
    call_slice_dim,     call_dynamic_slice, call_dynamic_update_slice,
    call_pad,           call_concatenate,   call_reverse,
    call_reduce,        call_arg_reduce,    call_dot,
};
enum { CALL_COUNT = sizeof(calls) / sizeof(calls[0]) };

/* --- programs --- */

static void begin_program(world_t* w) {
  w->program = (tpu_program_t){.window = &w->window};
  w->b = (tpui_builder_t){.program = &w->program, .window = &w->window, .op_name = "fuzz"};
  for (w->count = 0; w->count < ARGUMENTS; ++w->count) {
    int64_t sizes[3] = {pick(w, 1, 3), pick(w, 0, 3), pick(w, 1, 2)};
    w->values[w->count] = tpui_value_make(&w->b, TPUI_ID_ARGUMENT(w->count), dtypes[w->count],
                                          (int)pick(w, 0, 3), sizes);
  }
}

static bool is_sound(const world_t* w, tpui_hlo_t x) {
  __extension__ typedef __int128 int128_t;
  int128_t bytes = (int128_t)tpu_dtype_bytes(x.dtype);
  bool sound = x.id != TPUI_ID_ERROR && x.id < w->b.next_id && x.rank >= 0 &&
               x.rank <= TPUI_MAX_HLO_RANK && bytes > 0;
  for (int i = 0; i < x.rank && sound; ++i) {
    sound = x.sizes[i] >= 0;
    bytes = bytes > INT64_MAX ? bytes : bytes * x.sizes[i];
  }
  return sound && bytes <= INT64_MAX;
}

/* One random call. Gives false when an error is latched. */
static bool call_once(world_t* w, int* out_which) {
  *out_which = (int)pick(w, 0, CALL_COUNT - 1);
  tpui_hlo_t x = calls[*out_which](w);
  if (!tpui_ok(&w->b)) {
    TPU_EXPECT(tpu_status_message(w->b.status)[0] != '\0');
    return false;
  }
  if (!is_sound(w, x)) tpu_test_fail(__FILE__, __LINE__, "call %d: unsound value", *out_which);
  w->values[w->count < MAX_VALUES ? w->count++ : (int)pick(w, 0, MAX_VALUES - 1)] = x;
  return true;
}

/* After an error calls write nothing, and the error stays the first one. */
static void go_on_after_error(world_t* w) {
  size_t size = w->b.body.size;
  tpu_status_t status = w->b.status;
  int which, id = w->b.next_id;
  for (int n = 0; n < CALLS_AFTER_ERROR; ++n) {
    (void)call_once(w, &which);
    TPU_EXPECT(w->b.status == status && w->b.body.size == size && w->b.next_id == id);
  }
}

/* Fills the builder. False when it ended with an error. */
static bool run_program(world_t* w, int* out_errors) {
  int which;
  begin_program(w);
  for (int n = 0; n < CALLS; ++n) {
    if (call_once(w, &which)) continue;
    ++out_errors[which];
    go_on_after_error(w);
    return false;
  }
  return true;
}

TPU_TEST(fuzz_builder_wrong_shapes) {
  static const int wildness[] = {0, 4, 20, 60};
  world_t w = {.state = tpu_test_seed()};
  int errors[CALL_COUNT] = {0}, whole = 0;
  int64_t live = tpu_alloc_live_count();
  for (int n = 0; n < PROGRAMS && !tpu_test_failed(); ++n) {
    w.wildness = wildness[n % 4];
    whole += run_program(&w, errors);
    // Without wrong numbers there must be no error: else the rest shows nothing.
    if (w.wildness == 0 && !tpui_ok(&w.b)) {
      tpu_test_fail(__FILE__, __LINE__, "program %d: %s", n, tpu_status_message(w.b.status));
    }
    tpui_builder_free(&w.b);
  }
  TPU_EXPECT(whole > PROGRAMS / 4 && whole < PROGRAMS * 3 / 4);
  TPU_EXPECT_EQ(tpu_alloc_live_count(), live);
  int refusing = 0;
  for (int i = 0; i < CALL_COUNT; ++i) refusing += errors[i] > 0;
  TPU_EXPECT(refusing > CALL_COUNT / 2);
}

/* --- what was written compiles --- */

static void append_module(world_t* w, tpu_strbuf_t* text) {
  tpui_hlo_t last = w->values[w->count - 1];
  tpu_strbuf_append(text, "module @tpu {\nfunc.func @main(");
  for (int i = 0; i < ARGUMENTS; ++i) {
    tpu_strbuf_printf(text, "%s%%arg%d: ", i > 0 ? ", " : "", i);
    tpui_append_type(text, w->values[i].dtype, w->values[i].rank, w->values[i].sizes);
  }
  tpu_strbuf_append(text, ") -> (");
  tpui_append_type(text, last.dtype, last.rank, last.sizes);
  tpu_strbuf_printf(text, ") {\n%s\"func.return\"(", tpu_strbuf_text(&w->b.body));
  tpui_append_value(text, last);
  tpu_strbuf_append(text, ") : (");
  tpui_append_type(text, last.dtype, last.rank, last.sizes);
  tpu_strbuf_append(text, ") -> ()\n}\n}\n");
}

static void compile_program(world_t* w, tpu_compiler_t* compiler) {
  tpu_strbuf_t text = {0};
  tpu_executable_t* executable = NULL;
  append_module(w, &text);
  TPU_EXPECT_OK(tpu_strbuf_status(&text));
  tpu_status_t status = tpu_compiler_get(compiler, text.data, text.size,
                                         &(tpu_compile_options_t){.small = true}, &executable);
  if (status != NULL) {
    tpu_test_fail(__FILE__, __LINE__, "%s\n%s", tpu_status_message(status), text.data);
  }
  tpu_status_free(status);
  tpu_executable_release(executable);
  tpu_strbuf_free(&text);
}

/* Programs with values that any machine has room for, and that may leave a program. */
static bool is_small(const world_t* w) {
  for (int i = 0; i < w->count; ++i) {
    int64_t count = 1;
    if (w->values[i].rank > TPU_MAX_RANK) return false;
    for (int k = 0; k < w->values[i].rank; ++k) {
      if (w->values[i].sizes[k] > 64) return false;
      count *= w->values[i].sizes[k] > 0 ? w->values[i].sizes[k] : 1;
      if (count > 4096) return false;
    }
  }
  return true;
}

TPU_TEST(fuzz_builder_programs_compile) {
  const char* plugin = getenv("TORCH_TPU_PJRT_PLUGIN");
  if (plugin == NULL) {
    tpu_test_skip("TORCH_TPU_PJRT_PLUGIN is not set");
    return;
  }
  tpu_device_options_t options = {.plugin_path = plugin};
  tpu_device_t* device = NULL;
  tpu_compiler_t* compiler = NULL;
  world_t w = {.state = tpu_test_seed(), .wildness = 12};
  int errors[CALL_COUNT] = {0}, most = getenv("TORCH_TPU_TEST_ALL") != NULL ? 1000 : 40;
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_CACHE, "0"));
  TPU_REQUIRE_OK(tpu_device_create(&options, &device));
  TPU_REQUIRE_OK(tpu_compiler_create(device, &compiler));
  for (int compiled = 0; compiled < most && !tpu_test_failed();) {
    if (run_program(&w, errors) && is_small(&w)) {
      compile_program(&w, compiler);
      ++compiled;
    }
    tpui_builder_free(&w.b);
  }
  tpu_compiler_destroy(compiler);
  tpu_device_destroy(device);
  TPU_EXPECT_OK(tpu_env_override(TPU_ENV_CACHE, NULL));
}
