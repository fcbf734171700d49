"""Helpers that every test file shares: devices, modes, counters, mirroring and child processes."""

import contextlib
import ctypes
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import torch

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
DEVICE = torch.device(os.environ.get("TORCH_TPU_TEST_DEVICE", "tpu"))
MODES = ("fused", "strict", "debug")
# Sweeps run in part, or whole: `make test-all` sets this.
TEST_ALL = "TORCH_TPU_TEST_ALL" in os.environ


def has_modes():
  return DEVICE.type == "tpu"


def mode_value(name):
  """The EagerMode member behind "debug", "strict" or "fused"."""
  members = torch.tpu.EagerMode
  return {
    "fused": members.DEFER_AND_FUSE,
    "strict": members.DEFER_NEVER,
    "debug": members.DEFER_NEVER_AND_LAUNCH_BLOCKING,
  }[name]


@contextlib.contextmanager
def eager_mode(name):
  """Runs a block in one mode; does nothing on other devices."""
  if not has_modes():
    yield
    return
  with torch.tpu.set_eager_mode(mode_value(name)):
    yield


def synchronize():
  if DEVICE.type == "tpu":
    torch.tpu.synchronize()


def release_caches():
  gc.collect()
  if DEVICE.type == "tpu":
    torch.tpu.clear_cache()


def compile_stats():
  """Counters since the process began: requests, memory_hits, disk_hits, compiles, ..."""
  return dict(torch.tpu.compile_stats()) if DEVICE.type == "tpu" else {"compiles": 0, "requests": 0}


def fallback_stats():
  """ATen overload name -> number of calls that ran on the host."""
  return dict(torch.tpu.fallback_stats()) if DEVICE.type == "tpu" else {}


@contextlib.contextmanager
def counting(read):
  """Yields a dict that holds, after the block, by how much each counter of `read()` grew."""
  before = read()
  grown = {}
  yield grown
  for key, value in read().items():
    if isinstance(value, (int, float)) and value != before.get(key, 0):
      grown[key] = value - before.get(key, 0)


def mirror(tensor, device=DEVICE):
  """A copy on `device` with the same sizes, strides and storage offset, over a whole storage."""
  if tensor.is_sparse or tensor.layout is not torch.strided or tensor.device.type != "cpu":
    return tensor.to(device)
  plain = tensor.detach().resolve_conj().resolve_neg()
  if (
    plain.untyped_storage().nbytes() == plain.numel() * plain.element_size()
    and plain.is_contiguous()
  ):
    return plain.to(device).requires_grad_(tensor.requires_grad)
  flat = torch.empty(0, dtype=plain.dtype).set_(plain.untyped_storage())
  copy = flat.to(device).as_strided(plain.size(), plain.stride(), plain.storage_offset())
  return copy.detach().requires_grad_(tensor.requires_grad)


def tree_map(function, value):
  """Applies `function` to every tensor inside lists, tuples and dicts."""
  if isinstance(value, torch.Tensor):
    return function(value)
  if isinstance(value, torch.device):
    return value
  if isinstance(value, tuple) and hasattr(value, "_fields"):
    return type(value)(*(tree_map(function, item) for item in value))
  if isinstance(value, (list, tuple)):
    return type(value)(tree_map(function, item) for item in value)
  if isinstance(value, dict):
    return {key: tree_map(function, item) for key, item in value.items()}
  return value


def tensors_in(value):
  """All tensors inside lists, tuples and dicts, in order."""
  found = []
  tree_map(lambda tensor: found.append(tensor) or tensor, value)
  return found


def child_environment():
  """This process's environment, with the tests' own modules to import."""
  paths = [str(TESTS), os.environ.get("PYTHONPATH")]
  return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}


# Environment variables that are read when they are first needed: changing them needs no new import.
READ_LATE = ("TORCH_TPU_", "TPU_", "TF_CPP_")


class Prepared:
  """Processes of tests/prepared.py: those that wait for a request are `idle`."""

  idle = []

  def __init__(self):
    self.process = subprocess.Popen(
      [sys.executable, str(TESTS / "prepared.py")],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      text=True,
      env=child_environment(),
      cwd=ROOT,
    )

  def answer(self):
    return int(self.process.stdout.readline())

  def run(self, argv, program, env, timeout):
    """Exit code, stdout and stderr of a child."""
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
      request = {"argv": argv, "program": program, "env": env}
      request |= {"stdout": out.name, "stderr": err.name}
      self.process.stdin.write(json.dumps(request) + "\n")
      self.process.stdin.flush()
      pid, late = self.answer(), []
      timer = threading.Timer(timeout, lambda: (late.append(1), os.kill(pid, signal.SIGKILL)))
      timer.start()
      code = self.answer()
      timer.cancel()
      if late:
        raise subprocess.TimeoutExpired(argv, timeout, out.read(), err.read())
      return code, out.read(), err.read()


def run_prepared(argv, program, env, timeout):
  try:
    prepared = Prepared.idle.pop()
  except IndexError:
    prepared = Prepared()
  done = prepared.run(argv, program, env, timeout)
  Prepared.idle.append(prepared)
  return done


def child(code_or_path, *args, env=None, check=True, timeout=300, fresh=False):
  """Runs Python in a child process with this environment plus `env`.

  Takes a path or source text. Gives the completed process; with `check`, a failing child raises
  with its stderr. A None in `env` removes that variable. The child is a fork of a process that has
  imported torch, except with `fresh` or when `env` has what is read during that import; on the
  TPU-like plugin, more is.
  """
  full = child_environment()
  for key, value in (env or {}).items():
    if value is None:
      full.pop(key, None)
    else:
      full[key] = str(value)
  is_path = isinstance(code_or_path, Path)
  argv = [str(code_or_path) if is_path else "-c", *map(str, args)]
  program = None if is_path else code_or_path
  if fresh or is_tpu_like() or not all(key.startswith(READ_LATE) for key in env or {}):
    argv = [sys.executable, argv[0], *([] if is_path else [program]), *argv[1:]]
    done = subprocess.run(argv, env=full, capture_output=True, text=True, timeout=timeout, cwd=ROOT)
  else:
    done = subprocess.CompletedProcess(argv, *run_prepared(argv, program, full, timeout))
  if check and done.returncode != 0:
    raise AssertionError(f"child ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
  return done


def child_json(code_or_path, *args, **kwargs):
  """The last line that the child printed, as JSON."""
  lines = child(code_or_path, *args, **kwargs).stdout.strip().splitlines()
  return json.loads(lines[-1])


# The plugin of tests/tpu_like, and what makes a process use it.
TPU_LIKE = Path(
  os.environ.get("TPU_LIKE_LIBRARY", ROOT / "build/tests/tests/tpu_like/libtpu_like.so")
)


def tpu_like_env(**settings):
  """Environment of a child that runs on the TPU-like plugin; settings as in tpu_like_values.def."""
  from torch_tpu import _discovery

  return {
    "TORCH_TPU_PLATFORM": "tpu",
    "TORCH_TPU_PJRT_PLUGIN": TPU_LIKE,
    "TPU_LIKE_PLUGIN": _discovery.locate("cpu"),
  } | {f"TPU_LIKE_{name.upper()}": value for name, value in settings.items()}


def memory_limit_env(mebibytes):
  """Environment of a child whose device has so much memory."""
  return {"TORCH_TPU_MEMORY_LIMIT": f"{mebibytes}M", "TPU_LIKE_HBM_BYTES": mebibytes << 20}


def is_tpu_like():
  """True in a process that runs on the TPU-like plugin."""
  return os.environ.get("TORCH_TPU_PJRT_PLUGIN") == str(TPU_LIKE)


class TpuLike:
  """The TPU-like plugin's settings and counters, as attributes."""

  def __init__(self):
    torch.ones(1, device="tpu")  # settings are read with the device's first use
    library = ctypes.CDLL(str(TPU_LIKE))  # the copy that the device uses
    library.tpu_like_get.restype = library.tpu_like_set.restype = ctypes.c_int64
    library.tpu_like_set.argtypes = (ctypes.c_char_p, ctypes.c_int64)
    object.__setattr__(self, "_library", library)

  def __getattr__(self, name):
    return self._library.tpu_like_get(name.encode())

  def __setattr__(self, name, value):
    self._library.tpu_like_set(name.encode(), value)
