// Graphs of torch.compile: the ATen calls of a graph run once under a capture, per signature of its
// arguments, and are replayed from then on without Python (engine.h).
#ifndef TPU_SHIM_GRAPH_H_
#define TPU_SHIM_GRAPH_H_

#include <torch/csrc/python_headers.h>

#include <memory>
#include <string>

namespace tpu_shim {

class Graph {
 public:
  Graph();
  ~Graph();

  // The results for a list of arguments, which is emptied; a new reference. None, and the list is
  // as it was, when no template fits: the caller then runs the graph, between begin and end.
  PyObject* run(PyObject* arguments);

  // Begins a capture with these arguments. False when none can be made of them, or not now.
  bool begin(PyObject* arguments);
  // Ends it, after the graph has given these results (a list or tuple). Why no template came of it,
  // in the words "it ..."; empty when one did, or may the next time.
  std::string end(PyObject* results);
  // Ends it without a template, for a graph that failed.
  void cancel();

  size_t template_count() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tpu_shim

#endif  // TPU_SHIM_GRAPH_H_
