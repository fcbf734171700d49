"""What PyTorch refuses on the CPU is refused here: at the call, with the same exception class."""

import pytest
import torch
from torch.nn import functional as F

from support import DEVICE, has_modes

pytestmark = pytest.mark.skipif(not has_modes(), reason="compares the device with the CPU")

BOOL = torch.tensor([True, False])
INT = torch.tensor([1, 2])
BYTE = torch.tensor([1, 2], dtype=torch.uint8)
COMPLEX = torch.tensor([1 + 1j, 2])

DTYPES = {
  "bool - number": lambda to: to(BOOL) - 1,
  "number - bool": lambda to: 1 - to(BOOL),
  "bool - bool": lambda to: to(BOOL) - to(BOOL),
  "bool.sub_": lambda to: to(BOOL).clone().sub_(to(BOOL)),
  "relu(bool)": lambda to: torch.relu(to(BOOL)),
  "argmax(bool)": lambda to: torch.argmax(to(BOOL)),
  "add(bool, alpha=2.5)": lambda to: torch.add(to(BOOL), to(BOOL), alpha=2.5),
  "var(int)": lambda to: torch.var(to(INT)),
  "softmax(int)": lambda to: torch.softmax(to(INT), 0),
  "gelu(int)": lambda to: F.gelu(to(INT)),
  "remainder(complex)": lambda to: torch.remainder(to(COMPLEX), to(COMPLEX)),
  "fmod(complex)": lambda to: torch.fmod(to(COMPLEX), to(COMPLEX)),
  "clamp(complex)": lambda to: torch.clamp(to(COMPLEX), 1, 2),
  "relu6(complex)": lambda to: F.relu6(to(COMPLEX)),
  "hardswish(complex)": lambda to: F.hardswish(to(COMPLEX)),
  "complex.clamp_": lambda to: to(COMPLEX).clone().clamp_(1, 2),
  "floor(complex)": lambda to: torch.floor(to(COMPLEX)),
  "argmax(complex)": lambda to: torch.argmax(to(COMPLEX)),
  "sort(complex)": lambda to: torch.sort(to(COMPLEX)),
  "large bool - bool": lambda to: to(BOOL.repeat(2_000_000)) - to(BOOL.repeat(2_000_000)),
}
NUMBERS = {
  "full": lambda to: torch.full((2,), 300, dtype=torch.uint8, device=to(BYTE).device),
  "fill_": lambda to: to(BYTE).clone().fill_(300),
  "setitem": lambda to: to(BYTE).clone().__setitem__(0, 300),
  "clamp": lambda to: to(BYTE).clamp(min=300),
  "masked_fill": lambda to: to(BYTE).masked_fill(to(BYTE) > 1, 300),
  "half fill_": lambda to: to(torch.zeros(2, dtype=torch.half)).fill_(1e6),
  "float fill_": lambda to: to(torch.zeros(2)).fill_(1e300),
  "pow": lambda to: to(INT) ** -1,
  "pow_": lambda to: to(INT).clone().pow_(-2),
  "randint": lambda to: torch.randint(5, 5, (2,), device=to(INT).device),
  "arange": lambda to: torch.arange(0, 5, 0, device=to(INT).device),
  "scatter_": lambda to: to(BYTE).clone().scatter_(0, to(INT) - 1, 300),
  "scatter": lambda to: to(BYTE).scatter(0, to(INT) - 1, 300),
  "scatter reduce": lambda to: to(BYTE).scatter(0, to(INT) - 1, 300, reduce="add"),
  "index_fill_": lambda to: to(BYTE).clone().index_fill_(0, to(INT) - 1, 300),
  "pad": lambda to: F.pad(to(BYTE), (1, 1), value=300),
  "threshold": lambda to: F.threshold(to(BYTE), 1, 300),
}
# Rules of core/ops/op_rules.def; their texts are compared, too.
RULES = {
  "normal_": lambda to: to(torch.zeros(2)).normal_(0, -1.5),
  "log_normal_": lambda to: to(torch.zeros(2)).log_normal_(0, 0),
  "uniform_": lambda to: to(torch.zeros(2)).uniform_(2.5, 1),
  "bernoulli_ below": lambda to: to(torch.zeros(2)).bernoulli_(-0.5),
  "bernoulli_ above": lambda to: to(torch.zeros(2)).bernoulli_(1.5),
  "exponential_": lambda to: to(torch.zeros(2)).exponential_(0),
  "cauchy_": lambda to: to(torch.zeros(2)).cauchy_(0, -1),
  "geometric_ below": lambda to: to(torch.zeros(2)).geometric_(0),
  "geometric_ above": lambda to: to(torch.zeros(2)).geometric_(1),
  "random_ from": lambda to: to(INT).clone().random_(7, 3),
  "random_ to": lambda to: to(INT).clone().random_(0),
  "pow": lambda to: to(INT) ** -1,
}
MEMORY = {
  "out=expanded": lambda to: torch.add(
    to(torch.ones(3)), 1, out=torch.empty(1, device=to(INT).device).expand(3)
  ),
  "expanded.add_": lambda to: to(torch.ones(1)).expand(3).add_(1),
  "copy_ to expanded": lambda to: to(torch.ones(1)).expand(3).copy_(to(torch.ones(3))),
}
CASES = {**DTYPES, **NUMBERS, **MEMORY}


def error_of(call, device):
  """The exception, or None."""
  try:
    call(lambda tensor: tensor.to(device))
  except Exception as error:  # whatever class it is: that is what is compared
    return error
  return None


def outcome(call, device):
  """The exception's class, or None."""
  error = error_of(call, device)
  return None if error is None else type(error)


@pytest.mark.parametrize("name", CASES)
def test_refused_as_on_the_cpu(name):
  expected = outcome(CASES[name], "cpu")
  assert expected is not None, "the CPU takes this: not a case for this test"
  for _ in range(2):  # also when the signature is known
    assert outcome(CASES[name], DEVICE) is expected


@pytest.mark.parametrize("name", RULES)
def test_refused_numbers_have_the_text_of_the_cpu(name):
  expected = error_of(RULES[name], "cpu")
  for _ in range(2):
    found = error_of(RULES[name], DEVICE)
    assert type(found) is type(expected)
    assert str(found).splitlines()[0] == str(expected).splitlines()[0]


def test_bounds_of_random_integers_are_compared_exactly():
  high = 2**62 + 1
  x = torch.zeros(64, dtype=torch.long, device=DEVICE).random_(high - 1, high)
  assert (x == high - 1).all()


# What stands in for the values when the CPU is asked must be wrong for no operation.
@pytest.mark.parametrize("size", [2, 2_000_000])
@pytest.mark.parametrize(
  "call",
  [
    lambda x: x // x,
    lambda x: x % x,
    lambda x: torch.fmod(x, x),
    lambda x: torch.div(x, x, rounding_mode="trunc"),
    lambda x: x.clone().floor_divide_(x),
    lambda x: x << 1,
    lambda x: torch.where(x > 1, x, -x),
  ],
)
def test_stand_ins_are_accepted_elementwise(call, size):
  x = torch.arange(1, size + 1)
  assert torch.equal(call(x.to(DEVICE)).cpu(), call(x))


def test_stand_ins_are_accepted_as_indices():
  scores = torch.zeros(3, 1, requires_grad=True)
  mirrored = scores.detach().to(DEVICE).requires_grad_()
  target = torch.zeros(3, dtype=torch.long)
  F.nll_loss(scores, target).backward()
  F.nll_loss(mirrored, target.to(DEVICE)).backward()
  assert torch.equal(mirrored.grad.cpu(), scores.grad)


@pytest.mark.parametrize(
  "call",
  [
    lambda to: to(INT) ** 2,
    lambda to: to(INT) ** -1.0,
    lambda to: to(BYTE) + 300,
    lambda to: to(BYTE).clamp(max=-1),
    lambda to: to(BYTE).clamp(min=0.5),
    lambda to: to(torch.zeros(2)).fill_(float("-inf")),
    lambda to: to(torch.zeros(1, 1)).expand(2, 2).fill_(2).clone(),
    lambda to: to(BOOL) & to(BOOL),
    lambda to: to(INT).clone().remainder_(2),
  ],
)
def test_accepted_as_on_the_cpu(call):
  assert torch.equal(call(lambda t: t.to(DEVICE)).cpu(), call(lambda t: t.clone()))
