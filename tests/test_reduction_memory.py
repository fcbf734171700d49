"""Reductions of large tensors of integers: as on the CPU, and without a copy in a wider dtype."""

import pytest
import torch

from support import child, has_modes

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


MEMORY = """
import torch

def high_water():
  with open("/proc/self/status") as status:
    return next(int(line.split()[1]) >> 10 for line in status if line.startswith("VmHWM"))

SIZE = 64  # MiB of the operand
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
    work(x).cpu()
    with open("/proc/self/clear_refs", "w") as refs:
      refs.write("5")
    before = high_water()
    work(x).cpu()
    grown = high_water() - before
    # One temporary of a byte an element is what the CPU makes of a comparison.
    print(dtype, name, grown)
    assert grown < SIZE // dtype.itemsize + SIZE // 2 + 8, f"{dtype} {name}: {grown} MiB"
"""


@pytest.mark.skipif(not has_modes(), reason="reads this process's memory")
def test_no_wide_copy():
  child(MEMORY)
