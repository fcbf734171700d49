/* The part of the PJRT C API that we use, declared by ourselves.
 *
 * Only layouts matter here: field order, widths and the place of each function in the table. Names
 * follow PJRT's in lower case so that both sets of declarations fit into one file;
 * tests/abi/test_pjrt_abi.py compares them field by field with published headers. Layouts are those
 * of PJRT 0.114; plugins back to 0.81 accept them, because a caller's larger struct is fine and all
 * new fields are zero.
 *
 * Objects are opaque. Every argument struct begins with its size (set by the call wrapper, see
 * plugin.h) and an extension pointer that stays NULL.
 */
#ifndef TPU_PJRT_PJRT_ABI_H_
#define TPU_PJRT_PJRT_ABI_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct pjrt_error_t pjrt_error_t;
typedef struct pjrt_event_t pjrt_event_t;
typedef struct pjrt_client_t pjrt_client_t;
typedef struct pjrt_device_t pjrt_device_t;
typedef struct pjrt_device_description_t pjrt_device_description_t;
typedef struct pjrt_memory_t pjrt_memory_t;
typedef struct pjrt_buffer_t pjrt_buffer_t;
typedef struct pjrt_executable_t pjrt_executable_t;
typedef struct pjrt_loaded_executable_t pjrt_loaded_executable_t;
typedef struct pjrt_topology_t pjrt_topology_t;
typedef struct pjrt_serialized_executable_t pjrt_serialized_executable_t;

/* Extensions are a linked list; later fields depend on `type`. */
typedef struct pjrt_extension_base_t {
  size_t struct_size;
  int32_t type;
  struct pjrt_extension_base_t* next;
} pjrt_extension_base_t;

enum { PJRT_EXTENSION_FFI = 5 };

#define PJRT_ARGS_HEAD \
  size_t struct_size;  \
  pjrt_extension_base_t* extension_start

typedef struct pjrt_api_version_t {
  PJRT_ARGS_HEAD;
  int major_version;
  int minor_version;
} pjrt_api_version_t;

/* All functions look like this, the argument being one of the structs below, but two:
 * Error_Destroy and Error_Message return nothing. */
typedef pjrt_error_t* (*pjrt_function_t)(void* args);
typedef void (*pjrt_void_function_t)(void* args);

/* Slots of the function table at 0.114; older plugins have fewer. */
enum { PJRT_SLOT_COUNT = 138 };

typedef struct pjrt_api_t {
  PJRT_ARGS_HEAD;
  pjrt_api_version_t version;
  pjrt_function_t slots[PJRT_SLOT_COUNT];  // valid up to struct_size only; see pjrt_calls.def
} pjrt_api_t;

typedef enum pjrt_named_value_type_t {
  PJRT_NAMED_STRING = 0,
  PJRT_NAMED_INT64 = 1,
  PJRT_NAMED_INT64_LIST = 2,
  PJRT_NAMED_FLOAT = 3,
  PJRT_NAMED_BOOL = 4,
} pjrt_named_value_type_t;

typedef struct pjrt_named_value_t {
  PJRT_ARGS_HEAD;
  const char* name;
  size_t name_size;
  int32_t type;
  union {
    const char* string_value;
    int64_t int64_value;
    const int64_t* int64_list;
    float float_value;
    bool bool_value;
  } value;
  size_t value_size;  // 1 for scalars, else the length
} pjrt_named_value_t;

/* --- errors --- */

typedef struct pjrt_error_destroy_args_t {
  PJRT_ARGS_HEAD;
  pjrt_error_t* error;
} pjrt_error_destroy_args_t;

typedef struct pjrt_error_message_args_t {
  PJRT_ARGS_HEAD;
  const pjrt_error_t* error;
  const char* message;  // out; lives as long as the error
  size_t message_size;  // out
} pjrt_error_message_args_t;

typedef struct pjrt_error_get_code_args_t {
  PJRT_ARGS_HEAD;
  const pjrt_error_t* error;
  int32_t code;  // out
} pjrt_error_get_code_args_t;

/* --- plugin, client, device --- */

typedef struct pjrt_plugin_initialize_args_t {
  PJRT_ARGS_HEAD;
} pjrt_plugin_initialize_args_t;

typedef struct pjrt_client_create_args_t {
  PJRT_ARGS_HEAD;
  const pjrt_named_value_t* create_options;
  size_t num_options;
  void* kv_get_callback;
  void* kv_get_user_arg;
  void* kv_put_callback;
  void* kv_put_user_arg;
  pjrt_client_t* client;  // out
  void* kv_try_get_callback;
  void* kv_try_get_user_arg;
} pjrt_client_create_args_t;

typedef struct pjrt_client_destroy_args_t {
  PJRT_ARGS_HEAD;
  pjrt_client_t* client;
} pjrt_client_destroy_args_t;

typedef struct pjrt_client_platform_name_args_t {
  PJRT_ARGS_HEAD;
  pjrt_client_t* client;
  const char* platform_name;  // out; lives as long as the client
  size_t platform_name_size;  // out
} pjrt_client_platform_name_args_t;

typedef struct pjrt_client_platform_version_args_t {
  PJRT_ARGS_HEAD;
  pjrt_client_t* client;
  const char* platform_version;  // out; lives as long as the client
  size_t platform_version_size;  // out
} pjrt_client_platform_version_args_t;

typedef struct pjrt_client_addressable_devices_args_t {
  PJRT_ARGS_HEAD;
  pjrt_client_t* client;
  pjrt_device_t* const* addressable_devices;  // out; lives as long as the client
  size_t num_addressable_devices;             // out
} pjrt_client_addressable_devices_args_t;

typedef struct pjrt_device_get_description_args_t {
  PJRT_ARGS_HEAD;
  pjrt_device_t* device;
  pjrt_device_description_t* device_description;  // out
} pjrt_device_get_description_args_t;

typedef struct pjrt_device_description_kind_args_t {
  PJRT_ARGS_HEAD;
  pjrt_device_description_t* device_description;
  const char* device_kind;  // out
  size_t device_kind_size;  // out
} pjrt_device_description_kind_args_t;

typedef struct pjrt_device_memory_stats_args_t {
  PJRT_ARGS_HEAD;
  pjrt_device_t* device;
  int64_t bytes_in_use;  // out, as all that follow
  int64_t peak_bytes_in_use;
  bool peak_bytes_in_use_is_set;
  int64_t num_allocs;
  bool num_allocs_is_set;
  int64_t largest_alloc_size;
  bool largest_alloc_size_is_set;
  int64_t bytes_limit;
  bool bytes_limit_is_set;
  int64_t bytes_reserved;
  bool bytes_reserved_is_set;
  int64_t peak_bytes_reserved;
  bool peak_bytes_reserved_is_set;
  int64_t bytes_reservable_limit;
  bool bytes_reservable_limit_is_set;
  int64_t largest_free_block_bytes;
  bool largest_free_block_bytes_is_set;
  int64_t pool_bytes;
  bool pool_bytes_is_set;
  int64_t peak_pool_bytes;
  bool peak_pool_bytes_is_set;
  int64_t peak_allocated_bytes;
  bool peak_allocated_bytes_is_set;
} pjrt_device_memory_stats_args_t;

/* --- events --- */

typedef struct pjrt_event_destroy_args_t {
  PJRT_ARGS_HEAD;
  pjrt_event_t* event;
} pjrt_event_destroy_args_t;

typedef struct pjrt_event_await_args_t {
  PJRT_ARGS_HEAD;
  pjrt_event_t* event;
} pjrt_event_await_args_t;

typedef struct pjrt_event_is_ready_args_t {
  PJRT_ARGS_HEAD;
  pjrt_event_t* event;
  bool is_ready;  // out
} pjrt_event_is_ready_args_t;

/* The callback owns the error (NULL: none) and may run before the call returns, on any thread. */
typedef struct pjrt_event_on_ready_args_t {
  PJRT_ARGS_HEAD;
  pjrt_event_t* event;
  void (*callback)(pjrt_error_t* error, void* user_arg);
  void* user_arg;
} pjrt_event_on_ready_args_t;

/* --- buffers --- */

enum {
  PJRT_HOST_BUFFER_ONLY_DURING_CALL = 0,
  PJRT_HOST_BUFFER_UNTIL_TRANSFER_COMPLETES = 1,
  PJRT_HOST_BUFFER_IMMUTABLE_ZERO_COPY = 2,
  PJRT_HOST_BUFFER_MUTABLE_ZERO_COPY = 3,
};

typedef struct pjrt_memory_layout_tiled_t {
  PJRT_ARGS_HEAD;
  const int64_t* minor_to_major;
  size_t minor_to_major_size;
  const int64_t* tile_dims;
  const size_t* tile_dim_sizes;
  size_t num_tiles;
} pjrt_memory_layout_tiled_t;

enum { PJRT_MEMORY_LAYOUT_TILED = 0 };

typedef struct pjrt_memory_layout_t {
  PJRT_ARGS_HEAD;
  pjrt_memory_layout_tiled_t tiled;  // PJRT has a union here, whose other member we do not use
  int32_t type;
} pjrt_memory_layout_t;

typedef struct pjrt_client_buffer_from_host_buffer_args_t {
  PJRT_ARGS_HEAD;
  pjrt_client_t* client;
  const void* data;
  int32_t type;  // PJRT_Buffer_Type, see types/dtype_table.def
  const int64_t* dims;
  size_t num_dims;
  const int64_t* byte_strides;  // NULL: dense row-major
  size_t num_byte_strides;
  int32_t host_buffer_semantics;
  pjrt_device_t* device;
  pjrt_memory_t* memory;
  const pjrt_memory_layout_t* device_layout;  // NULL: the device's choice
  pjrt_event_t* done_with_host_buffer;        // out; to be destroyed
  pjrt_buffer_t* buffer;                      // out
} pjrt_client_buffer_from_host_buffer_args_t;

typedef struct pjrt_buffer_destroy_args_t {
  PJRT_ARGS_HEAD;
  pjrt_buffer_t* buffer;
} pjrt_buffer_destroy_args_t;

typedef struct pjrt_buffer_is_deleted_args_t {
  PJRT_ARGS_HEAD;
  pjrt_buffer_t* buffer;
  bool is_deleted;  // out
} pjrt_buffer_is_deleted_args_t;

typedef struct pjrt_buffer_ready_event_args_t {
  PJRT_ARGS_HEAD;
  pjrt_buffer_t* buffer;
  pjrt_event_t* event;  // out; to be destroyed
} pjrt_buffer_ready_event_args_t;

typedef struct pjrt_buffer_unsafe_pointer_args_t {
  PJRT_ARGS_HEAD;
  pjrt_buffer_t* buffer;
  uintptr_t buffer_pointer;  // out
} pjrt_buffer_unsafe_pointer_args_t;

typedef struct pjrt_buffer_dimensions_args_t {
  PJRT_ARGS_HEAD;
  pjrt_buffer_t* buffer;
  const int64_t* dims;  // out; lives as long as the buffer
  size_t num_dims;      // out
} pjrt_buffer_dimensions_args_t;

typedef struct pjrt_buffer_to_host_buffer_args_t {
  PJRT_ARGS_HEAD;
  pjrt_buffer_t* src;
  const pjrt_memory_layout_t* host_layout;  // NULL: the device's order of dimensions
  void* dst;                                // NULL asks for the size only
  size_t dst_size;
  pjrt_event_t* event;  // out; to be destroyed
} pjrt_buffer_to_host_buffer_args_t;

/* --- programs --- */

typedef struct pjrt_program_t {
  PJRT_ARGS_HEAD;
  const char* code;
  size_t code_size;
  const char* format;
  size_t format_size;
} pjrt_program_t;

typedef struct pjrt_client_compile_args_t {
  PJRT_ARGS_HEAD;
  pjrt_client_t* client;
  const pjrt_program_t* program;
  const char* compile_options;
  size_t compile_options_size;
  pjrt_loaded_executable_t* executable;  // out
} pjrt_client_compile_args_t;

typedef struct pjrt_topology_description_create_args_t {
  PJRT_ARGS_HEAD;
  const char* topology_name;
  size_t topology_name_size;
  const pjrt_named_value_t* create_options;
  size_t num_options;
  pjrt_topology_t* topology;  // out
} pjrt_topology_description_create_args_t;

typedef struct pjrt_topology_description_destroy_args_t {
  PJRT_ARGS_HEAD;
  pjrt_topology_t* topology;
} pjrt_topology_description_destroy_args_t;

/* For a topology, whose devices need not be there. */
typedef struct pjrt_compile_args_t {
  PJRT_ARGS_HEAD;
  const pjrt_topology_t* topology;
  const pjrt_program_t* program;
  const char* compile_options;
  size_t compile_options_size;
  pjrt_client_t* client;          // may be NULL
  pjrt_executable_t* executable;  // out
} pjrt_compile_args_t;

typedef struct pjrt_loaded_executable_destroy_args_t {
  PJRT_ARGS_HEAD;
  pjrt_loaded_executable_t* executable;
} pjrt_loaded_executable_destroy_args_t;

typedef struct pjrt_loaded_executable_get_executable_args_t {
  PJRT_ARGS_HEAD;
  pjrt_loaded_executable_t* loaded_executable;
  pjrt_executable_t* executable;  // out; to be destroyed
} pjrt_loaded_executable_get_executable_args_t;

typedef struct pjrt_executable_destroy_args_t {
  PJRT_ARGS_HEAD;
  pjrt_executable_t* executable;
} pjrt_executable_destroy_args_t;

typedef struct pjrt_executable_num_outputs_args_t {
  PJRT_ARGS_HEAD;
  pjrt_executable_t* executable;
  size_t num_outputs;  // out
} pjrt_executable_num_outputs_args_t;

typedef struct pjrt_executable_output_element_types_args_t {
  PJRT_ARGS_HEAD;
  pjrt_executable_t* executable;
  const int32_t* output_types;  // out; lives as long as the executable
  size_t num_output_types;      // out
} pjrt_executable_output_element_types_args_t;

typedef struct pjrt_executable_output_dimensions_args_t {
  PJRT_ARGS_HEAD;
  pjrt_executable_t* executable;
  size_t num_outputs;       // out
  const int64_t* dims;      // out; all outputs' sizes, one after the other
  const size_t* dim_sizes;  // out; rank of each output
} pjrt_executable_output_dimensions_args_t;

typedef struct pjrt_executable_get_compiled_memory_stats_args_t {
  PJRT_ARGS_HEAD;
  pjrt_executable_t* executable;
  int64_t generated_code_size_in_bytes;  // out, like all that follow
  int64_t argument_size_in_bytes;
  int64_t output_size_in_bytes;
  int64_t alias_size_in_bytes;
  int64_t temp_size_in_bytes;
  int64_t host_generated_code_size_in_bytes;
  int64_t host_argument_size_in_bytes;
  int64_t host_output_size_in_bytes;
  int64_t host_alias_size_in_bytes;
  int64_t host_temp_size_in_bytes;
  int64_t peak_memory_in_bytes;
  int64_t total_size_in_bytes;
  int64_t total_allocation_bytes;
  int64_t indefinite_allocations;
  int64_t peak_unpadded_heap_bytes;
} pjrt_executable_get_compiled_memory_stats_args_t;

typedef struct pjrt_executable_get_cost_analysis_args_t {
  PJRT_ARGS_HEAD;
  pjrt_executable_t* executable;
  size_t num_properties;                 // out
  const pjrt_named_value_t* properties;  // out; live as long as the executable
} pjrt_executable_get_cost_analysis_args_t;

typedef struct pjrt_executable_optimized_program_args_t {
  PJRT_ARGS_HEAD;
  pjrt_executable_t* executable;
  pjrt_program_t* program;  // out: without room for the code its size and format, else the code
} pjrt_executable_optimized_program_args_t;

typedef struct pjrt_executable_serialize_args_t {
  PJRT_ARGS_HEAD;
  const pjrt_executable_t* executable;
  const char* serialized_bytes;                         // out; owned by the object below
  size_t serialized_bytes_size;                         // out
  pjrt_serialized_executable_t* serialized_executable;  // out
  void (*serialized_executable_deleter)(pjrt_serialized_executable_t* object);  // out
} pjrt_executable_serialize_args_t;

typedef struct pjrt_executable_deserialize_and_load_args_t {
  PJRT_ARGS_HEAD;
  pjrt_client_t* client;
  const char* serialized_executable;
  size_t serialized_executable_size;
  pjrt_loaded_executable_t* loaded_executable;  // out
  const char* overridden_serialized_compile_options;
  size_t overridden_serialized_compile_options_size;
  void* load_options;
} pjrt_executable_deserialize_and_load_args_t;

typedef struct pjrt_execute_options_t {
  PJRT_ARGS_HEAD;
  void* send_callbacks;
  void* recv_callbacks;
  size_t num_send_ops;
  size_t num_recv_ops;
  int launch_id;
  const int64_t* non_donatable_input_indices;
  size_t num_non_donatable_input_indices;
  void* context;
  const char* call_location;
  size_t num_tasks;
  int* task_ids;
  int64_t* incarnation_ids;
  void* multi_slice_config;
  bool use_major_to_minor_data_layout_for_callbacks;
  void* hlo_output_callbacks;
  size_t num_hlo_output_callbacks;
} pjrt_execute_options_t;

typedef struct pjrt_loaded_executable_execute_args_t {
  PJRT_ARGS_HEAD;
  pjrt_loaded_executable_t* executable;
  pjrt_execute_options_t* options;
  pjrt_buffer_t* const* const* argument_lists;  // [num_devices][num_args]
  size_t num_devices;
  size_t num_args;
  pjrt_buffer_t** const* output_lists;  // [num_devices][outputs], filled by the plugin
  pjrt_event_t** device_complete_events;
  pjrt_device_t* execute_device;
} pjrt_loaded_executable_execute_args_t;

/* The size a struct has for PJRT: up to the end of its last field, without the padding after it. */
#define PJRT_STRUCT_SIZE(type, last_field) \
  (offsetof(type, last_field) + sizeof(((type*)0)->last_field))

#endif  // TPU_PJRT_PJRT_ABI_H_
