#include "observer.h"

#include "python_values.h"

namespace tpu_shim {

std::atomic<bool> g_observed{false};

namespace {

PyObject* g_observer = nullptr;  // guarded by the GIL

}  // namespace

void tell_observer(const char* direction, int64_t bytes) {
  Gil gil;
  if (g_observer == nullptr) return;
  Py_INCREF(g_observer);  // it may take itself away
  PyRef observer(g_observer);
  PyRef answer(
      PyObject_CallFunction(observer.get(), "sL", direction, static_cast<long long>(bytes)));
}

void set_observer(PyObject* observer) {
  PyObject* former = g_observer;
  g_observer = observer == Py_None ? nullptr : observer;
  Py_XINCREF(g_observer);
  g_observed.store(g_observer != nullptr);
  Py_XDECREF(former);
}

}  // namespace tpu_shim
