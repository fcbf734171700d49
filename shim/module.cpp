// torch_tpu._C: what Python needs from the shim. Loading it registers kernels, hooks and allocator with
// PyTorch; it starts no device and loads no plugin.
//
//   set_plugin(path: str, platform: str = "cpu") -> None    plugin that the first use loads, unless
//                                     TORCH_TPU_PJRT_PLUGIN names one; platform "cpu", "tpu" or "cuda"
//   plugin() -> (path, platform) | None     what will be or was loaded
//   init() -> None                    starts the device now; RuntimeError with the reason if it cannot
//   is_initialized() -> bool
//   device_count() -> int             1 when a plugin is known, else 0; starts nothing
//   current_device() -> int           always 0
//   set_device(index: int) -> None    RuntimeError for an index that does not exist
//   device_name() -> str              starts the device
//   platform_name() -> str            "cpu", "tpu", "cuda"; starts the device
//   plugin_version() -> str           starts the device
//   flush() -> None                   launches what is recorded
//   synchronize() -> None             flush, then wait; raises the error of earlier work
//   get_eager_mode() -> int           0 debug, 1 strict, 2 fused; starts nothing
//   set_eager_mode(mode: int | str) -> None    0..2 or "debug", "strict", "fused"
//   memory_stats() -> dict[str, int]  bytes_in_use, bytes_peak, bytes_limit, bytes_total,
//                                     buffers_in_use, buffers_peak, buffers_total; zeros before init
//   memory_reset_peak() -> None
//   empty_cache() -> None             flushes, so that dead values are dropped
//   engine_stats() -> dict[str, int]  records, predicted, flushes, window_hits, window_plans, launches
//   compile_stats() -> dict           requests, memory_hits, disk_hits, compiles, disk_writes,
//                                     disk_rejects (int), compile_seconds, disk_load_seconds (float)
//   reset_stats() -> None             engine and compile numbers to zero
//   fallback_stats() -> dict[str, int]   host runs per op name since start or reset
//   reset_fallback_stats() -> None
//   clear_cache() -> None             forgets plans and compiled programs in memory, not on disk
//   default_generator(index: int = 0) -> torch.Generator
//   env_table() -> list[(name, value: str | None, source: str)]   every row of env_table.def
//   env_get(name: str) -> str | None  effective value; KeyError for a name not in the table
//   env_override(name: str, value: str | None) -> None    None goes back to the environment
//   op_table() -> list[(name, aten: str, family: int, flags: int, opinfo: str)]
//   after_fork() -> None              call in a forked child: later use raises RuntimeError
