"""What PyTorch refuses on the CPU is refused here: at the call, with the same exception class."""

import pytest
import torch
from torch.nn import functional as F

from support import DEVICE, counting, fallback_stats, has_modes

TIER = "interpreted"  # about calls, not about programs
pytestmark = pytest.mark.skipif(not has_modes(), reason="compares the device with the CPU")

BOOL = torch.tensor([True, False])
INT = torch.tensor([1, 2])
BYTE = torch.tensor([1, 2], dtype=torch.uint8)
FLOAT = torch.tensor([1.0, -2.0])
COMPLEX = torch.tensor([1 + 1j, 2])

DTYPES = {
  "bool - number": lambda to: to(BOOL) - 1,
  "number - bool": lambda to: 1 - to(BOOL),
  "bool - bool": lambda to: to(BOOL) - to(BOOL),
  "bool.sub_": lambda to: to(BOOL).clone().sub_(to(BOOL)),
  "relu(bool)": lambda to: torch.relu(to(BOOL)),
  "argmax(bool)": lambda to: torch.argmax(to(BOOL)),
  "add(float, alpha=True)": lambda to: torch.add(to(FLOAT), to(FLOAT), alpha=True),
  "float.sub_(alpha=True)": lambda to: to(FLOAT).clone().sub_(to(FLOAT), alpha=True),
  "rsub(float, alpha=True)": lambda to: torch.rsub(to(FLOAT), to(FLOAT), alpha=True),
  "bool << bool": lambda to: to(BOOL) << to(BOOL),
  "float << 1": lambda to: to(FLOAT) << 1,
  "complex(float, double)": lambda to: torch.complex(to(FLOAT), to(FLOAT.double())),
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
  "random_ above": lambda to: to(BYTE).clone().random_(0, 300),
  "random_ to above": lambda to: to(BYTE).clone().random_(257),
  "random_ below": lambda to: to(INT.char()).clone().random_(-200, 10),
  "random_ half": lambda to: to(FLOAT.half()).random_(70000),
  "random_ bool": lambda to: to(BOOL).clone().random_(0, 3),
  "randint": lambda to: torch.randint(0, 300, (2,), dtype=torch.uint8, device=to(INT).device),
  "multinomial": lambda to: torch.multinomial(to(FLOAT.abs()), 0),
  "inf norm": lambda to: (
    torch.linalg.vector_norm(to(torch.zeros(0)), 2),
    torch.linalg.vector_norm(to(torch.zeros(0)), float("inf")),
  ),
  "pow": lambda to: to(INT) ** -1,
}
MEMORY = {
  "out=expanded": lambda to: torch.add(
    to(torch.ones(3)), 1, out=torch.empty(1, device=to(INT).device).expand(3)
  ),
  "expanded.add_": lambda to: to(torch.ones(1)).expand(3).add_(1),
  "copy_ to a neighbour": lambda to: (lambda x: x[1:].copy_(x[:-1]))(to(torch.ones(3))),
  "setitem of a neighbour": lambda to: (lambda x: x.__setitem__(slice(1, None), x[:-1]))(
    to(torch.ones(3))
  ),
  "add_ of the transpose": lambda to: (lambda x: x.add_(x.t()))(to(torch.ones(2, 2))),
  "out=neighbour": lambda to: (lambda x: torch.exp(x[1:], out=x[:-1]))(to(torch.ones(3))),
  "index_add_ of itself": lambda to: (lambda x: x.index_add_(0, to(INT) - 1, x))(to(FLOAT.clone())),
  "copy_ to expanded": lambda to: to(torch.ones(1)).expand(3).copy_(to(torch.ones(3))),
}
ONES = torch.ones(1, 1, 3, 3)
SHAPES = {
  "max() of nothing": lambda to: to(torch.zeros(0, 3)).max(),
  "max(0) of nothing": lambda to: to(torch.zeros(0, 3)).max(0),
  "argmin(0) of nothing": lambda to: to(torch.zeros(0, 3)).argmin(0),
  "output_padding": lambda to: F.conv_transpose2d(to(ONES), to(ONES), output_padding=1),
  "output_padding 1d": lambda to: F.conv_transpose1d(
    to(ONES[0]),
    to(ONES[0, :, :1].unsqueeze(0).expand(3, 1, 1, 3)[:, 0]),
    stride=2,
    output_padding=2,
  ),
  "boundaries": lambda to: torch.bucketize(to(FLOAT), to(torch.zeros(2, 2))),
  "bucketize out=": lambda to: torch.bucketize(
    to(FLOAT), to(FLOAT), out=torch.empty(2, device=to(FLOAT).device)
  ),
}
CASES = {**DTYPES, **NUMBERS, **MEMORY, **SHAPES}


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


# 0-dim CPU tensors are numbers, also where PyTorch's meta kernels want all on one device.
THREE = torch.tensor(3.0)


@pytest.mark.parametrize(
  "call",
  [
    lambda to: to(FLOAT).clone().__setitem__(to(FLOAT) > 0, THREE),
    lambda to: to(FLOAT).masked_fill(to(BOOL), THREE),
    lambda to: to(FLOAT).clone().masked_fill_(to(BOOL), THREE),
    lambda to: to(FLOAT).index_fill(0, to(INT) - 1, THREE),
    lambda to: torch.copysign(to(FLOAT), -THREE),
    lambda to: to(FLOAT).floor_divide(THREE),
    lambda to: torch.ldexp(to(FLOAT), torch.tensor(2)),
    lambda to: to(BOOL) << 2,
    lambda to: to(BOOL) >> 1,
    lambda to: to(BOOL).add(to(BOOL), alpha=True),
    lambda to: F.conv_transpose2d(to(ONES), to(ONES), output_padding=1, dilation=2),
    lambda to: torch._efficientzerotensor((2,), device=to(FLOAT).device) + to(FLOAT),
    lambda to: torch.searchsorted(to(FLOAT.flip(0)), to(FLOAT), sorter=to(INT) - 1),
    lambda to: to(torch.zeros(0, 3)).max(1)[0],
    lambda to: to(torch.zeros(3, 0, 2)).kthvalue(2, 0)[0],
    lambda to: F.interpolate(to(torch.zeros(0, 3, 4)), 8),
  ],
)
def test_taken_as_on_the_cpu(call):
  expected = call(lambda t: t.clone())
  for _ in range(2):
    result = call(lambda t: t.to(DEVICE))
    assert result is expected or torch.equal(result.cpu(), expected)


def test_linearize():
  _, tangent = torch.func.linearize(torch.sin, FLOAT.to(DEVICE))
  torch.testing.assert_close(tangent(FLOAT.to(DEVICE)).cpu(), FLOAT.cos() * FLOAT)


def test_a_scan_of_more_than_memory_says_so():
  """Not that a mask of 2**80 elements overflows. Nothing is run."""
  many = torch.ones(1, device=DEVICE).expand(2**40)
  assert torch.cumsum(many, 0).shape == torch.cumprod(many, 0).shape == many.shape


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
@pytest.mark.parametrize("bounds", [(0, 0), (0, 7), (-2, 3), (5, 5)])
def test_histc_of_integers(dtype, bounds):
  """As on CUDA; the CPU has it for floating dtypes."""
  low, high = (abs(b) for b in bounds) if dtype is torch.uint8 else bounds
  low, high = min(low, high), max(low, high)
  x = torch.tensor([1, 2, 3, 3, 5, 7, 0, 2], dtype=dtype)
  for bins in (1, 4, 8):
    counts = torch.histc(x.to(DEVICE), bins, low, high)
    assert counts.dtype is dtype
    assert torch.equal(counts.cpu(), torch.histc(x.double(), bins, low, high).to(dtype))
  equal = torch.full((3,), 4, dtype=dtype)
  counts = torch.histc(equal.to(DEVICE), 3).cpu()
  assert torch.equal(counts, torch.histc(equal.double(), 3).to(dtype))


def test_histc_of_integers_is_one_program_without_a_read():
  with counting(fallback_stats) as fell_back:
    counts = torch.histc(INT.to(DEVICE).int(), 4, 0, 3)
    out = torch.empty(0, dtype=torch.int32, device=DEVICE)
    torch.histc(INT.to(DEVICE).int(), 4, 0, 3, out=out)
  assert not fell_back
  assert counts.tolist() == out.tolist() == [0, 1, 1, 0]
  with pytest.raises(RuntimeError):
    torch.histc(INT.to(DEVICE), 0, 0, 3)
  with pytest.raises(RuntimeError):
    torch.histc(INT.to(DEVICE), 4, 3, 0)


def test_operations_of_the_cpus_autograd_run_on_the_host():
  library = torch.library.Library("tpu_test_refusals", "DEF")
  library.define("twice(Tensor x) -> Tensor")
  library.define("nowhere(Tensor x) -> Tensor")
  library.impl("twice", lambda x: x * 2, "AutogradCPU")
  x = FLOAT.to(DEVICE)
  assert torch.ops.tpu_test_refusals.twice(x).tolist() == [2.0, -4.0]
  with pytest.raises(NotImplementedError, match="nowhere' has no kernel for tpu tensors"):
    torch.ops.tpu_test_refusals.nowhere(x)
