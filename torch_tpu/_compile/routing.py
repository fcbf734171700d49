"""Sends graphs with tpu tensors to our backend when the caller named Inductor, or nothing.

``torch.compile(model)`` means Inductor, which has no code for "tpu" but a path through jax. The
object that calls Inductor is the one place where the graph's tensors are known and nothing was
compiled yet. Graphs without tpu tensors go on to Inductor as before, with mode and options.
"""

import functools
import logging

log = logging.getLogger("torch_tpu")

_said = False


def install(torch):
  """Patches torch.compile's Inductor wrapper; imports nothing."""
  wrapper = torch._TorchCompileInductorWrapper
  wrapper.__call__ = _choosing(wrapper.__call__)


def _choosing(call_inductor):
  @functools.wraps(call_inductor)
  def call(self, model_, inputs_, **kwargs):
    if not has_tpu_tensors(model_, inputs_):
      return call_inductor(self, model_, inputs_, **kwargs)
    from torch_tpu._compile.backend import backend

    _say_once()
    return backend(model_, inputs_)

  return call


def has_tpu_tensors(graph_module, inputs):
  """Whether the graph reads or makes a tensor on the device."""
  if any(_is_on_tpu(value) for value in inputs):
    return True
  modules = getattr(graph_module, "graph", None)
  for node in modules.nodes if modules is not None else ():
    value = node.meta.get("example_value", node.meta.get("val"))
    if any(_is_on_tpu(each) for each in (value if isinstance(value, (list, tuple)) else [value])):
      return True
  return False


def _is_on_tpu(value):
  return getattr(getattr(value, "device", None), "type", None) == "tpu"


def _say_once():
  global _said
  if not _said:
    _said = True
    log.info("torch.compile: graphs with tpu tensors go to the backend 'tpu', not to Inductor")
