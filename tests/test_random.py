"""Random numbers: seeds, distributions, generators."""

import pytest
import torch
from torch import nn

from support import eager_mode, has_modes

needs_tpu = pytest.mark.skipif(not has_modes(), reason="the CPU device has no such thing")


FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
COUNT = 1500


def drawn(name, dtype, *args):
  """A new tensor of `dtype`, filled by the in-place method `name`."""
  return lambda d: getattr(torch.empty(COUNT, dtype=dtype, device=d), name)(*args)


def numbers(d, low, high, dtype=torch.float32):
  """Arguments that are tensors; computed on the CPU, so that all modes get the same bits."""
  return torch.linspace(low, high, COUNT, dtype=dtype).to(d)


SAMPLERS = {
  "rand": lambda d: torch.rand(500, device=d),
  "randn": lambda d: torch.randn(500, device=d),
  "randint": lambda d: torch.randint(-5, 40, (500,), device=d),
  "randint_wide": lambda d: torch.randint(-5, 10**12, (500,), device=d),
  "randint_int8": lambda d: torch.randint(-5, 40, (500,), device=d, dtype=torch.int8),
  "randperm": lambda d: torch.randperm(100, device=d),
  "randperm_large": lambda d: torch.randperm(70000, device=d, dtype=torch.int32),
  "randperm_float": lambda d: torch.randperm(50, device=d, dtype=torch.float32),
  "bernoulli": lambda d: torch.bernoulli(numbers(d, 0, 1)),
  "bernoulli_f64": lambda d: torch.bernoulli(numbers(d, 0, 1, torch.float64)),
  "bernoulli_int": drawn("bernoulli_", torch.int32, 0.3),
  "bernoulli_bool": drawn("bernoulli_", torch.bool, 0.3),
  "random_int64": drawn("random_", torch.int64),
  "random_uint8": drawn("random_", torch.uint8),
  "random_f16": drawn("random_", torch.float16),
  "geometric_int": drawn("geometric_", torch.int64, 0.01),
  "normal_tensors": lambda d: torch.normal(numbers(d, -1, 3), numbers(d, 0.1, 2)),
  "normal_mean": lambda d: torch.normal(numbers(d, -1, 3), 1.7),
  "normal_std": lambda d: torch.normal(0.3, numbers(d, 0.1, 2, torch.float64)),
  "dropout": lambda d: torch.nn.functional.dropout(numbers(d, -1, 3), 0.4),
  "dropout_bf16": lambda d: torch.nn.functional.dropout(numbers(d, -1, 3, torch.bfloat16), 0.1),
  "native_dropout": lambda d: torch.native_dropout(numbers(d, -1, 3), 0.4, True)[1],
  "multinomial": lambda d: torch.multinomial(numbers(d, 0, 1).reshape(30, 50), 20),
  "multinomial_one": lambda d: torch.multinomial(numbers(d, 0, 1).reshape(30, 50), 1),
  "multinomial_again": lambda d: torch.multinomial(numbers(d, 0, 1).reshape(30, 50), 90, True),
  "multinomial_f64": lambda d: torch.multinomial(numbers(d, 0, 1, torch.float64), 1000),
  "multinomial_f16": lambda d: torch.multinomial(numbers(d, 0, 1, torch.float16), 1000),
  "rand_complex": lambda d: torch.rand(500, device=d, dtype=torch.complex64),
  "randn_complex": lambda d: torch.randn(500, device=d, dtype=torch.complex128),
}
for _dtype in FLOATS:
  _suffix = str(_dtype).removeprefix("torch.")
  SAMPLERS |= {
    f"rand_{_suffix}": drawn("uniform_", _dtype),
    f"uniform_{_suffix}": drawn("uniform_", _dtype, -1.3, 4.1),
    f"normal_{_suffix}": drawn("normal_", _dtype, 0.3, 1.7),
    f"log_normal_{_suffix}": drawn("log_normal_", _dtype, 0.1, 0.8),
    f"exponential_{_suffix}": drawn("exponential_", _dtype, 1.7),
    f"cauchy_{_suffix}": drawn("cauchy_", _dtype, 0.3, 2.2),
    f"geometric_{_suffix}": drawn("geometric_", _dtype, 0.3),
  }


def beside_other_work(sample, device):
  """Draws in the middle of work that reads the numbers and that may share a program with them."""
  x = torch.arange(30.0, device=device)
  before = (x * 1.1 + 0.3).tanh()
  t = sample(device)
  after = (t.real.flatten()[:30].float() * 1.7 + before).sum() - torch.rand(30, device=device)
  return t, after + (before * t.real.float().mean()).exp()


def same_bits(x, y):
  return torch.equal(*(torch.view_as_real(t) if t.is_complex() else t for t in (x, y)))


@pytest.mark.parametrize("name", list(SAMPLERS))
def test_seeds_repeat_in_all_modes(name, device):
  """Bit for bit, alone and inside of other work; the generator then stands in the same place."""
  sample = SAMPLERS[name]
  seen, states = [], []
  for where in ("fused", "strict", "debug", "fused"):
    with eager_mode(where):
      torch.manual_seed(11)
      alone = sample(device), sample(device)
      mixed = beside_other_work(sample, device)[0]
      seen.append([t.cpu() for t in (*alone, mixed)])
      if has_modes():
        states.append(torch.tpu.get_rng_state())
        torch.manual_seed(11)
        mixed, work = beside_other_work(sample, device)
        assert work.cpu().numel() == 30
        assert same_bits(mixed.cpu(), seen[-1][0])
        torch.tpu.set_rng_state(states[-1])
  for other in seen[1:]:
    assert all(same_bits(x, y) for x, y in zip(other, seen[0], strict=True))
  assert all(torch.equal(state, states[0]) for state in states)
  assert not same_bits(*seen[0][:2])
  torch.manual_seed(12)
  assert not same_bits(sample(device).cpu(), seen[0][0])


@needs_tpu
@pytest.mark.parametrize("name", list(SAMPLERS))
def test_states_replay_across_modes(name):
  """A state taken in one mode gives in another one the numbers that followed there."""
  sample = SAMPLERS[name]
  torch.manual_seed(7)
  sample("tpu")
  state = torch.tpu.get_rng_state()
  expected = [sample("tpu").cpu() for _ in range(2)]
  end = torch.tpu.get_rng_state()
  for where in ("strict", "debug", "fused"):
    with eager_mode(where):
      torch.tpu.set_rng_state(state)
      assert all(same_bits(sample("tpu").cpu(), e) for e in expected)
      assert torch.equal(torch.tpu.get_rng_state(), end)


@needs_tpu
def test_dropped_rows_of_attention_are_the_same_in_all_modes():
  q = torch.randn(2, 3, 17, 8, generator=torch.Generator().manual_seed(2))
  seen = []
  for where in ("fused", "strict", "debug"):
    with eager_mode(where):
      torch.manual_seed(3)
      x = q.to("tpu")
      # Equal values: an output is the sum of what is kept.
      y = nn.functional.scaled_dot_product_attention(x * 0, x * 0, torch.ones_like(x), None, 0.4)
      seen.append((y * 17 * 0.6).round().cpu())
  assert torch.equal(seen[0], seen[1]) and torch.equal(seen[0], seen[2])
  assert seen[0].unique().numel() > 5


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
