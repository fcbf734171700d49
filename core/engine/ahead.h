/* Recording ahead of time: what a thread records between begin and end is not launched but becomes
 * programs for a platform that need not be this device's, and is then forgotten.
 *
 * Meanwhile tensors need no content: one that has none yet is an argument of the programs and takes
 * no memory, where it would read as zeros otherwise. Whoever asks for a content gets an error. What
 * the thread made has no content afterwards, and what it wrote is as it was before.
 */
#ifndef TPU_ENGINE_AHEAD_H_
#define TPU_ENGINE_AHEAD_H_

#include "engine/engine.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A value that goes from one program to another, or comes from before all of them. */
typedef struct tpu_ahead_value_t {
  uint32_t number;     // of externals and of the rest apart
  bool external;       // it is there before the first program
  bool given;          // of an input: nobody needs it afterwards, a program may write into it
  tpu_meta_id_t meta;  // dtype and sizes
} tpu_ahead_value_t;

/* One launch. Equal texts are one program. */
typedef struct tpu_ahead_launch_t {
  char* text;  // StableHLO
  size_t text_size;
  uint32_t input_count, output_count;
  tpu_ahead_value_t* inputs;   // its arguments, but for numbers
  tpu_ahead_value_t* outputs;  // its results, but for what it checks
} tpu_ahead_launch_t;

typedef struct tpu_ahead_t {
  uint32_t launch_count;
  tpu_ahead_launch_t* launches;  // in order
  uint32_t external_count;
  tpu_meta_id_t* externals;
} tpu_ahead_t;

/* Launches what this thread has recorded and begins. TPU_FAILED_PRECONDITION when it, or a capture,
 * is under way already. */
TPU_MUST_USE tpu_status_t tpu_engine_ahead_begin(tpu_engine_t* engine);
/* Says what these tensors look like, should they have no content: else that is settled by who reads
 * them first, and he may look at them through another view. */
TPU_MUST_USE tpu_status_t tpu_engine_ahead_declare(tpu_engine_t* engine, int count,
                                                   const tpu_operand_t* tensors);
/* Ends it; `*out_made` (free with tpu_ahead_free) are the programs for `platform`. Fails for what
 * cannot be written for it; it is ended all the same. */
TPU_MUST_USE tpu_status_t tpu_engine_ahead_end(tpu_engine_t* engine, tpu_platform_kind_t platform,
                                               tpu_ahead_t** out_made);
/* Ends it without programs; does nothing if this thread has not begun. */
void tpu_engine_ahead_cancel(tpu_engine_t* engine);
void tpu_ahead_free(tpu_ahead_t* made);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // TPU_ENGINE_AHEAD_H_
