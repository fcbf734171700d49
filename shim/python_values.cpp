#include "python_values.h"

#include <ATen/core/jit_type.h>
#include <sys/syscall.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/tensor_memoryformats.h>
#include <unistd.h>

#include <stdexcept>

namespace tpu_shim {

namespace {

PyObject* checked(PyObject* made) {
  if (made == nullptr) throw_python_error();
  return made;
}

PyObject* borrowed(PyObject* object) {
  Py_XINCREF(object);
  return checked(object);
}

PyObject* tensor_to_python(const at::Tensor& tensor) {
  if (!tensor.defined()) Py_RETURN_NONE;
  at::Tensor plain(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(
      /*version_counter=*/c10::VariableVersion(0), /*allow_tensor_metadata_change=*/false));
  return checked(THPVariable_Wrap(plain));
}

PyObject* int_to_python(int64_t value, c10::TypeKind kind) {
  switch (kind) {
    case c10::TypeKind::ScalarTypeType:
      return borrowed(
          reinterpret_cast<PyObject*>(torch::getTHPDtype(static_cast<at::ScalarType>(value))));
    case c10::TypeKind::LayoutType:
      return borrowed(
          reinterpret_cast<PyObject*>(torch::getTHPLayout(static_cast<at::Layout>(value))));
    case c10::TypeKind::MemoryFormatType:
      return borrowed(torch::utils::getTHPMemoryFormat(static_cast<at::MemoryFormat>(value)));
    default: return checked(PyLong_FromLongLong(value));
  }
}

PyObject* list_to_python(const c10::IValue& value, const c10::Type& type) {
  const auto list = value.toListRef();
  const c10::Type& element = type.kind() == c10::TypeKind::ListType
                                 ? *type.expectRef<c10::ListType>().getElementType()
                                 : *c10::AnyType::get();
  PyRef made(PyList_New(static_cast<Py_ssize_t>(list.size())));
  for (size_t i = 0; i < list.size(); ++i) {
    PyList_SET_ITEM(made.get(), static_cast<Py_ssize_t>(i), to_python(list[i], element));
  }
  return made.release();
}

}  // namespace

void throw_python_error() {
  python_error error;
  error.persist();
  throw error;
}

void throw_index_error(const std::string& text) {
  Gil gil;
  PyRef module(PyImport_ImportModule("torch_tpu.errors"));
  PyRef type(PyObject_GetAttrString(module.get(), "IndexError"));
  PyErr_SetString(type.get(), text.c_str());
  throw_python_error();
}

bool python_interrupts() {
  // Python runs handlers on its main thread only, which is that of the process.
  if (syscall(SYS_gettid) != getpid() || !Py_IsInitialized()) return false;
  Gil gil;
  return PyErr_CheckSignals() != 0;
}

void throw_interrupt(const std::string& text) {
  Gil gil;
  if (PyErr_Occurred() != nullptr) throw_python_error();
  TORCH_CHECK(false, text);
  throw std::runtime_error(text);  // unreachable, but the macro does not say so
}

std::string take_python_error() {
  if (!PyErr_ExceptionMatches(PyExc_Exception)) throw_python_error();
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyRef owned_type(type, PyRef::kMayBeNull), owned_value(value, PyRef::kMayBeNull);
  PyRef owned_trace(trace, PyRef::kMayBeNull);
  PyRef text(value != nullptr ? PyObject_Str(value) : nullptr, PyRef::kMayBeNull);
  const char* words = text.get() != nullptr ? PyUnicode_AsUTF8(text.get()) : nullptr;
  PyErr_Clear();  // of the conversion to text
  const std::string name = reinterpret_cast<PyTypeObject*>(type)->tp_name;
  return name + ": " + (words != nullptr ? words : "");
}

PyObject* to_python(const c10::IValue& value, const c10::Type& type) {
  if (const auto* optional = type.castRaw<c10::OptionalType>()) {
    return to_python(value, *optional->getElementType());
  }
  if (value.isNone()) Py_RETURN_NONE;
  if (value.isTensor()) return tensor_to_python(value.toTensor());
  if (value.isBool()) return checked(PyBool_FromLong(value.toBool()));
  if (value.isInt()) return int_to_python(value.toInt(), type.kind());
  if (value.isSymInt())
    return int_to_python(value.toSymInt().guard_int(__FILE__, __LINE__), type.kind());
  if (value.isDouble()) return checked(PyFloat_FromDouble(value.toDouble()));
  if (value.isComplexDouble()) {
    const c10::complex<double> number = value.toComplexDouble();
    return checked(PyComplex_FromDoubles(number.real(), number.imag()));
  }
  if (value.isString()) {
    const auto text = value.toStringView();
    return checked(PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size())));
  }
  if (value.isDevice()) return checked(THPDevice_New(value.toDevice()));
  TORCH_CHECK(value.isList(), "a ", value.tagKind(), " cannot be passed to Python");
  return list_to_python(value, type);
}

bool PyCall::is_default(size_t index) const {
  const auto& wanted = schema_.arguments()[index].default_value();
  const c10::IValue& value = values_[index];
  if (!wanted.has_value() || value.isTensor() || value.isTensorList() ||
      value.isOptionalTensorList()) {
    return false;
  }
  return value.tagKind() == wanted->tagKind() && value == *wanted;
}

PyObject* PyCall::run(PyObject* function) const {
  const auto& arguments = schema_.arguments();
  size_t positional = 0;
  while (positional < arguments.size() && !arguments[positional].kwarg_only()) ++positional;
  size_t given = positional;
  while (given > 0 && is_default(given - 1)) --given;
  PyRef args(PyTuple_New(static_cast<Py_ssize_t>(given)));
  for (size_t i = 0; i < given; ++i) {
    PyTuple_SET_ITEM(args.get(), static_cast<Py_ssize_t>(i),
                     to_python(values_[i], *arguments[i].real_type()));
  }
  PyRef kwargs(PyDict_New());
  for (size_t i = positional; i < arguments.size(); ++i) {
    if (is_default(i)) continue;
    PyRef value(to_python(values_[i], *arguments[i].real_type()));
    if (PyDict_SetItemString(kwargs.get(), arguments[i].name().c_str(), value.get()) != 0)
      throw_python_error();
  }
  return PyObject_Call(function, args.get(), kwargs.get());
}

bool tensors_from_python(PyObject* object, size_t count,
                         c10::SmallVectorImpl<at::Tensor>* tensors) {
  if (count == 1 && (object == Py_None || THPVariable_Check(object))) {
    tensors->push_back(object == Py_None ? at::Tensor() : THPVariable_Unpack(object));
    return true;
  }
  if (!PyTuple_Check(object) && !PyList_Check(object)) return false;
  if (static_cast<size_t>(PySequence_Size(object)) != count) return false;
  for (size_t i = 0; i < count; ++i) {
    PyRef item(PySequence_GetItem(object, static_cast<Py_ssize_t>(i)));
    if (item.get() != Py_None && !THPVariable_Check(item.get())) return false;
    tensors->push_back(item.get() == Py_None ? at::Tensor() : THPVariable_Unpack(item.get()));
  }
  return true;
}

}  // namespace tpu_shim
