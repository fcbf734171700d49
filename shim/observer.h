// Tells a Python function of each transfer between host and device while torch.tpu.explain looks.
#ifndef TPU_SHIM_OBSERVER_H_
#define TPU_SHIM_OBSERVER_H_

#include <c10/macros/Macros.h>
#include <torch/csrc/python_headers.h>

#include <atomic>
#include <cstdint>

namespace tpu_shim {

extern std::atomic<bool> g_observed;

// Calls the observer with ("to_host" or "to_device", bytes), on the thread that asked for the
// transfer and before it waits. Takes the GIL.
void tell_observer(const char* direction, int64_t bytes);

inline void note_transfer(const char* direction, int64_t bytes) {
  if (C10_UNLIKELY(g_observed.load(std::memory_order_relaxed))) tell_observer(direction, bytes);
}

// None ends it. Needs the GIL.
void set_observer(PyObject* observer);

// There is a new reason for which programs are made (tpu_engine_set_told): has the reader called,
// later and on Python's main thread. Needs no GIL.
void note_reason();
// A function without arguments; None ends it. Needs the GIL.
void set_reason_reader(PyObject* reader);

}  // namespace tpu_shim

#endif  // TPU_SHIM_OBSERVER_H_
