"""Random numbers: seeds, distributions, generators."""

import pytest
import torch
from torch import nn

from support import eager_mode, has_modes

needs_tpu = pytest.mark.skipif(not has_modes(), reason="the CPU device has no such thing")


SAMPLERS = {
  "rand": lambda d: torch.rand(500, device=d),
  "randn": lambda d: torch.randn(500, device=d),
  "randint": lambda d: torch.randint(-5, 40, (500,), device=d),
  "randperm": lambda d: torch.randperm(100, device=d),
  "bernoulli": lambda d: torch.bernoulli(torch.full((500,), 0.3, device=d)),
  "normal_": lambda d: torch.empty(500, device=d).normal_(2, 3),
  "uniform_": lambda d: torch.empty(500, device=d).uniform_(-1, 4),
  "dropout": lambda d: torch.nn.functional.dropout(torch.ones(500, device=d), 0.4),
  "multinomial": lambda d: torch.multinomial(torch.ones(50, device=d), 20),
  "exponential_": lambda d: torch.empty(500, device=d).exponential_(),
  "rand_complex": lambda d: torch.rand(500, device=d, dtype=torch.complex64),
  "rand_half": lambda d: torch.rand(500, device=d, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("name", list(SAMPLERS))
def test_seeds_repeat_in_all_modes(name, device):
  sample = SAMPLERS[name]
  seen = []
  for where in ("fused", "strict", "debug", "fused"):
    with eager_mode(where):
      torch.manual_seed(11)
      seen.append((sample(device).cpu(), sample(device).cpu()))
  for first, second in seen[1:]:
    assert torch.equal(first, seen[0][0]) and torch.equal(second, seen[0][1])
  assert not torch.equal(*seen[0])
  torch.manual_seed(12)
  assert not torch.equal(sample(device).cpu(), seen[0][0])


def test_random_numbers_have_their_distribution(device):
  torch.manual_seed(0)
  u = torch.rand(40000, device=device).cpu()
  assert (
    0 <= u.min() and u.max() < 1 and abs(u.mean() - 0.5) < 0.01 and abs(u.var() - 1 / 12) < 0.003
  )
  assert torch.histc(u, 20, 0, 1).sub(2000).abs().max() < 250
  n = torch.randn(40000, device=device).cpu()
  assert abs(n.mean()) < 0.02 and abs(n.std() - 1) < 0.02 and abs((n**3).mean()) < 0.1
  assert 2.5 < (n**4).mean() < 3.5
  assert abs((n[:-1] * n[1:]).mean()) < 0.02
  z = torch.randn(40000, device=device, dtype=torch.complex64).cpu()
  assert abs(z.mean()) < 0.02 and abs(z.abs().square().mean() - 1) < 0.02
  assert abs((z.real * z.imag).mean()) < 0.02 and abs(z.imag.var() - 0.5) < 0.02
  w = torch.rand(40000, device=device, dtype=torch.complex64).cpu()
  assert abs(w.mean() - (0.5 + 0.5j)) < 0.01 and 0 <= w.imag.min() and w.real.max() < 1
  k = torch.randint(3, 10, (40000,), device=device).cpu()
  assert k.unique().tolist() == list(range(3, 10))
  assert torch.bincount(k)[3:].sub(40000 / 7).abs().max() < 400
  assert sorted(torch.randperm(1000, device=device).tolist()) == list(range(1000))
  assert abs(torch.bernoulli(torch.full((40000,), 0.3, device=device)).mean().item() - 0.3) < 0.01


def test_generators_have_their_own_state(device):
  a, b = torch.Generator(device).manual_seed(1), torch.Generator(device).manual_seed(1)
  first = torch.rand(5, device=device, generator=a)
  torch.rand(5, device=device)
  assert torch.equal(first.cpu(), torch.rand(5, device=device, generator=b).cpu())
  state = a.get_state()
  second = torch.rand(5, device=device, generator=a)
  a.set_state(state)
  assert torch.equal(torch.rand(5, device=device, generator=a).cpu(), second.cpu())
  assert a.initial_seed() == 1 and a.device.type == device.type


@needs_tpu
def test_default_generator_state_and_fork():
  torch.tpu.manual_seed(4)
  state = torch.tpu.get_rng_state()
  first = torch.rand(3, device="tpu").cpu()
  torch.tpu.set_rng_state(state)
  assert torch.equal(torch.rand(3, device="tpu").cpu(), first)
  torch.tpu.manual_seed(4)
  with torch.random.fork_rng(devices=[0], device_type="tpu"):
    torch.rand(100, device="tpu")
  assert torch.equal(torch.rand(3, device="tpu").cpu(), first)


def test_checkpointing_repeats_dropout(device):
  from torch.utils.checkpoint import checkpoint

  x = torch.ones(64, 64, device=device, requires_grad=True)
  torch.manual_seed(0)
  y = checkpoint(lambda t: nn.functional.dropout(t, 0.5) * 2, x, use_reentrant=False)
  y.sum().backward()
  assert torch.equal(x.grad.cpu(), y.detach().cpu())
