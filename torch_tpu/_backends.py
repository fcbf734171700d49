"""The module ``torch.backends.tpu``: facts about the build and global numeric switches."""

import sys
import types

from torch_tpu import _C
from torch_tpu._version import __version__

FP32_PRECISIONS = ("ieee", "tf32", "bf16", "none")  # by number, "none" is -1


class _Products:
  """torch.backends.tpu.matmul and .conv."""

  def __init__(self, place):
    self._place = place

  @property
  def fp32_precision(self):
    """As torch.backends.tpu.fp32_precision, of this kind of product only."""
    return FP32_PRECISIONS[_C.own_precision()[self._place]]

  @fp32_precision.setter
  def fp32_precision(self, value):
    if value not in FP32_PRECISIONS:
      raise ValueError(f"fp32_precision is one of {', '.join(FP32_PRECISIONS)}, not {value!r}")
    own = list(_C.own_precision())
    own[self._place] = FP32_PRECISIONS.index(value) if value != "none" else -1
    _C.set_own_precision(*own)


class _TpuBackendModule(types.ModuleType):
  """torch.backends.tpu. Switches are properties, so that a refused value raises at once."""

  matmul = _Products(0)
  conv = _Products(1)

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
  def fp32_precision(self):
    """Precision of float32 products, of matrices and of convolutions alike: "ieee" (all bits),
    "tf32" (about 16 bits, a TPU multiplies three times) or "bf16" (8 bits, once); "none", the
    default, goes by PyTorch's switches. Also of `matmul` and `conv` alone; assigning here sets
    both, and "none" is read where they differ."""
    matmul, conv = self.matmul.fp32_precision, self.conv.fp32_precision
    return matmul if matmul == conv else "none"

  @fp32_precision.setter
  def fp32_precision(self, value):
    self.matmul.fp32_precision = self.conv.fp32_precision = value

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
