"""``torch.tpu``: the device module, in the form of ``torch.cuda``.

One process has one device; set_device says how its index is chosen. Nothing here starts the runtime
except what needs it; the functions that do say so.
"""

import sys

import torch

from torch_tpu import _C

from . import compile_log as compile_log
from . import nvtx
from ._device import (  # PyTorch looks for the underscored ones
  _is_compiled,  # noqa: F401
  _is_in_bad_fork,  # noqa: F401
  _lazy_init,  # noqa: F401
  can_device_access_peer,
  current_device,
  device,
  device_count,
  device_of,
  get_arch_list,
  get_compute_capability,
  get_device_capability,
  get_device_name,
  get_device_properties,
  init,
  ipc_collect,
  is_available,
  is_current_stream_capturing,
  is_initialized,
  is_tf32_supported,
  set_device,
  synchronize,
)
from ._precision import Precision, precision
from .amp import get_amp_supported_dtype, is_bf16_supported
from .explanation import Explanation, explain
from .memory import (
  device_memory_used,
  empty_cache,
  get_per_process_memory_fraction,
  host_memory_stats,
  host_memory_stats_as_nested_dict,
  max_memory_allocated,
  max_memory_reserved,
  mem_get_info,
  memory_allocated,
  memory_reserved,
  memory_stats,
  memory_stats_as_nested_dict,
  memory_summary,
  reset_accumulated_host_memory_stats,
  reset_accumulated_memory_stats,
  reset_max_memory_allocated,
  reset_peak_host_memory_stats,
  reset_peak_memory_stats,
  set_per_process_memory_fraction,
)
from .modes import EagerMode, _ModuleWithEagerMode, get_eager_mode, set_eager_mode
from .random import (
  get_rng_state,
  get_rng_state_all,
  initial_seed,
  manual_seed,
  manual_seed_all,
  seed,
  seed_all,
  set_rng_state,
  set_rng_state_all,
)
from .stats import (
  clear_cache,
  compile_stats,
  decomposition_stats,
  engine_stats,
  fallback_stats,
  reset_stats,
  wait_for_compiles,
  window_stats,
)
from .streams import (
  Event,
  Stream,
  StreamContext,
  current_stream,
  default_stream,
  set_stream,
  stream,
)
from .sync_debug import get_sync_debug_mode, set_sync_debug_mode

OutOfMemoryError = torch.OutOfMemoryError
AcceleratorError = torch.AcceleratorError

__all__ = [
  "AcceleratorError",
  "EagerMode",
  "Event",
  "Explanation",
  "OutOfMemoryError",
  "Precision",
  "Stream",
  "StreamContext",
  "can_device_access_peer",
  "clear_cache",
  "compile_stats",
  "current_device",
  "current_stream",
  "decomposition_stats",
  "default_stream",
  "device",
  "device_count",
  "device_memory_used",
  "device_of",
  "empty_cache",
  "engine_stats",
  "explain",
  "fallback_stats",
  "get_amp_supported_dtype",
  "get_arch_list",
  "get_compute_capability",
  "get_device_capability",
  "get_device_name",
  "get_device_properties",
  "get_eager_mode",
  "get_per_process_memory_fraction",
  "get_rng_state",
  "get_rng_state_all",
  "get_sync_debug_mode",
  "host_memory_stats",
  "host_memory_stats_as_nested_dict",
  "init",
  "initial_seed",
  "ipc_collect",
  "is_available",
  "is_bf16_supported",
  "is_current_stream_capturing",
  "is_initialized",
  "is_tf32_supported",
  "manual_seed",
  "manual_seed_all",
  "max_memory_allocated",
  "max_memory_reserved",
  "mem_get_info",
  "memory_allocated",
  "memory_reserved",
  "memory_stats",
  "memory_stats_as_nested_dict",
  "memory_summary",
  "nvtx",
  "precision",
  "reset_accumulated_host_memory_stats",
  "reset_accumulated_memory_stats",
  "reset_max_memory_allocated",
  "reset_peak_host_memory_stats",
  "reset_peak_memory_stats",
  "reset_stats",
  "seed",
  "seed_all",
  "set_device",
  "set_eager_mode",
  "set_per_process_memory_fraction",
  "set_rng_state",
  "set_rng_state_all",
  "set_stream",
  "set_sync_debug_mode",
  "stream",
  "synchronize",
  "wait_for_compiles",
  "window_stats",
]

_SUBMODULES = ("amp", "memory", "modes", "nvtx", "random", "stats", "streams")


class _TpuModule(_ModuleWithEagerMode):
  """Gives the module its computed attributes, such as ``torch.tpu.eager_mode``."""

  @property
  def _initialized(self):
    return is_initialized()

  @property
  def default_generators(self):
    """One generator per device, as torch.cuda.default_generators."""
    return tuple(_C.default_generator(index) for index in range(device_count()))


def _register_submodules(name):
  """Makes `import <name>.memory` and its siblings find our modules, not load them again."""
  for submodule in _SUBMODULES:
    sys.modules[f"{name}.{submodule}"] = sys.modules[f"{__name__}.{submodule}"]


sys.modules[__name__].__class__ = _TpuModule
