"""Eager modes under the published names; the same objects as in torch.tpu."""

import contextlib
import sys

from torch_tpu import _C
from torch_tpu.tpu.modes import EagerMode, _ModuleWithEagerMode, get_eager_mode, set_eager_mode

__all__ = ["EagerMode", "cpu_fallback_mode", "get_eager_mode", "set_eager_mode"]

_FALLBACK = "TORCH_TPU_FALLBACK"


@contextlib.contextmanager
def cpu_fallback_mode(enabled):
  """Allows (True) or refuses (False) operations without a row in the op table, in this block."""
  overridden = {name: value for name, value, source in _C.env_table() if source == "override"}
  _C.env_override(_FALLBACK, "allow" if enabled else "error")
  try:
    yield
  finally:
    _C.env_override(_FALLBACK, overridden.get(_FALLBACK))


sys.modules[__name__].__class__ = _ModuleWithEagerMode
