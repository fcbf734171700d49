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

namespace {

PyObject* g_reason_reader = nullptr;  // guarded by the GIL
std::atomic<bool> g_reasons_wanted{false}, g_reasons_pending{false};

int read_reasons(void*) {
  g_reasons_pending.store(false);
  if (g_reason_reader == nullptr) return 0;
  Py_INCREF(g_reason_reader);
  PyRef reader(g_reason_reader);
  PyRef answer(PyObject_CallNoArgs(reader.get()), PyRef::kMayBeNull);
  return answer.get() == nullptr ? -1 : 0;
}

}  // namespace

void note_reason() {
  if (!g_reasons_wanted.load() || g_reasons_pending.exchange(true)) return;
  // Where the queue is full the next reason tries again.
  if (Py_AddPendingCall(read_reasons, nullptr) != 0) g_reasons_pending.store(false);
}

void set_reason_reader(PyObject* reader) {
  PyObject* former = g_reason_reader;
  g_reason_reader = reader == Py_None ? nullptr : reader;
  Py_XINCREF(g_reason_reader);
  g_reasons_wanted.store(g_reason_reader != nullptr);
  Py_XDECREF(former);
}

}  // namespace tpu_shim
