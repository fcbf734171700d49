"""C kernels inside programs (core/host): the same results as PyTorch's CPU kernels, in every way a
program can come about. What the kernels do with odd numbers is tests/core/test_host.c."""

import os
import subprocess
from pathlib import Path

import pytest
import torch

import torch_tpu
from support import (
  DEVICE,
  ROOT,
  child,
  child_json,
  compile_stats,
  counting,
  fallback_stats,
  has_modes,
  mirror,
)

pytestmark = pytest.mark.skipif(not has_modes(), reason="this device runs no programs")

DTYPES = [
  torch.float32,
  torch.float64,
  torch.float16,
  torch.bfloat16,
  torch.int64,
  torch.int32,
  torch.int16,
  torch.int8,
  torch.uint8,
  torch.bool,
]


def numbers(dtype, *size, seed=0):
  """Few enough values that many are equal; floats with NaN, infinities and both zeros."""
  generator = torch.Generator().manual_seed(seed)
  if not dtype.is_floating_point:
    high = 2 if dtype == torch.bool else 100
    return torch.randint(0, high, size, generator=generator).to(dtype)
  x = torch.randint(-20, 20, size, generator=generator).to(dtype) / 4
  special = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 0.0], dtype=dtype)
  pick = torch.randint(0, 25, size, generator=generator)
  return torch.where(pick < 5, special[pick.clamp(max=4)], x)


def bits(x):
  """For exact comparison: NaN equals NaN (conversions inside XLA change its bits), -0 is not 0."""
  if not x.dtype.is_floating_point:
    return x
  x = torch.where(x.isnan(), torch.full_like(x, float("nan")), x)
  return x.view({2: torch.int16, 4: torch.int32, 8: torch.int64}[x.element_size()])


def assert_same_sort(actual, expected):
  assert torch.equal(actual.indices.cpu(), expected.indices)
  assert torch.equal(bits(actual.values.cpu()), bits(expected.values))


@pytest.mark.parametrize("dtype", DTYPES)
def test_stable_sort_of_every_dimension(dtype):
  x = numbers(dtype, 5, 37, 18)
  y = mirror(x)
  for dim in (0, 1, 2, -1):
    for descending in (False, True):
      expected = torch.sort(x, dim=dim, descending=descending, stable=True)
      assert_same_sort(torch.sort(y, dim=dim, descending=descending, stable=True), expected)
      order = torch.argsort(y, dim=dim, descending=descending, stable=True)
      assert torch.equal(order.cpu(), expected.indices)


@pytest.mark.parametrize("size", [(), (0,), (1,), (0, 4), (4, 0), (1, 1, 7), (20000,), (3, 5000)])
def test_sizes(size):
  x = numbers(torch.float32, *size)
  for descending in (False, True):
    expected = torch.sort(x, descending=descending, stable=True)
    assert_same_sort(torch.sort(mirror(x), descending=descending, stable=True), expected)


def test_views_are_sorted_where_they_lie():
  base = numbers(torch.float32, 12, 20)
  for take in (lambda t: t.t(), lambda t: t[2:9, ::3], lambda t: t[:, 4].expand(3, 12)):
    x = take(base)
    expected = torch.sort(x, dim=-1, stable=True)
    assert_same_sort(torch.sort(take(base.to(DEVICE)), dim=-1, stable=True), expected)


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d != torch.bool])
@pytest.mark.parametrize("largest", [True, False])
def test_topk(dtype, largest):
  x = numbers(dtype, 6, 150, 3)
  for dim, k in ((1, 1), (1, 10), (1, 100), (0, 6), (2, 2), (-1, 0)):
    expected = torch.topk(x, k, dim=dim, largest=largest)
    actual = torch.topk(mirror(x), k, dim=dim, largest=largest)
    # Of equal values PyTorch promises no particular one, nor which zero.
    values = actual.values.cpu()
    assert torch.equal(values.nan_to_num(7e4), expected.values.nan_to_num(7e4))
    assert torch.equal(bits(x.gather(dim, actual.indices.cpu())), bits(values))
    ordered = actual.indices.cpu().sort(dim=dim).values
    assert k < 2 or bool((ordered.diff(dim=dim) != 0).all())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int8])
def test_order_statistics(dtype):
  x = numbers(dtype, 7, 90)
  y = mirror(x)
  for dim in (0, 1):
    for k in (1, 3, 7):
      expected = torch.kthvalue(x, k, dim=dim).values
      actual = torch.kthvalue(y, k, dim=dim)
      assert torch.equal(actual.values.cpu().nan_to_num(7e4), expected.nan_to_num(7e4))
      picked = x.gather(dim, actual.indices.cpu().unsqueeze(dim)).squeeze(dim)
      assert torch.equal(bits(picked), bits(actual.values.cpu()))
    expected = torch.median(x, dim=dim).values
    actual = torch.median(y, dim=dim).values.cpu()
    assert torch.equal(actual.nan_to_num(7e4), expected.nan_to_num(7e4))
  assert torch.equal(torch.nanmedian(y).cpu(), torch.nanmedian(x))


@pytest.mark.parametrize("dtype", DTYPES)
def test_running_extremes(dtype):
  x = numbers(dtype, 4, 60, 5)
  y = mirror(x)
  for dim in (0, 1, 2):
    for op in (torch.cummax, torch.cummin):
      assert_same_sort(op(y, dim), op(x, dim))


@pytest.mark.parametrize(
  "dtype", [torch.float32, torch.float64, torch.int64, torch.int32, torch.bool]
)
def test_running_sums(dtype):
  """As PyTorch adds: float32 in double, so these are equal, not just close."""
  generator = torch.Generator().manual_seed(7)
  x = torch.randn(4, 60, 5, generator=generator, dtype=torch.float64).mul(3).to(dtype)
  y = mirror(x)
  for dim in (0, 1, -1):
    assert torch.equal(torch.cumsum(y, dim).cpu(), torch.cumsum(x, dim))
    assert torch.equal(torch.cumprod(y, dim).cpu(), torch.cumprod(x, dim))
  wide = torch.cumsum(x, 1, dtype=torch.float64)
  assert torch.equal(torch.cumsum(y, 1, dtype=torch.float64).cpu(), wide)
  for size in ((), (0,), (3, 0), (0, 3)):
    x = torch.ones(size, dtype=dtype)
    assert torch.equal(torch.cumsum(mirror(x), -1).cpu(), torch.cumsum(x, -1))


def test_inside_a_window(mode):
  """Kernels between other ops: what they read is computed, what they give is used."""
  x = torch.randn(64, 33, generator=torch.Generator().manual_seed(3))

  def work(x):
    y = x * 2 - 1  # rounds the same everywhere, so the order is the same
    values, order = torch.sort(y.t(), dim=0, descending=True, stable=True)
    best = torch.topk(values * 2, 5, dim=0).values
    picked = torch.gather(x.t(), 0, order[:5])
    x = x.clone()
    x[:, 0] = torch.sort(x[:, 0]).values
    return values.sum(), best + picked, order % 7, x

  with counting(fallback_stats) as fallbacks:
    actual = [t.cpu() for t in work(x.to(DEVICE))]
  assert not fallbacks
  for a, e in zip(actual, work(x)):
    torch.testing.assert_close(a, e)


def test_gradients_flow_through():
  x = torch.randn(8, 50, generator=torch.Generator().manual_seed(4))
  weight = torch.arange(50.0)
  grads = []
  for device in ("cpu", DEVICE):
    leaf = x.to(device).detach().requires_grad_()
    values = torch.sort(leaf * leaf, dim=1, stable=True).values
    ((values * weight.to(device)).sum() + torch.topk(leaf, 3).values.prod()).backward()
    grads.append(leaf.grad.cpu())
  torch.testing.assert_close(*grads)


def test_equal_windows_compile_once():
  x = numbers(torch.float32, 40, 40).to(DEVICE)
  torch.sort(x, dim=0).values.cpu()
  with counting(compile_stats) as grown:
    for _ in range(3):
      torch.sort(x, dim=0).values.cpu()
  assert grown.get("compiles", 0) == 0


PROCESS = """
import json, torch
x = torch.randn(300, 40, generator=torch.Generator().manual_seed(5))
y = x.to("tpu")
values, order = torch.sort(y * 2, dim=0, stable=True)
top = torch.topk(y, 4).values
same = torch.equal(order.cpu(), torch.sort(x * 2, dim=0, stable=True).indices)
same = same and torch.equal(top.cpu(), torch.topk(x, 4).values)
print(json.dumps({"same": same, **torch.tpu.compile_stats()}))
"""


def test_loaded_from_disk_by_another_process(cache_dir):
  env = {"TORCH_TPU_CACHE_DIR": cache_dir, "TORCH_TPU_CACHE": "1"}
  first = child_json(PROCESS, env=env)
  second = child_json(PROCESS, env=env)
  assert first["same"] and second["same"]
  assert first["compiles"] > 0
  assert second["compiles"] == 0 and second["disk_hits"] == first["compiles"]


def test_programs_without_kernels_are_other_programs(cache_dir):
  """With the switch off nothing of the cache that needs kernels is used."""
  env = {"TORCH_TPU_CACHE_DIR": cache_dir, "TORCH_TPU_CACHE": "1"}
  first = child_json(PROCESS, env=env)
  second = child_json(PROCESS, env={**env, "TORCH_TPU_HOST_KERNELS": "0"})
  assert second["same"]
  assert second["compiles"] >= 1 and second["disk_hits"] < first["compiles"]


def test_the_text_calls_the_kernel(tmp_path):
  code = "import torch\nprint(torch.ones(3, 4).to('tpu').sort(dim=0).values.cpu().shape)"
  texts = {}
  for switch in ("0", "1"):
    folder = tmp_path / switch
    folder.mkdir()
    env = {"TORCH_TPU_CACHE": "0", "TORCH_TPU_DUMP_DIR": folder, "TORCH_TPU_HOST_KERNELS": switch}
    child(code, env=env)
    texts[switch] = "".join(path.read_text() for path in folder.rglob("*") if path.is_file())
  assert "tpu_host_sort" in texts["1"] and "stablehlo.sort" not in texts["1"]
  assert "tpu_host" not in texts["0"] and "stablehlo.sort" in texts["0"]


def test_many_threads(cache_dir):
  """Lines are shared out over the plugin's pool."""
  code = """
import torch
x = torch.randn(500, 3000, generator=torch.Generator().manual_seed(6))
for dim in (0, 1):
  for _ in range(3):
    actual = torch.sort(x.to("tpu"), dim=dim, stable=True)
    expected = torch.sort(x, dim=dim, stable=True)
    assert torch.equal(actual.indices.cpu(), expected.indices), dim
    assert torch.equal(actual.values.cpu(), expected.values), dim
"""
  child(code, env={"TORCH_TPU_CPU_THREADS": "4", "TORCH_TPU_CACHE_DIR": cache_dir})


def test_failures_of_a_kernel_come_out_of_the_run():
  """No op passes wrong arguments to a kernel, so the C tests do, on the plugin used here."""
  binary = Path(os.environ.get("TPU_CORE_TESTS", ROOT / "build/tests/tests/core/tpu_core_tests"))
  if not binary.exists():
    pytest.skip(f"{binary.relative_to(ROOT)} is not built (make ctest)")
  plugin, platform = torch_tpu._C.plugin()
  assert platform == "cpu"
  done = subprocess.run(
    [binary, "host_kernel_failures"],
    env={**os.environ, "TORCH_TPU_PJRT_PLUGIN": plugin},
    capture_output=True,
    text=True,
    timeout=120,
  )
  assert done.returncode == 0, done.stdout + done.stderr
  assert "1 passed, 0 failed" in done.stdout and "skipped" not in done.stdout
