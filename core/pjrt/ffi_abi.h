/* Binary layout of the part of XLA's foreign function interface (FFI) that we use, and of the PJRT
 * extension that registers functions with it. Written from the layout facts of 0.3; names are
 * ours.
 *
 * FFI structs only ever grow at their end. These layouts are the same in 0.2 (xla-cpu-pjrt 0.81)
 * and in 0.4 (lammps-jax-pjrt-cpu 0.115).
 */
#ifndef TPU_PJRT_FFI_ABI_H_
#define TPU_PJRT_FFI_ABI_H_

#include <stddef.h>
#include <stdint.h>

#include "pjrt/pjrt_abi.h"

/* The version that handlers of ours were written for, and those of plugins that they ran in. */
enum { FFI_MAJOR_VERSION = 0, FFI_MINOR_VERSION = 3 };
enum { FFI_OLDEST_MINOR_VERSION = 2, FFI_NEWEST_MINOR_VERSION = 4 };

typedef struct ffi_error_t ffi_error_t;      // opaque, made by the plugin
typedef struct ffi_context_t ffi_context_t;  // opaque: one run of one program

typedef struct ffi_extension_base_t {
  size_t struct_size;
  int32_t type;  // FFI_EXTENSION_
  struct ffi_extension_base_t* next;
} ffi_extension_base_t;

enum { FFI_EXTENSION_METADATA = 1 };

#define FFI_HEAD      \
  size_t struct_size; \
  ffi_extension_base_t* extension_start

typedef struct ffi_api_version_t {
  FFI_HEAD;
  int major_version;
  int minor_version;
} ffi_api_version_t;

/* What a handler says about itself when it is registered. */
typedef struct ffi_metadata_t {
  size_t struct_size;
  ffi_api_version_t api_version;  // out
  uint32_t traits;                // out
} ffi_metadata_t;

typedef struct ffi_metadata_extension_t {
  ffi_extension_base_t base;
  ffi_metadata_t* metadata;
} ffi_metadata_extension_t;

/* --- values --- */

/* Numbers of XLA's PrimitiveType, not those of PJRT_Buffer_Type. */
typedef enum ffi_dtype_t {
  FFI_PRED = 1,
  FFI_S8 = 2,
  FFI_S16 = 3,
  FFI_S32 = 4,
  FFI_S64 = 5,
  FFI_U8 = 6,
  FFI_U16 = 7,
  FFI_U32 = 8,
  FFI_U64 = 9,
  FFI_F16 = 10,
  FFI_F32 = 11,
  FFI_F64 = 12,
  FFI_C64 = 15,
  FFI_BF16 = 16,
  FFI_C128 = 18,
  FFI_F8E5M2 = 19,
  FFI_F8E4M3FN = 20,
} ffi_dtype_t;

typedef struct ffi_buffer_t {
  FFI_HEAD;
  int32_t dtype;
  void* data;
  int64_t rank;
  int64_t* sizes;  // [rank]
} ffi_buffer_t;

typedef struct ffi_span_t {
  const char* data;
  size_t size;
} ffi_span_t;

typedef struct ffi_scalar_t {
  int32_t dtype;
  void* value;
} ffi_scalar_t;

enum { FFI_VALUE_BUFFER = 1 };
enum { FFI_ATTR_SCALAR = 3, FFI_ATTR_STRING = 4 };

/* Operands or results. */
typedef struct ffi_values_t {
  FFI_HEAD;
  int64_t count;
  int32_t* types;  // FFI_VALUE_BUFFER
  void** values;   // ffi_buffer_t*
} ffi_values_t;

/* Sorted by name. */
typedef struct ffi_attrs_t {
  FFI_HEAD;
  int64_t count;
  int32_t* types;  // FFI_ATTR_
  ffi_span_t** names;
  void** values;  // ffi_scalar_t* or ffi_span_t*
} ffi_attrs_t;

/* --- functions of the plugin --- */

typedef struct ffi_error_create_args_t {
  FFI_HEAD;
  const char* message;  // copied
  int32_t code;         // as PJRT's
} ffi_error_create_args_t;

typedef struct ffi_error_destroy_args_t {
  FFI_HEAD;
  ffi_error_t* error;
} ffi_error_destroy_args_t;

typedef struct ffi_schedule_args_t {
  FFI_HEAD;
  ffi_context_t* context;
  void (*task)(void* data);
  void* data;
} ffi_schedule_args_t;

typedef struct ffi_thread_count_args_t {
  FFI_HEAD;
  ffi_context_t* context;
  int64_t* count;  // out
} ffi_thread_count_args_t;

typedef ffi_error_t* (*ffi_function_t)(void* args);

enum {
  FFI_SLOT_ERROR_CREATE = 0,
  FFI_SLOT_ERROR_DESTROY = 2,  // returns nothing
  FFI_SLOT_THREAD_POOL_SCHEDULE = 11,
  FFI_SLOT_THREAD_POOL_COUNT = 12,
  FFI_SLOT_COUNT = 13,  // the table goes on
};

typedef struct ffi_api_t {
  FFI_HEAD;
  ffi_api_version_t version;
  const void* internal;
  ffi_function_t slots[FFI_SLOT_COUNT];  // valid up to struct_size only
} ffi_api_t;

/* --- a call --- */

enum { FFI_STAGE_EXECUTE = 3 };

typedef struct ffi_call_t {
  FFI_HEAD;
  const ffi_api_t* api;
  ffi_context_t* context;
  int32_t stage;
  ffi_values_t operands;
  ffi_values_t results;
  ffi_attrs_t attrs;
} ffi_call_t;

/* NULL is success. */
typedef ffi_error_t* (*ffi_handler_t)(ffi_call_t* call);

/* --- the PJRT extension (type PJRT_EXTENSION_FFI) --- */

/* Unlike other PJRT arguments these have no extension_start. */
typedef struct pjrt_ffi_register_handler_args_t {
  size_t struct_size;
  const char* target_name;
  size_t target_name_size;
  ffi_handler_t handler;
  const char* platform_name;
  size_t platform_name_size;
  uint32_t traits;
} pjrt_ffi_register_handler_args_t;

typedef struct pjrt_ffi_extension_t {
  pjrt_extension_base_t base;
  pjrt_function_t type_register;
  pjrt_function_t user_data_add;
  pjrt_function_t register_handler;  // pjrt_ffi_register_handler_args_t
} pjrt_ffi_extension_t;

#endif  // TPU_PJRT_FFI_ABI_H_
