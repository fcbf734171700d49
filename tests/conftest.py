"""Shared fixtures. The device under test is "tpu"; TORCH_TPU_TEST_DEVICE=cpu runs the same harness
against PyTorch's own CPU kernels, which is how the harness itself is debugged."""

import importlib.util
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(Path(__file__).resolve().parent))

# All of this has to be in the environment before torch is imported: the import loads our package.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TORCH_TPU_CPU_THREADS", "1")
# Most tests are about programs; test_tiers.py interprets what is new.
os.environ.setdefault("TORCH_TPU_TIERS", "compiled")
if "TORCH_TPU_CACHE_DIR" not in os.environ:
  # A fresh cache per run: what an earlier build compiled must not hide what this one compiles.
  _cache = tempfile.TemporaryDirectory(prefix="torch_tpu_test_cache_")
  os.environ["TORCH_TPU_CACHE_DIR"] = _cache.name
  # Also for graphs, which AOTAutograd's cache keeps there.
  os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(_cache.name, "inductor"))

import pytest
import torch

from support import DEVICE, eager_mode, has_modes, release_caches

torch.set_num_threads(1)

# Those of `make test-ecosystem`.
collect_ignore = [] if importlib.util.find_spec("transformers") else ["integrations"]


def pytest_configure(config):
  config.addinivalue_line("markers", "breadth: op_db entries that go through the fallback")
  if DEVICE.type == "tpu" and not hasattr(torch, "tpu"):
    pytest.exit("`import torch` gave no torch.tpu: is torch_tpu installed (pip install .)?", 3)


def pytest_report_header(config):
  name = torch.tpu.get_device_name() if DEVICE.type == "tpu" else "cpu (harness check)"
  return f"torch {torch.__version__}, device under test: {DEVICE} = {name}"


@pytest.fixture(autouse=True, scope="module")
def tier(request):
  """What runs new windows in a file that says TIER = "interpreted" or "compiled"."""
  wanted = getattr(request.module, "TIER", None)
  if wanted is None or not has_modes():
    yield
    return
  from torch_tpu import _C

  _C.env_override("TORCH_TPU_TIERS", wanted)
  yield
  _C.env_override("TORCH_TPU_TIERS", None)


@pytest.fixture
def device():
  return DEVICE


@pytest.fixture(params=["fused", "strict", "debug"])
def mode(request):
  """Runs a test once in each eager mode."""
  if not has_modes():
    pytest.skip("this device has no eager modes")
  with eager_mode(request.param):
    yield request.param


@pytest.fixture(scope="module", autouse=True)
def bounded_memory():
  """Thousands of small executables live in the memory cache otherwise."""
  yield
  release_caches()


@pytest.fixture
def cache_dir(tmp_path):
  path = tmp_path / "cache"
  path.mkdir(mode=0o700)  # a folder that others may write to is not used
  return path
