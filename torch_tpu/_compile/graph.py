"""A graph of ATen calls that AOTAutograd made, as a callable."""

import torch
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch.fx.graph import _BoxedCodeGen


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


class CompiledGraph:
  """Takes a list of arguments, which it empties, and gives a list of results."""

  def __init__(self, graph_module, kind):
    for node in graph_module.graph.nodes:
      if node.op == "call_function":
        node.target = _REPLACED.get(node.target, node.target)
    graph_module.graph.set_codegen(_BoxedCodeGen())
    graph_module.recompile()
    self._boxed_call = True  # of the instance: AOTAutograd's wrappers copy its __dict__
    self.kind = kind
    self.module = graph_module

  def __call__(self, args):
    return self.module(args)
