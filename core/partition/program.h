/* A program: an ordered set of a window's records that becomes one executable. Made by partition/,
 * turned into text by lower/, run by launch/.
 */
#ifndef TPU_PARTITION_PROGRAM_H_
#define TPU_PARTITION_PROGRAM_H_

#include "device/device.h"
#include "trace/trace.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tpu_program_input_t {
  uint32_t ref;    // WINDOW or EXTERNAL, without the view bit
  bool donatable;  // its content may be reused for an output
} tpu_program_input_t;

typedef struct tpu_program_t {
  const tpu_window_t* window;  // borrowed
  uint32_t record_count;
  const uint32_t* records;  // record indices, in execution order
  uint32_t input_count;
  const tpu_program_input_t* inputs;  // buffer arguments, in argument order
  uint32_t output_count;
  const uint32_t* outputs;         // window value numbers, in result order
  const uint8_t* slot_dynamic;     // [window->slot_count] 1: the slot is a program argument
  const tpu_platform_t* platform;  // that it is written for
  bool host_calls;                 // it may call the C kernels of host/ (CPU platform only)
  bool checks;                     // it also says whether its indices and the like are in order
} tpu_program_t;

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_PARTITION_PROGRAM_H_
