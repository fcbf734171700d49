// Calling Python from a kernel: PyTorch values to Python objects and back. Everything but Gil and
// throw_index_error needs the GIL.
#ifndef TPU_SHIM_PYTHON_VALUES_H_
#define TPU_SHIM_PYTHON_VALUES_H_

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/python_headers.h>

#include <string>

namespace tpu_shim {

// Holds the GIL; kernels are called without it, from any thread.
struct Gil {
  Gil() : state(PyGILState_Ensure()) {}
  ~Gil() { PyGILState_Release(state); }
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;
  PyGILState_STATE state;
};

// Lets other Python threads run while the engine compiles, launches or waits.
template <class Work>
void without_gil(const Work& work) {
  struct Dropped {
    PyThreadState* state = PyEval_SaveThread();
    ~Dropped() { PyEval_RestoreThread(state); }
  } dropped;
  work();
}

// Throws the exception that Python has set, in a form that may cross threads.
[[noreturn]] void throw_python_error();
// Throws torch_tpu.errors.IndexError. Takes the GIL itself.
[[noreturn]] void throw_index_error(const std::string& text);
// True when a signal handler of Python raised: asked by waits, on any thread, without the GIL. The
// exception stays set, for throw_interrupt.
bool python_interrupts();
// Throws that exception. Takes the GIL itself.
[[noreturn]] void throw_interrupt(const std::string& text);
// "Type: text" of the exception that Python has set, which is cleared. Throws what is no Exception.
std::string take_python_error();

// Owns a reference. Throws Python's exception when it is made from NULL.
class PyRef {
 public:
  enum Null { kMayBeNull };
  explicit PyRef(PyObject* object) : object_(object) {
    if (object == nullptr) throw_python_error();
  }
  PyRef(PyObject* object, Null) : object_(object) {}
  ~PyRef() { Py_XDECREF(object_); }
  PyRef(const PyRef&) = delete;
  PyRef& operator=(const PyRef&) = delete;
  PyObject* get() const { return object_; }
  PyObject* release() {
    PyObject* object = object_;
    object_ = nullptr;
    return object;
  }

 private:
  PyObject* object_;
};

// A new reference to `value` as Python code would pass it for an argument of this type. Tensors are
// handed over without their autograd history.
PyObject* to_python(const c10::IValue& value, const c10::Type& type);

// One call by a schema: arguments that have their default value are left out where possible.
class PyCall {
 public:
  explicit PyCall(const c10::FunctionSchema& schema)
      : schema_(schema), values_(schema.arguments().size()) {}
  void set(size_t index, c10::IValue value) { values_[index] = std::move(value); }
  // New reference, or NULL with Python's exception set.
  PyObject* run(PyObject* function) const;

 private:
  bool is_default(size_t index) const;
  const c10::FunctionSchema& schema_;
  c10::SmallVector<c10::IValue, 8> values_;
};

// A tensor, or a tuple or list of `count`; None is an undefined tensor. False for anything else.
bool tensors_from_python(PyObject* object, size_t count, c10::SmallVectorImpl<at::Tensor>* tensors);

}  // namespace tpu_shim

#endif  // TPU_SHIM_PYTHON_VALUES_H_
