#include <string.h>

#include "compile/compile_internal.h"

typedef enum override_mode_t { IN_BOTH_MODES, IN_FULL_MODE, IN_SMALL_MODE } override_mode_t;

/* Overrides of XLA's debug options, sent as text. */
typedef struct override_t {
  const char* name;
  const char* value;
  tpu_platform_kind_t platform;
  override_mode_t mode;
} override_t;

static const override_t overrides[] = {
    /* By default max(1, NaN) is 1. */
    {"xla_cpu_enable_fast_min_max", "False", TPU_PLATFORM_CPU, IN_BOTH_MODES},
    /* By default bfloat16 intermediates stay float32, so results depend on what is fused. */
    {"xla_allow_excess_precision", "False", TPU_PLATFORM_CPU, IN_BOTH_MODES},
    /* algsimp, the algebraic simplifier, rewrites as if floats were real numbers: a 0/1 mask times
     * NaN becomes 0, x / 3 a product, (x + c) - c becomes x. Its other rewrites gain nothing on
     * what lower/ writes (docs/decisions/011-no-algebraic-simplifier.md). Without fusion-wrapper,
     * single ops skip the fusion emitter: 8 ms instead of 19 for one add. That name has a hyphen;
     * with an underscore it is accepted and does nothing. */
    {"xla_disable_hlo_passes", "algsimp", TPU_PLATFORM_CPU, IN_FULL_MODE},
    {"xla_disable_hlo_passes", "algsimp,fusion-wrapper", TPU_PLATFORM_CPU, IN_SMALL_MODE},
    {"xla_backend_optimization_level", "0", TPU_PLATFORM_CPU, IN_SMALL_MODE},
};
enum { OVERRIDE_COUNT = sizeof(overrides) / sizeof(overrides[0]) };

static bool row_applies(const override_t* row, const tpu_platform_t* platform, bool small) {
  if (row->platform != platform->kind) return false;
  return row->mode == IN_BOTH_MODES || (row->mode == IN_SMALL_MODE) == small;
}

/* Protobuf tags: field number * 8 + wire type. */
enum {
  TAG_BUILD_OPTIONS = 3 << 3 | 2,   // CompileOptionsProto.executable_build_options
  TAG_OVERRIDE_ENTRY = 7 << 3 | 2,  // CompileOptionsProto.env_option_overrides
  TAG_ENTRY_KEY = 1 << 3 | 2,       // map entry
  TAG_ENTRY_VALUE = 2 << 3 | 2,     // map entry
  TAG_VALUE_STRING = 1 << 3 | 2,    // OptionOverrideProto.string_field
  TAG_DEVICE_ORDINAL = 1 << 3 | 0,  // ExecutableBuildOptionsProto
  TAG_NUM_REPLICAS = 4 << 3 | 0,
  TAG_NUM_PARTITIONS = 5 << 3 | 0,
};

static void append_varint(tpu_strbuf_t* out, uint64_t value) {
  char bytes[10];
  size_t size = 0;
  do {
    bytes[size++] = (char)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
    value >>= 7;
  } while (value != 0);
  tpu_strbuf_append_bytes(out, bytes, size);
}

static void append_int(tpu_strbuf_t* out, uint64_t tag, int64_t value) {
  append_varint(out, tag);
  append_varint(out, (uint64_t)value);
}

static void append_text(tpu_strbuf_t* out, uint64_t tag, const char* text, size_t size) {
  append_varint(out, tag);
  append_varint(out, size);
  tpu_strbuf_append_bytes(out, text, size);
}

/* A message is a text whose bytes were made apart. Takes `message`. */
static void append_message(tpu_strbuf_t* out, uint64_t tag, tpu_strbuf_t* message) {
  if (message->failed) out->failed = true;
  append_text(out, tag, tpu_strbuf_text(message), message->size);
  tpu_strbuf_free(message);
}

static void append_override(tpu_strbuf_t* out, const override_t* row) {
  tpu_strbuf_t value = {0};
  append_text(&value, TAG_VALUE_STRING, row->value, strlen(row->value));
  tpu_strbuf_t entry = {0};
  append_text(&entry, TAG_ENTRY_KEY, row->name, strlen(row->name));
  append_message(&entry, TAG_ENTRY_VALUE, &value);
  append_message(out, TAG_OVERRIDE_ENTRY, &entry);
}

void tpui_options_encode(const tpu_platform_t* platform, bool small, uint32_t refused,
                         tpu_strbuf_t* out_bytes) {
  /* Ordinal -1 means "not set"; zero counts would make the CPU plugin abort the process. */
  tpu_strbuf_t build = {0};
  append_int(&build, TAG_DEVICE_ORDINAL, -1);
  append_int(&build, TAG_NUM_REPLICAS, 1);
  append_int(&build, TAG_NUM_PARTITIONS, 1);
  append_message(out_bytes, TAG_BUILD_OPTIONS, &build);
  for (size_t i = 0; i < OVERRIDE_COUNT; ++i) {
    if (!row_applies(&overrides[i], platform, small)) continue;
    if ((refused >> i & 1) == 0) append_override(out_bytes, &overrides[i]);
  }
}

uint32_t tpui_options_refused(const char* error_text) {
  if (strstr(error_text, "No such compile option") == NULL) return 0;
  uint32_t refused = 0;
  for (size_t i = 0; i < OVERRIDE_COUNT; ++i) {
    if (strstr(error_text, overrides[i].name) != NULL) refused |= UINT32_C(1) << i;
  }
  return refused;
}
