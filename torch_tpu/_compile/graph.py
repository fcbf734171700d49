"""A graph of ATen calls that AOTAutograd made, as a callable.

The first call with a signature runs the graph under a capture, and what it recorded becomes a
template; later calls are a replay of that, without Python (shim/graph.h). What cannot be a template
runs call by call each time, through the same recorder: slower, and just as right.
"""

import itertools
import logging
import pickle
import weakref

import torch
from torch._functorch._aot_autograd.schemas import PlainTensorMeta
from torch._inductor.output_code import OutputCode
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch._subclasses import FakeTensorMode
from torch.fx._graph_pickler import GraphPickler, Options
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.graph import _BoxedCodeGen

from torch_tpu import _C
from torch_tpu._version import __version__

log = logging.getLogger("torch_tpu")

# A graph is not tried again after this many captures, if there were not at least as many replays.
_MAX_ATTEMPTS = 16

# Operators that are run by PyTorch's own Python code and do nothing but call other operators.
_PURE_HIGHER_ORDER = {
  "associative_scan",
  "cond",
  "flex_attention",
  "flex_attention_backward",
  "invoke_subgraph",
  "map_impl",
  "scan",
  "while_loop",
}


def _run_and_save_rng_state(op, *args, **kwargs):
  return torch.tpu.get_rng_state(), op(*args, **kwargs)


def _run_with_rng_state(state, op, *args, **kwargs):
  current = torch.tpu.get_rng_state()
  torch.tpu.set_rng_state(state)
  try:
    return op(*args, **kwargs)
  finally:
    torch.tpu.set_rng_state(current)


# Operators of PyTorch that know a fixed set of devices: our own form of each.
_REPLACED = {
  run_and_save_rng_state: _run_and_save_rng_state,
  run_with_rng_state: _run_with_rng_state,
}
_ORIGINALS = {ours: theirs for theirs, ours in _REPLACED.items()}


_numbers = itertools.count()
_live = weakref.WeakValueDictionary()  # every graph that Dynamo or autograd still holds, by number


def describe_all():
  """What torch.tpu.explain says of each graph: number -> dict."""
  return {number: graph.describe() for number, graph in sorted(_live.items())}


class CompiledGraph(OutputCode):
  """Takes a list of arguments, which it empties, and gives a list of results.

  AOTAutograd's cache keeps it as code, without templates. `made` are those that the present call
  of AOTAutograd made or took from its cache."""

  made = []

  def __init__(self, graph_module, kind):
    self._boxed_call = True  # of the instance: AOTAutograd's wrappers copy its __dict__
    self.kind = kind
    self.obstacle = _obstacle(graph_module)  # why it runs call by call; None while it may not
    _replace_operators(graph_module)
    self.numbers = _lift_numbers(graph_module)
    self.inputs = len(graph_module.graph.find_nodes(op="placeholder"))
    self.outputs = len(graph_module.graph.output_node().args[0])
    self.constants = _lift_constants(graph_module)
    self.written = None  # places of arguments that it writes; None: not without the wrappers
    self._begin(graph_module)
    CompiledGraph.made.append(self)

  def describe(self):
    return {
      "kind": self.kind,
      "calls": self.calls + _C.graph_replays(self.graph),
      "operations": sum(node.op == "call_function" for node in self.module.graph.nodes),
      "templates": _C.graph_templates(self.graph),
      "obstacle": self.obstacle,
    }

  def __call__(self, args):
    if self.numbers is not None:
      args += self.numbers(args)
    args += self.constants
    if self.obstacle is None:
      results = _C.graph_run(self.graph, args)
      if results is not None:
        return results
      self.calls += 1
      return self._capture(args)
    self.calls += 1
    return self.module(args)

  # --- for AOTAutograd's cache ---

  def prepare_for_serialization(self):
    pass  # it is told to a copy, which __getstate__ has made

  def post_compile(self, example_inputs, constants, graph_kwargs):
    CompiledGraph.made.append(self)

  def __getstate__(self):
    state = self.__dict__.copy()
    for name in ("graph", "calls", "attempts", "number"):
      del state[name]
    numbers = self.numbers and (_to_bytes(self.numbers.module), self.numbers.places)
    return state | {
      "version": __version__,
      "module": _to_bytes(self.module),
      "numbers": numbers,
    }

  def __setstate__(self, state):
    if state.pop("version") != __version__:
      raise pickle.UnpicklingError("a graph of another version of torch_tpu")
    module, numbers = state.pop("module"), state.pop("numbers")
    self.__dict__.update(state)
    self.numbers = numbers and _Numbers(_from_bytes(numbers[0]), numbers[1])
    self._begin(_from_bytes(module))

  def _begin(self, graph_module):
    graph_module.graph.set_codegen(_BoxedCodeGen())
    graph_module.recompile()
    self.module = graph_module
    self.graph = _C.graph_new()
    self.attempts = 0
    self.calls = 0  # but for replays
    self.number = next(_numbers)
    _live[self.number] = self

  # --- without AOTAutograd ---

  def note_wrappers(self, metadata):
    """Looks at what AOTAutograd's wrappers will do: they may be left out where they only hand over
    arguments and results, and count writes."""
    plain = (
      self.numbers is None
      and self.inputs == len(metadata.input_info)
      and metadata.num_outputs == self.outputs
      and not metadata.num_mutated_inp_runtime_indices
      and not metadata.num_outputs_aliased
      and not metadata.num_intermediate_bases
      and not metadata.dynamic_outputs
      and not metadata.tokens
      and not metadata.is_rng_op_functionalized
      and metadata.grad_enabled_mutation is None
      and not metadata.act_input_indices
      and all(
        isinstance(each, PlainTensorMeta)
        for each in metadata.subclass_inp_meta + metadata.subclass_fw_graph_out_meta
      )
    )
    if plain:
      self.written = tuple(metadata.mutated_graph_handled_indices_seen_by_autograd)

  def without_wrappers(self, wrapped, count):
    """A callable for `wrapped`, which is what AOTAutograd made of this graph for `count` inputs,
    that goes through the wrappers only where there is no template. None where that won't do."""
    if self.written is None or self.inputs != count:
      return None
    return _C.graph_call(self.graph, tuple(self.constants), self.written, wrapped)

  def _capture(self, args):
    self.attempts += 1
    if self.attempts > _MAX_ATTEMPTS and _C.graph_replays(self.graph) < self.attempts:
      self._give_up("its numbers, sizes or arguments on the CPU change with every call")
      return self.module(args)
    host_state = torch.random.default_generator.get_state()
    if not _C.graph_begin(self.graph, args):
      return self.module(args)
    try:
      results = self.module(args)
    except BaseException:
      _C.graph_cancel(self.graph)
      raise
    if not torch.equal(host_state, torch.random.default_generator.get_state()):
      _C.graph_cancel(self.graph)
      self._give_up("it draws random numbers on the CPU")
      return results
    reason = _C.graph_end(self.graph, results)
    if reason:
      self._give_up(reason)
    return results

  def _give_up(self, reason):
    # Templates of other signatures are worth more than a reason.
    if _C.graph_templates(self.graph) == 0 or self.attempts > _MAX_ATTEMPTS:
      self.obstacle = reason
      log.info("a %s graph runs call by call: %s", self.kind, reason)


def _to_bytes(graph_module):
  """The graph node by node. (A pickled module is traced again when it is loaded, which runs calls
  without arguments, such as arange, then and there.)"""
  graph = torch.fx.Graph()
  graph.output(graph.graph_copy(graph_module.graph, {}))
  for node in graph.nodes:
    node.meta = {}
    node.target = _ORIGINALS.get(node.target, node.target)
  copy = torch.fx.GraphModule(graph_module, graph)
  return GraphPickler.dumps(copy, Options(ops_filter=None))


def _from_bytes(data):
  graph_module = GraphPickler.loads(data, FakeTensorMode(shape_env=ShapeEnv()))
  _replace_operators(graph_module)
  graph_module.recompile()
  return graph_module


def _replace_operators(graph_module):
  for node in graph_module.graph.nodes:
    if node.op == "call_function":
      node.target = _REPLACED.get(node.target, node.target)


def _lift_constants(graph_module):
  """Makes tensors that the graph holds its last arguments, and gives them: templates follow
  arguments."""
  graph, lifted = graph_module.graph, {}
  last = next((n for n in reversed(graph.nodes) if n.op == "placeholder"), None)
  for node in list(graph.nodes):
    if node.op != "get_attr":
      continue
    value = getattr(graph_module, node.target, None)
    if not isinstance(value, torch.Tensor):
      continue  # the graph of a branch or loop
    if node.target not in lifted:
      with graph.inserting_after(last) if last is not None else graph.inserting_before(None):
        last = graph.placeholder(node.target)
      last.meta.update(node.meta)
      lifted[node.target] = (last, value)
    node.replace_all_uses_with(lifted[node.target][0])
    graph.erase_node(node)
  graph_module.recompile()
  return [value for _, value in lifted.values()]


class _Numbers:
  """What a graph computes of numbers before it begins: arguments list -> list of more arguments."""

  def __init__(self, module, places):
    self.module = module
    self.places = places

  def __call__(self, args):
    return list(self.module(*[args[place] for place in self.places]))


def _lift_numbers(graph_module):
  """Takes arithmetic with numbers and 0-dim tensors on the CPU out of the graph and makes its
  results the last arguments, so that operations of the device only see numbers of the call: those
  may change from replay to replay. None when there is no such arithmetic."""
  graph = graph_module.graph
  placeholders = graph.find_nodes(op="placeholder")
  numbers = [node for node in placeholders if _is_number(node)]
  known, moved = set(numbers), []
  for node in graph.nodes:
    if _is_arithmetic(node) and known.issuperset(node.all_input_nodes):
      known.add(node)
      moved.append(node)
  shown = [node for node in moved if not known.issuperset(node.users)]
  if not shown or not any(node.all_input_nodes for node in moved):
    return None
  alone, copies = torch.fx.Graph(), {}
  for node in numbers:
    copies[node] = alone.placeholder(node.name)
  for node in moved:
    copies[node] = alone.node_copy(node, copies.__getitem__)
  alone.output(tuple(copies[node] for node in shown))
  last = placeholders[-1]
  for node in shown:
    with graph.inserting_after(last):
      last = graph.placeholder(node.name)
    last.meta.update(node.meta)
    node.replace_all_uses_with(last)
  for node in reversed(moved):
    graph.erase_node(node)
  graph_module.recompile()
  places = [placeholders.index(node) for node in numbers]
  return _Numbers(torch.fx.GraphModule(torch.nn.Module(), alone), places)


def _is_number(node):
  value = node.meta.get("val")
  if isinstance(value, torch.Tensor):
    return value.device.type == "cpu" and value.dim() == 0
  return isinstance(value, (int, float, torch.SymInt, torch.SymFloat))


def _is_arithmetic(node):
  if node.op != "call_function" or not _is_number(node):
    return False
  if not isinstance(node.target, torch._ops.OpOverload):
    return getattr(node.target, "__module__", None) in ("_operator", "math", "torch")
  return (
    node.target.namespace in ("aten", "prims")
    and not node.target._schema.is_mutable
    and torch.Tag.nondeterministic_seeded not in node.target.tags
  )


def _obstacle(graph_module):
  """Why a replay of the graph's records would not do what the graph does, or None."""
  for node in graph_module.graph.nodes:
    value = node.meta.get("val")
    if node.op == "placeholder" and isinstance(value, torch.Tensor):
      if value.device.type == "cpu" and value.dim() > 0:
        return f"its argument {node.target} is on the CPU"
    elif node.op == "call_function":
      reason = _call_obstacle(node)
      if reason is not None:
        return reason
  return None


def _call_obstacle(node):
  target = node.target
  if isinstance(target, torch._ops.HigherOrderOperator):
    known = target.name() in _PURE_HIGHER_ORDER or target in _REPLACED
    return None if known else f"{target.name()} may do more than compute"
  if not isinstance(target, torch._ops.OpOverload):
    return None  # getitem and arithmetic with sizes
  if target.namespace not in ("aten", "prims", "_c10d_functional"):
    return f"{target} is not an operation of PyTorch: it may do more than compute"
  if target._schema.is_mutable and _on_cpu(node.args[0]):
    return f"{target} writes to a tensor on the CPU"
  return None


def _on_cpu(node):
  value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
  return isinstance(value, torch.Tensor) and value.device.type == "cpu"
