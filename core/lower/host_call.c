#include "lower/host_call.h"

#include "lower/builder_internal.h"

const tpu_platform_t* tpui_target(const tpui_builder_t* b) { return b->program->platform; }

bool tpui_host_calls(const tpui_builder_t* b) { return b->program->host_calls; }

/* Without layouts in the call XLA chooses them. */
static const char* row_major(tpui_builder_t* b, const char* before, int rank) {
  int64_t order[TPUI_MAX_HLO_RANK], count = rank;
  for (int i = 0; i < rank; ++i) order[i] = rank - 1 - i;
  return tpui_text(b, "%s%sdense<[%s]> : tensor<%lldxindex>", before, before[0] != '\0' ? ", " : "",
                   tpui_text_ints(b, rank, order), (long long)count);
}

static const char* attr_texts(tpui_builder_t* b, int count, const tpui_call_attr_t* attrs) {
  const char* text = "";
  for (int i = 0; i < count; ++i) {
    text = tpui_text(b, "%s%s%s = %lld : i64", text, i > 0 ? ", " : "", attrs[i].name,
                     (long long)attrs[i].value);
  }
  return text;
}

void tpui_host_call(tpui_builder_t* b, const char* kernel, int operand_count,
                    const tpui_hlo_t* operands, int attr_count, const tpui_call_attr_t* attrs,
                    int result_count, const tpui_type_t* results, tpui_hlo_t* out_results) {
  const char* operand_layouts = "";
  const char* result_layouts = "";
  for (int i = 0; i < operand_count; ++i) {
    operand_layouts = row_major(b, operand_layouts, operands[i].rank);
  }
  for (int i = 0; i < result_count; ++i) {
    result_layouts = row_major(b, result_layouts, results[i].rank);
  }
  const char* attributes =
      tpui_text(b,
                "call_target_name = \"tpu_host_%s\", api_version = 4 : i32, backend_config = {%s}, "
                "operand_layouts = [%s], result_layouts = [%s]",
                kernel, attr_texts(b, attr_count, attrs), operand_layouts, result_layouts);
  tpui_raw_multi(b, "stablehlo.custom_call", operand_count, operands, attributes, "", result_count,
                 results, out_results);
}
