"""Windows are cut so that repeated layers share programs (core/partition)."""

import pytest
import torch

import models
from support import TESTS, child_json, compile_stats, counting, eager_mode, has_modes, synchronize

pytestmark = pytest.mark.skipif(not has_modes(), reason="this device has no compiler")
TRAIN = TESTS / "scripts" / "train.py"


@pytest.fixture(scope="module")
def depths(tmp_path_factory):
  """Counters of one process per depth, each with an empty cache of its own."""
  found = {}
  for layers in (6, 24):
    cache = tmp_path_factory.mktemp(f"cache{layers}")
    env = {"TORCH_TPU_CACHE_DIR": cache, "TORCH_TPU_EAGER_MODE": "fused"}
    first, again = (
      child_json(TRAIN, "gpt", "--layers", layers, "--steps", 3, env=env) for _ in range(2)
    )
    found[layers] = {**first, "again": again}
  return found


def test_four_times_the_layers_compile_one_and_a_half_times_the_programs(depths):
  small, large = depths[6], depths[24]
  print(
    f"6 layers: {small['compiles']} programs, {small['compile_seconds']:.2f} s; "
    f"24 layers: {large['compiles']} programs, {large['compile_seconds']:.2f} s; "
    f"launches {small['engine']['launches']} and {large['engine']['launches']}"
  )
  assert large["compiles"] <= 1.5 * small["compiles"]


def test_cuts_are_the_same_in_the_next_process(depths):
  for layers in depths:
    assert depths[layers]["again"]["compiles"] == 0
    assert depths[layers]["again"]["losses"] == depths[layers]["losses"]


def test_deep_model_gives_the_cpus_losses(depths):
  _, losses = models.train(
    "gpt", "cpu", 3, lambda p: torch.optim.AdamW(p, lr=1e-3, eps=1e-5), layers=24
  )
  torch.testing.assert_close(
    torch.tensor(depths[24]["losses"]), torch.stack(losses), rtol=1e-4, atol=1e-5
  )


def test_repeats_share_a_program(device):
  """Twelve equal blocks with their own weights: fewer requests than blocks."""
  x = torch.randn(8, 16).to(device)
  weights = [torch.randn(16, 16).to(device) / 4 for _ in range(12)]
  expected = x.cpu()
  for w in weights:
    expected = torch.nn.functional.layer_norm((expected @ w.cpu()).tanh() + expected, (16,))
  synchronize()
  with eager_mode("fused"), counting(compile_stats) as grown:
    y = x
    for w in weights:
      y = torch.nn.functional.layer_norm((y @ w).tanh() + y, (16,))
    torch.testing.assert_close(y.cpu(), expected, rtol=1e-3, atol=1e-4)
  programs = grown.get("compiles", 0) + grown.get("disk_hits", 0)
  assert 1 <= programs <= 6


def programs_of_lstm(steps, device):
  """Distinct programs of a training step over a sequence of this length."""
  torch.manual_seed(0)
  model = torch.nn.LSTM(8, 16, batch_first=True).to(device)
  x = torch.randn(2, steps, 8).to(device)
  torch.tpu.clear_cache()
  before = torch.tpu.compile_stats()
  model(x)[0].square().mean().backward()
  torch.tpu.synchronize()
  after = torch.tpu.compile_stats()
  return sum(after[key] - before[key] for key in ("compiles", "disk_hits"))


def test_longer_sequences_need_no_more_programs(device):
  """The steps of a recurrent layer differ in where they read: that place is an argument."""
  short, long = programs_of_lstm(24, device), programs_of_lstm(72, device)
  assert long <= 1.5 * short, f"{short} programs for 24 steps, {long} for 72"


@pytest.mark.parametrize("limit", [1, 2, 7, 64])
def test_program_size_limit_changes_no_result(limit, cache_dir):
  env = {"TORCH_TPU_CACHE_DIR": cache_dir, "TORCH_TPU_PROGRAM_OPS": str(limit)}
  mine = child_json(TRAIN, "mlp", "--steps", 3, env=env)
  _, losses = models.train("mlp", "cpu", 3, lambda p: torch.optim.AdamW(p, lr=1e-3, eps=1e-5))
  torch.testing.assert_close(
    torch.tensor(mine["losses"]), torch.stack(losses), rtol=1e-4, atol=1e-6
  )


@pytest.mark.parametrize("limit", [1, 10, 333])
def test_window_size_limit_changes_no_result(limit, cache_dir):
  env = {"TORCH_TPU_CACHE_DIR": cache_dir, "TORCH_TPU_WINDOW_OPS": str(limit)}
  mine = child_json(TRAIN, "mlp", "--steps", 3, env=env)
  _, losses = models.train("mlp", "cpu", 3, lambda p: torch.optim.AdamW(p, lr=1e-3, eps=1e-5))
  torch.testing.assert_close(
    torch.tensor(mine["losses"]), torch.stack(losses), rtol=1e-4, atol=1e-6
  )
