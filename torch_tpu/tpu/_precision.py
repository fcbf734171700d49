"""How many bits of float32 a product looks at. A TPU multiplies in bfloat16 and repeats that for
the bits that are left; other platforms always use all of them.
"""

import contextlib
import enum

from torch_tpu import _C


class Precision(enum.Enum):
  """Of float32 products: passes of a TPU's matrix unit, and bits of each operand that count."""

  HIGHEST = 0  # six passes, all 24 bits: what PyTorch does on a CPU, and the default here
  HIGH = 1  # three passes, about 16 bits
  DEFAULT = 2  # one pass, 8 bits: bfloat16


class precision(contextlib.ContextDecorator):
  """While entered, float32 products of matrices and convolutions have this precision, in all
  threads; a Precision or its name, in any case. It is that of the calls in the body: a backward
  pass has its own. ValueError for other words.

  Outside, torch.backends.tpu.fp32_precision says, and where that says "none" PyTorch's own:
  torch.set_float32_matmul_precision and torch.backends.{cuda,mkldnn}.matmul.fp32_precision for
  matrices (of two, the one with fewer bits), torch.backends.mkldnn.conv.fp32_precision for
  convolutions, and torch.backends.fp32_precision for both. cuDNN's switch has no say: it asks for
  fewer bits where nobody chose.
  """

  def __init__(self, level):
    if isinstance(level, str):
      if level.upper() not in Precision.__members__:
        raise ValueError(f"no precision is called {level!r}: {', '.join(Precision.__members__)}")
      level = Precision[level.upper()]
    if not isinstance(level, Precision):
      raise TypeError(
        f"a precision is a torch.tpu.Precision or its name, not {type(level).__name__}"
      )
    self._level = level
    self._previous = []

  def __enter__(self):
    self._previous.append(_C.own_precision())
    _C.set_own_precision(self._level.value, self._level.value)
    return self

  def __exit__(self, *exc):
    _C.set_own_precision(*self._previous.pop())
    return False
