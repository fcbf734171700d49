// A compiled graph as a Python callable: a replay where a template fits, without a line of Python;
// else another callable, which runs the graph.
#ifndef TPU_SHIM_GRAPH_CALL_H_
#define TPU_SHIM_GRAPH_CALL_H_

#include <torch/csrc/python_headers.h>

#include <vector>

#include "graph.h"

namespace tpu_shim {

// A new reference to a callable of positional arguments, which gives the graph's results as a list.
// `capsule` keeps `graph` alive; `constants`, a tuple, follows the arguments; the graph writes the
// arguments `written`, whose versions are raised as autograd wants it; `slow` is called with the
// arguments when no template fits, and has the callable's public attributes. Needs the GIL.
PyObject* make_graph_call(PyObject* capsule, Graph* graph, PyObject* constants,
                          std::vector<size_t> written, PyObject* slow);

}  // namespace tpu_shim

#endif  // TPU_SHIM_GRAPH_CALL_H_
