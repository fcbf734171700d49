"""Programs of several operations keep IEEE arithmetic.

What a compiler may do to real numbers (a mask of zeros and ones becomes a choice, constants are
merged, exp(a) * exp(b) is exp(a + b)) loses NaN, infinities, signs of zero or most digits of
floats.

A table of expressions over every pair of special values; each runs as one program in Fused mode, op
by op in the others, and on the CPU. Denormal numbers count as zero: the plugin flushes them."""

import math

import pytest
import torch
import torch.nn.functional as F

from support import DEVICE, MODES, eager_mode, has_modes, is_tpu_like

inf, nan = math.inf, math.nan
VALUES = [0.0, -0.0, 1.0, -1.0, inf, -inf, nan, 1e30, -1e30, 1e-30, 1e36, 2.5, -2.5, 80.0, 0.1]


def choose(condition):
  return torch.where(condition, 1.0, 0.0)


MASKS = {
  "a * bool": lambda a, b: a * (b > 0),
  "bool * a": lambda a, b: (b > 0) * a,
  "a * bool.to(a)": lambda a, b: a * (b > 0).to(a.dtype),
  "a * bool.int()": lambda a, b: a * (b > 0).int(),
  "a * bool.int().to(a)": lambda a, b: a * (b > 0).int().to(a.dtype),
  "a * where(1, 0)": lambda a, b: a * choose(b > 0).to(a.dtype),
  "a * ~bool": lambda a, b: a * ~(b > 0),
  "-a * bool": lambda a, b: -a * (b > 0),
  "a * bool * scale": lambda a, b: a * (b > 0) * 2.0,
  "a * (bool * scale)": lambda a, b: a * ((b > 0) * 2.0).to(a.dtype),
  "a / bool": lambda a, b: a / (b > 0),
  "bool / a": lambda a, b: (b > 0) / a,
  "bool.to(a) / a": lambda a, b: (b > 0).to(a.dtype) / a,
  "a *= bool": lambda a, b: a.clone().mul_(b > 0),
  "addcmul": lambda a, b: torch.addcmul(torch.ones_like(a), a, (b > 0).to(a.dtype)),
  "a * tril": lambda a, b: a.view(15, 15) * torch.ones_like(a).view(15, 15).tril(),
  "a * one_hot": lambda a, b: a.view(15, 15) * torch.eye(15, device=a.device, dtype=a.dtype),
  "sum": lambda a, b: (a.view(15, 15) * (b.view(15, 15) > 0)).isnan().sum(1),
  "mean": lambda a, b: (a.view(15, 15) * (b.view(15, 15) > 0)).amax(1),
}
ZEROS = {
  "a * 0": lambda a, b: a * 0,
  "a * 0.0": lambda a, b: 0.0 * a,
  "a * zeros": lambda a, b: a * torch.zeros_like(a),
  "a - a": lambda a, b: a - a,
  "a / a": lambda a, b: a / a,
  "0 / a": lambda a, b: 0.0 / a,
  "zeros / a": lambda a, b: torch.zeros_like(a) / a,
  "a + 0": lambda a, b: a + 0,
  "a + 0.0": lambda a, b: 0.0 + a,
  "a + zeros": lambda a, b: a + torch.zeros_like(a),
  "zeros += a": lambda a, b: torch.zeros_like(a).add_(a),
  "full(0) + a": lambda a, b: torch.full_like(a, 0.0) + a,
  "a - 0": lambda a, b: a - 0,
  "a - -0.0": lambda a, b: a - -0.0,
  "0 - a": lambda a, b: 0 - a,
  "a * 1 / 1": lambda a, b: a * 1 / 1,
  "-1 * a": lambda a, b: -1 * a,
  "-(a - b)": lambda a, b: -(a - b),
  "a + b - b": lambda a, b: a + b - b,
  "a - b + b": lambda a, b: a - b + b,
}
CONSTANTS = {
  "a + 1e8 - 1e8": lambda a, b: a + 1e8 - 1e8,
  "a - 1e8 + 1e8": lambda a, b: a - 1e8 + 1e8,
  "1e8 - a - 1e8": lambda a, b: (1e8 - a) - 1e8,
  "a * 1e20 * 1e-20": lambda a, b: a * 1e20 * 1e-20,
  "a * 1e20 / 1e20": lambda a, b: a * 1e20 / 1e20,
  "a * 1e-25 * 1e-25": lambda a, b: a * 1e-25 * 1e-25,
  "a * 1e20 * (b * 1e-20)": lambda a, b: (a * 1e20) * (b * 1e-20),
  "a * 0.5 + b * 0.5": lambda a, b: (a * 3e8 - 1) * 0.5 + (b * 3e8 - 1) * 0.5,
  "a / 3e38": lambda a, b: a / 3e38,
  "a / 3": lambda a, b: a / 3,
  "a / 1e-37": lambda a, b: a / 1e-37,
  "a / b / b": lambda a, b: a / b / b,
  "a / (b / a)": lambda a, b: a / (b / a),
  "a / b / (b / a)": lambda a, b: (a / b) / (b / a),
  "1 / (1 / a)": lambda a, b: 1 / (1 / a.clamp(-1e30, 1e30)),
  "a / b * b": lambda a, b: a / b * b,
  "a * b / b": lambda a, b: a * b / b,
}
FUNCTIONS = {
  "exp(a) / exp(b)": lambda a, b: a.exp() / b.exp(),
  "exp(a) * exp(b)": lambda a, b: a.exp() * b.exp(),
  "a / exp(b)": lambda a, b: a / b.exp(),
  "exp(a) ** b": lambda a, b: a.exp() ** b.clamp(-1, 1),
  "log(exp(a))": lambda a, b: a.exp().log(),
  "log(a ** b)": lambda a, b: (a**b).log(),
  "log(a ** 3)": lambda a, b: (a**3).log(),
  "log(sqrt(a))": lambda a, b: a.sqrt().log(),
  "sqrt(a * a)": lambda a, b: (a * a).sqrt(),
  "sqrt(a ** 2)": lambda a, b: a.pow(2).sqrt(),
  "sqrt(a) * sqrt(a)": lambda a, b: a.sqrt() * a.sqrt(),
  "rsqrt(a) ** 2": lambda a, b: a.rsqrt() ** 2,
  "a / sqrt(b)": lambda a, b: a / b.sqrt(),
  "a / rsqrt(b)": lambda a, b: a / b.rsqrt(),
  "a / b ** 2.5": lambda a, b: a / b**2.5,
  "a ** 0.5": lambda a, b: a**0.5,
  "a ** -0.5": lambda a, b: a**-0.5,
  "a ** 1.5": lambda a, b: a**1.5,
  "a ** 0": lambda a, b: a**0,
  "a ** 1": lambda a, b: a**1,
  "a ** 2": lambda a, b: a**2,
  "a ** 3": lambda a, b: a**3,
  "a ** -1": lambda a, b: a**-1,
  "a ** -2": lambda a, b: a**-2,
  "a ** b": lambda a, b: a**b,
  "0.5 ** a": lambda a, b: 0.5**a,
  "a ** full(0.5)": lambda a, b: a ** torch.full_like(a, 0.5),
  "a ** full(-0.5)": lambda a, b: a ** torch.full_like(a, -0.5),
  "abs(a) >= 0": lambda a, b: a.abs() >= 0,
  "exp(a) >= 0": lambda a, b: a.exp() >= 0,
  "a * a >= 0": lambda a, b: a * a >= 0,
  "sqrt(a) >= 0": lambda a, b: a.sqrt() >= 0,
  "relu(a) >= 0": lambda a, b: a.relu() >= 0,
  "abs(a) < 0": lambda a, b: a.abs() < 0,
  "maximum(a, b) > a": lambda a, b: torch.maximum(a, b) > a,
  "a != a": lambda a, b: a != a,
  "where(isnan)": lambda a, b: torch.where(a.isnan(), 0.0, a),
}
EXTREMES = {
  "maximum": torch.maximum,
  "minimum": torch.minimum,
  "fmax": torch.fmax,
  "fmin": torch.fmin,
  "clamp": lambda a, b: a.clamp(-1, 1),
  "clamp min": lambda a, b: a.clamp(min=0),
  "clamp max": lambda a, b: a.clamp(max=0),
  "clamp zeros": lambda a, b: a.clamp(0, 3),
  "clamp minus zeros": lambda a, b: a.clamp(-0.0, -0.0),
  "clamp nan": lambda a, b: a.clamp(min=nan),
  "hardtanh": lambda a, b: F.hardtanh(a, 0.0, 2.0),
  "clamp crossed": lambda a, b: a.clamp(1, -1),
  "clamp tensors": lambda a, b: a.clamp(b, b + 1),
  "clamp -inf, inf": lambda a, b: a.clamp(-inf, inf),
  "relu": lambda a, b: a.relu(),
  "relu6": lambda a, b: F.relu6(a),
  "hardtanh(relu)": lambda a, b: F.hardtanh(a.relu(), -0.5, 0.5),
  "max(tanh, tanh)": lambda a, b: torch.maximum(a.tanh(), b.tanh()),
  "max(max(a, b), b)": lambda a, b: torch.maximum(torch.maximum(a, b), b),
  "amax": lambda a, b: a.view(15, 15).amax(0),
  "amin": lambda a, b: torch.minimum(a, b).view(15, 15).amin(1),
  "max dim": lambda a, b: b.view(15, 15).max(1).values,
  "threshold": lambda a, b: F.threshold(a, 0.5, -7.0),
}
GROUPS = {
  "masks": MASKS,
  "zeros": ZEROS,
  "constants": CONSTANTS,
  "functions": FUNCTIONS,
  "extremes": EXTREMES,
}


def pairs(dtype, device="cpu"):
  grid = torch.tensor(VALUES, dtype=torch.float64)
  a, b = torch.meshgrid(grid, grid, indexing="ij")
  return a.flatten().to(dtype).to(device), b.flatten().to(dtype).to(device)


def run(group, dtype, device):
  """All expressions of a group, computed in one window."""
  a, b = pairs(dtype, device)
  results = [expression(a, b) for expression in group.values()]
  return dict(zip(group, [result.cpu() for result in results]))


def flushed(x):
  """Denormal numbers become zeros of the same sign."""
  tiny = torch.finfo(x.dtype).tiny if x.dtype is torch.float64 else torch.finfo(torch.float32).tiny
  return torch.where(x.abs() < tiny, torch.zeros_like(x).copysign(x), x)


def difference(mine, expected, zeros_have_signs):
  """What is wrong with a result, or None."""
  if mine.dtype is not expected.dtype:
    return f"dtype {mine.dtype}, should be {expected.dtype}"
  if not mine.dtype.is_floating_point:
    wrong = mine != expected
  else:
    rtol = max(8 * torch.finfo(mine.dtype).eps, 1e-12)
    x, y = flushed(mine), flushed(expected)
    same = torch.isclose(x, y, rtol=rtol, atol=0, equal_nan=True)
    # Sums may cancel to zero, or to the last bit of a summand.
    if zeros_have_signs:
      same &= (x != 0) | (y != 0) | (x.signbit() == y.signbit())
    wrong = ~same
  if not wrong.any():
    return None
  first = wrong.flatten().nonzero()[0].item()
  place = first
  if mine.numel() == len(VALUES) ** 2:
    place = tuple(float(values[first]) for values in pairs(torch.float64))
  got, wanted = mine.flatten()[first], expected.flatten()[first]
  return f"{wrong.sum().item()} wrong, first at {place}: {got}, should be {wanted}"


# Groups whose programs a simplifier rewrites where there is one.
SIMPLIFIED = ("zeros", "functions", "constants")


def check(group, dtype, name):
  expected = run(group, dtype, "cpu")
  wrong = []
  for mode in MODES if has_modes() else ("plain",):
    with eager_mode(mode):
      mine = run(group, dtype, DEVICE)
    for expression in group:
      text = difference(mine[expression], expected[expression], name != "extremes")
      if text is not None:
        wrong.append(f"{mode}: {expression}: {text}")
  if wrong and is_tpu_like() and name in SIMPLIFIED:
    pytest.xfail("libtpu simplifies too, and does not compile without: decision 011")
  assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", list(GROUPS))
def test_programs_keep_ieee_arithmetic(name, dtype):
  check(GROUPS[name], dtype, name)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["masks", "zeros", "extremes"])
def test_narrow_programs_keep_ieee_arithmetic(name, dtype):
  check(GROUPS[name], dtype, name)


def test_dropout_does_not_hide_nan(mode):
  """What is dropped is multiplied by zero: a diverged loss stays NaN, in both directions."""
  x = torch.full((64,), nan, device=DEVICE, requires_grad=True)
  y = F.dropout(x, 0.5)
  y.sum().backward()
  assert y.isnan().all().item()
  x = torch.ones(64, device=DEVICE, requires_grad=True)
  F.dropout(x, 0.5).backward(torch.full((64,), nan, device=DEVICE))
  assert x.grad.isnan().all().item()
  z = F.dropout(torch.full((64,), -1.0, device=DEVICE), 0.5)
  assert z.signbit().all().item()  # -1 * 0 is -0


FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]
OTHERS = [
  torch.float32,
  torch.float64,
  torch.float16,
  torch.bfloat16,
  torch.int64,
  torch.int32,
  torch.int16,
  torch.uint8,
  torch.bool,
]
# Around the largest numbers (448 and 57344), where they round up, and where rounding twice shows.
EDGES = [0, 1, 240, 448, 449, 463, 464, 465, 479, 480, 1e4, 57344, 61439, 61440, 65000, 1e30, inf]
EDGES += [2.0**-9, 2.0**-10, 2.0**-17, 1.0625, 1.1875, nan]


def test_float8_conversions_saturate_and_round_as_on_the_cpu(mode):
  """Every float8 number to all other dtypes, and numbers around the limits from all of them."""
  numbers = torch.tensor(EDGES + [-x for x in EDGES], dtype=torch.float64)
  whole = numbers[numbers.abs() < 2**31]
  calls, names = [], []
  for narrow in FLOAT8:
    every = torch.arange(256, dtype=torch.uint8).view(narrow)
    numbers_only = every[every.float().isfinite()]
    for other in OTHERS + FLOAT8:
      source = numbers if other.is_floating_point else whole
      calls.append((source.to(other), narrow))
      calls.append((every if other.is_floating_point else numbers_only, other))
      names += [f"{other} to {narrow}", f"{narrow} to {other}"]
  on_device = [source.to(DEVICE).to(dtype) for source, dtype in calls]
  for name, (source, dtype), mine in zip(names, calls, on_device):
    torch.testing.assert_close(
      mine.cpu().to(torch.float64),
      source.to(dtype).to(torch.float64),
      rtol=0,
      atol=0,
      equal_nan=True,
      msg=lambda m, name=name: f"{name}: {m}",
    )


def test_float8_numbers_fit_or_are_refused_as_on_the_cpu(mode):
  def make(value, device):
    try:
      return (
        torch.full((2,), value, dtype=torch.float8_e4m3fn, device=device).cpu().float().tolist()
      )
    except RuntimeError as error:
      return str(error)

  for value in (1000.0, -1000.0, 465.0, inf, 464.0, 448.0, 1.0):
    assert make(value, DEVICE) == make(value, "cpu"), value


@pytest.mark.parametrize(
  "size", [(1, 1, 1), (1, 8, 1024), (8, 1, 1024), (8, 8, 1), (1, 8, 1), (1,)]
)
def test_sum_of_what_is_broadcast(size, device):
  """The CPU plugin read a bad address where a program summed x + y and y had a dimension of size 1
  in front: XLA makes a broadcast of y to its own sizes of that."""
  many, few = torch.ones(8, 8, 1024), torch.full(size, 2.0)
  x, y = many.to(device), few.to(device)
  for dims in ((0, 1, 2), 0, 1, 2, (1, 2)):
    for work in (torch.add, torch.mul, torch.maximum):
      assert torch.equal(work(x, y).sum(dims).cpu(), work(many, few).sum(dims))
