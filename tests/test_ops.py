"""Every row of the op table against the CPU on PyTorch's own samples, forward and backward.

The rows name their op_db entries in the table's last column. All other op_db entries run in float32
through the fallback (marker `breadth`): every 4th; all with TORCH_TPU_BREADTH=1 and in make
test-all, which also runs each row in one more dtype."""

import copy
import functools
import itertools
import os

import pytest
import torch
from torch.testing._internal.common_device_type import toleranceOverride
from torch.testing._internal.common_methods_invocations import op_db

import op_table
from support import (
  DEVICE,
  TEST_ALL,
  counting,
  fallback_stats,
  has_modes,
  mirror,
  tensors_in,
  tree_map,
)
from torch_tpu import _C
from unsupported_ops import UNSUPPORTED, UNSUPPORTED_BREADTH

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
SAMPLES = int(os.environ.get("TORCH_TPU_OP_SAMPLES", "8"))
BREADTH = max(int(os.environ.get("TORCH_TPU_BREADTH", "1" if TEST_ALL else "4")), 1)
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
  "nn.functional.multi_head_attention_forward",
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
# Indices of equal elements may come in any order: they must lead to the same values instead.
TIES = {"sort", "argsort", "msort", "topk", "kthvalue", "median", "nanmedian", "mode", "min", "max"}
# Statistics of half-precision inputs are float32 here, as on CUDA; the CPU keeps the input's dtype.
WIDE_STATISTICS = {"native_layer_norm", "native_batch_norm"}
LOW_PRECISION = (torch.bfloat16, torch.float16)
WIDER = {
  torch.bfloat16: torch.float32,
  torch.float16: torch.float32,
  torch.float32: torch.float64,
  torch.complex64: torch.complex128,
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
  """float32 where possible and one or two others, which ones depends on the row's position: the
  whole table covers all dtypes without running each op in each."""
  has = op.supported_dtypes("cpu")
  chosen = [torch.float32] if torch.float32 in has else []
  others = [d for d in EXTRA_DTYPES if d in has]
  if others:
    chosen += [others[(position + k) % len(others)] for k in range(2 if TEST_ALL else 1)]
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
            found.append(pytest.param(row, op, dtype, id=f"{row.name}-{key[0]}-{str(dtype)[6:]}"))
  return found


def complex_cases():
  """What takes complex numbers, forward and backward: few of the dtypes above are."""
  named = {full_name(op): op for row in ROWS for name in row.opinfo for op in entries_for(name)}
  chosen = [op for op in named.values() if torch.complex64 in op.supported_dtypes("cpu")]
  return [pytest.param(op, id=full_name(op)) for op in chosen]


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


def check_equal(mine, expected, op, what, values=True, strides=True, precise=None):
  """Compares dtype, shape, strides and values. `precise` gives the results computed in a wider
  dtype: they count as well where rounding on the CPU is as bad as ours or worse."""
  mine, expected = tensors_in(mine), tensors_in(expected)
  assert len(mine) == len(expected), f"{what}: {len(mine)} tensors, should be {len(expected)}"
  for k, (a, b) in enumerate(zip(mine, expected)):
    where = f"{what} {k}"
    if has_modes() and op.name in WIDE_STATISTICS and b.dtype in LOW_PRECISION and k > 0:
      b = b.float()
    assert a.dtype == b.dtype, f"{where}: dtype {a.dtype}, should be {b.dtype}"
    assert a.shape == b.shape, f"{where}: shape {tuple(a.shape)}, should be {tuple(b.shape)}"
    assert a.device.type == DEVICE.type or a.dim() == 0, f"{where} is on {a.device}"
    if strides and b.layout is torch.strided:
      assert a.stride() == b.stride(), f"{where}: strides {a.stride()}, should be {b.stride()}"
    if values:
      check_values(a.cpu(), b, op, where, precise and (lambda k=k: tensors_in(precise())[k]))


def check_values(a, b, op, where, precise=None):
  atol, rtol = tolerance(op, b.dtype)
  if op.name in WIDE_STATISTICS and b.dtype is torch.float32:
    atol, rtol = TOLERANCE[torch.bfloat16]
  try:
    torch.testing.assert_close(
      a, b, atol=atol, rtol=rtol, equal_nan=True, msg=lambda m: f"{where}: {m}"
    )
  except AssertionError:
    if precise is None or b.dtype not in WIDER:
      raise
    exact = precise()
    if b.dtype in LOW_PRECISION:
      exact = exact.to(b.dtype)
    elif exact.isfinite().all() and b.isfinite().all():
      # An ill-conditioned sample: nobody can ask for less error than the CPU's own.
      atol += 2 * (b - exact).abs().max().item()
      a = a.to(exact.dtype)
    else:
      raise
    torch.testing.assert_close(
      a, exact, atol=atol, rtol=rtol, equal_nan=True, msg=lambda m: f"{where}: {m}"
    )


def dim_of(op, sample):
  """The dimension that a sample of an op in TIES works along; None for a full reduction."""
  position = 1 if op.name in ("topk", "kthvalue") else 0
  ints = [v for v in sample.args if isinstance(v, int) and not isinstance(v, bool)]
  dim = sample.kwargs.get("dim", ints[position] if len(ints) > position else None)
  return -1 if dim is None and op.name in ("topk", "kthvalue", "sort", "argsort") else dim


def indices_to_values(op, results, sample):
  """Replaces index results of ops with ties by the elements that they point at."""
  source, dim = sample.input.detach().cpu(), dim_of(op, sample)
  found = tensors_in(results)
  if dim is None or source.dim() == 0:
    return found
  index = found[-1].cpu()
  if op.name not in ("argsort",) and len(found) == 1:
    return found
  reduced = index.dim() < source.dim()
  index = index.unsqueeze(dim) if reduced else index
  assert index.min() >= 0 and index.max() < source.shape[dim], "index out of range"
  picked = source.gather(dim, index)
  return [*found[:-1], (picked.squeeze(dim) if reduced else picked).to(found[-1].device)]


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


def backward(results, leaves, narrow=False):
  """Gradients for cotangents that are the same on both devices, and with `narrow` the same as those
  of the results that `results` is the wider form of."""
  outputs = [t for t in tensors_in(results) if differentiable(t)]
  if not outputs or not leaves:
    return None
  generator = torch.Generator().manual_seed(5)
  weights = [torch.randn(t.shape, generator=generator, dtype=torch.float64) for t in outputs]
  narrower = {wide: dtype for dtype, wide in WIDER.items()} if narrow else {}
  weights = [w.to(narrower.get(t.dtype, t.dtype)) for w, t in zip(weights, outputs)]
  weights = [w.to(t.dtype).to(t.device) for w, t in zip(weights, outputs)]
  return torch.autograd.grad(outputs, leaves, weights, allow_unused=True)


def widened(value):
  """Tensors and dtypes in the next wider dtype; anything else as it is."""
  if isinstance(value, torch.Tensor) and value.dtype in WIDER:
    return value.detach().to(WIDER[value.dtype]).requires_grad_(value.requires_grad)
  return WIDER.get(value, value) if isinstance(value, torch.dtype) else value


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
    sample_values = values and not sample.kwargs.get("dropout_p")
    torch.manual_seed(0)
    mine, leaves = run_sample(op, sample, DEVICE)

    def precise(sample=sample, gradients=False):
      torch.manual_seed(0)
      results, leaves = run_sample(op, sample.transform(widened), torch.device("cpu"))
      if not gradients:
        return results
      return [g for g in backward(results, leaves, narrow=True) if g is not None]

    check_equal(
      mine, expected, op, f"{what}, output", sample_values and op.name not in TIES, precise=precise
    )
    if op.name in TIES:
      check_equal(
        indices_to_values(op, mine, sample),
        indices_to_values(op, expected, sample),
        op,
        f"{what}, values",
        strides=False,
      )
    if grad and sample_values:
      wanted = backward(expected, cpu_leaves)
      if wanted is not None:
        got = backward(mine, leaves)
        assert [g is None for g in got] == [w is None for w in wanted], f"{what}: missing gradients"
        check_equal(
          [g for g in got if g is not None],
          [w for w in wanted if w is not None],
          op,
          f"{what}, gradient",
          strides=False,
          precise=functools.partial(precise, gradients=True),
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


def run_entry(listed, op, dtype, grad):
  """Two samples of an op_db entry; what the list names must fail."""

  def check():
    if check_op(op, dtype, 2, grad=grad) == 0:
      pytest.skip("no samples")

  run_listed(listed, full_name(op), dtype, check)


@pytest.mark.parametrize("op", complex_cases())
def test_complex(op):
  run_entry(UNSUPPORTED, op, torch.complex64, grad=True)


@pytest.mark.breadth
@pytest.mark.parametrize("op", breadth_cases())
def test_fallback(op):
  run_entry(UNSUPPORTED_BREADTH, op, torch.float32, grad=False)


def test_table_is_well_formed():
  """Rows are unique, and each names op_db entries that exist or says why none does."""
  names = [row.name for row in ROWS]
  assert len(names) == len(set(names))
  served = [aten for row in ROWS for aten in row.aten]
  assert len(served) == len(set(served)), sorted({a for a in served if served.count(a) > 1})
  for row in ROWS:
    for name in row.opinfo:
      assert entries_for(name), f"{row.name}: op_db has no entry {name}"
    for aten in row.aten:
      name, _, overload = aten.partition(".")
      packet = getattr(torch.ops.aten, name, None)
      assert packet is not None and hasattr(packet, overload or "default"), (
        f"{row.name}: PyTorch has no aten::{aten}"
      )


@pytest.mark.skipif(not has_modes(), reason="asks for the device's kernels")
def test_every_overload_of_the_table_has_a_kernel():
  assert not _C.unregistered_ops()


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
  check_equal(right.to(DEVICE), right, op, "output")
  with pytest.raises(AssertionError, match=text):
    check_equal(tree_map(lambda t: t.to(DEVICE), wrong(right)), right, op, "output")


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
