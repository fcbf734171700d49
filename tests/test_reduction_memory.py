"""What large reductions and pointwise operations take.

No copy in a wider dtype, and for every row no more memory than 1.5 times what PyTorch's CPU kernel
takes, and the results."""

import pytest
import torch

from support import TEST_ALL, child, child_json, has_modes

INTEGERS = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_sums_and_products_of_many_integers(dtype, device):
  """Lengths that 32 pieces do not divide, every dimension, extreme numbers."""
  low, high = (0, 1) if dtype is torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
  x = torch.randint(low, high + 1, (71, 37, 45), generator=torch.Generator().manual_seed(0))
  x = x.to(dtype)
  y = x.to(device)
  for dims in (None, 0, 1, 2, (0, 2), (1, 2)):
    assert torch.equal(y.sum(dims).cpu(), x.sum(dims))
    assert torch.equal(torch.count_nonzero(y, dims).cpu(), torch.count_nonzero(x, dims))
    if not isinstance(dims, tuple):
      of = {} if dims is None else {"dim": dims}
      assert torch.equal((y | 1).prod(**of).cpu(), (x | 1).prod(**of))  # with overflows
  extreme = torch.full((70000,), high, dtype=dtype)
  assert extreme.to(device).sum().item() == 70000 * int(high)
  assert torch.equal(x.to(device).sum(dtype=torch.int32).cpu(), x.sum(dtype=torch.int32))


# What is measured in a process of its own: freed memory must not be kept for the next operation.
MEMORY = """
import json
import sys
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo import core

def high_water():
  with open("/proc/self/status") as status:
    return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))

def grown_by(work):
  # MiB that a run takes beside what is there; the first run has compiled.
  work(), torch.tpu.synchronize()
  with open("/proc/self/clear_refs", "w") as refs:
    refs.write("5")
  before = high_water()
  result = work()
  torch.tpu.synchronize()
  tensors = result if isinstance(result, (tuple, list)) else (result,)
  return high_water() - before, sum(t.nbytes for t in tensors if torch.is_tensor(t)) / 2**20
"""
WIDE = (
  MEMORY
  + """
SIZE = 32  # MiB of the operand
CASES = {
  "sum": lambda x: x.sum(),
  "prod": lambda x: x.prod(),
  "products of rows": lambda x: x.view(1024, -1).prod(1),
  "products of columns": lambda x: x.view(1024, -1).prod(0),
  "rows": lambda x: x.view(1024, -1).sum(1),
  "columns": lambda x: x.view(1024, -1).sum(0),
  "count_nonzero": lambda x: torch.count_nonzero(x),
  "compared": lambda x: (x == 1).sum(),
  "max": lambda x: x.max(),
  "any": lambda x: x.any(),
}
for dtype in (torch.bool, torch.int8, torch.int16, torch.int32):
  x = torch.ones((SIZE << 20) // dtype.itemsize, dtype=dtype, device="tpu")
  for name, work in CASES.items():
    grown, _ = grown_by(lambda: work(x))
    # One temporary of a byte an element is what the CPU makes of a comparison.
    print(dtype, name, grown)
    assert grown < SIZE // dtype.itemsize + SIZE // 2 + 8, f"{dtype} {name}: {grown} MiB"
"""
)
SWEEP = (
  MEMORY
  + """
ROWS, COLUMNS = 1024, 2048
DTYPES = (torch.float32, torch.int64, torch.bool)
EXCEPT = {
  "nansum": "XLA:CPU fuses no choice into a sum",
  "nn.functional.rrelu": "draws its noise in float32",
}
# Seconds on the CPU, or while XLA folds a constant of this size; or not for the CPU at all.
LEFT_OUT = ("masked.", "polynomial", "jiterator", "chalf")

def operand(dtype):
  numbers = torch.rand(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0))
  return (numbers * 4 + 1).to(dtype) if dtype is not torch.bool else numbers > 0.5

def forms(op):
  if isinstance(op, core.UnaryUfuncInfo):
    return {"": lambda x: op.op(x)}
  if isinstance(op, core.BinaryUfuncInfo):
    return {"": lambda x: op.op(x, x)}
  if isinstance(op, core.ReductionOpInfo):
    return {"all": lambda x: op.op(x), "rows": lambda x: op.op(x, dim=1),
            "columns": lambda x: op.op(x, dim=0)}
  return {}

part, parts = int(sys.argv[1]), int(sys.argv[2])
cases = [(op, form, work, dtype) for op in op_db for form, work in forms(op).items()
         for dtype in DTYPES if dtype in op.supported_dtypes("cpu")]
found, measured = [], 0
inputs = {dtype: operand(dtype) for dtype in DTYPES}
on_device = {dtype: x.to("tpu") for dtype, x in inputs.items()}
for op, form, work, dtype in cases[part::parts]:
  if op.name in EXCEPT or any(name in op.name for name in LEFT_OUT):
    continue
  try:
    on_cpu, outputs = grown_by(lambda: work(inputs[dtype]))
  except TypeError:
    continue  # it wants more arguments
  ours, _ = grown_by(lambda: work(on_device[dtype]))
  measured += 1
  if ours > 1.5 * on_cpu + outputs + 3:
    found.append(f"{op.name} {form} {dtype}: {ours:.1f} MiB, the CPU {on_cpu:.1f}")
print(json.dumps([measured, found]))
"""
)
# The programs, not the CPU's kernels; and memory that is freed goes back to the system.
SETTING = {"TORCH_TPU_TIERS": "compiled", "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}


@pytest.mark.skipif(not has_modes(), reason="reads this process's memory")
def test_no_wide_copy():
  child(WIDE, env=SETTING)


@pytest.mark.skipif(not has_modes(), reason="reads this process's memory")
def test_no_more_memory_than_the_cpu():
  """Before: operations that run on the host took 3 to 5 times, a copy of each operand among it."""
  part, parts = (0, 1) if TEST_ALL else (1, 11)
  measured, found = child_json(SWEEP, part, parts, env=SETTING, timeout=900)
  assert measured > 300 / parts
  assert not found, "\n".join(found)
