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

  // A new list of the results for these arguments. NULL, without an exception, when no template
  // fits: the caller then runs the graph, between begin and end. `owner`, if there is one, is the
  // list that holds the arguments: it is emptied, so that programs may overwrite what nobody else
  // holds, and left as it is when no template fits.
  PyObject* run(PyObject* const* arguments, size_t count, PyObject* owner);

  // Begins a capture with these arguments. False when none can be made of them, or not now.
  bool begin(PyObject* arguments);
  // Ends it, after the graph has given these results (a list or tuple). Why no template came of it,
  // in the words "it ..."; empty when one did, or may the next time.
  std::string end(PyObject* results);
  // Ends it without a template, for a graph that failed.
  void cancel();

  size_t template_count() const;
  uint64_t replay_count() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tpu_shim

#endif  // TPU_SHIM_GRAPH_H_
