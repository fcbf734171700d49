/* Each fact about a platform (tpu_platform_t) changes how an operation is written, and only it
 * does: a platform without facts gets the plain StableHLO form. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "lower/lower.h"
#include "ops/op_ids.h"
#include "test.h"
#include "trace/recorder.h"

typedef struct shape_t {
  tpu_dtype_t dtype;
  int rank;
  int64_t sizes[5];
} shape_t;

static tpu_meta_id_t meta_of(const shape_t* shape) {
  tpu_meta_id_t id = 0;
  TPU_EXPECT_OK(tpu_meta_intern_contiguous(shape->dtype, shape->rank, shape->sizes, &id));
  return id;
}

#define MAX_OPERANDS 8

/* One operation. Ranks below 0 stand for a host number 0 (-1), nothing (-2) and the transpose of a
 * matrix (-3). */
typedef struct call_t {
  tpu_op_t op;
  int operand_count, result_count;
  shape_t operands[MAX_OPERANDS], results[4];
  const char* attrs;  // "[1,1] 0 -": an int list, an int, none
} call_t;

static tpu_attrs_id_t attrs_of(const char* text) {
  tpu_attrs_builder_t builder;
  tpu_attrs_id_t id = 0;
  tpu_attrs_begin(&builder);
  while (*text != '\0') {
    int64_t values[8];
    size_t count = 0;
    bool list = *text == '[', none = *text == '-' && (text[1] == ' ' || text[1] == '\0');
    text += list || none;
    while (*text != '\0' && *text != ' ') {
      char* end = NULL;
      values[count++] = strtoll(text, &end, 10);
      text = end + (*end == ',' || *end == ']');
    }
    if (none) tpu_attrs_add_none(&builder);
    if (list) tpu_attrs_add_ints(&builder, values, count);
    if (!none && !list) tpu_attrs_add_int(&builder, values[0]);
    while (*text == ' ') ++text;
  }
  TPU_EXPECT_OK(tpu_attrs_intern(&builder, &id));
  return id;
}

typedef struct world_t {
  tpu_value_pool_t pool;
  tpu_recorder_t recorder;
  tpu_value_t* values[MAX_OPERANDS + 4];
  int value_count;
  uint32_t input_count;
  tpu_program_input_t inputs[MAX_OPERANDS];
} world_t;

static void push_operand(world_t* w, const shape_t* shape) {
  if (shape->rank == -1) {
    tpu_recorder_scalar(&w->recorder, shape->dtype, true, 0, (tpu_slot_t){0});
  } else if (shape->rank == -2) {
    tpu_recorder_none(&w->recorder);
  } else {
    tpu_value_t* value = NULL;
    tpu_meta_id_t meta = 0;
    bool transposed = shape->rank == -3;
    const int64_t strides[2] = {1, shape->sizes[0]};
    if (transposed) {
      TPU_EXPECT_OK(tpu_meta_intern(shape->dtype, 2, shape->sizes, strides, &meta));
    } else {
      meta = meta_of(shape);
    }
    TPU_EXPECT_OK(tpu_value_create(&w->pool, meta, &value));
    value->state = TPU_VALUE_READY;
    w->values[w->value_count++] = value;
    w->inputs[w->input_count] =
        (tpu_program_input_t){.ref = tpu_ref_make(TPU_REF_EXTERNAL, w->input_count)};
    ++w->input_count;
    tpu_recorder_tensor(&w->recorder, value, value->meta, 0);
  }
}

static void record(world_t* w, const call_t* call) {
  tpu_meta_id_t metas[4];
  memset(w, 0, sizeof(*w));
  tpu_recorder_init(&w->recorder, &w->pool);
  TPU_EXPECT_OK(tpu_recorder_begin(&w->recorder, call->operand_count, call->result_count));
  for (int k = 0; k < call->operand_count; ++k) push_operand(w, &call->operands[k]);
  for (int k = 0; k < call->result_count; ++k) metas[k] = meta_of(&call->results[k]);
  TPU_EXPECT_OK(tpu_recorder_commit(&w->recorder, call->op, call->operand_count, call->result_count,
                                    0, attrs_of(call->attrs), TPU_DTYPE_INVALID, metas,
                                    w->values + w->value_count));
  w->value_count += call->result_count;
}

static void close_world(world_t* w) {
  for (int i = 0; i < w->value_count; ++i) tpu_value_release(&w->pool, w->values[i]);
  tpu_recorder_free(&w->recorder);
  tpu_value_pool_free(&w->pool);
}

/* Appends the operation's program for a platform; "" when it cannot be written. */
static void write_call(const call_t* call, const tpu_platform_t* platform, tpu_strbuf_t* out) {
  static const uint32_t first = 0, outputs[4] = {0, 1, 2, 3};
  world_t w;
  record(&w, call);
  tpu_window_t window;
  tpu_recorder_window(&w.recorder, &window);
  tpu_program_t program = {.window = &window,
                           .record_count = 1,
                           .records = &first,
                           .input_count = w.input_count,
                           .inputs = w.inputs,
                           .output_count = (uint32_t)call->result_count,
                           .outputs = outputs,
                           .platform = platform};
  tpu_lowered_t lowered;
  tpu_status_t status = tpu_lower_program(&program, &lowered);
  if (status == NULL) {
    tpu_strbuf_append(out, tpu_strbuf_text(&lowered.text));
    tpu_lowered_free(&lowered);
  }
  TPU_EXPECT_OK(status);
  close_world(&w);
}

static int count_of(const tpu_strbuf_t* text, const char* what) {
  int count = 0;
  for (const char* at = tpu_strbuf_text(text); (at = strstr(at, what)) != NULL; ++at) ++count;
  return count;
}

/* How often `what` stands in the text without and with the fact. */
static void expect_counts(const call_t* call, const tpu_platform_t* fact, const char* what,
                          int without, int with) {
  static const tpu_platform_t plain = {.name = "plain"};
  tpu_strbuf_t a = {0}, b = {0};
  write_call(call, &plain, &a);
  write_call(call, fact, &b);
  TPU_EXPECT_EQ(count_of(&a, what), without);
  TPU_EXPECT_EQ(count_of(&b, what), with);
  tpu_strbuf_free(&a);
  tpu_strbuf_free(&b);
}

/* --- convolutions --- */

/* Same-size convolution of [2, channels, size, size]; attributes: stride, padding, dilation,
 * transposed, output padding, groups. */
static call_t conv_call(tpu_dtype_t dtype, int64_t channels, int64_t out, int64_t size,
                        int64_t kernel, int64_t groups, const char* attrs) {
  return (call_t){.op = TPU_OP_CONVOLUTION,
                  .operand_count = 3,
                  .operands = {{dtype, 4, {2, channels, size, size}},
                               {dtype, 4, {out, channels / groups, kernel, kernel}},
                               {dtype, -2, {0}}},
                  .result_count = 1,
                  .results = {{dtype, 4, {2, out, size, size}}},
                  .attrs = attrs};
}

TPU_TEST(lower_platform_grouped_conv) {
  const tpu_platform_t slow = {.slow_grouped_conv = true};
  call_t grouped = conv_call(TPU_F32, 8, 8, 6, 3, 2, "[1,1] [1,1] [1,1] 0 [0,0] 2");
  expect_counts(&grouped, &slow, "stablehlo.convolution\"", 1, 2);
  expect_counts(&grouped, &slow, "feature_group_count = 2", 1, 0);
  call_t depthwise = conv_call(TPU_F32, 4, 4, 6, 3, 4, "[1,1] [1,1] [1,1] 0 [0,0] 4");
  expect_counts(&depthwise, &slow, "stablehlo.convolution\"", 1, 0);
  expect_counts(&depthwise, &slow, "stablehlo.multiply\"", 0, 9);
}

TPU_TEST(lower_platform_half_conv) {
  const tpu_platform_t slow = {.slow_half_conv = true};
  call_t call = conv_call(TPU_BF16, 4, 4, 6, 3, 1, "[1,1] [1,1] [1,1] 0 [0,0] 1");
  // Sums are float32 either way.
  expect_counts(&call, &slow, "(tensor<2x4x6x6xbf16>, tensor<4x4x3x3xbf16>) -> tensor<2x4x6x6xf32>",
                1, 0);
  expect_counts(&call, &slow, "(tensor<2x4x6x6xf32>, tensor<4x4x3x3xf32>) -> tensor<2x4x6x6xf32>",
                0, 1);
}

TPU_TEST(lower_platform_pointwise_conv) {
  const tpu_platform_t slow = {.slow_pointwise_conv = true};
  call_t call = conv_call(TPU_F32, 8, 4, 6, 1, 1, "[1,1] [0,0] [1,1] 0 [0,0] 1");
  expect_counts(&call, &slow, "stablehlo.convolution\"", 1, 0);
  expect_counts(&call, &slow, "stablehlo.dot_general\"", 0, 1);
}

TPU_TEST(lower_platform_edge_conv) {
  const tpu_platform_t slow = {.slow_edge_conv = true};
  call_t call = conv_call(TPU_F32, 4, 4, 2, 3, 1, "[1,1] [1,1] [1,1] 0 [0,0] 1");
  expect_counts(&call, &slow, "stablehlo.pad\"", 0, 1);
  expect_counts(&call, &slow, "padding = dense<[[1, 1], [1, 1]]>", 1, 0);
}

/* A convolution and a product must not differ in how exact they are. */
TPU_TEST(lower_platform_default_precision) {
  const tpu_platform_t low = {.low_default_precision = true};
  const char* highest =
      "precision_config = [#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>]";
  call_t conv = conv_call(TPU_F32, 4, 4, 6, 3, 1, "[1,1] [1,1] [1,1] 0 [0,0] 1");
  expect_counts(&conv, &low, highest, 0, 1);
  const call_t backward = {
      .op = TPU_OP_CONVOLUTION_BACKWARD,
      .operand_count = 3,
      .operands = {{TPU_F32, 4, {2, 4, 6, 6}},
                   {TPU_F32, 4, {2, 4, 6, 6}},
                   {TPU_F32, 4, {4, 4, 3, 3}}},
      .result_count = 3,
      .results = {{TPU_F32, 4, {2, 4, 6, 6}}, {TPU_F32, 4, {4, 4, 3, 3}}, {TPU_F32, 1, {4}}},
      .attrs = "[1,1] [1,1] [1,1] 0 [0,0] 1 [1,1,1]"};
  expect_counts(&backward, &low, highest, 0, 2);
}

/* --- products --- */

static const call_t causal_attention = {
    .op = TPU_OP_SDPA_FORWARD,
    .operand_count = 6,
    .operands = {{TPU_F32, 4, {1, 2, 256, 8}},
                 {TPU_F32, 4, {1, 2, 256, 8}},
                 {TPU_F32, 4, {1, 2, 256, 8}},
                 {TPU_F32, -2, {0}},
                 {TPU_F64, -1, {0}},
                 {TPU_F32, -2, {0}}},
    .result_count = 2,
    .results = {{TPU_F32, 4, {1, 2, 256, 8}}, {TPU_F32, 3, {1, 2, 256}}},
    .attrs = "1 0"};

TPU_TEST(lower_platform_attention_blocks) {
  const tpu_platform_t cheap = {.cheap_small_dots = true};
  expect_counts(&causal_attention, &cheap, "stablehlo.dot_general\"", 2, 8);
}

TPU_TEST(lower_platform_attention_sums) {
  const tpu_platform_t repeats = {.repeats_fused_work = true};
  expect_counts(&causal_attention, &repeats, "stablehlo.reduce\"", 2, 1);  // maximum, and sum
}

TPU_TEST(lower_platform_transposed_dot) {
  const tpu_platform_t slow = {.slow_transposed_dot = true};
  const call_t call = {.op = TPU_OP_MM,
                       .operand_count = 2,
                       .operands = {{TPU_F32, -3, {64, 40}}, {TPU_F32, 2, {40, 32}}},
                       .result_count = 1,
                       .results = {{TPU_F32, 2, {64, 32}}},
                       .attrs = ""};
  expect_counts(&call, &slow, "optimization_barrier", 0, 1);
}

/* --- indices --- */

TPU_TEST(lower_platform_scatter) {
  const tpu_platform_t slow = {.slow_scatter = true};
  const call_t one_per_row = {
      .op = TPU_OP_SCATTER,
      .operand_count = 3,
      .operands = {{TPU_F32, 2, {4, 6}}, {TPU_I64, 2, {4, 1}}, {TPU_F32, 2, {4, 1}}},
      .result_count = 1,
      .results = {{TPU_F32, 2, {4, 6}}},
      .attrs = "1"};
  expect_counts(&one_per_row, &slow, "stablehlo.scatter\"", 1, 0);
  const call_t pool = {.op = TPU_OP_MAX_POOL2D_BACKWARD,
                       .operand_count = 3,
                       .operands = {{TPU_F32, 4, {1, 2, 3, 3}},
                                    {TPU_F32, 4, {1, 2, 6, 6}},
                                    {TPU_I64, 4, {1, 2, 3, 3}}},
                       .result_count = 1,
                       .results = {{TPU_F32, 4, {1, 2, 6, 6}}},
                       .attrs = "[2,2] [2,2] [0,0] [1,1] 0"};
  const tpu_platform_t slow_windows = {.slow_windows = true};
  const tpu_platform_t both = {.slow_windows = true, .slow_scatter = true};
  expect_counts(&pool, &slow_windows, "stablehlo.scatter\"", 0, 1);
  expect_counts(&pool, &both, "stablehlo.scatter\"", 0, 0);
}

TPU_TEST(lower_platform_windows) {
  const tpu_platform_t slow = {.slow_windows = true};
  const call_t max = {.op = TPU_OP_MAX_POOL2D,
                      .operand_count = 1,
                      .operands = {{TPU_F32, 4, {1, 2, 6, 6}}},
                      .result_count = 2,
                      .results = {{TPU_F32, 4, {1, 2, 3, 3}}, {TPU_I64, 4, {1, 2, 3, 3}}},
                      .attrs = "[2,2] [2,2] [0,0] [1,1] 0"};
  expect_counts(&max, &slow, "stablehlo.reduce_window\"", 1, 0);
  call_t backward = {.op = TPU_OP_MAX_POOL2D_BACKWARD,
                     .operand_count = 3,
                     .operands = {{TPU_F32, 4, {1, 2, 3, 3}},
                                  {TPU_F32, 4, {1, 2, 6, 6}},
                                  {TPU_I64, 4, {1, 2, 3, 3}}},
                     .result_count = 1,
                     .results = {{TPU_F32, 4, {1, 2, 6, 6}}},
                     .attrs = "[2,2] [2,2] [0,0] [1,1] 0"};
  expect_counts(&backward, &slow, "stablehlo.select_and_scatter\"", 1, 0);
  // A window with holes has no such operation: the indices say where its maximum is.
  backward.operands[0] = backward.operands[2] = (shape_t){TPU_F32, 4, {1, 2, 4, 4}};
  backward.operands[2].dtype = TPU_I64;
  backward.attrs = "[2,2] [1,1] [0,0] [2,2] 0";
  expect_counts(&backward, &slow, "stablehlo.select_and_scatter\"", 0, 0);
  const call_t average = {.op = TPU_OP_AVG_POOL2D,
                          .operand_count = 1,
                          .operands = {{TPU_F32, 4, {1, 2, 6, 6}}},
                          .result_count = 1,
                          .results = {{TPU_F32, 4, {1, 2, 3, 3}}},
                          .attrs = "[2,2] [2,2] [0,0] 0 1 -"};
  expect_counts(&average, &slow, "stablehlo.reduce_window\"", 1, 0);
}

TPU_TEST(lower_platform_pair_sort) {
  const tpu_platform_t slow = {.slow_pair_sort = true};
  const call_t call = {.op = TPU_OP_SORT,
                       .operand_count = 1,
                       .operands = {{TPU_F32, 2, {4, 6}}},
                       .result_count = 2,
                       .results = {{TPU_F32, 2, {4, 6}}, {TPU_I64, 2, {4, 6}}},
                       .attrs = "- 1 0"};
  expect_counts(&call, &slow, "(tensor<4x6xi64>) -> tensor<4x6xi64>", 0, 1);
  // The values go through the sort and need no gather.
  expect_counts(&call, &slow, "(tensor<4x6xi32>, tensor<4x6xi32>, tensor<4x6xf32>) -> (", 1, 0);
  expect_counts(&call, &slow, "stablehlo.gather\"", 0, 1);
}
