"""Complex functions at zeros of both signs, infinities, NaN and on branch cuts, all combined.

The CPU's kernels for whole vectors and for single numbers differ in places: either will do."""

import pytest
import torch

from support import DEVICE, has_modes

pytestmark = pytest.mark.skipif(not has_modes(), reason="compares the device with the CPU")

INF, NAN = float("inf"), float("nan")
PARTS = (0.0, -0.0, INF, -INF, NAN, 1.5, -2.5, 0.3, -0.7, 1.0)
VALUES = [complex(x, y) for x in PARTS for y in PARTS]

# Equal to the last bit of a zero's sign.
EXACT = (
  "sqrt log log2 log10 exp exp2 sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
  "abs angle isinf isnan isfinite nan_to_num square"
).split()
# Where the CPU makes NaN of an infinity (it divides by hand, multiplies by 1 + 0j), the
# device may know better; and zeros have either sign.
LOOSE = {name: getattr(torch, name) for name in "rsqrt reciprocal sigmoid log1p expm1 neg".split()}
LOOSE.update(
  {
    "x + y": lambda z: z + z.flip(0),
    "x * y": lambda z: z * z.flip(0),
    "x / y": lambda z: z / z.flip(0),
    "x ** y": lambda z: z ** z.flip(0),
    "x ** 2": lambda z: z**2,
    "x ** 3": lambda z: z**3,
    "x ** 0.5": lambda z: z**0.5,
    "x ** -1": lambda z: z**-1,
    "x ** 0": lambda z: z**0,
    "2 ** x": lambda z: 2**z,
    "logaddexp": lambda z: torch.logaddexp(z, z.flip(0)),
  }
)


def parts_of(result):
  if result.dtype is torch.bool:
    result = result.float()
  return torch.view_as_real(result) if result.is_complex() else result.unsqueeze(-1)


def tolerance(dtype):
  return 3e-5 if dtype is torch.complex64 else 1e-11


def agree(found, expected, dtype, signs):
  """Per number: all parts equal; a zero's or infinity's sign next to NaN is nobody's promise."""
  near = torch.isclose(
    found, expected, rtol=tolerance(dtype), atol=tolerance(dtype), equal_nan=True
  )
  sizes = torch.isclose(found.abs(), expected.abs(), equal_nan=True)
  unsigned = expected.isnan().any(-1, keepdim=True) & ((expected == 0) | expected.isinf())
  if signs:
    zero = (expected == 0) & (found == 0) & ~unsigned
    near &= ~zero | (torch.signbit(found) == torch.signbit(expected))
  return (near | (unsigned & sizes)).all(-1)


def answers_of_the_cpu(function, z):
  yield parts_of(function(z))
  yield parts_of(torch.cat([function(part) for part in z.split(1)]))


def wrong(found, candidates, dtype, signs, loose):
  right = torch.zeros(found.shape[:-1], dtype=torch.bool)
  for expected in candidates:
    if loose:  # nor is the sign of what is divided by zero
      found, expected = [t.where(~t.isinf(), t.abs()) for t in (found, expected)]
      right |= expected.isnan().any(-1)
    right |= agree(found, expected, dtype, signs)
  return [VALUES[k] for k in (~right).nonzero().flatten().tolist()]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_special_values_of_functions(dtype):
  z = torch.tensor(VALUES, dtype=dtype)
  x = z.to(DEVICE)
  results = {name: getattr(torch, name)(x) for name in EXACT}  # one program
  found = {}
  for name, result in results.items():
    candidates = answers_of_the_cpu(getattr(torch, name), z)
    signs = name != "acos" or dtype is torch.complex64  # the CPU's differ among themselves
    found[name] = wrong(parts_of(result.cpu()), candidates, dtype, signs, loose=False)
  assert not {name: values for name, values in found.items() if values}


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_special_values_of_arithmetic(dtype):
  z = torch.tensor(VALUES, dtype=dtype)
  x = z.to(DEVICE)
  results = {name: function(x) for name, function in LOOSE.items()}
  found = {}
  for name, result in results.items():
    candidates = [parts_of(LOOSE[name](z))]
    found[name] = wrong(parts_of(result.cpu()), candidates, dtype, signs=False, loose=True)
  assert not {name: values for name, values in found.items() if values}


GRADIENTS = (
  "sigmoid tanh sqrt log exp reciprocal sin cos tan asin acos atan sinh cosh asinh acosh atanh abs "
  "rsqrt log2 square angle sgn"
).split()


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_gradients_also_on_branch_cuts(dtype):
  values = [complex(x, y) for x in (0.5, -2.5, 2.5, -0.5) for y in (0.0, 1.5, -0.7)]
  values += [complex(0.0, y) for y in (2.5, -2.5, 0.5)] + [complex(-0.0, y) for y in (2.5, 0.5)]
  z = torch.tensor(values, dtype=dtype)

  def gradients(z):
    made = {}
    for name in GRADIENTS:
      leaf = z.clone().requires_grad_()
      result = getattr(torch, name)(leaf)
      cotangent = torch.full_like(result, 1 + 2j if result.is_complex() else 2.0)
      made[name] = torch.autograd.grad(result, leaf, cotangent)[0]
    return made

  found = gradients(z.to(DEVICE))
  for name, expected in gradients(z).items():
    torch.testing.assert_close(
      found[name].cpu(), expected, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
    )


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_reductions_and_scans(dtype):
  torch.manual_seed(3)
  z = torch.randn(5, 7, dtype=dtype) * torch.tensor([1.0, 30.0, 300.0, 1e-3, 5.0]).unsqueeze(-1)
  z[4, 2], z[3, 0] = complex(-INF, 0.5), complex(-INF, 0.0)
  x = z.to(DEVICE)
  for dim in (0, 1):
    for call in (torch.logsumexp, torch.logcumsumexp):
      torch.testing.assert_close(call(x, dim).cpu(), call(z, dim), rtol=1e-4, atol=1e-4)
  assert torch.logcumsumexp(x[:, :0], 1).shape == (5, 0)


def test_complex_numbers_are_scattered():
  z = torch.arange(6).to(torch.complex64).reshape(2, 3)
  index = torch.tensor([[2, 0], [1, 1]])
  for value in (1 + 2j, 3, 0.5):
    expected = z.scatter(1, index, value)
    assert torch.equal(z.to(DEVICE).scatter(1, index.to(DEVICE), value).cpu(), expected)
    found = z.to(DEVICE).scatter_(1, index.to(DEVICE), value, reduce="add")
    assert torch.equal(found.cpu(), z.clone().scatter_(1, index, value, reduce="add"))
  number = torch.tensor(1 + 1j, device=DEVICE)
  found = z.to(DEVICE).index_fill(1, index[0].to(DEVICE), number)
  assert torch.equal(found.cpu(), z.index_fill(1, index[0], 1 + 1j))
