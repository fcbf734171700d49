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
}
MEMORY = {
  "out=expanded": lambda to: torch.add(
    to(torch.ones(3)), 1, out=torch.empty(1, device=to(INT).device).expand(3)
  ),
  "expanded.add_": lambda to: to(torch.ones(1)).expand(3).add_(1),
  "copy_ to expanded": lambda to: to(torch.ones(1)).expand(3).copy_(to(torch.ones(3))),
}
CASES = {**DTYPES, **NUMBERS, **MEMORY}


def outcome(call, device):
  """The exception's class, or None."""
  try:
    call(lambda tensor: tensor.to(device))
  except Exception as error:  # whatever class it is: that is what is compared
    return type(error)
  return None


@pytest.mark.parametrize("name", CASES)
def test_refused_as_on_the_cpu(name):
  expected = outcome(CASES[name], "cpu")
  assert expected is not None, "the CPU takes this: not a case for this test"
  for _ in range(2):  # also when the signature is known
    assert outcome(CASES[name], DEVICE) is expected


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
