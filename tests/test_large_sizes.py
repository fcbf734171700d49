"""Positions of 2^31 and more, which 32 bits do not hold. tests/golden/large_sizes.golden has the
texts; here the values are looked at, with one int8 tensor of 2 GiB in a process that may take
little more."""

import pytest

from support import child_json, has_modes

pytestmark = pytest.mark.skipif(not has_modes(), reason="this device runs no programs")

NEEDED_GIB = 6

PROGRAM = f"""
import json, resource
resource.setrlimit(resource.RLIMIT_DATA, ({NEEDED_GIB} << 30, {NEEDED_GIB} << 30))
import torch

far = 2**31
x = torch.zeros(far + 16, dtype=torch.int8, device="tpu")
x[far + 5] = 7
far_index = torch.tensor([far + 9], device="tpu")
x[far_index] = 5
found = {{"argmax": x.argmax().item()}}
values = torch.arange(20, 26, dtype=torch.int8).reshape(3, 2)
x.as_strided((3, 2), (5, 3), far).copy_(values)
x[far + 6 : far + 8] = 3
found["index"] = x[torch.cat((far_index, far_index - far))].tolist()
found["head"], found["tail"] = x[:16].tolist(), x[-16:].tolist()
with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_NEVER):
  x[far + 1] = 9
  found["strict"] = [x[far + 1].item(), x[1].item()]
print(json.dumps(found))
"""


def available_gib():
  with open("/proc/meminfo") as lines:
    kib = next(line.split()[1] for line in lines if line.startswith("MemAvailable"))
  return int(kib) / 2**20


@pytest.mark.skipif(available_gib() < NEEDED_GIB + 2, reason="not enough memory is available")
def test_writes_reads_and_indices_behind_two_gibi_elements():
  found = child_json(PROGRAM)
  assert found == {
    "argmax": 2**31 + 5,
    "index": [5, 0],
    "head": [0] * 16,
    "tail": [20, 0, 0, 21, 0, 22, 3, 3, 23, 5, 24, 0, 0, 25, 0, 0],
    "strict": [9, 0],
  }
