"""The module ``torch.backends.tpu``: facts about the build and global numeric switches."""

import sys
import types

from torch_tpu import _C
from torch_tpu._version import __version__


class _TpuBackendModule(types.ModuleType):
  """torch.backends.tpu. Switches are properties, so that a refused value raises at once."""

  def is_built(self):
    """True: this module only exists when the extension was loaded."""
    return True

  def is_available(self):
    """True when there is a plugin and what it needs (nothing is started)."""
    return _C.device_count() > 0

  def version(self):
    """Version of torch_tpu."""
    return __version__

  @property
  def allow_excess_precision(self):
    """Whether the compiler may keep more precision than a tensor's dtype says. Always False:
    results must not depend on what was fused."""
    return False

  @allow_excess_precision.setter
  def allow_excess_precision(self, value):
    if value:
      raise NotImplementedError(
        "torch.backends.tpu.allow_excess_precision = True is not supported by torch_tpu "
        f"{__version__}; use float32 tensors where bfloat16 is not enough."
      )


def install_backends_module(torch):
  """Adds torch.backends.tpu."""
  module = _TpuBackendModule("torch.backends.tpu", _TpuBackendModule.__doc__)
  torch.backends.tpu = module
  sys.modules["torch.backends.tpu"] = module
