"""Wrong data in programs: indices out of range and the like raise in every mode, once, and nothing
else changes. What is wrong is asked of the CPU."""

import json
import re

import pytest
import torch
from torch.nn import functional as F

import op_table
import torch_tpu
from support import (
  DEVICE,
  MODES,
  child,
  eager_mode,
  has_modes,
  is_tpu_like,
  memory_limit_env,
  synchronize,
)

pytestmark = [
  pytest.mark.skipif(not has_modes(), reason="this device has no eager modes"),
  pytest.mark.filterwarnings("ignore::UserWarning"),
]

aten = torch.ops.aten


class On:
  """Tensors of one device."""

  def __init__(self, device):
    self.device = torch.device(device)

  def of(self, values, dtype=None):
    return torch.tensor(values, dtype=dtype, device=self.device)

  def ones(self, *sizes):
    return torch.ones(*sizes, device=self.device)


# Calls with index `i` into 4 places, one for each row of the op table with the flag CHECK_INDEX.
INDEX_CALLS = {
  "embedding": lambda d, i: F.embedding(d.of([0, i]), d.ones(4, 3)),
  "embedding_backward": lambda d, i: aten.embedding_dense_backward(
    d.ones(2, 3), d.of([0, i]), 4, -1, False
  ),
  "index_select": lambda d, i: d.ones(3, 4).index_select(1, d.of([0, i])),
  "gather": lambda d, i: d.ones(2, 4).gather(1, d.of([[0, i], [1, 2]])),
  "index": lambda d, i: d.ones(5, 4)[d.of([[1], [0]]), d.of([0, i])],
  "index_put": lambda d, i: d.ones(2, 4).index_put_((d.of([1]), d.of([i])), d.of(1.0)),
  "take": lambda d, i: d.ones(2, 2).take(d.of([i])),
  "put": lambda d, i: d.ones(2, 2).put_(d.of([i]), d.ones(1)),
  "scatter": lambda d, i: d.ones(4).scatter_(0, d.of([i]), d.ones(1)),
  "scatter_value": lambda d, i: d.ones(4, 2).scatter(0, d.of([[0, i]]), 2.0),
  "scatter_combine": lambda d, i: d.ones(4).scatter_(0, d.of([i]), d.ones(1), reduce="add"),
  "scatter_value_combine": lambda d, i: d.ones(4).scatter_(0, d.of([i]), 2.0, reduce="multiply"),
  "scatter_add": lambda d, i: d.ones(4).scatter_add_(0, d.of([i]), d.ones(1)),
  "scatter_reduce": lambda d, i: d.ones(4).scatter_reduce_(0, d.of([i]), d.ones(1), "amax"),
  "index_add": lambda d, i: d.ones(4).index_add_(0, d.of([i]), d.ones(1)),
  "index_copy": lambda d, i: d.ones(4).index_copy_(0, d.of([i]), d.ones(1)),
  "index_fill": lambda d, i: d.ones(4).index_fill_(0, d.of([i]), 2.0),
  "index_reduce": lambda d, i: d.ones(4).index_reduce_(0, d.of([i]), d.ones(1), "amax"),
  "nll_loss": lambda d, i: F.cross_entropy(d.ones(2, 4), d.of([0, i])),
  "nll_loss_backward": lambda d, i: aten.nll_loss_backward(
    d.ones(()), d.ones(2, 4), d.of([0, i]), None, 1, -100, d.ones(())
  ),
  "nll_loss2d": lambda d, i: F.cross_entropy(d.ones(1, 4, 1, 2), d.of([[[0, i]]])),
  "nll_loss2d_backward": lambda d, i: aten.nll_loss2d_backward(
    d.ones(()), d.ones(1, 4, 1, 2), d.of([[[0, i]]]), None, 1, -100, d.ones(())
  ),
}
WRONG_TOO = {"embedding_backward"}  # the CPU leaves such rows out without a word
INDICES = (3, 4, 9, 2**40, -1, -4, -5, -(2**40))


def test_every_row_with_indices_has_a_case():
  assert set(INDEX_CALLS) == {row.name for row in op_table.read() if "CHECK_INDEX" in row.flags}


def refused(call, *arguments):
  """The error of this call, or None."""
  try:
    call(*arguments)
    synchronize()
  except (IndexError, RuntimeError) as error:
    return error
  return None


@pytest.mark.parametrize("name", list(INDEX_CALLS))
def test_indices_out_of_range_raise(mode, name):
  """The same indices as on the CPU; once; and the device works on."""
  call = INDEX_CALLS[name]
  bystander = torch.full((64,), 3.0, device=DEVICE)
  for index in INDICES:
    expected = refused(call, On("cpu"), index)
    error = refused(call, On(DEVICE), index)
    wrong = expected is not None or (name in WRONG_TOO and not 0 <= index < 4)
    assert (error is not None) == wrong, (index, expected, error)
    if error is not None:
      assert isinstance(error, IndexError)
      assert expected is None or isinstance(error, type(expected))
      assert f"{name}: index {index} is out of range for size 4 (" in str(error)
      assert re.search(r"op \d+ of window \d+", str(error))
    synchronize()  # told once
    assert bystander.sum().item() == 192
    call(On(DEVICE), 2)
    synchronize()


# What is no index, but wrong all the same; and the same call with data that are in order.
NAN, INF = float("nan"), float("inf")
VALUE_CALLS = {
  "bernoulli": (lambda d, p: torch.bernoulli(d.of([0.5, p])), [1.5, -0.5, NAN], [0.0, 1.0]),
  "bernoulli_": (lambda d, p: d.ones(2).bernoulli_(d.of([0.5, p])), [1.5, -0.5, NAN], [0.0, 1.0]),
  "multinomial": (lambda d, w: torch.multinomial(d.of([0.5, w]), 1), [-1.0, NAN, INF], [0.0, 3e38]),
  "multinomial of a row of zeros": (
    lambda d, w: torch.multinomial(d.of([[0.5, 1.0], [w, 0.0]]), 3, replacement=True),
    [0.0],
    [1.0],
  ),
  "normal": (lambda d, s: torch.normal(0.0, d.of([1.0, s])), [-1.0, NAN], [0.0, INF]),
  "binary_cross_entropy": (
    lambda d, p: F.binary_cross_entropy(d.of([0.5, p]), d.ones(2)),
    [1.5, -0.5, NAN],
    [0.0, 1.0],
  ),
  "binary_cross_entropy target": (
    lambda d, p: F.binary_cross_entropy(d.of([0.5, 0.5]), d.of([0.0, p])),
    [1.5, -0.5, NAN],
    [0.0, 1.0],
  ),
  "floor_divide": (lambda d, y: d.of([1, -2]) // d.of([3, y]), [0], [1, -1]),
  "floor_divide by a number": (lambda d, y: d.of([1, -2]) // y, [0], [1, -1]),
  "remainder": (lambda d, y: d.of([1, -2]) % d.of([3, y]), [0], [1, -1]),
  "remainder of a number": (lambda d, y: 5 % d.of([3, y]), [0], [1, -1]),
  "fmod": (lambda d, y: torch.fmod(d.of([1, -2]), d.of([3, y])), [0], [1, -1]),
  "div trunc": (
    lambda d, y: torch.div(
      d.of([1, 2], torch.uint8), d.of([3, y], torch.uint8), rounding_mode="trunc"
    ),
    [0],
    [1],
  ),
  "div floor": (
    lambda d, y: torch.div(d.of([1, -2]), d.of([3, y]), rounding_mode="floor"),
    [0],
    [1, -1],
  ),
  "float remainder": (lambda d, y: d.of([1.0, -2.0]) % d.of([3.0, y]), [], [0.0, NAN]),
  "masked_scatter": (
    lambda d, n: d.ones(3).masked_scatter_(d.of([True, True, False]), d.ones(n)),
    [0, 1],
    [2, 3, 4],
  ),
  "masked_scatter of all": (
    lambda d, n: d.ones(2, 2).masked_scatter(d.of([True]), d.ones(n)),
    [3],
    [4],
  ),
  "max_unpool1d": (
    lambda d, i: F.max_unpool1d(d.ones(1, 1, 1), d.of([[[i]]]), 4, output_size=(4,)),
    [4, -1],
    [0, 3],
  ),
  "max_unpool2d": (
    lambda d, i: F.max_unpool2d(d.ones(1, 1, 1, 1), d.of([[[[i]]]]), 2, output_size=(2, 2)),
    [4, -1],
    [0, 3],
  ),
  "max_unpool3d": (
    lambda d, i: F.max_unpool3d(d.ones(1, 1, 1, 1, 1), d.of([[[[[i]]]]]), 2, output_size=(2, 2, 1)),
    [4, -1],
    [0, 3],
  ),
  "one_hot": (lambda d, i: F.one_hot(d.of([0, i]), 4), [4, -1], [0, 3]),
  "one_hot of unknown size": (lambda d, i: F.one_hot(d.of([0, i])), [-1], [0, 3]),
  "embedding_bag": (lambda d, i: F.embedding_bag(d.of([[0, i]]), d.ones(4, 3)), [4, -1], [0, 3]),
  "multi_margin_loss": (
    lambda d, i: F.multi_margin_loss(d.ones(2, 4), d.of([0, i])),
    [4, -1],
    [0, 3],
  ),
  "multilabel_margin_loss": (
    lambda d, i: F.multilabel_margin_loss(d.ones(1, 4), d.of([[0, i, -1, 0]])),
    [4, -5],
    [1, 3],
  ),
  "cross_entropy that ignores": (
    lambda d, i: F.cross_entropy(d.ones(2, 4), d.of([0, i]), ignore_index=255),
    [254, -100],
    [255, 3],
  ),
}
# The rows of the op table behind them.
VALUE_ROWS = {
  *("bernoulli", "bernoulli_fill", "multinomial", "normal_tensors", "bce_loss", "floor_divide"),
  *("remainder", "fmod", "div_mode", "masked_scatter", "max_unpool2d", "max_unpool3d"),
}


def test_every_row_with_values_has_a_case():
  flagged = {"CHECK_VALUES", "CHECK_INTEGERS"}
  assert {row.name for row in op_table.read() if flagged & set(row.flags)} == VALUE_ROWS


@pytest.mark.parametrize("name", list(VALUE_CALLS))
def test_wrong_values_raise(mode, name):
  call, wrong, right = VALUE_CALLS[name]
  for value in wrong:
    expected = refused(call, On("cpu"), value)
    error = refused(call, On(DEVICE), value)
    assert expected is not None and error is not None, (value, expected, error)
    assert isinstance(error, type(expected)), (value, type(error), type(expected))
    synchronize()  # told once
  for value in right:
    assert refused(call, On("cpu"), value) is None
    assert refused(call, On(DEVICE), value) is None, value


def test_numbers_that_become_arguments_are_checked(mode):
  """A divisor that changes from call to call is a slot of the program and no constant of it."""
  x = torch.tensor([7, 8], device=DEVICE)
  for divisor in (2, 3, 5, 0, 7, 0, 4):
    if divisor == 0:
      with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        torch.floor_divide(x, divisor)
        synchronize()
    else:
      assert (x // divisor).tolist() == [7 // divisor, 8 // divisor]


def test_reads_tell_too(mode):
  """Whatever asks for a result that came from a wrong index is told, and the next read is not."""
  x = torch.arange(4.0, device=DEVICE)
  index = torch.tensor([1, 9], device=DEVICE)
  if mode == "debug":
    with pytest.raises(IndexError, match="index_select: index 9 is out of range for size 4"):
      x.index_select(0, index)
    return
  y = x.index_select(0, index) * 2
  with pytest.raises(IndexError, match="index_select: index 9 is out of range for size 4"):
    y.tolist()
  assert y.tolist() == [2, 6]  # the last valid place was read
  synchronize()


def test_wrong_index_writes_leave_the_target(mode):
  """An index out of range writes nowhere, also not to the clamped place."""
  x = torch.zeros(6, device=DEVICE)
  with pytest.raises(IndexError, match="index_put: index (6|-7) is out of range for size 6"):
    x[torch.tensor([1, 6, -7], device=DEVICE)] = 5.0
    synchronize()
  assert x.tolist() == [0, 5, 0, 0, 0, 0]


def test_earlier_reads_do_not_wait_for_later_programs():
  """A content of an earlier run tells nothing of later ones; they stay to be told."""
  with eager_mode("strict"):
    x = torch.arange(4.0, device=DEVICE)
    first = x + 1
    bad = x[torch.tensor([7], device=DEVICE)]
    assert first.tolist() == [1, 2, 3, 4]
    with pytest.raises(IndexError, match="index: index 7 is out of range for size 4"):
      bad.cpu()


def test_the_first_wrong_op_is_named():
  with eager_mode("fused"):
    x = torch.arange(4.0, device=DEVICE)
    y = x[torch.tensor([5], device=DEVICE)]
    z = x.index_select(0, torch.tensor([8], device=DEVICE))
    with pytest.raises(IndexError, match="index: index 5 is out of range"):
      synchronize()
    synchronize()
    assert y.tolist() == z.tolist() == [3]


def test_repeated_layers_name_their_own_op():
  """Programs are shared between repeats; the op's number is that of the repeat which failed."""
  with eager_mode("fused"):
    table = torch.ones(8, 16, device=DEVICE)
    w = torch.ones(16, 16, device=DEVICE)
    places = []
    for bad in (3, 30):
      h = torch.ones(4, 16, device=DEVICE)
      synchronize()
      for layer in range(40):
        ids = torch.full((4,), 9 if layer == bad else 1, device=DEVICE)
        h = torch.tanh(h @ w + table[ids])
      with pytest.raises(IndexError) as caught:
        h.sum().item()
      places.append(int(re.search(r"op (\d+) of window", str(caught.value)).group(1)))
    assert 4 * 3 <= places[0] < places[1]
    assert places[1] - places[0] >= 27 * 4


def test_loops_that_never_wait_do_not_pile_up():
  with eager_mode("strict"):
    x = torch.ones(4, device=DEVICE)
    index = torch.tensor([0, 3], device=DEVICE)
    synchronize()
    before = torch.tpu.memory_allocated()
    for _ in range(1000):
      y = x[index]
    # As many as may wait, of a tile each.
    assert torch.tpu.memory_allocated() - before < 1 << (18 if is_tpu_like() else 16)
    bad = x[torch.tensor([4], device=DEVICE)]
    with pytest.raises(IndexError, match="index 4 is out of range"):
      for _ in range(600):
        y = x[index]
      synchronize()
    assert y.tolist() == [1, 1] and bad.tolist() == [1]


def test_the_switch_takes_the_checks_out():
  code = """
import torch
x = torch.arange(4.0, device="tpu")
print(x[torch.tensor([9], device="tpu")].tolist())
torch.tpu.synchronize()
"""
  for mode in MODES:
    env = {"TORCH_TPU_EAGER_MODE": mode, "TORCH_TPU_CHECK_INDEX": "0"}
    assert child(code, env=env).stdout.strip() == "[3.0]"
    done = child(code, env={**env, "TORCH_TPU_CHECK_INDEX": "1"}, check=False)
    assert done.returncode == 1 and "index 9 is out of range for size 4" in done.stderr


# Each fails at the line that ends with its name.
FAILING = """
import json, torch
from torch import nn
from torch.nn import functional as F
x = torch.arange(4.0, device="tpu")
table = nn.Embedding(4, 3).to("tpu")
places, errors = {}, {}

def here(line):
  global bad
  bad = line()

def index():
  here(lambda: x[torch.tensor([9], device="tpu")])  # index

def embedding():
  here(lambda: table(torch.tensor([7], device="tpu")))  # embedding

def replayed():
  for last in (3, 3, 9):
    ids = torch.tensor([last], device="tpu")
    here(lambda: F.one_hot(ids, 4))  # replayed

def compile():
  here(lambda: torch.zeros(0, 3, device="tpu")[torch.tensor([0], device="tpu")])  # compile

def run():
  here(lambda: (torch.zeros(1 << 18, device="tpu") + x[0]).sort())  # run

for f in (index, embedding, replayed, compile, run):
  torch.tpu.synchronize()
  try:
    f()
    torch.tpu.synchronize()
  except Exception as error:
    errors[f.__name__] = [type(error).__name__, str(error)]
print(json.dumps(errors))
"""


@pytest.mark.parametrize("how", ["debug", "strict", "fused", "fused without"])
def test_errors_name_the_line_that_recorded_the_op(how, tmp_path):
  script = tmp_path / "program.py"
  script.write_text(FAILING)
  env = {
    "TORCH_TPU_EAGER_MODE": how.split()[0],
    **memory_limit_env(2),
    "TORCH_TPU_TRACE_STACKS": "1" if how in ("strict", "fused") else None,
  }
  errors = json.loads(child(script, env=env).stdout.splitlines()[-1])
  classes = {name: kind for name, (kind, _) in errors.items()}
  assert classes == {
    "index": "IndexError",
    "embedding": "IndexError",
    "replayed": "IndexError",
    "compile": "IndexError",
    "run": "OutOfMemoryError",
  }
  for number, line in enumerate(FAILING.splitlines(), 1):
    name = line.partition(")  # ")[2]
    if name:
      text = errors[name][1]
      assert (f"recorded at {script}:{number})" in text) == ("without" not in how), text


@pytest.fixture
def looking_for_nonfinite():
  name = "TORCH_TPU_CHECK_NONFINITE"
  torch_tpu._C.env_override(name, "1")
  with eager_mode("debug"):
    yield
  torch_tpu._C.env_override(name, None)


def line_number(text):
  """Of the line of this file that ends with this comment."""
  lines = open(__file__).read().splitlines()
  return next(number for number, line in enumerate(lines, 1) if line.endswith("  # " + text))


def test_nonfinite_results_name_the_line(looking_for_nonfinite):
  zero = torch.zeros(4, device=DEVICE)
  with pytest.raises(RuntimeError, match="'log' made NaN") as caught:
    zero.log()  # launched
  assert str(caught.value).endswith(f"(recorded at {__file__}:{line_number('launched')})")
  with pytest.raises(RuntimeError, match="made NaN") as caught:
    torch.special.bessel_y0(zero)  # on the host
  assert str(caught.value).endswith(f"(recorded at {__file__}:{line_number('on the host')})")


@pytest.mark.parametrize("scale", [2.0**16, 2.0**127])
def test_a_gradient_scaler_may_overflow(looking_for_nonfinite, scale):
  """Its scale grows until gradients overflow: found, skipped, and no error. Others are errors."""
  weight = torch.nn.Parameter(torch.ones(3, device=DEVICE))
  optimizer = torch.optim.SGD([weight], lr=0.1)
  scaler = torch.amp.GradScaler("tpu", init_scale=scale)
  for _ in range(3):
    optimizer.zero_grad()
    loss = (weight.half() * 8).float().sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
  assert weight.isfinite().all()
  assert scale != 2.0**16 or scaler.get_scale() < scale
  with pytest.raises(RuntimeError, match="made NaN or infinity"):
    (weight - weight).log()
  with pytest.raises(RuntimeError, match="made NaN or infinity"):
    (weight - weight).sqrt().sum().backward()
