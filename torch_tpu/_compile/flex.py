"""flex_attention on "tpu": its list of devices is fixed in PyTorch's source.

Its eager form is plain operations, which a graph records like any others, so that all it takes is
to be let through. The module is imported by those who use it, and patched then.
"""

import importlib.abc
import importlib.machinery
import sys

_MODULE = "torch.nn.attention.flex_attention"


def install():
  if _MODULE in sys.modules:
    _accept_tpu(sys.modules[_MODULE])
  else:
    sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
  """Finds the one module as Python would, and patches it when it has run. Leaves afterwards."""

  def find_spec(self, name, path, target=None):
    if name != _MODULE:
      return None
    sys.meta_path.remove(self)
    spec = importlib.machinery.PathFinder.find_spec(name, path, target)
    if spec is not None:
      spec.loader.exec_module = _then_accept(spec.loader.exec_module)
    return spec


def _then_accept(exec_module):
  def run(module):
    exec_module(module)
    _accept_tpu(module)

  return run


def _accept_tpu(module):
  refuse_others = module._validate_device

  def validate_device(query, key, value):
    if query.device.type != "tpu":
      refuse_others(query, key, value)

  module._validate_device = validate_device
