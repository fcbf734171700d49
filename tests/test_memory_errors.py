"""Running out of memory and failing programs: a clear exception, and tensors as they were."""

import pytest

from support import child, has_modes, is_tpu_like, memory_limit_env

pytestmark = pytest.mark.skipif(not has_modes(), reason="needs TORCH_TPU_MEMORY_LIMIT")

PRELUDE = """
import gc, os, torch
def expect_oom(work):
  try:
    work()
    torch.tpu.synchronize()
  except torch.OutOfMemoryError as error:
    text = str(error)
    assert "memory" in text.lower(), text
    assert any(c.isdigit() for c in text), text
    return text
  raise SystemExit("no OutOfMemoryError")
M = 1 << 20
held = []   # what must exist: a fused program need not make its temporaries
def floats(mebibytes):
  return torch.ones(mebibytes * M // 4, device="tpu")
"""

CASES = {
  "allocation": """
keep = floats(8); torch.tpu.synchronize()
expect_oom(lambda: held.append(floats(100)))
held.clear()
assert keep.sum().item() == 8 * M // 4
""",
  "upload": """
host = torch.ones(100 * M // 4)
expect_oom(lambda: host.to("tpu"))
assert torch.ones(3).to("tpu").tolist() == [1, 1, 1]
""",
  "many small": """
def fill():
  for _ in range(100):
    held.append(floats(1) * 2)
    torch.tpu.synchronize()
expect_oom(fill)
assert len(held) >= 16
assert all(t[5].item() == 2 for t in held[:-2])
held.clear(); gc.collect()
assert (floats(16) + 1)[0].item() == 2
""",
  "in place keeps its value": """
x = floats(8); y = floats(8); torch.tpu.synchronize()
def work():
  x.add_(torch.cat([y] * 12).view(12, -1).sort(dim=0).values.sum(0))
try:
  expect_oom(work)
except SystemExit:
  pass   # a fused program may not need the temporary
else:
  assert x[0].item() == 1 and y[-1].item() == 1
""",
  "what was written before stays": """
count = torch.zeros(3, device="tpu"); grown = floats(4); copied = torch.zeros(3, device="tpu")
torch.tpu.synchronize()
def work():
  count.add_(1); count.mul_(3)
  grown.mul_(2)
  copied.fill_(5)
  huge = floats(100); held.append(huge)
  copied.copy_(huge[:3])          # never reads what it overwrites
  grown.add_(huge[0])
  count.add_(1)
text = expect_oom(work)
torch.tpu.synchronize()           # told once
assert "held by:" in text and "4.0 MiB  float32[1048576]" in text and "made by" in text, text
# Fused mode records on, and what does not depend on the failure is done; Debug mode stops there.
where = os.environ["TORCH_TPU_EAGER_MODE"]
assert count[0].item() in {"fused": [4], "strict": [3, 4], "debug": [3]}[where], count
assert copied.tolist() == [5] * 3 and grown[::1000].tolist() == [2.0] * 1049
""",
  "uploads wait for what is recorded": """
parts = []
for turn in range(6):
  host = torch.full((20 * M // 4,), float(turn))
  parts.append((host.to("tpu") + 1)[:3].clone())   # the window holds the upload until it runs
assert torch.stack(parts)[:, 1].tolist() == [1, 2, 3, 4, 5, 6]
""",
  "freed memory comes back": """
for _ in range(20):
  t = floats(30)
  assert t[0].item() == 1
  del t
""",
  "values are freed before it fails": """
a = floats(20); torch.tpu.synchronize()
a = a + 1; torch.tpu.synchronize()
a = a + 1; torch.tpu.synchronize()
assert a[0].item() == 3
""",
}


@pytest.mark.parametrize("where", ["fused", "strict", "debug"])
@pytest.mark.parametrize("name", list(CASES))
def test_out_of_memory(name, where):
  child(PRELUDE + CASES[name], env=memory_limit_env(64) | {"TORCH_TPU_EAGER_MODE": where})


@pytest.mark.skipif(is_tpu_like(), reason="limits the host's memory, which is not a TPU's")
def test_a_real_shortage_consumes_nothing():
  """Without a pretended limit: the host refuses, and what would be given to the program stays."""
  child("""
import resource, torch
size = 1 << 26
x = torch.ones(size, device="tpu"); y = torch.ones(size, device="tpu"); torch.tpu.synchronize()
x.mul_(2); y.add_(x); torch.tpu.synchronize()          # compiled and warm
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (200 << 20), resource.RLIM_INFINITY))
for turn in range(2):
  try:
    x.mul_(2); z = x.view(2, -1).sort(dim=0).values; w = z + y.view(2, -1)
    torch.tpu.synchronize()
  except torch.OutOfMemoryError as error:
    assert "ulimit" in str(error) or "memory" in str(error).lower(), error
  else:
    raise SystemExit("it fitted")
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert x[::100000].tolist() == [8.0] * 672 and y[::100000].tolist() == [3.0] * 672, x[:3]
""")


def test_limit_is_reported():
  child(
    """
import torch
free, total = torch.tpu.mem_get_info()
assert total == 64 << 20, total
x = torch.ones(1 << 20, device="tpu"); torch.tpu.synchronize()
assert torch.tpu.mem_get_info()[0] == free - (4 << 20)
assert torch.accelerator.get_memory_info()[1] == 64 << 20
""",
    env=memory_limit_env(64),
  )


FAKE_FAILURE = """
import os, torch
# Only rows that PyTorch accepts and the plugin cannot hold: the failure arrives at the launch.
x = torch.ones(4, device="tpu"); torch.tpu.synchronize()
huge = torch.ones(1, device="tpu").expand(1 << 40)
try:
  held = huge + 1
  held[5].item()
except (torch.OutOfMemoryError, RuntimeError) as error:
  print(type(error).__name__, str(error)[:200])
else:
  raise SystemExit("4 TiB fitted")
x.add_(1)
assert x.tolist() == [2, 2, 2, 2]
"""


@pytest.mark.parametrize("where", ["fused", "strict", "debug"])
def test_impossible_sizes_are_an_error_not_a_crash(where):
  done = child(FAKE_FAILURE, env=memory_limit_env(1024) | {"TORCH_TPU_EAGER_MODE": where})
  assert "Error" in done.stdout


def test_wrong_plugin_paths_name_the_path(tmp_path):
  text = tmp_path / "no_library.so"
  text.write_text("not a library")
  import _ctypes

  no_api = _ctypes.__file__
  for path in (tmp_path / "missing.so", text, no_api):
    done = child(
      "import torch; torch.ones(1, device='tpu').cpu()",
      check=False,
      env={"TORCH_TPU_PJRT_PLUGIN": path},
    )
    assert done.returncode == 1, done.stderr
    assert str(path) in done.stderr and "Error" in done.stderr.strip().splitlines()[-1]


def test_second_plugin_works(tmp_path):
  """The older XLA CPU plugin (PJRT 0.81) runs the same code."""
  pytest.importorskip("xla_plugins", reason="xla-cpu-pjrt is not installed")
  from pathlib import Path

  import xla_plugins

  found = [p for root in xla_plugins.__path__ for p in Path(root).rglob("*.so")]
  assert found
  done = child(
    "import torch; x = torch.ones(5, 5, device='tpu'); print((x @ x).sum().item())",
    env={"TORCH_TPU_PJRT_PLUGIN": found[0], "TORCH_TPU_PLATFORM": "cpu"},
  )
  assert done.stdout.split() == ["125.0"]
