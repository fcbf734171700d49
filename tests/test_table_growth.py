"""What a process keeps of each new shape, view, attribute and window, for a program that never sees
one twice. docs/decisions/018-tables.md lists the tables; tests/core looks at their bounds."""

import pytest

from support import TEST_ALL, child_json, has_modes

pytestmark = pytest.mark.skipif(not has_modes(), reason="looks at the device's tables")

PROGRAM = """
import ctypes, gc, json, sys
import torch

def resident():
  gc.collect()
  torch.tpu.synchronize()
  ctypes.CDLL("libc.so.6").malloc_trim(0)
  return int(open("/proc/self/statm").read().split()[1]) * 4096

base = torch.ones(90000, device="tpu")
square = base[:4].view(2, 2)
KINDS = {
  "shapes": lambda i: torch.empty(1 + i % 997, 1 + i // 997, device="tpu") + 1,
  "views": lambda i: base.as_strided((1 + i % 299, 1 + i // 299), (1, 1)) + 1,
  "starts": lambda i: base[i % 80000 : i % 80000 + 3] + 1,
  "attributes": lambda i: torch.nn.functional.pad(square, (i % 700, i // 700)),
  "windows": lambda i: (torch.empty(1 + i, device="tpu") + 1).sum().item(),
}
WARM, count = 1000, int(sys.argv[1])
grown = {}
for name, call in KINDS.items():
  for i in range(WARM): call(i)
  before = resident()
  for i in range(WARM, WARM + count): call(i)
  grown[name] = (resident() - before) / count
print(json.dumps(grown))
"""

# Most bytes that stay of each. Those of windows are given back at 260 MiB, the others' stay.
BYTES = {"shapes": 900, "views": 1000, "starts": 300, "attributes": 900, "windows": 3200}


def test_what_is_kept_of_things_that_never_come_again():
  count = 100_000 if TEST_ALL else 5000
  env = {"TORCH_TPU_TIERS": "interpreted", "TORCH_TPU_CACHE": "0"}
  grown = child_json(PROGRAM, count, env=env, timeout=600)
  assert grown.keys() == BYTES.keys()
  assert {name: int(size) for name, size in grown.items() if size > BYTES[name]} == {}, grown
