"""torch.tpu.set_sync_debug_mode: says which line makes the host wait for the device."""

import traceback
import warnings

from torch_tpu import _C

# Files whose frames are nobody's "line that asked for it".
_INNER = ("/torch/", "/torch_tpu/", "<frozen", "<eval_with_key>", "<string>")
_MODES = ("default", "warn", "error")

_watching = []  # functions that are called with (direction, bytes) at each transfer
_mode = 0


def watch(function):
  """Calls ``function(direction, bytes)`` at each transfer, until unwatch; what it raises, the
  transfer does."""
  _watching.append(function)
  _C.set_observer(_tell)


def unwatch(function):
  """Ends what watch began."""
  _watching.remove(function)
  if not _watching:
    _C.set_observer(None)


def _tell(direction, size):
  for function in tuple(_watching):
    function(direction, size)


def user_frame():
  """The innermost frame outside PyTorch and this package, or None."""
  for frame in reversed(traceback.extract_stack()):
    if not any(part in frame.filename for part in _INNER):
      return frame
  return None


def set_sync_debug_mode(debug_mode):
  """What happens where the host reads from the device, and so waits for it: 0 or "default" nothing,
  1 or "warn" a UserWarning at the line that asked, 2 or "error" a RuntimeError before it waits.

  As torch.cuda.set_sync_debug_mode; torch.tpu.synchronize() itself is what was meant, and allowed.
  """
  global _mode
  named = debug_mode in _MODES if isinstance(debug_mode, str) else debug_mode in (0, 1, 2)
  if not named:
    raise RuntimeError(
      f"invalid value of debug_mode: {debug_mode!r}; expected 0, 1, 2 or {', '.join(_MODES)}"
    )
  wanted = _MODES.index(debug_mode) if isinstance(debug_mode, str) else int(debug_mode)
  if bool(wanted) != bool(_mode):
    (watch if wanted else unwatch)(_complain)
  _mode = wanted


def get_sync_debug_mode():
  """The mode that set_sync_debug_mode set: 0, 1 or 2."""
  return _mode


def _complain(direction, size):
  if direction != "to_host":
    return
  frame = user_frame()
  where = f"{frame.filename}:{frame.lineno} in {frame.name}" if frame else "outside Python"
  text = f"the host waits for the device to read {size:,} bytes, at {where}"
  if _mode == 2:
    raise RuntimeError(f"{text} (torch.tpu.set_sync_debug_mode)")
  if frame is None:
    warnings.warn(text, UserWarning, stacklevel=2)
  else:
    warnings.warn_explicit(text, UserWarning, frame.filename, frame.lineno)
