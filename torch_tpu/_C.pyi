"""The extension module, generated from shim/bindings.def by tools/gen_stubs.py.

Loading it registers kernels, hooks and the allocator with PyTorch; it starts no device and loads no
plugin."""

import torch

__version__: str

def set_plugin(path: str, platform: str = "cpu", chips: int = 0, /) -> None:
  """Names the plugin that the first use loads, unless TORCH_TPU_PJRT_PLUGIN names one. `platform`
  is 'cpu', 'tpu' or 'cuda', `chips` how many TPUs are on this machine's bus. RuntimeError once the
  device has started."""

def plugin() -> tuple[str, str] | None:
  """Path and platform of the plugin that will be or was loaded; None when there is none."""

def init() -> None:
  """Starts the device now; RuntimeError with the reason if it cannot."""

def is_initialized() -> bool:
  """Whether the device has started."""

def device_count() -> int:
  """The visible chips, LOCAL_WORLD_SIZE or the device's index + 1, whichever is most; 0 without a
  plugin, or a TPU for libtpu. Starts nothing."""

def current_device() -> int:
  """The index of this process's device; starts and binds nothing."""

def checked_device(index: int = -1, /) -> int:
  """The same for an argument that names a device; RuntimeError for one that does not exist."""

def bind_device(index: int = -1, /) -> int:
  """The same for a use of the device: the first one binds the index."""

def device_name() -> str:
  """Name of the device, which is started."""

def platform_name() -> str:
  """'cpu', 'tpu' or 'cuda'; starts the device."""

def plugin_version() -> str:
  """What the plugin says of its version; starts the device."""

def default_generator(index: int = -1, /) -> torch.Generator:
  """The generator of the device; RuntimeError for an index that does not exist."""

def flush() -> None:
  """Launches what this thread recorded."""

def synchronize() -> None:
  """Launches what is recorded and waits for it; raises the error of earlier work."""

def await_builds() -> None:
  """Waits until nothing is compiled in the background any more."""

def stop_builds() -> None:
  """Ends compiling in the background; what it was for is compiled when it is needed."""

def get_eager_mode() -> str:
  """A name of torch.tpu.EagerMode; starts nothing. RuntimeError if the environment asks for a mode
  that does not exist."""

def set_eager_mode(mode: str, /) -> None:
  """Takes a name of torch.tpu.EagerMode, 'debug', 'strict' or 'fused', in any case; ValueError for
  other words. Launches what is recorded first."""

def content_state(tensor: torch.Tensor, /) -> str:
  """Where the content of a tensor on the device is: 'recorded', 'launched', 'ready' or, lost to an
  error, 'failed'."""

def empty_cache() -> None:
  """Launches what is recorded, so that dead values are dropped."""

def clear_cache() -> None:
  """Forgets plans and compiled programs in memory, not on disk."""

def program_folder() -> str | None:
  """Folder of the compile cache on disk, which may not exist yet; None when it is off. Starts the
  device."""

def program_files() -> list[str]:
  """Paths of the files of programs that are in memory; not all need exist."""

def compile_for(plugin: str, platform: str, target: str, text: str, keep: bool = False, /) -> dict:
  """Compiles StableHLO for a target of the plugin's, such as 'v5e:1x1' of libtpu's, and gives the
  bytes it needs (int): code, arguments, outputs, aliased, temporaries and peak; flops, traffic
  (bytes) and transcendentals of a run (float, -1: not known); if wanted, optimized (bytes), an
  HloModuleProtoWithConfig. No device is started. RuntimeError if it does not compile."""

def ahead_begin(platform: str, /) -> None:
  """What this thread records from now on is not launched: core/engine/ahead.h."""

def ahead_declare(tensors: list[torch.Tensor], /) -> None:
  """Says what these tensors look like, should they have no content."""

def ahead_end(platform: str, /) -> list[tuple[str, list[tuple], list[tuple]]]:
  """Ends it. Per launch the program's StableHLO, its inputs and its outputs: (number, external,
  given, dtype, sizes, bytes) each."""

def ahead_cancel() -> None:
  """Ends it without programs."""

def graph_new() -> object:
  """A graph without templates."""

def graph_run(graph: object, arguments: list, /) -> list | None:
  """Replays the template for these arguments and empties the list; None if there is none."""

def graph_call(graph: object, constants: tuple, written: tuple, slow: object, /) -> object:
  """A callable that replays the graph for its arguments and these constants, and calls `slow` with
  the arguments when there is no template for them. `written` are the places of arguments that the
  graph writes."""

def graph_begin(graph: object, arguments: list, /) -> bool:
  """Begins to capture what a call with these arguments records; False if that cannot be."""

def graph_end(graph: object, results: list | tuple, /) -> str:
  """Ends the capture; why no template came of it ('it ...'), or '' if one did."""

def graph_cancel(graph: object, /) -> None:
  """Ends a capture, if there is one, without a template."""

def graph_templates(graph: object, /) -> int:
  """For how many signatures the graph has a template."""

def graph_replays(graph: object, /) -> int:
  """How many calls were replays."""

def set_observer(observer: object, /) -> None:
  """Calls this with ('to_host' or 'to_device', bytes) at each transfer; None ends it."""

def make_process_group(gloo: object, rank: int, size: int, timeout_ms: int, /) -> object:
  """A c10d Backend for tpu tensors over one of Gloo's for the same ranks."""

def memory_stats() -> dict[str, int]:
  """bytes_in_use, bytes_peak, bytes_limit, bytes_total, buffers_in_use, buffers_peak and
  buffers_total; zeros before the device has started."""

def memory_reset_peak() -> None:
  """Begins new peaks at the present use."""

def set_memory_share(share: float, /) -> None:
  """Refuses device memory above this share of the limit, from 0 to 1; starts the device."""

def host_memory_stats() -> dict[str, int]:
  """Pinned host memory: current, peak, allocated (in total) and freed, each as allocations_*
  (blocks) and bytes_*."""

def host_memory_reset(what: str, /) -> None:
  """Begins new peaks ('peak') or new totals ('accumulated') of host_memory_stats."""

def engine_stats() -> dict[str, int]:
  """records, predicted, flushes, window_hits, window_plans, interpretations and launches."""

def reasons(since: int = 0, /) -> tuple[int, list[str]]:
  """Why windows got sets of programs, a line each from number `since` on, of which the last 256 are
  kept; and the number of the next one."""

def tell_reasons(function: object, /) -> None:
  """Calls this, without arguments and on the main thread, some time after there are new reasons;
  None ends it."""

def events_start() -> None:
  """Begins to collect what the engine does; drops what was collected before."""

def events_stop() -> list[tuple[str, str, int, int, int, int]]:
  """Ends it and gives the events: kind, name, thread, begin and end in ns since 1970, and size:
  bytes of a transfer, a text or a file, operations of a launch or a flush."""

def compile_stats() -> dict[str, float]:
  """requests, memory_hits, memory_drops, disk_hits, compiles, disk_writes and disk_rejects (int),
  compile_seconds and disk_load_seconds (float); interpreted_windows and compiled_windows (int),
  launches by the way they ran."""

def window_stats() -> list[dict[str, object]]:
  """A dict per structure of windows that is known, the last used first; see
  torch.tpu.window_stats."""

def reset_stats() -> None:
  """Sets the engine's and compiler's numbers to 0."""

def fallback_stats() -> dict[str, int]:
  """Runs on the host per operation since the start or the last reset."""

def reset_fallback_stats() -> None:
  """Empties fallback_stats."""

def decomposition_stats() -> dict[str, dict[str, int]]:
  """Decomposed calls per operation since the start or last reset: traced and replayed."""

def reset_decomposition_stats() -> None:
  """Empties decomposition_stats."""

def env_table() -> list[tuple[str, str | None, str]]:
  """Every row of the environment table: name, effective value, and where it comes from: 'default',
  'environment' or 'override'."""

def env_value(name: str, /) -> str | None:
  """The effective value of one variable, which alone is read; KeyError for a name that is not in
  the table."""

def env_override(name: str, value: str | None, /) -> None:
  """Replaces a variable's value for this process; None goes back to the environment. KeyError for a
  name that is not in the table, RuntimeError for a value that is no number where one is needed."""

def expect_nonfinite(expected: bool, /) -> bool:
  """While true, TORCH_TPU_CHECK_NONFINITE=1 takes NaN and infinity for no error. Gives whether they
  are looked for at all."""

def own_precision() -> tuple[int, int]:
  """Precision of float32 products of matrices and of convolutions: 0 all bits, 1 about 16, 2 about
  8, or -1: as PyTorch's own switches say."""

def set_own_precision(matmul: int, conv: int, /) -> None:
  """Sets them for what is recorded from now on; ValueError for other numbers."""

def op_table() -> list[tuple[str, str, str, str, str]]:
  """Every row of the op table: name, ATen overloads, family, flags, names in PyTorch's op_db. Names
  are separated by spaces; family and flags are as the table writes them."""

def unregistered_ops() -> list[str]:
  """Overloads that the op table lists and the device does not serve, each with the reason."""
