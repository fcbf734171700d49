"""Memory of the device, in bytes, counted exactly by the core.

What counts is buffers that exist on the device. An operation that is recorded but not launched yet
holds none, so call torch.tpu.synchronize() first to see the memory of everything written so far.
"""

from collections import OrderedDict

import torch

from torch_tpu import _C

from ._device import _index


def memory_stats(device=None):
  """Flat dictionary "allocated_bytes.all.peak" -> number, as torch.cuda.memory_stats."""
  flat = OrderedDict()
  _flatten("", memory_stats_as_nested_dict(device), flat)
  return flat


def _flatten(prefix, node, out):
  if not isinstance(node, dict):
    out[prefix] = node
    return
  for key in sorted(node):
    _flatten(f"{prefix}.{key}" if prefix else key, node[key], out)


def memory_stats_as_nested_dict(device=None):
  """memory_stats as nested dictionaries; empty before the runtime has started."""
  index = _index(device)
  if not _C.is_initialized():
    return {}
  return torch._C._accelerator_getDeviceStats(index)


def memory_allocated(device=None):
  """Bytes in live device buffers."""
  _index(device)
  return _C.memory_stats()["bytes_in_use"]


def max_memory_allocated(device=None):
  """Highest value of memory_allocated since the start or the last reset."""
  _index(device)
  return _C.memory_stats()["bytes_peak"]


def memory_reserved(device=None):
  """The same as memory_allocated: the device keeps no reserve of its own."""
  return memory_allocated(device)


def max_memory_reserved(device=None):
  """The same as max_memory_allocated."""
  return max_memory_allocated(device)


def reset_peak_memory_stats(device=None):
  """Starts a new peak at the present use."""
  _index(device)
  _C.memory_reset_peak()


def reset_max_memory_allocated(device=None):
  """Old name of reset_peak_memory_stats."""
  reset_peak_memory_stats(device)


def reset_accumulated_memory_stats(device=None):
  """Sets the counters of total allocations to zero."""
  index = _index(device)
  if _C.is_initialized():
    torch._C._accelerator_resetAccumulatedStats(index)


def mem_get_info(device=None):
  """(free, total) bytes of the device. Starts the runtime."""
  _index(device)
  _C.init()
  stats = _C.memory_stats()
  return max(0, stats["bytes_limit"] - stats["bytes_in_use"]), stats["bytes_limit"]


_fraction = 1.0


def set_per_process_memory_fraction(fraction, device=None):
  """Bounds what this process may take to `fraction` (0 to 1) of the device's memory: more raises
  OutOfMemoryError. Starts the runtime. ValueError for other numbers."""
  global _fraction
  _index(device)
  if not isinstance(fraction, float):
    raise TypeError("Invalid type for fraction argument, must be `float`")
  if not 0 <= fraction <= 1:
    raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
  _C.set_memory_share(fraction)
  _fraction = fraction


def get_per_process_memory_fraction(device=None):
  """What set_per_process_memory_fraction set; 1.0 before."""
  _index(device)
  return _fraction


def device_memory_used(device=None):
  """Bytes of the device in use, by this process as far as the device tells. Starts the runtime."""
  free, total = mem_get_info(device)
  return total - free


def host_memory_stats():
  """Pinned host memory, flat: "allocated_bytes.peak" -> number, as torch.cuda.host_memory_stats."""
  flat = OrderedDict()
  _flatten("", host_memory_stats_as_nested_dict(), flat)
  return flat


def host_memory_stats_as_nested_dict():
  """host_memory_stats as nested dictionaries; starts nothing."""
  stats = _C.host_memory_stats()
  groups = {"allocations": "allocations_", "allocated_bytes": "bytes_"}
  keys = ("current", "peak", "allocated", "freed")
  return {name: {key: stats[own + key] for key in keys} for name, own in groups.items()}


def reset_peak_host_memory_stats():
  """Begins new peaks of host_memory_stats."""
  _C.host_memory_reset("peak")


def reset_accumulated_host_memory_stats():
  """Begins new totals of host_memory_stats."""
  _C.host_memory_reset("accumulated")


def empty_cache():
  """Gives back memory that only caches hold."""
  if _C.is_initialized():
    _C.empty_cache()


def memory_summary(device=None, abbreviated=False):
  """A table of memory use as text."""
  _index(device)
  stats = _C.memory_stats()
  rows = [
    ("buffers in use", stats["buffers_in_use"], stats["bytes_in_use"]),
    ("peak", stats["buffers_peak"], stats["bytes_peak"]),
    ("allocated in total", stats["buffers_total"], stats["bytes_total"]),
  ]
  lines = [f"{'TPU memory':<20}{'buffers':>12}{'bytes':>20}"]
  lines += [f"{name:<20}{count:>12}{size:>20}" for name, count, size in rows]
  if not abbreviated:
    lines.append(f"{'limit':<32}{stats['bytes_limit']:>20}")
  return "\n".join(lines)
