"""The Dynamo backend "tpu"."""

import warnings

import torch
from torch._dynamo import graph_bytecode_inputs
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import SerializableAOTDispatchCompiler
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._guards import TracingContext

from torch_tpu._compile.graph import CompiledGraph

# What torch._inductor.list_mode_options knows; the names are torch.compile's, not Inductor's.
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")

_warned = set()


def warn_once(text):
  """Python's own "once" depends on the caller's line; this does not."""
  if text not in _warned:
    _warned.add(text)
    warnings.warn(text, UserWarning, stacklevel=3)


class TpuBackend:
  """Dynamo backend: ``torch.compile(model, backend="tpu")`` or ``backend=TpuBackend()``.

  The parameters are the published product's. `debug` changes nothing, since every mode's checks
  are there anyway; `dynamism` neither: symbolic sizes are always accepted. Instances are equal, so
  that two of them share what was compiled.
  """

  __name__ = "tpu"

  def __init__(self, debug=False, dynamism=False, enable_serialization=True, precompile_steps=0):
    self.debug = debug
    self.dynamism = dynamism
    self.enable_serialization = enable_serialization
    self.precompile_steps = precompile_steps

  def __eq__(self, other):
    return isinstance(other, TpuBackend) and vars(self) == vars(other)

  def __hash__(self):
    return hash(TpuBackend)

  def __call__(self, graph_module, example_inputs, *, mode=None, options=None):
    if mode is not None and mode not in MODES:
      raise RuntimeError(f"torch.compile: mode={mode!r} is unknown; use one of {', '.join(MODES)}.")
    if mode not in (None, "default"):
      warn_once(
        f"torch.compile(mode={mode!r}) does the same as the default mode on 'tpu': launches are "
        f"cheap in all modes, and XLA tunes by itself."
      )
    if options:
      warn_once(
        f"torch.compile: the backend 'tpu' has no options; ignored: {', '.join(sorted(options))}."
      )
    compiled = _lower(graph_module, example_inputs)
    _pass_no_stream(graph_module)
    return compiled

  def reset(self):
    """For torch.compiler.reset(). A graph's templates go with Dynamo's reference to it, and
    programs are shared with eager, so that all there is to forget is what was said."""
    _warned.clear()


def _pass_no_stream(graph_module):
  """Where there is an accelerator, Dynamo looks up the current stream before each call of a graph,
  in case an operator of the graph asks for it by its number: 20 us. It emits that code after this
  backend has run, if anything is registered then; here one that nobody asks for is taken back."""
  registered = graph_bytecode_inputs.index_to_bytecode_constructor
  if list(registered) == [graph_bytecode_inputs.CURRENT_STREAM_INDEX] and not any(
    _takes_registered_objects(node)
    for module in graph_module.modules()
    if isinstance(module, torch.fx.GraphModule)
    for node in module.graph.nodes
  ):
    registered.clear()


def _takes_registered_objects(node):
  target = node.target
  if node.op != "call_function" or target is None:
    return False
  if isinstance(target, torch._ops.HigherOrderOperator):
    return target.name() == "invoke_leaf_function"
  module = target.namespace if hasattr(target, "namespace") else getattr(target, "__module__", "")
  return "stream" in str(module)


def _lower(graph_module, example_inputs):
  lowering = aot_autograd(
    fw_compiler=_compiler("forward"),
    bw_compiler=_compiler("backward"),
    inference_compiler=_compiler("inference"),
    partition_fn=min_cut_rematerialization_partition,
    keep_inference_input_mutations=True,
  )
  CompiledGraph.made.clear()
  with torch._functorch.config.patch(
    # A copy of the RNG state per operation would give other numbers than eager does.
    graphsafe_rng_functionalization=False,
    functionalize_rng_ops=False,
    # An entry of the cache is whole: no other cache knows our graphs. For that, backward's graph is
    # made together with forward's; its programs are not.
    bundled_autograd_cache=True,
    force_non_lazy_backward_lowering=True,
  ):
    wrapped = lowering(graph_module, example_inputs)
  direct = None
  if [graph.kind for graph in CompiledGraph.made] == ["inference"]:
    direct = CompiledGraph.made[0].without_wrappers(wrapped, len(example_inputs))
  CompiledGraph.made.clear()
  return wrapped if direct is None else direct


def _compiler(kind):
  def compile_graph(graph_module, example_inputs):
    graph = CompiledGraph(graph_module, kind)
    if kind == "inference":
      graph.note_wrappers(TracingContext.get().fw_metadata)
    return graph

  return SerializableAOTDispatchCompiler(CompiledGraph, compile_graph)


backend = TpuBackend()
