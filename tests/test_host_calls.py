"""Operations without a lowering are recorded: they run on the host in their place in the window."""

import pytest
import torch

from support import child, counting, eager_mode, fallback_stats, has_modes, tpu_like_env
from torch_tpu import _C

TIER = "interpreted"

pytestmark = pytest.mark.skipif(not has_modes(), reason="needs the tpu device")


def flushes():
  return {"n": _C.engine_stats()["flushes"]}


def twice(function, *inputs):
  """Results on both devices of the second call with these arguments, and what it launched: the
  first one teaches what the results look like."""
  function(*(x.to("tpu") for x in inputs))
  ours = [x.to("tpu") for x in inputs]
  torch.tpu.synchronize()
  with counting(flushes) as launched:
    results = function(*ours)
  return results, function(*(x.clone() for x in inputs)), launched.get("n", 0)


def spectrum(x):
  values, vectors = torch.linalg.eigh(x @ x.mT + 3)
  return ((vectors * values.exp()) @ vectors.mT).relu(), values


def bessel(x):
  return torch.special.bessel_j1(torch.special.bessel_j0(x * 2) + 1) * x


def strided(x):
  return torch.linalg.eig(x + 2 * torch.eye(4, device=x.device))


def into_place(x):
  y = x.clone()
  torch.special.bessel_y0(x.abs() + 1, out=y[1:3].view(2, 4)) if x.shape == (2, 4) else None
  return torch.special.bessel_j0(x, out=y) + 1, y


CALLS = {"spectrum": spectrum, "bessel": bessel, "strided": strided, "into place": into_place}


@pytest.mark.parametrize("tier", ["interpreted", "compiled"])
@pytest.mark.parametrize("name", CALLS)
def test_nothing_is_launched_when_a_fallback_is_recorded(name, tier):
  x = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
  _C.env_override("TORCH_TPU_TIERS", tier)
  try:
    with counting(fallback_stats) as counted:
      results, wanted, launched = twice(CALLS[name], x)
    assert launched == 0 and min(counted.values()) == 2
    for mine, theirs in zip(results, wanted) if isinstance(results, tuple) else [(results, wanted)]:
      assert mine.stride() == theirs.stride()
      torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-4, atol=1e-4)
  finally:
    _C.env_override("TORCH_TPU_TIERS", TIER)


def test_numbers_of_a_call_may_change():
  """They are no part of what is remembered: one structure of windows for all."""
  x = torch.rand(5)

  def work(number):
    y = x.to("tpu")
    return torch.hypot(torch.special.zeta(y + 2, number), y).tolist()

  for k in range(2, 6):
    wanted = torch.hypot(torch.special.zeta(x + 2, k + 0.5), x)
    torch.testing.assert_close(torch.tensor(work(k + 0.5)), wanted, rtol=1e-4, atol=1e-4)
  assert torch.tpu.window_stats()[0]["interpreted"] >= 2


def test_data_decides_so_the_call_runs_at_once():
  x = torch.tensor([0.0, 1.0, 0.0, 2.0])
  results, wanted, launched = twice(lambda x: torch.unique(x * 1), x)
  assert launched > 0 and results.tolist() == wanted.tolist()


def test_operations_of_others_run_at_once():
  """Their kernels may be Python, and may use the device."""

  @torch.library.custom_op("tpu_test::doubled", mutates_args=(), device_types="cpu")
  def doubled(x: torch.Tensor) -> torch.Tensor:
    return (x.to("tpu") * 2).to(x.device)

  @doubled.register_fake
  def _(x):
    return torch.empty_like(x)

  results, wanted, launched = twice(lambda x: doubled(x * 1), torch.arange(3.0))
  assert launched > 0 and results.tolist() == wanted.tolist()


def test_resized_destination():
  """A record writes to what is there, so this call runs at once, each time."""

  def work(x):
    return torch.special.bessel_j0(x, out=torch.empty(0, device=x.device))

  results, wanted, _ = twice(work, torch.rand(3))
  torch.testing.assert_close(results.cpu(), wanted)


@pytest.mark.parametrize("mode", ["fused", "strict", "debug"])
def test_a_failing_call_names_itself_and_leaves_the_rest(mode):
  with eager_mode(mode):
    x = torch.eye(3, device="tpu")
    assert torch.linalg.eigh(x)[0].tolist() == [1, 1, 1]
    y = torch.zeros(2, device="tpu").add_(1)
    with pytest.raises(RuntimeError, match="eigh.*failed to converge"):
      torch.linalg.eigh(x / 0)[0].tolist()
    assert y.tolist() == [1, 1] and x.sum().item() == 3


def test_gradients_go_through():
  def work(x):
    x = x.detach().requires_grad_()
    torch.linalg.eigh(x @ x.mT)[0].exp().sum().backward()
    return x.grad

  results, wanted, _ = twice(work, torch.randn(3, 3, generator=torch.Generator().manual_seed(1)))
  torch.testing.assert_close(results.cpu(), wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("tier", ["interpreted", "compiled"])
def test_on_a_platform_with_memory_of_its_own(tier):
  """Inputs are copied to the host and results back."""
  code = """
import torch
x = torch.rand(4, 4, generator=torch.Generator().manual_seed(0))
def work(x):
  return torch.linalg.eigh(x @ x.mT)[0].relu() + torch.special.bessel_j0(x[0])
ours = x.to("tpu")
work(ours)
torch.tpu.synchronize()
before = torch.tpu.engine_stats()["flushes"]
mine = work(ours)
print(torch.tpu.engine_stats()["flushes"] - before, torch.allclose(mine.cpu(), work(x), atol=1e-4))
"""
  out = child(code, env=tpu_like_env() | {"TORCH_TPU_TIERS": tier}).stdout
  assert out == "0 True\n"
