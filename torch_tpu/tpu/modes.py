"""The three eager modes. They differ in when recorded operations are launched, not in results."""

import enum
import types

from torch_tpu import _C


class EagerMode(enum.Enum):
  """When a recorded operation is launched. The core knows the modes by these names."""

  DEFER_NEVER_AND_LAUNCH_BLOCKING = 0  # Debug: one operation, then wait; every check is on
  DEFER_NEVER = 1  # Strict: one operation, asynchronous
  DEFER_AND_FUSE = 2  # Fused: record, then compile and run many together


def get_eager_mode():
  """The process-wide mode. RuntimeError if the environment asks for one that does not exist."""
  return EagerMode[_C.get_eager_mode()]


class set_eager_mode:
  """Sets the process-wide eager mode; as a context manager, puts the previous one back after.

  `mode` is an EagerMode, its name, or one of "debug", "strict", "fused"; names in any case.
  ValueError for other words. Operations recorded before are launched first. All threads share the
  mode.
  """

  def __init__(self, mode):
    if not isinstance(mode, (EagerMode, str)):
      raise TypeError(
        f"An eager mode is a torch.tpu.EagerMode or its name, not {type(mode).__name__}."
      )
    self._previous = _C.get_eager_mode()
    _C.set_eager_mode(mode.name if isinstance(mode, EagerMode) else mode)

  def __enter__(self):
    return self

  def __exit__(self, *exc):
    _C.set_eager_mode(self._previous)
    return False


class _ModuleWithEagerMode(types.ModuleType):
  """The class of modules with the attribute ``eager_mode``."""

  @property
  def eager_mode(self):
    """The process-wide eager mode, an EagerMode. Assigning launches what was recorded first."""
    return get_eager_mode()

  @eager_mode.setter
  def eager_mode(self, mode):
    set_eager_mode(mode)
