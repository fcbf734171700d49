"""The three eager modes. They differ in when recorded operations are launched, not in results."""

import enum

from torch_tpu import _C


class EagerMode(enum.Enum):
  """When a recorded operation is launched. Values are the core's (tpu_eager_mode_t)."""

  DEFER_NEVER_AND_LAUNCH_BLOCKING = 0  # Debug: one operation, then wait; every check is on
  DEFER_NEVER = 1  # Strict: one operation, asynchronous
  DEFER_AND_FUSE = 2  # Fused: record, then compile and run many together


_SHORT_NAMES = {
  "debug": EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING,
  "strict": EagerMode.DEFER_NEVER,
  "fused": EagerMode.DEFER_AND_FUSE,
}


def get_eager_mode():
  """The process-wide mode."""
  return EagerMode(_C.get_eager_mode())


class set_eager_mode:
  """Sets the process-wide eager mode; as a context manager, puts the previous one back after.

  `mode` is an EagerMode or one of "debug", "strict", "fused". Operations recorded before are
  launched first. All threads share the mode.
  """

  def __init__(self, mode):
    self._previous = _C.get_eager_mode()
    _C.set_eager_mode(_as_mode(mode).value)

  def __enter__(self):
    return self

  def __exit__(self, *exc):
    _C.set_eager_mode(self._previous)
    return False


def _as_mode(mode):
  if isinstance(mode, EagerMode):
    return mode
  if isinstance(mode, str) and mode in _SHORT_NAMES:
    return _SHORT_NAMES[mode]
  raise ValueError(
    f"Unknown eager mode {mode!r}: use torch.tpu.EagerMode.DEFER_AND_FUSE, .DEFER_NEVER or "
    f".DEFER_NEVER_AND_LAUNCH_BLOCKING (or 'fused', 'strict', 'debug')."
  )
