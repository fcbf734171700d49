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
  """How far devices are numbered: the chips of this machine, LOCAL_WORLD_SIZE or this process's
  index + 1, whichever is most; 0 without a plugin. A process has one of them. Starts nothing."""
  return _C.device_count()


def current_device():
  """Index of this process's device; see set_device."""
  return _C.current_device()


def _number(device):
  """The number in None, an int, str or torch.device; -1: the current device."""
  if device is None:
    return -1
  if isinstance(device, int) and not isinstance(device, bool):
    index = device
  elif isinstance(device, (str, torch.device)):
    device = torch.device(device)
    if device.type != "tpu":
      raise ValueError(f"Expected a 'tpu' device, got '{device}'.")
    index = -1 if device.index is None else device.index
  else:
    raise TypeError(f"Expected an int, str or torch.device, got {type(device).__name__}.")
  return index


def _index(device):
  """Index of a device (None, int, str or torch.device), which is the current one under any name;
  raises for one that does not exist."""
  return _C.checked_device(_number(device))


def _used(device):
  """The same for a use, which binds the index if it is the first one and names one."""
  number = _number(device)
  return _C.bind_device(number) if number >= 0 else _C.current_device()


def set_device(device):
  """Says which device of the machine is this process's (int, str or torch.device).

  A process has one device. Its index is bound once: by the first set_device, the first tensor that
  names an index, or the first that names none; then it is LOCAL_RANK, or 0. From then on any other
  index below device_count() is another name of the same device. RuntimeError beyond that.
  """
  _used(device)


class device:
  """Context manager that makes a device current, as torch.cuda.device."""

  def __init__(self, device):
    self.idx = _used(device)

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


def is_tf32_supported():
  """False: TF32 is a format of NVIDIA's tensor cores. See torch.set_float32_matmul_precision."""
  return False


def can_device_access_peer(device, peer_device):
  """False for two devices: neither reads the other's memory by address."""
  return _index(device) == _index(peer_device)


def ipc_collect():
  """Nothing to do: device memory is never shared between processes."""


def is_current_stream_capturing():
  """False: streams are not captured; see torch.compile."""
  return False


def get_arch_list():
  """An empty list: programs are compiled for the device that is there."""
  return []


def get_compute_capability(device=None):
  """An empty string: TPUs have no such number. Kept for code written for other devices."""
  _index(device)
  return ""
