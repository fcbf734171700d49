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
  """Not available: the engine does not tell recorded from computed content yet."""
  raise NotImplementedError(
    "is_materialized is not available on the tpu device; torch.tpu.synchronize() materializes "
    "every tensor"
  )


def is_materializing(tensor):
  """Always False: a launch is over for the caller as soon as it has begun."""
  return False
