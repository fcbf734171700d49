#include "graph_call.h"

#include <c10/util/SmallVector.h>
#include <structmember.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstddef>
#include <utility>

#include "python_values.h"

namespace tpu_shim {

namespace {

struct GraphCall {
  PyObject_HEAD;
  vectorcallfunc vectorcall;
  PyObject* weak_references;
  PyObject *capsule, *constants, *slow;
  Graph* graph;  // in the capsule
  std::vector<size_t>* written;
};

GraphCall* as_call(PyObject* self) { return reinterpret_cast<GraphCall*>(self); }

// AOTAutograd's wrapper does this for graphs that it calls.
void raise_versions(const GraphCall& call, PyObject* const* arguments) {
  for (size_t k : *call.written) {
    const at::Tensor& tensor = THPVariable_Unpack(arguments[k]);
    if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  }
}

PyObject* replay(const GraphCall& call, PyObject* const* arguments, size_t count) {
  const auto constants = static_cast<size_t>(PyTuple_GET_SIZE(call.constants));
  if (constants == 0) return call.graph->run(arguments, count, nullptr);
  c10::SmallVector<PyObject*, 32> all(arguments, arguments + count);
  for (size_t k = 0; k < constants; ++k) {
    all.push_back(PyTuple_GET_ITEM(call.constants, static_cast<Py_ssize_t>(k)));
  }
  return call.graph->run(all.data(), all.size(), nullptr);
}

PyObject* call_graph(PyObject* self, PyObject* const* arguments, size_t flags, PyObject* names) {
  HANDLE_TH_ERRORS
  const GraphCall& call = *as_call(self);
  const auto count = static_cast<size_t>(PyVectorcall_NARGS(flags));
  if (names == nullptr || PyTuple_GET_SIZE(names) == 0) {
    PyObject* results = replay(call, arguments, count);
    if (results != nullptr) return raise_versions(call, arguments), results;
  }
  return PyObject_Vectorcall(call.slow, arguments, count, names);
  END_HANDLE_TH_ERRORS
}

// The public names are those of `slow`, such as `serialize`. Private ones say how a function was
// wrapped, which this one was not.
PyObject* get_attribute(PyObject* self, PyObject* name) {
  PyObject* own = PyObject_GenericGetAttr(self, name);
  if (own != nullptr || !PyErr_ExceptionMatches(PyExc_AttributeError)) return own;
  if (PyUnicode_READ_CHAR(name, 0) == '_') return nullptr;
  PyErr_Clear();
  return PyObject_GetAttr(as_call(self)->slow, name);
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(as_call(self)->capsule);
  Py_VISIT(as_call(self)->constants);
  Py_VISIT(as_call(self)->slow);
  return 0;
}

// Leaves the graph, of which a call may be under way.
int clear(PyObject* self) {
  Py_CLEAR(as_call(self)->slow);
  return 0;
}

void dealloc(PyObject* self) {
  GraphCall* call = as_call(self);
  PyObject_GC_UnTrack(self);
  PyObject_ClearWeakRefs(self);
  clear(self);
  Py_CLEAR(call->constants);
  Py_CLEAR(call->capsule);
  delete call->written;
  PyObject_GC_Del(self);
}

PyTypeObject make_type() {
  PyTypeObject type{};
  type.ob_base.ob_base.ob_refcnt = 1;  // static types are never freed
  type.tp_name = "torch_tpu._C.GraphCall";
  type.tp_doc = "A graph of torch.compile; see shim/graph_call.h.";
  type.tp_basicsize = sizeof(GraphCall);
  type.tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
  type.tp_call = PyVectorcall_Call;
  type.tp_vectorcall_offset = offsetof(GraphCall, vectorcall);
  type.tp_weaklistoffset = offsetof(GraphCall, weak_references);
  type.tp_getattro = get_attribute;
  type.tp_traverse = traverse;
  type.tp_clear = clear;
  type.tp_dealloc = dealloc;
  return type;
}

}  // namespace

PyObject* make_graph_call(PyObject* capsule, Graph* graph, PyObject* constants,
                          std::vector<size_t> written, PyObject* slow) {
  static PyTypeObject type = make_type();
  if (PyType_Ready(&type) != 0) throw_python_error();
  PyRef owner(reinterpret_cast<PyObject*>(PyObject_GC_New(GraphCall, &type)));
  GraphCall* call = as_call(owner.get());
  call->vectorcall = call_graph;
  call->weak_references = nullptr;
  for (PyObject* held : {capsule, constants, slow}) Py_INCREF(held);
  call->capsule = capsule;
  call->constants = constants;
  call->slow = slow;
  call->graph = graph;
  call->written = new std::vector<size_t>(std::move(written));
  PyObject_GC_Track(owner.get());
  return owner.release();
}

}  // namespace tpu_shim
