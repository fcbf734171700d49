// The line of Python that records an op, for error texts.
#ifndef TPU_SHIM_STACKS_H_
#define TPU_SHIM_STACKS_H_

#include "runtime.h"

namespace tpu_shim {

// Tells the core where this thread records: the innermost Python frame outside PyTorch and this
// package. A thread without Python frames (autograd's) has the line that the main thread is at.
void note_python_line();

inline void note_location() {
  if (C10_UNLIKELY(tpu_engine_traces(engine()))) note_python_line();
}

// " (recorded at file.py:12)" for this thread's next record; "" when lines are not looked for.
std::string recorded_here();

}  // namespace tpu_shim

#endif  // TPU_SHIM_STACKS_H_
