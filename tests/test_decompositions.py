"""Operations without a row that have a Python decomposition: traced once per signature, then
replayed.

Most tests use operations of their own library, so that they stay without a row; the ATen operations
at the end are skipped one by one as they get theirs."""

import itertools
import threading

import pytest
import torch
from torch._decomp import register_decomposition
from torch.testing._internal.common_methods_invocations import op_db

from support import DEVICE, child, counting, fallback_stats, has_modes
from test_ops import backward, check_equal, full_name, run_sample

pytestmark = [
  pytest.mark.skipif(not has_modes(), reason="decompositions are the tpu device's"),
  pytest.mark.filterwarnings("ignore::UserWarning"),
]

NAME = "tpu_test_decompositions"
LIBRARY = torch.library.Library(NAME, "DEF")
OPS = getattr(torch.ops, NAME)
runs = {}  # how often each decomposition ran in Python on the device


def operation(schema, tags=()):
  """Defines an operation whose CPU kernel and decomposition are both the function."""

  def define(function):
    name = schema[: schema.index("(")]

    def decomposition(*args, **kwargs):
      runs[name] = runs.get(name, 0) + 1
      return function(*args, **kwargs)

    LIBRARY.define(schema, tags=tags)
    LIBRARY.impl(name, function, "CPU")
    register_decomposition(getattr(OPS, name).default, unsafe=True)(decomposition)
    return function

  return define


@operation("axpby(Tensor x, Tensor y, Scalar a, float b=2.0) -> Tensor")
def axpby(x, y, a, b=2.0):
  # A branch on a number, to see that its value is part of the signature.
  return x + b * y if a == 1 else a * x + b * y


LIBRARY.define("axpby_(Tensor(a!) x, Tensor y, Scalar a, float b=2.0) -> Tensor(a!)")
LIBRARY.define(
  "axpby.out(Tensor x, Tensor y, Scalar a, float b=2.0, *, Tensor(a!) out) -> Tensor(a!)"
)


@operation("bounds(Tensor x, bool[] which) -> (Tensor, Tensor)")
def bounds(x, which):
  low, high = x.clone(), x.clone()
  low.clamp_(max=0.0)
  high[1:].mul_(2.0)
  return low if which[0] else None, high


@operation("turned(Tensor x) -> Tensor")
def turned(x):
  return x.t()


@operation("first_row(Tensor x) -> Tensor")
def first_row(x):
  return (x * 2)[0]


@operation("weighted(Tensor x) -> Tensor")
def weighted(x):
  weights = torch.tensor([1.0, 10.0, 100.0], device=x.device)
  return x * weights.to(x.dtype) + torch.arange(3, device=x.device)


@operation("scaled_by(Tensor x, Tensor number) -> Tensor")
def scaled_by(x, number):
  return x * (number + 1)


@operation("looks(Tensor x) -> Tensor")
def looks(x):
  return x + 1 if x.sum().item() > 0 else x - 1


@operation("draws(Tensor x) -> Tensor")
def draws(x):
  return x + torch.rand_like(x)


@operation("tagged(Tensor x) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
def tagged(x):
  return x + torch.rand_like(x)


@operation("outer(Tensor x) -> Tensor")
def outer(x):
  return OPS.inner(x) + OPS.inner(x * 2)


@operation("inner(Tensor x) -> Tensor")
def inner(x):
  return x * x - 1


@operation("itself(Tensor x) -> Tensor")
def itself(x):
  return OPS.itself(x) if x.device.type == "tpu" else x * 3


@operation("square_only(Tensor x) -> Tensor")
def square_only(x):
  if x.size(0) != x.size(1):
    raise ValueError("not square")
  return x @ x


def count(name):
  """(traced, replayed) of an operation of the library since the process began."""
  numbers = torch.tpu.decomposition_stats().get(f"{NAME}::{name}", {"traced": 0, "replayed": 0})
  return numbers["traced"], numbers["replayed"]


class Calls:
  """What the block did: `traced`, `replayed` and `ran` (calls of the Python function)."""

  def __init__(self, name):
    self.name = name

  def __enter__(self):
    self._before = (*count(self.name), runs.get(self.name.split(".")[0].rstrip("_"), 0))
    return self

  def __exit__(self, *_):
    after = (*count(self.name), runs.get(self.name.split(".")[0].rstrip("_"), 0))
    self.traced, self.replayed, self.ran = (a - b for a, b in zip(after, self._before))

  def __eq__(self, other):
    return (self.traced, self.replayed) == other


_sizes = itertools.count(11)


def fresh(*shape, dtype=torch.float32):
  """Random numbers on both devices in a shape that no other test has used: (cpu, tpu)."""
  x = torch.randn(next(_sizes), *shape).to(dtype)
  return x, x.to(DEVICE)


def same(mine, expected):
  assert mine.device.type == DEVICE.type
  assert mine.stride() == expected.stride()
  torch.testing.assert_close(mine.cpu(), expected)


def test_second_call_is_a_replay(mode):
  x, tx = fresh(4)
  y = torch.randn(1, 4)
  ty = y.to(DEVICE)
  with Calls("axpby") as calls, counting(fallback_stats) as host:
    for k in range(4):
      same(OPS.axpby(tx + k, ty, 3), axpby(x + k, y, 3))
  assert not host
  # Debug mode runs each call in Python, where each step is checked.
  assert calls == ((4, 0) if mode == "debug" else (1, 3))
  assert calls.ran == calls.traced


def test_template_holds_in_other_modes():
  """What one mode traced the next one replays, but for debug mode."""
  x, tx = fresh(4)
  with Calls("axpby") as calls:
    same(OPS.axpby(tx, tx, 3), axpby(x, x, 3))
    with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_NEVER):
      same(OPS.axpby(tx, tx, 3), axpby(x, x, 3))
  assert calls == (1, 1)


def test_strict_mode_launches_an_operation_at_once():
  _, tx = fresh(4)
  with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_NEVER):
    for _ in range(3):
      with counting(torch.tpu.engine_stats) as grown:
        OPS.axpby(tx, tx, 3)
      assert grown["flushes"] == 1 and grown["records"] >= 3


def test_numbers_are_part_of_the_signature():
  x, tx = fresh(4)
  with Calls("axpby") as calls:
    for a in (3, 1, 2.5, 1, 3, True):
      same(OPS.axpby(tx, tx, a), axpby(x, x, a))
    same(OPS.axpby(tx, tx, 3, 7.0), axpby(x, x, 3, 7.0))
  assert calls == (5, 2)


def test_metadata_is_part_of_the_signature():
  x, tx = fresh(6)
  wide = torch.randn(2, 3, 4)
  with Calls("axpby") as calls:
    for of in (
      lambda t: t,
      lambda t: t.double(),
      lambda t: t[:-1].clone(),
      lambda t: t.t(),
      lambda t: t[:, ::2],
    ):
      same(OPS.axpby(of(tx), of(tx), 5), axpby(of(x), of(x), 5))
    same(OPS.axpby(wide.to(DEVICE), wide.to(DEVICE), 5), axpby(wide, wide, 5))
  assert calls == (6, 0)


def test_default_dtype_is_part_of_the_signature():
  x = torch.arange(next(_sizes))
  with Calls("axpby") as calls:
    same(OPS.axpby(x.to(DEVICE), x.to(DEVICE), 2), axpby(x, x, 2))
    torch.set_default_dtype(torch.float64)
    try:
      mine, expected = OPS.axpby(x.to(DEVICE), x.to(DEVICE), 2), axpby(x, x, 2)
    finally:
      torch.set_default_dtype(torch.float32)
  assert mine.dtype == expected.dtype == torch.float64
  same(mine, expected)
  assert calls == (2, 0)


def test_inputs_may_lie_anywhere():
  x, tx = fresh(40)
  with Calls("axpby") as calls:
    for k in range(5):
      a, b, ta, tb = (t[i, j:][:8] for t in (x, tx) for i, j in ((k, 2 * k), (k + 1, k)))
      same(OPS.axpby(ta, tb, 4), axpby(a, b, 4))
    whole = x[0, :8].clone()
    same(OPS.axpby(whole.to(DEVICE), (whole * 2).to(DEVICE), 4), axpby(whole, whole * 2, 4))
  assert calls.ran == calls.traced <= 6


def test_inputs_that_share_memory():
  x, tx = fresh(8)
  other = torch.randn_like(x)
  tother = other.to(DEVICE)
  for _ in range(2):
    same(OPS.axpby(tx, tx, 6), axpby(x, x, 6))
    same(OPS.axpby(tx, tother, 6), axpby(x, other, 6))
    same(OPS.axpby(tother, tx, 6), axpby(other, x, 6))
    for at in (0, 2, 4):
      same(OPS.axpby(tx[:, :4], tx[:, at : at + 4], 6), axpby(x[:, :4], x[:, at : at + 4], 6))
    same(OPS.axpby(tx[:, 2:6], tother[:, 4:], 6), axpby(x[:, 2:6], other[:, 4:], 6))


def test_in_place(mode):
  x, tx = fresh(4)
  y = torch.randn_like(x)
  ty = y.to(DEVICE)
  for _ in range(3):
    result = OPS.axpby_(tx, ty, 0.5)
    assert result is tx
    x = axpby(x, y, 0.5)
    same(tx, x)
  part, column = tx[:, 1], x[:, 1].clone()
  for _ in range(2):
    OPS.axpby_(part, part, 0.5)
    column = axpby(column, column, 0.5)
    torch.testing.assert_close(part.cpu(), column)
  torch.testing.assert_close(tx[:, 0].cpu(), x[:, 0])
  numbers = torch.arange(next(_sizes), device=DEVICE)
  with pytest.raises(RuntimeError, match="can't be cast"):
    OPS.axpby_(numbers, numbers, 0.5)
  with pytest.raises(RuntimeError, match="doesn't match the broadcast shape"):
    OPS.axpby_(tx[0], tx, 0.5)


def test_out(mode):
  x, tx = fresh(4)
  out = torch.empty_like(tx)
  with Calls("axpby.out") as calls:
    for k in range(3):
      assert OPS.axpby.out(tx + k, tx, 7, out=out) is out
      same(out, axpby(x + k, x, 7))
  assert calls == ((3, 0) if mode == "debug" else (1, 2))
  turned_out = torch.empty(4, x.size(0), device=DEVICE).t()
  OPS.axpby.out(tx, tx, 7, out=turned_out)
  assert turned_out.stride() == (1, x.size(0))
  torch.testing.assert_close(turned_out.cpu(), axpby(x, x, 7))
  grown = torch.empty(0, device=DEVICE)
  OPS.axpby.out(tx, tx, 7, out=grown)
  same(grown, axpby(x, x, 7))
  OPS.axpby.out(tx, tx, 7, out=tx)
  same(tx, axpby(x, x, 7))
  with pytest.raises(RuntimeError, match="can't be cast"):
    OPS.axpby.out(tx, tx, 7, out=torch.empty(x.shape, dtype=torch.int64, device=DEVICE))


def test_several_and_missing_results():
  x, tx = fresh(4)
  for which in ([True], [False]):
    for _ in range(2):
      low, high = OPS.bounds(tx, which)
      expected = bounds(x, which)
      same(high, expected[1])
      assert (low is None) == (expected[0] is None)
      if low is not None:
        same(low, expected[0])
  assert count("bounds") == (2, 2)
  torch.testing.assert_close(tx.cpu(), x)


@pytest.mark.parametrize("name", ["turned", "first_row"])
def test_results_are_tensors_of_their_own(name):
  x, tx = fresh(3)
  expected = globals()[name](x).clone()
  for _ in range(3):
    result = getattr(OPS, name)(tx)
    assert result.untyped_storage().data_ptr() != tx.untyped_storage().data_ptr()
    assert result.untyped_storage().nbytes() == result.numel() * result.element_size()
    same(result, expected)
    result.zero_()
    torch.testing.assert_close(tx.cpu(), x)
  assert count(name) == (1, 2)


def test_constants():
  x, tx = fresh(3)
  with Calls("weighted") as calls, counting(fallback_stats) as host:
    for k in range(3):
      same(OPS.weighted(tx + k), weighted(x + k))
  assert calls == (1, 2) and not host


def test_cpu_numbers_are_part_of_the_signature():
  x, tx = fresh(4)
  with Calls("scaled_by") as calls:
    for number in (2.0, 3.0, 2.0):
      same(OPS.scaled_by(tx, torch.tensor(number)), scaled_by(x, torch.tensor(number)))
    for number in (2.0, 3.0):
      number = torch.tensor(number)
      same(OPS.scaled_by(tx, number.to(DEVICE)), scaled_by(x, number))
  assert calls == (3, 2)


def test_decompositions_in_decompositions():
  x, tx = fresh(4)
  for _ in range(2):
    same(OPS.outer(tx), outer(x))
  assert count("outer") == (1, 1)
  inner_runs = runs["inner"]
  assert inner_runs >= 1
  same(OPS.inner(tx), inner(x))  # now for itself
  same(OPS.inner(tx), inner(x))
  assert runs["inner"] == inner_runs + 1
  x, tx = fresh(4)
  same(OPS.inner(tx), inner(x))
  same(OPS.outer(tx), outer(x))  # whose trace replays the inner one
  assert runs["inner"] == inner_runs + 2
  same(OPS.outer(tx + 1), outer(x + 1))


def test_what_looks_at_data_stays_with_the_host():
  x, tx = fresh(4)
  for sign in (1, -1):
    same(OPS.looks(tx.abs() * sign), looks(x.abs() * sign))
  with Calls("looks") as calls, counting(fallback_stats) as host:
    for sign in (1, -1):
      same(OPS.looks(tx.abs() * sign), looks(x.abs() * sign))
  assert calls == (0, 0) and calls.ran == 0
  assert host == {f"{NAME}::looks": 2}


@pytest.mark.parametrize("name", ["draws", "tagged"])
def test_random_numbers_are_not_repeated(name):
  x = torch.zeros(next(_sizes), 40, device=DEVICE)
  results = [getattr(OPS, name)(x).cpu() for _ in range(4)]
  assert all(not torch.equal(a, b) for a, b in itertools.combinations(results, 2))
  assert all(0 <= r.min() and r.max() < 1 for r in results)
  assert count(name)[1] == 0
  assert name == "draws" or runs.get(name, 0) == 0


def test_a_decomposition_that_calls_itself():
  x, tx = fresh(4)
  with counting(fallback_stats) as host:
    for k in range(2):
      same(OPS.itself(tx + k), x * 3 + 3 * k)
  assert host == {f"{NAME}::itself": 2} and runs["itself"] == 1


def test_errors_are_the_ones_of_the_kernel():
  x, tx = fresh(3)
  for _ in range(2):
    with pytest.raises(ValueError, match="not square"):
      OPS.square_only(tx)
  square = torch.randn(3, 3)
  for _ in range(2):
    same(OPS.square_only(square.to(DEVICE)), square @ square)


def test_many_signatures_are_bounded():
  """More numbers than are kept: the oldest are traced again, and right."""
  x, tx = fresh(2)
  for a in range(530):
    mine = OPS.axpby(tx, tx, 1000 + a)
  same(mine, axpby(x, x, 1529))
  with Calls("axpby") as calls:
    same(OPS.axpby(tx, tx, 1529), axpby(x, x, 1529))
    same(OPS.axpby(tx, tx, 1000), axpby(x, x, 1000))
  assert calls == (1, 1)


def test_threads():
  x, tx = fresh(5)
  wrong = []

  def work(k):
    for a in range(20):
      result = OPS.axpby(tx * k, tx, 100 + a % 5).cpu()
      if not torch.allclose(result, axpby(x * k, x, 100 + a % 5), rtol=1e-5, atol=1e-4):
        wrong.append((k, a))

  threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert not wrong


def test_under_modes_and_autograd():
  """Torch-function and dispatch modes, autocast and grad mode neither see nor change a trace."""
  from torch.overrides import TorchFunctionMode
  from torch.utils._python_dispatch import TorchDispatchMode

  seen = []

  class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
      seen.append(function)
      return function(*args, **(kwargs or {}))

  class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
      seen.append(function)
      return function(*args, **(kwargs or {}))

  x, tx = fresh(5)
  expected = axpby(x, x, 9)
  with Functions(), Dispatch(), torch.autocast("tpu", dtype=torch.bfloat16):
    result = OPS.axpby(tx, tx, 9)
  assert all("axpby" in str(each) for each in seen)
  same(result, expected)
  with Calls("axpby") as calls, torch.inference_mode():
    same(OPS.axpby(tx, tx, 9), expected)
  assert calls == (0, 1)
  leaf = tx.clone().requires_grad_()
  with torch.no_grad():
    assert not OPS.axpby(leaf, leaf, 9).requires_grad


def test_python_is_not_imported_before_the_first_miss():
  child("""
import sys, torch
x = torch.ones(3, device="tpu")
(x + 1).sum().item()
assert "torch_tpu._decompositions" not in sys.modules
""")


def test_fallback_error_allows_decompositions():
  child(
    """
import pytest, torch
import test_decompositions as t
x = torch.ones(2, 3, device="tpu")
for _ in range(2):
  assert t.OPS.axpby(x, x, 3).cpu().eq(5).all()
t.OPS.looks(x)  # finds out that it looks
with pytest.raises(NotImplementedError, match="TORCH_TPU_FALLBACK=error"):
  t.OPS.looks(x)
""",
    env={"TORCH_TPU_FALLBACK": "error"},
  )


# --- ATen operations, on PyTorch's own samples ---

ATEN = [
  "nn.functional.grid_sample",
  "nn.functional.max_unpool2d",
  "nn.functional.max_unpool3d",
  "nn.functional.multi_margin_loss",
  "nn.functional.unfold",
  "isin",
]


@pytest.mark.parametrize("name", ATEN)
def test_aten(name, mode):
  op = next(op for op in op_db if full_name(op) == name)
  dtype = torch.float32
  torch.tpu.reset_stats()
  for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=True), 4):
    expected, cpu_leaves = run_sample(op, sample, torch.device("cpu"))
    wanted = backward(expected, cpu_leaves)
    for round in range(2):
      before = torch.tpu.decomposition_stats()
      mine, leaves = run_sample(op, sample, DEVICE)
      check_equal(mine, expected, op, dtype, f"{name}, round {round}")
      if wanted is not None:
        got = backward(mine, leaves)
        check_equal(got, wanted, op, dtype, f"{name} gradient, round {round}", strides=False)
      after = torch.tpu.decomposition_stats()
    if not after:
      pytest.skip("has a row by now")
    # The second round traced nothing new.
    if mode != "debug":
      assert [v["traced"] for v in after.values()] == [v["traced"] for v in before.values()]
      assert after != before


@pytest.mark.parametrize("result", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize("by_row", [False, True], ids=["per tensor", "per row"])
def test_scaled_products_of_float8(by_row, bias, result):
  generator = torch.Generator().manual_seed(0)
  a, b = (torch.randn(size, generator=generator) for size in ((16, 32), (48, 32)))
  scales = [x.abs().amax(1, keepdim=True) / 448 if by_row else x.abs().max() / 448 for x in (a, b)]
  a, b = ((x / scale).to(torch.float8_e4m3fn) for x, scale in zip((a, b), scales))
  extra = torch.randn(48, generator=generator).to(result) if bias else None
  results = []
  for device in ("cpu", DEVICE):
    with counting(fallback_stats) as on_host:
      out = torch._scaled_mm(
        a.to(device),
        b.to(device).t(),
        scales[0].to(device),
        scales[1].to(device).t(),
        bias=extra if extra is None else extra.to(device),
        out_dtype=result,
      )
    assert out.dtype is result and not on_host
    results.append(out.cpu())
  torch.testing.assert_close(results[1], results[0], rtol=1e-2, atol=1e-2)


def test_scaled_products_by_blocks_are_refused():
  a = torch.zeros(16, 32, device=DEVICE).to(torch.float8_e4m3fn)
  scale = torch.ones(16, 2, device=DEVICE)
  with pytest.raises((NotImplementedError, RuntimeError, ValueError), match="scale"):
    torch._scaled_mm(a, a.t(), scale, scale.t(), out_dtype=torch.bfloat16)
