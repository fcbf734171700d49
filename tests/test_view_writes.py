"""Few rows written through a view of a large buffer: as on the CPU, and at the cost of the rows.

The forms are those of `make bench` (benchmarks/workloads.py);
tests/fuzz_views.py makes up others."""

import sys

import pytest
import torch

from support import MODES, ROOT, child, compile_stats, counting, eager_mode, has_modes, is_tpu_like

sys.path.insert(0, str(ROOT / "benchmarks"))
import workloads


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", workloads.VIEW_WRITES)
def test_equal_to_the_cpu(name, mode, device):
  with eager_mode(mode):
    expected, on_cpu = workloads.view_writes(name, 1, "cpu")
    base, write = workloads.view_writes(name, 1, device)
    for _ in range(2):
      on_cpu(), write()
    assert torch.equal(base.cpu().view(torch.int32), expected.view(torch.int32))


MEMORY = """
import sys
import torch
sys.path.insert(0, {benchmarks!r})
import workloads

def high_water():
  with open("/proc/self/status") as status:
    return next(int(line.split()[1]) >> 10 for line in status if line.startswith("VmHWM"))

def reset():
  with open("/proc/self/clear_refs", "w") as refs:
    refs.write("5")

torch.tpu.eager_mode = torch.tpu.EagerMode[{mode!r}]
for name in workloads.VIEW_WRITES:
  base, write = workloads.view_writes(name, 256, "tpu")
  write(), torch.tpu.synchronize()  # the content takes the dtype in which it is written, once
  grown = []
  for _ in range(3):
    reset()
    before = high_water()
    write(), torch.tpu.synchronize()
    grown.append(high_water() - before)
  print(name, grown)
  assert max(grown) < 100, f"{{name}}: {{grown}} MiB more for 2 rows of 256 MiB"
  del base, write
"""


@pytest.mark.skipif(
  not has_modes() or is_tpu_like(),
  reason="reads this process's memory, where the TPU-like plugin keeps copies in other layouts",
)
@pytest.mark.parametrize("mode", ["DEFER_AND_FUSE", "DEFER_NEVER"])
def test_memory_does_not_grow_by_the_buffer(mode):
  """A copy of the buffer, or of the view, would show as memory (and as time)."""
  child(MEMORY.format(benchmarks=str(ROOT / "benchmarks"), mode=mode))


def test_layers_share_a_program(device):
  """The view's place in the buffer is a number: no program per layer."""
  cache = torch.zeros(8, 64, 2, 16, device=device)
  i, v = torch.tensor([3, 5], device=device), torch.ones(2, 2, 16, device=device)
  expected = torch.zeros(8, 64, 2, 16)

  def write(layer):
    cache[layer][i] = v
    expected[layer, 3] = expected[layer, 5] = 1
    return cache[layer][i].sum().item()

  for layer in (0, 1, 2):
    write(layer)
  with counting(compile_stats) as grown:
    for layer in range(3, 8):
      assert write(layer) == 64
  assert grown.get("compiles", 0) == 0, grown
  assert torch.equal(cache.cpu(), expected)


def test_out_of_range_stays_out(device):
  """What leaves the view does not land in its neighbours, and is reported as on a whole tensor."""
  cache = torch.zeros(3, 4, 2, device=device)
  index = torch.tensor([1, 7], device=device)
  with eager_mode("fused"), pytest.raises(IndexError, match="7 is out of range for size 4"):
    cache[1].index_copy_(0, index, torch.ones(2, 2, device=device))
    cache.cpu()
  content = cache.cpu()
  assert content[1, 1].eq(1).all() and content.sum() == 2


def combinations(a, i, s):
  """Writes with arithmetic, to places some of which are the same; gives each state of a."""
  rows, pairs = i[:, None].expand_as(s), torch.tensor([[1, 1], [0, 1]], device=a.device)
  yield a.index_add_(0, i, s, alpha=2)
  yield a.index_put_((i,), s, accumulate=True)
  yield a.scatter_add_(0, rows, s)
  yield a.t().index_add_(1, i, s.t())
  yield a[:, 2:4].index_put_((i, pairs[0, 0]), s[:, 0], accumulate=True)
  for kind in ("sum", "prod", "mean", "amax", "amin"):
    for include_self in (True, False):
      yield a.scatter_reduce_(0, rows, s, kind, include_self=include_self)
      yield a[:, 3:5].scatter_reduce_(1, pairs, s[:2, :2], kind, include_self=include_self)
      if kind != "sum":
        yield a.index_reduce_(0, i, s, kind, include_self=include_self)


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize(
  "dtype",
  [
    pytest.param(
      torch.float32,
      marks=pytest.mark.xfail(is_tpu_like(), reason="the simplifier of decision 011 rounds a mean"),
    ),
    torch.bfloat16,
    torch.int64,
  ],
  ids=str,
)
def test_combined_with_what_is_there(dtype, device):
  """Through a view as in a whole tensor, to the bit; and numbers as on the CPU."""
  random = torch.Generator().manual_seed(0)
  content, source = (torch.randn(n, 8, generator=random).mul(3).to(dtype) for n in (64, 20))
  index = torch.randint(0, 30, (20,), generator=random)
  base = torch.stack([content, content, content]).to(device)
  states = zip(
    combinations(base[1], index.to(device), source.to(device)),
    combinations(content.to(device), index.to(device), source.to(device)),
    combinations(content.clone(), index, source),
    strict=True,
  )
  for step, (through, whole, expected) in enumerate(states):
    assert torch.equal(through, whole), step
    if dtype is not torch.bfloat16:  # of which the CPU rounds every sum
      torch.testing.assert_close(through.cpu(), expected, msg=lambda m, s=step: f"step {s}: {m}")
  assert torch.equal(base[::2].cpu(), content.expand(2, 64, 8))
