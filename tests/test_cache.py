"""The compile caches: what a second run, a changed number or a damaged file does."""

import itertools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import models
from support import (
  ROOT,
  TESTS,
  child,
  child_json,
  compile_stats,
  counting,
  eager_mode,
  fallback_stats,
  has_modes,
  synchronize,
)

pytestmark = pytest.mark.skipif(not has_modes(), reason="this device has no compiler")
TRAIN = TESTS / "scripts" / "train.py"


def files_in(folder):
  return sorted(path for path in folder.rglob("*") if path.is_file())


def bytes_in(folder):
  return sum(path.stat().st_size for path in files_in(folder))


@pytest.mark.parametrize("name", ["mlp", "gpt"])
@pytest.mark.parametrize("mode", ["fused", "strict"])
def test_second_process_compiles_nothing(name, mode, cache_dir):
  env = {"TORCH_TPU_CACHE_DIR": cache_dir, "TORCH_TPU_EAGER_MODE": mode}
  first = child_json(TRAIN, name, env=env)
  second = child_json(TRAIN, name, env=env)
  print(
    f"{name} {mode}: {first['compiles']} compiles in {first['compile_seconds']:.2f} s, then "
    f"{second['disk_hits']} loads in {second['disk_load_seconds']:.2f} s"
  )
  assert first["compiles"] > 0 and first["disk_writes"] == first["compiles"]
  assert second["compiles"] == 0
  assert second["disk_hits"] == first["compiles"]
  assert second["losses"] == first["losses"]


def test_cache_can_be_switched_off(cache_dir):
  env = {"TORCH_TPU_CACHE_DIR": cache_dir, "TORCH_TPU_CACHE": "0"}
  for _ in range(2):
    stats = child_json(TRAIN, "mlp", env=env)
    assert stats["compiles"] > 0 and stats["disk_hits"] == 0 and stats["disk_writes"] == 0
  assert files_in(cache_dir) == []


def flip(data):
  middle = len(data) // 2
  return data[:middle] + bytes([data[middle] ^ 0x40]) + data[middle + 1 :]


DAMAGE = {
  "one bit": flip,
  "first byte": lambda data: bytes([data[0] ^ 1]) + data[1:],
  "last byte": lambda data: data[:-1] + bytes([data[-1] ^ 1]),
  "cut in half": lambda data: data[: len(data) // 2],
  "one byte short": lambda data: data[:-1],
  "empty": lambda data: b"",
  "longer": lambda data: data + b"x",
  "other content": lambda data: b"not a program",
}


def test_damaged_files_are_compiled_again(cache_dir):
  """Each file is damaged in another way, so one training meets all kinds."""
  env = {"TORCH_TPU_CACHE_DIR": cache_dir}
  first = child_json(TRAIN, "gpt", "--steps", 1, env=env)
  blobs = [path for path in files_in(cache_dir) if path.stat().st_size > 1000]
  assert len(blobs) >= first["compiles"] >= len(DAMAGE)
  for path, damage in zip(blobs, itertools.cycle(DAMAGE.values())):
    path.write_bytes(damage(path.read_bytes()))
  second = child_json(TRAIN, "gpt", "--steps", 1, env=env)
  assert second["compiles"] == first["compiles"]
  assert second["disk_rejects"] == first["compiles"]
  assert second["losses"] == first["losses"]
  third = child_json(TRAIN, "gpt", "--steps", 1, env=env)
  assert third["compiles"] == 0 and third["losses"] == first["losses"]


def test_size_limit_drops_the_oldest(cache_dir):
  env = {"TORCH_TPU_CACHE_DIR": cache_dir}
  child_json(TRAIN, "gpt", "--steps", 2, env=env)
  whole = bytes_in(cache_dir)
  limit = whole // 2
  env["TORCH_TPU_CACHE_SIZE"] = str(limit)
  stats = child_json(TRAIN, "mlp", "--steps", 2, env=env)
  assert stats["compiles"] > 0
  assert 0 < bytes_in(cache_dir) <= limit
  again = child_json(TRAIN, "mlp", "--steps", 2, env=env)
  assert again["disk_hits"] > 0  # what was used last is still there


def test_unwritable_folder_is_no_error(tmp_path):
  """Training goes on without the cache, for example in a read-only container."""
  blocker = tmp_path / "file"
  blocker.write_text("a file where the folder should be")
  stats = child_json(TRAIN, "mlp", "--steps", 1, env={"TORCH_TPU_CACHE_DIR": blocker / "cache"})
  assert stats["compiles"] > 0 and stats["disk_writes"] == 0


def test_folder_that_others_may_write_to_is_not_used(cache_dir):
  """What lies there would be run as code. The run goes on, and one line says why it compiles."""
  env = {"TORCH_TPU_CACHE_DIR": cache_dir}
  first = child_json(TRAIN, "mlp", "--steps", 1, env=env)
  before = files_in(cache_dir)
  cache_dir.chmod(0o777)
  done = child(TRAIN, "mlp", "--steps", 1, env=env)
  stats = json.loads(done.stdout.strip().splitlines()[-1])
  assert stats["compiles"] == first["compiles"] and stats["losses"] == first["losses"]
  assert stats["disk_hits"] == 0 and stats["disk_writes"] == 0
  assert done.stderr.count("is not used, because other users may write to it") == 1
  assert files_in(cache_dir) == before


def test_many_processes_share_one_cache(cache_dir):
  env = {"TORCH_TPU_CACHE_DIR": cache_dir}
  with ThreadPoolExecutor(4) as pool:
    results = list(pool.map(lambda _: child_json(TRAIN, "mlp", env=env), range(4)))
  assert len({tuple(r["losses"]) for r in results}) == 1
  assert all(r["disk_rejects"] == 0 for r in results)
  after = child_json(TRAIN, "mlp", env=env)
  assert after["compiles"] == 0 and after["losses"] == results[0]["losses"]
  leftovers = [p.name for p in files_in(cache_dir) if "tmp" in p.name]
  assert leftovers == []


def test_killed_process_leaves_a_usable_cache(cache_dir):
  """SIGKILL in the middle of compiling and writing; the next process must not trip over it."""
  env = {**os.environ, "TORCH_TPU_CACHE_DIR": str(cache_dir)}
  victim = subprocess.Popen(
    [sys.executable, str(TRAIN), "gpt"],
    env=env,
    cwd=ROOT,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
  )
  try:
    victim.wait(3)
  except subprocess.TimeoutExpired:
    victim.kill()
    victim.wait()
  stats = child_json(TRAIN, "gpt", env={"TORCH_TPU_CACHE_DIR": cache_dir})
  assert stats["disk_rejects"] == 0
  assert child_json(TRAIN, "gpt", env={"TORCH_TPU_CACHE_DIR": cache_dir})["compiles"] == 0


def test_two_threads_compile_the_same_program_once(device):
  with eager_mode("strict"):
    inputs = [torch.full((37, 3), float(k), device=device) for k in range(4)]
    synchronize()
    with counting(compile_stats) as grown, ThreadPoolExecutor(4) as pool:
      results = list(pool.map(lambda x: x.sinh().cpu(), inputs))
  assert grown.get("compiles", 0) + grown.get("disk_hits", 0) <= 1
  for k, result in enumerate(results):
    torch.testing.assert_close(result, torch.full((37, 3), float(k)).sinh())


# --- numbers that change ---


def count_after_warmup(step, warmup=3, steps=6):
  """Compiles (and disk loads) in the steps after the first `warmup`."""
  for k in range(warmup):
    step(k)
  synchronize()
  with counting(compile_stats) as grown:
    for k in range(warmup, warmup + steps):
      step(k)
    synchronize()
  return grown.get("compiles", 0) + grown.get("disk_hits", 0)


CHANGES = {
  "adam": lambda p: torch.optim.Adam(p, lr=1e-3),
  "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
  "adamw_single": lambda p: torch.optim.AdamW(p, lr=1e-3, foreach=False),
  "adamw_fused": lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True),
  "adamw_capturable": lambda p: torch.optim.AdamW(p, lr=1e-3, capturable=True),
  "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
}


@pytest.mark.parametrize("where", ["fused", "strict"])
@pytest.mark.parametrize("optimizer", list(CHANGES))
def test_changing_rate_scale_and_step_compile_nothing(optimizer, where, device):
  """Learning rate, loss scale and the step count differ in each step."""
  model, batches, loss_of = models.build("mlp")
  model = model.to(device)
  opt = CHANGES[optimizer](model.parameters())
  losses = []

  def step(k):
    for group in opt.param_groups:
      group["lr"] = 1e-3 * (1 + 0.37 * k)
    scale = 2.0 ** (k % 5) + 0.01 * k
    loss = loss_of(model, models.to_device(batches(k), device))
    opt.zero_grad()
    (loss * scale).backward()
    for p in model.parameters():
      p.grad.mul_(1 / scale)
    opt.step()
    losses.append(loss.item())

  with eager_mode(where):
    assert count_after_warmup(step) == 0
  assert len(set(losses)) == len(losses)


@pytest.mark.parametrize("where", ["fused", "strict"])
def test_changing_scalars_compile_nothing_and_count(where, device):
  """Python numbers in every kind of scalar argument; results follow the numbers."""
  x = torch.arange(1, 6, device=device).float()
  results = []

  def step(k):
    y = (x * (1.5 + k) + 2 * k - 0.25 * k) / (k + 1)
    y = torch.add(y, x, alpha=k + 0.5).clamp(-k, 10 * k + 5).pow(1 + k / 7)
    y = torch.where(y > k, y, torch.full_like(y, k)).lerp(x, 0.1 * k)
    z = torch.empty_like(y).fill_(k).addcmul_(x, x, value=k + 1)
    results.append((y + z).tolist())

  with eager_mode(where):
    assert count_after_warmup(step) == 0
  on_device, results[:] = list(results), []
  x = x.cpu()
  for k in range(9):
    step(k)
  torch.testing.assert_close(torch.tensor(on_device), torch.tensor(results), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("where", ["fused", "strict"])
def test_changing_offsets_compile_nothing(where, device):
  """x[i] with a running i, as in a loop over tokens: the offset is data."""
  x = torch.arange(60, device=device).float().view(12, 5)
  seen = []

  def step(k):
    x[k + 1] += x[k]
    seen.append(x[k, 1:4].sum().item())

  with eager_mode(where):
    assert count_after_warmup(step) == 0
  on_device, seen[:] = list(seen), []
  x = torch.arange(60).float().view(12, 5)
  for k in range(9):
    step(k)
  assert on_device == seen


def test_random_numbers_compile_nothing(device):
  seen = []

  def step(k):
    seen.append(
      torch.nn.functional.dropout(torch.ones(64, device=device), 0.5).sum().item()
      + torch.rand(3, device=device).sum().item()
    )

  assert count_after_warmup(step) == 0
  assert len(set(seen)) == len(seen)


def test_clear_cache_forgets_programs_in_memory(device):
  x = torch.ones(11, 13, device=device)
  with eager_mode("strict"):
    x.cosh().cpu()
    with counting(compile_stats) as warm:
      x.cosh().cpu()
    torch.tpu.clear_cache()
    with counting(compile_stats) as cold:
      x.cosh().cpu()
  assert warm.get("requests", 0) == 0
  assert cold.get("disk_hits", 0) >= 1 and cold.get("compiles", 0) == 0


def test_errors_of_a_child_reach_the_test():
  """The helper above would otherwise turn a crashed child into a passing test."""
  with pytest.raises(AssertionError, match="ended with"):
    child("import sys; sys.exit(3)")


def test_fallback_is_not_used_by_any_of_this():
  assert child_json(TRAIN, "mlp", "--steps", 1)["fallback"] == {}
  assert isinstance(fallback_stats(), dict)
