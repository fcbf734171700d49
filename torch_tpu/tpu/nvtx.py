"""Named ranges for the profiler, under the names of torch.cuda.nvtx."""

import contextlib
import itertools
import threading

import torch

__all__ = ["mark", "range", "range_end", "range_pop", "range_push", "range_start"]

_open = threading.local()
_started, _numbers = {}, itertools.count(1)


def range_push(msg):
  """Begins a range of that name in this thread; gives its depth, from 0."""
  stack = _open.__dict__.setdefault("stack", [])
  named = torch.profiler.record_function(str(msg))
  named.__enter__()
  stack.append(named)
  return len(stack) - 1


def range_pop():
  """Ends this thread's innermost range; gives the depth that it had. RuntimeError without one."""
  stack = _open.__dict__.get("stack")
  if not stack:
    raise RuntimeError("range_pop: this thread has no open range")
  stack.pop().__exit__(None, None, None)
  return len(stack)


def range_start(msg):
  """Begins a range that need not be the innermost when it ends; gives what range_end wants."""
  named = torch.profiler.record_function(str(msg))
  named.__enter__()
  number = next(_numbers)
  _started[number] = named
  return number


def range_end(range_id):
  """Ends the range that range_start gave the number of. RuntimeError for another number."""
  named = _started.pop(range_id, None)
  if named is None:
    raise RuntimeError(f"range_end: {range_id} is no range that has begun and not ended")
  named.__exit__(None, None, None)


def mark(msg):
  """A range of no length."""
  with torch.profiler.record_function(str(msg)):
    pass


@contextlib.contextmanager
def range(msg, *args, **kwargs):
  """``with torch.tpu.nvtx.range("step {}", 3):`` names what is recorded inside."""
  range_push(msg.format(*args, **kwargs))
  try:
    yield
  finally:
    range_pop()
