"""Every row of the op table against the CPU on PyTorch's own samples, forward and backward.

The rows name their op_db entries in the table's last column. All other op_db entries run in float32
through the fallback (marker `breadth`): every 4th by default, TORCH_TPU_BREADTH=1 for all."""

import copy
import itertools
import os

import pytest
import torch
from torch.testing._internal.common_device_type import toleranceOverride
from torch.testing._internal.common_methods_invocations import op_db

import op_table
from support import DEVICE, counting, fallback_stats, has_modes, mirror, tensors_in, tree_map
from unsupported_ops import UNSUPPORTED, UNSUPPORTED_BREADTH

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
SAMPLES = int(os.environ.get("TORCH_TPU_OP_SAMPLES", "8"))
BREADTH = max(int(os.environ.get("TORCH_TPU_BREADTH", "4")), 1)
# Numbers differ by design: shape, dtype and strides are compared, not values.
RANDOM = {
  "bernoulli",
  "multinomial",
  "normal",
  "rand_like",
  "randint",
  "randint_like",
  "randn",
  "randn_like",
  "uniform",
  "nn.functional.dropout",
  "nn.functional.dropout2d",
  "nn.functional.dropout3d",
  "nn.functional.alpha_dropout",
  "exponential",
  "geometric",
  "nn.functional.feature_alpha_dropout",
  "log_normal",
  "cauchy",
  "empty",
  "empty_like",
  "empty_permuted",
  "empty_strided",
  "new_empty",
  "new_empty_strided",
  "nn.functional.rrelu",
  "nn.functional.fractional_max_pool2d",
  "nn.functional.fractional_max_pool3d",
  "nn.functional.scaled_dot_product_attention_dropout",
  "pca_lowrank",
  "svd_lowrank",
}
# Entries whose results are only unique up to sign, order of equal elements or phase.
AMBIGUOUS = {
  "eig",
  "linalg.eig",
  "linalg.eigh",
  "linalg.svd",
  "svd",
  "linalg.qr",
  "qr",
  "geqrf",
  "linalg.householder_product",
}
EXTRA_DTYPES = (
  torch.int64,
  torch.bool,
  torch.bfloat16,
  torch.float16,
  torch.float64,
  torch.int32,
  torch.uint8,
)
TOLERANCE = {
  torch.float32: (2e-5, 1e-4),
  torch.float64: (1e-7, 1e-6),
  torch.bfloat16: (2e-2, 2e-2),
  torch.float16: (2e-3, 2e-3),
  torch.complex64: (2e-5, 1e-4),
  torch.complex128: (1e-7, 1e-6),
}

ROWS = op_table.read()


def full_name(op):
  return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def entries_for(name):
  """An op_db name in the table may leave the variant out: then all variants count."""
  return [op for op in op_db if full_name(op) == name or op.name == name]


def dtypes_for(op, position):
  """float32 where possible and two others, which ones depends on the row's position: the whole
  table covers all dtypes without running each op in each."""
  has = op.supported_dtypes("cpu")
  chosen = [torch.float32] if torch.float32 in has else []
  others = [d for d in EXTRA_DTYPES if d in has]
  if others:
    chosen += [others[position % len(others)], others[(position + 1) % len(others)]]
  return list(dict.fromkeys(chosen))


def cases():
  seen, found = set(), []
  for position, row in enumerate(ROWS):
    for name in row.opinfo:
      for op in entries_for(name):
        for dtype in dtypes_for(op, position):
          key = (full_name(op), dtype)
          if key not in seen:
            seen.add(key)
            found.append(pytest.param(row, op, dtype, id=f"{row.id}-{key[0]}-{str(dtype)[6:]}"))
  return found


def breadth_cases():
  named = {full_name(op) for row in ROWS for name in row.opinfo for op in entries_for(name)}
  rest = [
    op
    for op in op_db
    if full_name(op) not in named
    and "jiterator" not in op.name
    and torch.float32 in op.supported_dtypes("cpu")
  ]
  return [pytest.param(op, id=full_name(op)) for op in rest[::BREADTH]]


def tolerance(op, dtype):
  """Absolute and relative bounds: ours by dtype, widened where op_db widens them."""
  atol, rtol = TOLERANCE.get(dtype, (0, 0))
  for info in op.decorators:
    for decorator in getattr(info, "decorators", []):
      if isinstance(decorator, toleranceOverride) and dtype in decorator.d:
        atol = max(atol, decorator.d[dtype].atol)
        rtol = max(rtol, decorator.d[dtype].rtol)
  return atol, rtol


def check_equal(mine, expected, op, dtype, what, values=True, strides=True):
  mine, expected = tensors_in(mine), tensors_in(expected)
  assert len(mine) == len(expected), f"{what}: {len(mine)} tensors, should be {len(expected)}"
  for k, (a, b) in enumerate(zip(mine, expected)):
    where = f"{what} {k}"
    assert a.dtype == b.dtype, f"{where}: dtype {a.dtype}, should be {b.dtype}"
    assert a.shape == b.shape, f"{where}: shape {tuple(a.shape)}, should be {tuple(b.shape)}"
    assert a.device.type == DEVICE.type or b.device.type != "cpu" or a.dim() == 0, (
      f"{where} is on {a.device}"
    )
    if strides and b.layout is torch.strided:
      assert a.stride() == b.stride(), f"{where}: strides {a.stride()}, should be {b.stride()}"
    if values:
      atol, rtol = tolerance(op, b.dtype)
      torch.testing.assert_close(
        a.cpu(), b, atol=atol, rtol=rtol, equal_nan=True, msg=lambda m, where=where: f"{where}: {m}"
      )


def differentiable(tensor):
  return tensor.requires_grad and (tensor.is_floating_point() or tensor.is_complex())


def run_sample(op, sample, device):
  """Gives (results, leaves) of one sample with its tensors copied to `device`."""
  copies = {}

  def place(tensor):
    if id(tensor) not in copies:
      copies[id(tensor)] = mirror(tensor, device)
    return copies[id(tensor)]

  args = tree_map(place, (sample.input, *sample.args))
  kwargs = {
    k: device
    if isinstance(v, torch.device) or (k == "device" and v is not None)
    else tree_map(place, v)
    for k, v in sample.kwargs.items()
  }
  results = op(*args, **kwargs)
  if sample.output_process_fn_grad is not None:
    results = sample.output_process_fn_grad(results)
  return results, [t for t in tensors_in((args, kwargs)) if t.requires_grad]


def backward(results, leaves):
  """Gradients for cotangents that are the same on both devices."""
  outputs = [t for t in tensors_in(results) if differentiable(t)]
  if not outputs or not leaves:
    return None
  generator = torch.Generator().manual_seed(5)
  weights = [torch.randn(t.shape, generator=generator, dtype=torch.float64) for t in outputs]
  weights = [w.to(t.dtype).to(t.device) for w, t in zip(weights, outputs)]
  return torch.autograd.grad(outputs, leaves, weights, allow_unused=True)


def check_op(op, dtype, samples, grad):
  grad = grad and op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
  values = op.name not in RANDOM and op.name not in AMBIGUOUS
  ran = 0
  generated = op.sample_inputs("cpu", dtype, requires_grad=grad)
  for number, sample in enumerate(itertools.islice(generated, samples)):
    try:
      torch.manual_seed(0)
      expected, cpu_leaves = run_sample(op, sample, torch.device("cpu"))
    except (RuntimeError, NotImplementedError, ValueError):
      continue  # PyTorch's own CPU kernel refuses this sample
    ran += 1
    what = f"sample {number}"
    torch.manual_seed(0)
    mine, leaves = run_sample(op, sample, DEVICE)
    check_equal(mine, expected, op, dtype, f"{what}, output", values)
    if grad and values:
      wanted = backward(expected, cpu_leaves)
      if wanted is not None:
        got = backward(mine, leaves)
        assert [g is None for g in got] == [w is None for w in wanted], f"{what}: missing gradients"
        check_equal(
          [g for g in got if g is not None],
          [w for w in wanted if w is not None],
          op,
          dtype,
          f"{what}, gradient",
          strides=False,
        )
  return ran


def run_listed(listed, name, dtype, check):
  """Runs `check`; what the list names must fail."""
  reason = listed.get((name, str(dtype)[6:])) or listed.get((name, "*"))
  if reason is None:
    check()
    return
  try:
    check()
  except Exception:
    pytest.xfail(reason)
  pytest.fail(f"{name} {dtype} passes: take it off tests/unsupported_ops.py ({reason})")


@pytest.mark.parametrize("row, op, dtype", cases())
def test_row(row, op, dtype):
  def check():
    with counting(fallback_stats) as calls:
      ran = check_op(op, dtype, SAMPLES, grad=dtype is torch.float32)
    if ran == 0:
      pytest.skip("no samples")
    own = {aten for aten in row.aten}
    on_host = [name for name in calls if name.removeprefix("aten::") in own]
    assert not on_host, f"ran on the host although the table has a row: {on_host}"

  run_listed(UNSUPPORTED, full_name(op), dtype, check)


@pytest.mark.breadth
@pytest.mark.parametrize("op", breadth_cases())
def test_fallback(op):
  def check():
    if check_op(op, torch.float32, 2, grad=False) == 0:
      pytest.skip("no samples")

  run_listed(UNSUPPORTED_BREADTH, full_name(op), torch.float32, check)


def test_table_is_well_formed():
  """Rows are unique, and each names op_db entries that exist or says why none does."""
  ids = [row.id for row in ROWS]
  assert len(ids) == len(set(ids))
  served = [aten for row in ROWS for aten in row.aten]
  assert len(served) == len(set(served)), sorted({a for a in served if served.count(a) > 1})
  for row in ROWS:
    for name in row.opinfo:
      assert entries_for(name), f"{row.id}: op_db has no entry {name}"
    for aten in row.aten:
      name, _, overload = aten.partition(".")
      packet = getattr(torch.ops.aten, name, None)
      assert packet is not None and hasattr(packet, overload or "default"), (
        f"{row.id}: PyTorch has no aten::{aten}"
      )


@pytest.mark.skipif(not has_modes(), reason="counts rows")
def test_table_is_wide_enough():
  assert len([row for row in ROWS if row.aten]) >= 180


def test_unsupported_list_names_real_entries():
  names = {full_name(op) for op in op_db}
  for name, _ in [*UNSUPPORTED, *UNSUPPORTED_BREADTH]:
    assert name in names, f"unsupported_ops.py: op_db has no entry {name}"


# --- the harness itself: each comparison must be able to fail ---


@pytest.mark.parametrize(
  "wrong, text",
  [
    (lambda x: x.double(), "dtype"),
    (lambda x: x[:1], "shape"),
    (lambda x: x.t().contiguous().t(), "strides"),
    (lambda x: x + 1e-3, "close"),
    (lambda x: [x, x], "tensors"),
  ],
)
def test_harness_sees_wrong_results(wrong, text):
  op = entries_for("add")[0]
  right = torch.randn(3, 4)
  check_equal(right.to(DEVICE), right, op, torch.float32, "output")
  with pytest.raises(AssertionError, match=text):
    check_equal(tree_map(lambda t: t.to(DEVICE), wrong(right)), right, op, torch.float32, "output")


def test_harness_runs_backward():
  """An entry whose forward is right and whose gradient is not is caught."""

  class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
      return x.sin()

    @staticmethod
    def backward(ctx, grad):
      return grad * 2

  op = copy.copy(entries_for("sin")[0])
  calls = []

  def sometimes_wrong(x):
    calls.append(x)
    return WrongGradient.apply(x) if len(calls) % 2 == 0 else x.sin()

  op.op = sometimes_wrong
  with pytest.raises(AssertionError, match="gradient"):
    check_op(op, torch.float32, 2, grad=True)


def test_listed_entries_that_pass_fail_the_run():
  listed = {("add", "float32"): "a reason"}
  with pytest.raises(pytest.fail.Exception, match="take it off"):
    run_listed(listed, "add", torch.float32, lambda: None)
  with pytest.raises(pytest.xfail.Exception):
    run_listed(listed, "add", torch.float32, lambda: 1 / 0)
  with pytest.raises(ZeroDivisionError):
    run_listed(listed, "sub", torch.float32, lambda: 1 / 0)
