"""Integers that are data (bounds of random numbers, shifts, diagonals, decimals, an ignored class)
are numbers of the window: once a second value has been seen, no value compiles again."""

import re

import pytest
import torch
import torch.nn.functional as F

import op_table
from support import ROOT, compile_stats, counting, has_modes

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
  "kthvalue": lambda x, y, n: x.kthvalue(n + 1, 0)[0],
  "index of kthvalue": lambda x, y, n: x.kthvalue(n + 1, -1, keepdim=True)[1],
  "padding_idx": lambda x, y, n: F.embedding(y, x, padding_idx=n),
  "divisor_override": lambda x, y, n: F.avg_pool2d(x.view(1, 40, 40), 3, divisor_override=n - 40),
  "divisor_override of volumes": lambda x, y, n: F.avg_pool3d(
    x.view(1, 8, 10, 20), 2, divisor_override=n + 1
  ),
}
# Integers that decide what the results' sizes are, or which formula there is.
STRUCTURE = {
  *("linspace.steps", "logspace.steps", "eye.n", "eye.m"),
  *(f"group_norm{way}.{name}" for way in ("", "_backward") for name in ("N", "C", "HxW", "group")),
  *("channel_shuffle.groups", "embedding_backward.num_weights", "topk.k", "randperm.n"),
  *("unfold_backward.size", "unfold_backward.step", "multinomial.num_samples"),
  *("convolution.groups", "cdist.compute_mode", "polygamma.n"),
  *(
    f"grid_sample{way}.{name}_mode"
    for way in ("", "_backward")
    for name in ("interpolation", "padding")
  ),
}
RANDOM = {
  "randint": lambda n, d: torch.randint(0, 1 + n, (500,), device=d),
  "randint from": lambda n, d: torch.randint(n, 3 * n + 2, (500,), device=d),
  "random_": lambda n, d: torch.empty(500, dtype=torch.int64, device=d).random_(n, 2**33 + n),
  "random_ to": lambda n, d: torch.empty(500, device=d).random_(n + 1),
}


def integers_of(row):
  """Arguments of the row's overloads that are an int; dimensions and choices by name are not."""
  for name in row.aten:
    base, _, overload = name.partition(".")
    schema = getattr(getattr(torch.ops.aten, base), overload or "default")._schema
    for argument in schema.arguments:
      if re.fullmatch(r"(Sym)?[Ii]nt|Optional\[int\]", str(argument.type)):
        yield argument.name


def test_every_integer_is_data_or_structure():
  """A new row says of each integer whether it is a number that programs may share."""
  rules = (ROOT / "core" / "ops" / "op_rules.def").read_text()
  data = {f"{row.lower()}.{name}" for row, name in re.findall(r'_DATA\((\w+), "(\w+)"\)', rules)}
  unknown = {
    f"{row.name}.{name}"
    for row in op_table.read()
    if "MANUAL" not in row.flags
    for name in integers_of(row)
    if name not in ("dim", "dtype", "input_dtype", "reduction")
  } - data
  assert unknown == STRUCTURE


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


GRADIENTS = {
  "ignore_index": lambda x, y, n: F.cross_entropy(x, y, ignore_index=n),
  "padding_idx": lambda x, y, n: F.embedding(y, x, padding_idx=n % 7).cos().sum(),
  "divisor_override": lambda x, y, n: F.avg_pool2d(x[None], 3, divisor_override=n + 1).cos().sum(),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_share_a_program(name, device):
  x, y = matrix(), classes()
  leaf, targets = x.to(device).requires_grad_(), y.to(device)

  def work(n):
    leaf.grad = None
    GRADIENTS[name](leaf, targets, n).backward()
    mine = x.clone().requires_grad_()
    GRADIENTS[name](mine, y, n).backward()
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


def test_numbers_out_of_range_are_refused_each_time(device):
  """Also after a call of the same signature, whose metadata is known: numbers are no part of it."""
  x = torch.rand(3, 4, device=device)
  x.kthvalue(2, 1)
  for k, dim, named in ((5, 1, 1), (4, -2, 0), (0, -1, 1)):
    with pytest.raises(RuntimeError, match=f"number k out of range for dimension {named}"):
      x.kthvalue(k, dim)
  assert torch.tensor(3.0, device=device).kthvalue(1)[0] == 3
  image = torch.rand(1, 4, 4, device=device)
  F.avg_pool2d(image, 2, divisor_override=3)
  with pytest.raises(RuntimeError, match="divisor must be not zero"):
    F.avg_pool2d(image, 2, divisor_override=0)
