"""Materialization under the published names."""

from torch_tpu import _C


def synchronize(tensors=None, wait=False):
  """Launches what this thread recorded; with `wait`, what all threads recorded, and waits for it.
  `tensors` is accepted for compatibility: everything recorded is launched, in order."""
  if wait:
    _C.synchronize()
  else:
    _C.flush()


def is_materialized(tensor):
  """True when the tensor's content has left the recorder and its program has run. (A device that
  runs behind the host may still be filling the buffer.) False if it is recorded, queued or lost."""
  return _C.content_state(tensor) == "ready"


def is_materializing(tensor):
  """True while the program that computes the tensor's content is queued or runs."""
  return _C.content_state(tensor) == "launched"
