"""Devices: which there are, which is current, what they are called."""

import os
from typing import NamedTuple

import torch

from torch_tpu import _C


class _DeviceProperties(NamedTuple):
  """What get_device_properties returns. `total_memory` is in bytes."""

  name: str
  total_memory: int
  multi_processor_count: int
  platform: str
  plugin_version: str


_used_before_fork = False
_in_bad_fork = False


def _before_fork():
  global _used_before_fork
  _used_before_fork = _in_bad_fork or _C.is_initialized()


def _after_fork_in_child():
  global _in_bad_fork
  _in_bad_fork = _used_before_fork


# The extension refuses work in such a child itself; this is only for those who ask first.
os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)


def is_available():
  """True when a plugin for the device was found, and for libtpu a TPU. Starts nothing."""
  return _C.device_count() > 0


def is_initialized():
  """True once the runtime has been started in this process."""
  return _C.is_initialized()


def init():
  """Starts the runtime now instead of at the first use; raises RuntimeError if it cannot."""
  _C.init()


def _lazy_init():
  """Nothing: the runtime starts itself at its first use. PyTorch calls this in places that use no
  device at all, such as torch.compile of a CPU function, and needs it to exist."""


def _is_in_bad_fork():
  """True in a child of fork() whose parent had started the runtime: no device there."""
  return _in_bad_fork


def _is_compiled():
  return True


def device_count():
  """Devices that this process can use: 1, or 0 without a plugin. Starts nothing."""
  return _C.device_count()


def current_device():
  """Index of the current device: always 0, one process has one device."""
  return 0


def _index(device):
  """Index of a device (None, int, str or torch.device); raises for one that does not exist."""
  if device is None:
    return 0
  if isinstance(device, int) and not isinstance(device, bool):
    index = device
  elif isinstance(device, (str, torch.device)):
    device = torch.device(device)
    if device.type != "tpu":
      raise ValueError(f"Expected a 'tpu' device, got '{device}'.")
    index = 0 if device.index is None else device.index
  else:
    raise TypeError(f"Expected an int, str or torch.device, got {type(device).__name__}.")
  if index < -1 or index >= max(1, device_count()):
    raise ValueError(
      f"Device index {index} does not exist: this process has {device_count()} 'tpu' device(s)."
    )
  return max(index, 0)


def set_device(device):
  """Checks that `device` (int, str or torch.device) exists; there is none to switch to."""
  _index(device)


class device:
  """Context manager that makes a device current, as torch.cuda.device."""

  def __init__(self, device):
    self.idx = _index(device)

  def __enter__(self):
    return self

  def __exit__(self, *exc):
    return False


class device_of(device):
  """Context manager that makes the device of a tensor current; others change nothing."""

  def __init__(self, obj):
    where = getattr(obj, "device", None)
    super().__init__(where if where is not None and where.type == "tpu" else None)


def synchronize(device=None):
  """Launches what was recorded and waits for all work; raises the error of work that failed."""
  _index(device)
  _C.synchronize()


def get_device_name(device=None):
  """Name of the device; starts with "TPU", and contains "cpu" on the CPU plugin. Starts the
  runtime."""
  _index(device)
  return _C.device_name()


def get_device_properties(device=None):
  """Name, total memory in bytes and versions. Starts the runtime."""
  _index(device)
  name = _C.device_name()
  return _DeviceProperties(
    name=name,
    total_memory=_C.memory_stats()["bytes_limit"],
    multi_processor_count=1,
    platform=_C.platform_name(),
    plugin_version=_C.plugin_version(),
  )


def get_device_capability(device=None):
  """What torch.accelerator.get_device_capability says: the dtypes of the device."""
  return torch.accelerator.get_device_capability(_index(device))


def get_compute_capability(device=None):
  """An empty string: TPUs have no such number. Kept for code written for other devices."""
  _index(device)
  return ""
