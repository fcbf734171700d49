"""Integers that are data (bounds of random numbers, shifts, diagonals, decimals, an ignored class)
are numbers of the window: once a second value has been seen, no value compiles again."""

import pytest
import torch
import torch.nn.functional as F

from support import compile_stats, counting, has_modes

VALUES = 20


def matrix():
  return torch.linspace(-9, 9, 1600).view(40, 40)


def classes():
  return torch.arange(40) % 7


# Name -> what is computed of a matrix, class numbers and the value.
CASES = {
  "roll": lambda x, y, n: x.roll(n, 0),
  "roll two": lambda x, y, n: x.roll((n, -n), (0, 1)),
  "roll flat": lambda x, y, n: x.roll(n - 9),
  "tril": lambda x, y, n: x.tril(n - 9),
  "triu": lambda x, y, n: x.triu(n - 9),
  "tril_": lambda x, y, n: x.clone().tril_(n),
  "round": lambda x, y, n: x.double().round(decimals=n % 8 - 2),
  "ignore_index": lambda x, y, n: F.cross_entropy(x, y, ignore_index=n),
  "ignore_index of images": lambda x, y, n: F.nll_loss(
    x.view(1, 40, 40), y.view(1, 40), ignore_index=n
  ),
}
RANDOM = {
  "randint": lambda n, d: torch.randint(0, 1 + n, (500,), device=d),
  "randint from": lambda n, d: torch.randint(n, 3 * n + 2, (500,), device=d),
  "random_": lambda n, d: torch.empty(500, dtype=torch.int64, device=d).random_(n, 2**33 + n),
  "random_ to": lambda n, d: torch.empty(500, device=d).random_(n + 1),
}


def no_compiles_after_learning(work):
  for n in range(3):
    work(n)
  with counting(compile_stats) as grown:
    for n in range(3, 3 + VALUES):
      work(n)
  if has_modes():
    assert not grown.get("compiles") and not grown.get("disk_hits"), grown


@pytest.mark.parametrize("name", CASES)
def test_values_share_a_program(name, device):
  x, y = matrix(), classes()
  on_device = x.to(device), y.to(device)

  def work(n):
    torch.testing.assert_close(CASES[name](*on_device, n).cpu(), CASES[name](x, y, n))

  no_compiles_after_learning(work)


def test_gradients_share_a_program(device):
  x, y = matrix(), classes()
  leaf, targets = x.to(device).requires_grad_(), y.to(device)

  def work(n):
    leaf.grad = None
    F.cross_entropy(leaf, targets, ignore_index=n).backward()
    mine = x.clone().requires_grad_()
    F.cross_entropy(mine, y, ignore_index=n).backward()
    torch.testing.assert_close(leaf.grad.cpu(), mine.grad)

  no_compiles_after_learning(work)


@pytest.mark.parametrize("name", RANDOM)
def test_bounds_share_a_program(name, device):
  """Also: the bits are those of a program that has the bounds as constants."""
  seen = {}

  def work(n):
    torch.manual_seed(n)
    seen[n] = RANDOM[name](n, device).cpu()
    expected = RANDOM[name](n, "cpu")
    assert seen[n].dtype == expected.dtype
    assert seen[n].min() >= 0 and seen[n].max() <= max(expected.max() * 1.1, expected.max() + 2)

  no_compiles_after_learning(work)
  if has_modes():
    torch.tpu.clear_cache()
  for n in (4, 9):
    torch.manual_seed(n)
    assert torch.equal(RANDOM[name](n, device).cpu(), seen[n])
    if has_modes():
      torch.tpu.clear_cache()
