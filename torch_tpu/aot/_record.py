"""Recording a call without running it: torch_tpu.aot.lower."""

import copy
import gc
from typing import NamedTuple

import torch

from torch_tpu import _C


class Value(NamedTuple):
  """What a launch reads or makes. `number` is its own among externals (there before the first
  launch) or among the others; `given`: the launch may write into it, nobody needs it after."""

  number: int
  external: bool
  given: bool
  dtype: str  # MLIR's
  sizes: tuple
  bytes: int  # dense

  @property
  def key(self):
    return (self.external, self.number)


class Launch(NamedTuple):
  """One launch of a program; equal texts are one program."""

  text: str  # StableHLO
  inputs: list
  outputs: list


class Lowered:
  """What a call becomes on a platform: programs and the order of their launches."""

  def __init__(self, platform, launches):
    self.platform = platform
    self.launches = launches

  @property
  def programs(self):
    """{text: launches of it}, in the order of their first."""
    found = {}
    for launch in self.launches:
      found.setdefault(launch.text, []).append(launch)
    return found

  def compile(self, target, **options):
    """torch_tpu.aot.compile of what was recorded."""
    from ._report import price

    return price(self, target, **options)


def hollow(tensor):
  """A tensor on the device like this one, without content: it takes no memory until it is used."""
  made = torch.empty_strided(
    tensor.size(), tensor.stride(), dtype=tensor.dtype, device="tpu"
  ).requires_grad_(tensor.requires_grad)
  return torch.nn.Parameter(made, tensor.requires_grad) if _is_parameter(tensor) else made


def _is_parameter(tensor):
  return isinstance(tensor, torch.nn.Parameter)


def _is_elsewhere(value):
  """A tensor that the program gets as an argument on the device; a CPU number stays one."""
  if not isinstance(value, torch.Tensor) or value.device.type == "tpu":
    return False
  return value.device.type != "cpu" or value.dim() > 0


def hollow_module(module):
  """The module itself if it is on the device, else a copy whose tensors are hollow ones there."""
  tensors = [*module.parameters(), *module.buffers()]
  for part in module.modules():  # an exported program keeps its constants as plain attributes
    tensors += [value for value in vars(part).values() if isinstance(value, torch.Tensor)]
  if not any(_is_elsewhere(tensor) or tensor.device.type == "meta" for tensor in tensors):
    return module
  # A copy keeps what it finds in the memo, so no weight is copied.
  return copy.deepcopy(module, {id(tensor): hollow(tensor) for tensor in tensors})


def hollow_arguments(args):
  """The same arguments with hollow tensors and modules in the place of those that are elsewhere."""

  def convert(value):
    if isinstance(value, torch.nn.Module):
      return hollow_module(value)
    return hollow(value) if _is_elsewhere(value) else value

  return torch.utils._pytree.tree_map(convert, args)


def _declare():
  """Tells the device the shapes of all tensors that Python knows there: one that is first read as
  its transpose would be taken to be that."""
  found = [
    value
    for value in gc.get_objects()
    if issubclass(type(value), torch.Tensor) and value.device.type == "tpu" and value._base is None
  ]
  _C.ahead_declare([value for value in found if value.layout is torch.strided])


def lower(fn, args=(), kwargs=None, *, platform="tpu", steady=None):
  """Records ``fn(*args, **kwargs)`` for a platform ("tpu" or "cpu") without running it, and gives a
  Lowered. Nothing has a content meanwhile, so a model of any size takes no memory: tensors and
  modules among the arguments that are not on the device are replaced by ones there without
  content, and so may be what `fn` uses besides (``module.to_empty(device="tpu")``). What `fn` makes
  or writes is forgotten.

  With `steady`, `fn` is called twice and the second call counts: an optimizer makes its states in
  the first. That is the default unless `fn` is a module. RuntimeError where `fn` asks for a content
  (item(), a branch on data); NotImplementedError for an operation that only runs on the host."""
  is_module = isinstance(fn, torch.nn.Module)
  fn = hollow_module(fn) if is_module else fn
  args, kwargs = hollow_arguments((tuple(args), dict(kwargs or {})))
  if steady is None:
    steady = not is_module
  if steady:
    _C.ahead_begin(platform)
    try:
      _declare()
      fn(*args, **kwargs)
    finally:
      _C.ahead_cancel()
  _C.ahead_begin(platform)
  try:
    _declare()
    result = fn(*args, **kwargs)  # what nobody holds is not computed
    launches = _C.ahead_end(platform)
  except BaseException:
    _C.ahead_cancel()
    raise
  del result
  made = [
    Launch(text, [Value(*v) for v in inputs], [Value(*v) for v in outputs])
    for text, inputs, outputs in launches
  ]
  return Lowered(platform, made)
