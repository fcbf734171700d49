/* From XLA's call structs to a kernel's, and from its status to XLA's error. */
#include <stdatomic.h>
#include <string.h>

#include "host/host_internal.h"

enum { MAX_BUFFERS = 8, MAX_ATTRS = 16 };

typedef struct decoded_t {
  tpu_host_buffer_t operands[MAX_BUFFERS];
  tpu_host_buffer_t results[MAX_BUFFERS];
  tpu_host_attr_t attrs[MAX_ATTRS];
  tpu_host_call_t call;
} decoded_t;

static tpu_dtype_t dtype_of(int32_t code) {
  static const uint8_t dtypes[] = {
      [FFI_PRED] = TPU_BOOL,         [FFI_S8] = TPU_I8,
      [FFI_S16] = TPU_I16,           [FFI_S32] = TPU_I32,
      [FFI_S64] = TPU_I64,           [FFI_U8] = TPU_U8,
      [FFI_U16] = TPU_U16,           [FFI_U32] = TPU_U32,
      [FFI_U64] = TPU_U64,           [FFI_F16] = TPU_F16,
      [FFI_F32] = TPU_F32,           [FFI_F64] = TPU_F64,
      [FFI_C64] = TPU_C64,           [FFI_BF16] = TPU_BF16,
      [FFI_C128] = TPU_C128,         [FFI_F8E5M2] = TPU_F8E5M2,
      [FFI_F8E4M3FN] = TPU_F8E4M3FN,
  };
  bool known = code >= 0 && (size_t)code < sizeof(dtypes);
  return known ? (tpu_dtype_t)dtypes[code] : TPU_DTYPE_INVALID;
}

/* --- buffers --- */

static tpu_status_t decode_buffers(const ffi_values_t* values, int expected, const char* what,
                                   tpu_host_buffer_t* out) {
  if (values->count != expected || expected > MAX_BUFFERS) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "%lld %s, the kernel has %d",
                           (long long)values->count, what, expected);
  }
  for (int i = 0; i < expected; ++i) {
    if (values->types[i] != FFI_VALUE_BUFFER) {
      return tpu_status_make(TPU_INVALID_ARGUMENT, "%s %d is no tensor", what, i);
    }
    const ffi_buffer_t* buffer = values->values[i];
    out[i] = (tpu_host_buffer_t){.dtype = dtype_of(buffer->dtype),
                                 .rank = (int)buffer->rank,
                                 .sizes = buffer->sizes,
                                 .data = buffer->data};
    if (out[i].dtype == TPU_DTYPE_INVALID || buffer->rank < 0 || buffer->rank > TPU_MAX_RANK) {
      return tpu_status_make(TPU_INVALID_ARGUMENT, "%s %d: element type %d with %lld dimensions",
                             what, i, (int)buffer->dtype, (long long)buffer->rank);
    }
  }
  return NULL;
}

/* --- attributes --- */

static bool read_int(int32_t dtype, const void* value, int64_t* out) {
  switch (dtype) {
    case FFI_PRED: *out = *(const uint8_t*)value != 0; return true;
    case FFI_S8: *out = *(const int8_t*)value; return true;
    case FFI_U8: *out = *(const uint8_t*)value; return true;
    case FFI_S16: *out = *(const int16_t*)value; return true;
    case FFI_U16: *out = *(const uint16_t*)value; return true;
    case FFI_S32: *out = *(const int32_t*)value; return true;
    case FFI_U32: *out = *(const uint32_t*)value; return true;
    case FFI_S64: *out = *(const int64_t*)value; return true;
    default: return false;
  }
}

static bool read_float(int32_t dtype, const void* value, double* out) {
  if (dtype == FFI_F32) *out = *(const float*)value;
  if (dtype == FFI_F64) *out = *(const double*)value;
  return dtype == FFI_F32 || dtype == FFI_F64;
}

static bool decode_attr(int32_t type, const void* value, tpu_host_attr_t* out) {
  if (type == FFI_ATTR_STRING) {
    const ffi_span_t* text = value;
    out->kind = TPU_HOST_ATTR_TEXT;
    out->as_text = text->data;
    out->text_size = text->size;
    return true;
  }
  if (type != FFI_ATTR_SCALAR) return false;
  const ffi_scalar_t* scalar = value;
  out->kind = TPU_HOST_ATTR_INT;
  if (read_int(scalar->dtype, scalar->value, &out->as_int)) return true;
  out->kind = TPU_HOST_ATTR_FLOAT;
  return read_float(scalar->dtype, scalar->value, &out->as_float);
}

static tpu_status_t decode_attrs(const ffi_attrs_t* attrs, tpu_host_attr_t* out) {
  if (attrs->count > MAX_ATTRS) {
    return tpu_status_make(TPU_INVALID_ARGUMENT, "%lld attributes, at most %d",
                           (long long)attrs->count, MAX_ATTRS);
  }
  for (int64_t i = 0; i < attrs->count; ++i) {
    const ffi_span_t* name = attrs->names[i];
    out[i] = (tpu_host_attr_t){.name = name->data, .name_size = name->size};
    if (!decode_attr(attrs->types[i], attrs->values[i], &out[i])) {
      return tpu_status_make(TPU_INVALID_ARGUMENT,
                             "attribute %.*s must be an integer, a float or a text",
                             (int)name->size, name->data);
    }
  }
  return NULL;
}

static tpu_status_t find_attr(const tpu_host_call_t* call, const char* name,
                              tpu_host_attr_kind_t kind, const tpu_host_attr_t** out) {
  static const char* const kinds[] = {"integer", "float", "text"};
  size_t size = strlen(name);
  for (int i = 0; i < call->attr_count; ++i) {
    const tpu_host_attr_t* attr = &call->attrs[i];
    bool same = attr->name_size == size && memcmp(attr->name, name, size) == 0;
    if (!same || attr->kind != kind) continue;
    *out = attr;
    return NULL;
  }
  return tpu_status_make(TPU_INVALID_ARGUMENT, "no %s attribute '%s'", kinds[kind], name);
}

tpu_status_t tpu_host_attr_int(const tpu_host_call_t* call, const char* name, int64_t* out_value) {
  const tpu_host_attr_t* attr = NULL;
  *out_value = 0;
  TPU_RETURN_IF_ERROR(find_attr(call, name, TPU_HOST_ATTR_INT, &attr));
  *out_value = attr->as_int;
  return NULL;
}

tpu_status_t tpu_host_attr_float(const tpu_host_call_t* call, const char* name, double* out_value) {
  const tpu_host_attr_t* attr = NULL;
  *out_value = 0;
  TPU_RETURN_IF_ERROR(find_attr(call, name, TPU_HOST_ATTR_FLOAT, &attr));
  *out_value = attr->as_float;
  return NULL;
}

tpu_status_t tpu_host_attr_text(const tpu_host_call_t* call, const char* name,
                                const char** out_text, size_t* out_size) {
  const tpu_host_attr_t* attr = NULL;
  *out_text = NULL;
  *out_size = 0;
  TPU_RETURN_IF_ERROR(find_attr(call, name, TPU_HOST_ATTR_TEXT, &attr));
  *out_text = attr->as_text;
  *out_size = attr->text_size;
  return NULL;
}

/* --- the handler --- */

/* Takes the status. */
static ffi_error_t* to_error(const ffi_call_t* call, tpu_status_t status) {
  if (status == NULL) return NULL;
  ffi_error_create_args_t args = {
      .struct_size = PJRT_STRUCT_SIZE(ffi_error_create_args_t, code),
      .message = tpu_status_message(status),
      .code = (int32_t)tpu_status_code(status),
  };
  ffi_error_t* error = call->api->slots[FFI_SLOT_ERROR_CREATE](&args);
  tpu_status_free(status);
  return error;
}

/* Where the plugin asks who we are, when a handler is registered; NULL in other calls. */
static ffi_metadata_t* asked_metadata(const ffi_call_t* call) {
  for (ffi_extension_base_t* e = call->extension_start; e != NULL; e = e->next) {
    if (e->type == FFI_EXTENSION_METADATA) return ((ffi_metadata_extension_t*)e)->metadata;
  }
  return NULL;
}

/* Plugins report success for a handler whose version does not suit them, and then do not find it
 * when they compile. So we answer with what suits the versions we have seen, and count. */
static atomic_int answers;

int tpui_host_answers(void) { return atomic_load(&answers); }

static tpu_status_t choose_version(const ffi_api_version_t* theirs, int* out_minor) {
  int major = theirs->major_version, minor = theirs->minor_version;
  *out_minor = minor < FFI_MINOR_VERSION ? minor : FFI_MINOR_VERSION;
  bool known = major == FFI_MAJOR_VERSION && minor >= FFI_OLDEST_MINOR_VERSION &&
               minor <= FFI_NEWEST_MINOR_VERSION;
  if (known) return NULL;
  return tpu_status_make(TPU_UNIMPLEMENTED, "the plugin has FFI %d.%d; known are %d.%d to %d.%d",
                         major, minor, FFI_MAJOR_VERSION, FFI_OLDEST_MINOR_VERSION,
                         FFI_MAJOR_VERSION, FFI_NEWEST_MINOR_VERSION);
}

static ffi_error_t* answer_registration(const ffi_call_t* call, ffi_metadata_t* metadata) {
  int minor = FFI_MINOR_VERSION;
  tpu_status_t status = call->api != NULL ? choose_version(&call->api->version, &minor) : NULL;
  if (status != NULL) return to_error(call, status);
  metadata->api_version.major_version = FFI_MAJOR_VERSION;
  metadata->api_version.minor_version = minor;
  metadata->traits = 0;
  atomic_fetch_add(&answers, 1);
  return NULL;
}

static tpu_status_t run_kernel(const tpui_host_row_t* row, ffi_call_t* frame) {
  decoded_t d;
  TPU_RETURN_IF_ERROR(decode_buffers(&frame->operands, row->operand_count, "operands", d.operands));
  TPU_RETURN_IF_ERROR(decode_buffers(&frame->results, row->result_count, "results", d.results));
  TPU_RETURN_IF_ERROR(decode_attrs(&frame->attrs, d.attrs));
  d.call = (tpu_host_call_t){.operand_count = row->operand_count,
                             .operands = d.operands,
                             .result_count = row->result_count,
                             .results = d.results,
                             .attr_count = (int)frame->attrs.count,
                             .attrs = d.attrs,
                             .frame = frame};
  return row->kernel(&d.call);
}

ffi_error_t* tpui_host_handle(const tpui_host_row_t* row, ffi_call_t* call) {
  ffi_metadata_t* metadata = asked_metadata(call);
  if (metadata != NULL) return answer_registration(call, metadata);
  if (call->stage != FFI_STAGE_EXECUTE) return NULL;
  return to_error(call, tpu_status_annotate(run_kernel(row, call), "%s", row->target));
}
