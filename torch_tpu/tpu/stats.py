"""Counters of what the engine does; all start at zero and never start the runtime."""

from torch_tpu import _C


def compile_stats():
  """Compile requests, memory_hits, memory_drops (programs dropped for
  TORCH_TPU_PROGRAM_CACHE_BYTES), disk_hits, compiles, disk_writes, disk_rejects (counts) and
  compile_seconds, disk_load_seconds. A window that was planned before makes no request.
  interpreted_windows and compiled_windows are launches: op by op since the window was new, and as
  programs."""
  return _C.compile_stats()


def window_stats():
  """How each structure of windows was launched, as a list of dicts, the last used first.

  records, first, last (how many operations, and which), interpreted (launches op by op) of
  interpretations (how many there are before its programs run), compiled (launches of programs),
  programs (in the newest set; 0: none yet), sets (of programs, which differ in their numbers or
  results) and building (programs are being compiled in the background)."""
  return _C.window_stats()


def engine_stats():
  """records (operations), predicted (of these, matched by prediction), flushes, window_hits,
  window_plans, interpretations (windows run op by op since they are new) and launches (steps run).
  """
  return _C.engine_stats()


def fallback_stats():
  """Calls of operations that ran on the host, on copies of their tensors: name -> count."""
  return _C.fallback_stats()


def decomposition_stats():
  """Calls of operations without a row in the op table that ran as several with one: name ->
  {"traced": calls that ran PyTorch's Python decomposition, "replayed": calls that repeated what
  such a call had recorded}. In debug mode each call is traced."""
  return _C.decomposition_stats()


def reset_stats():
  """Sets the counters of this module to zero."""
  _C.reset_stats()
  _C.reset_fallback_stats()
  _C.reset_decomposition_stats()


def wait_for_compiles():
  """Waits until no program is compiled in the background any more. What was built runs from the
  next occurrence on for which it is due: for a graph of torch.compile that is its second call."""
  _C.await_builds()


def clear_cache():
  """Forgets window plans and compiled programs in memory. The cache on disk stays."""
  _C.clear_cache()
