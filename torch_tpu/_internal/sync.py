"""Materialization under the published names."""

from torch_tpu import _C


def synchronize(tensors=None, wait=False):
  """Launches what was recorded; with `wait`, also waits for it. `tensors` is accepted for
  compatibility: everything recorded is launched, in order."""
  if wait:
    _C.synchronize()
  else:
    _C.flush()


def is_materialized(tensor):
  """True when the tensor's content is on the device, False while it is only recorded."""
  return _C.is_materialized(tensor)


def is_materializing(tensor):
  """Always False: a launch is over for the caller as soon as it has begun."""
  return False
