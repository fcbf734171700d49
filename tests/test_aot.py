"""Ahead of time: what is recorded for later, what it leaves behind, and what libtpu says of it."""

import resource
import threading

import pytest
import torch
import torch.nn.functional as F

import torch_tpu.aot as aot
from support import child
from torch_tpu import _discovery
from torch_tpu.aot import _report, chips

with_libtpu = pytest.mark.skipif(
  not _discovery.locate("tpu"),
  reason="libtpu is not installed: pip install -r requirements/tpu.txt",
)


class Block(torch.nn.Module):
  def __init__(self, width):
    super().__init__()
    self.norm, self.linear = torch.nn.LayerNorm(width), torch.nn.Linear(width, width)

  def forward(self, x):
    return x + F.gelu(self.linear(self.norm(x)))


def deep(layers, width=8, device="meta"):
  with torch.device(device):
    return torch.nn.Sequential(*[Block(width) for _ in range(layers)])


def encoder(layers):
  """Large enough for each layer to be a program."""
  with torch.device("meta"):
    return torch.nn.Sequential(
      *[torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(layers)]
    )


def training(model):
  """A step of the model, which is on the device, with AdamW."""
  optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

  def step(x, y):
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()

  return step


def test_weights_anywhere_give_the_same_programs():
  x = torch.ones(4, 8)
  found = []
  for device in ("meta", "cpu", "tpu"):
    with torch.no_grad():
      found.append(aot.lower(deep(2, device=device), (x,)))
  texts = [list(lowered.programs) for lowered in found]
  assert texts[0] == texts[1] == texts[2]
  assert "stablehlo.dot_general" in texts[0][0]
  inputs = {v.key: v.sizes for launch in found[0].launches for v in launch.inputs if v.external}
  assert sorted(inputs.values()).count((8, 8)) == 2, "a weight as it is stored"


def test_depth_adds_launches_and_no_programs():
  few, many = (aot.lower(encoder(n), (torch.ones(2, 4, 8),)) for n in (6, 48))
  assert list(few.programs) == list(many.programs)
  assert len(many.launches) - len(few.launches) == 42


def test_nothing_takes_memory_and_nothing_is_left():
  model = deep(4, width=8192).to_empty(device="tpu")
  before, launches = torch.tpu.memory_allocated(), torch.tpu.engine_stats()["launches"]
  resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
  step = training(model)
  lowered = aot.lower(step, (torch.empty(4, 8192, device="meta"),) * 2)
  assert torch.tpu.memory_allocated() - before < 1 << 16
  assert torch.tpu.engine_stats()["launches"] == launches
  assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - resident < 100 << 10, "KiB"
  externals = {v.key: v.bytes for launch in lowered.launches for v in launch.inputs if v.external}
  # Weights, and AdamW's two states of each, which the first call made.
  assert sum(externals.values()) > 3 * 4 * 4 * 8192 * 8192
  assert all(p.grad is None or p.grad.shape == p.shape for p in model.parameters())


def test_what_was_written_is_as_before():
  x, y = torch.arange(4.0, device="tpu"), torch.zeros(4, device="tpu")
  torch.tpu.synchronize()
  made = []

  def write(z):
    x.add_(1)
    x.mul_(2)
    y[1:] = z[1:]
    made.append(x * z)

  lowered = aot.lower(write, (torch.ones(4),), steady=False)
  assert x.tolist() == [0, 1, 2, 3] and y.tolist() == [0, 0, 0, 0]
  assert made[0].tolist() == [0, 0, 0, 0], "no content yet, as after torch.empty"
  assert sum(len(launch.outputs) for launch in lowered.launches) == 3
  x.add_(1)
  assert x.tolist() == [1, 2, 3, 4]


def test_a_content_is_not_to_be_had():
  model = torch.nn.Linear(3, 3, device="meta")
  for ask in (
    lambda x: model_sum(x).item(),
    lambda x: bool((x > 0).all()),
    lambda x: x.cpu(),
    lambda x: x[x > 0],
    str,
  ):
    with pytest.raises(RuntimeError, match="asks for a tensor's content"):
      aot.lower(ask, (torch.ones(3),))
  assert (torch.ones(2, device="tpu") + 1).tolist() == [2, 2], "the thread works again"
  assert aot.lower(model, (torch.ones(1, 3),)).launches
  with pytest.raises(RuntimeError, match="already records ahead"):
    aot.lower(lambda x: aot.lower(model, (x,)), (torch.ones(1, 3),))


def model_sum(x):
  return (x * 2).sum()


def test_another_thread_is_told():
  seen = []

  def look(tensor):
    try:
      seen.append((tensor + 1).tolist())
    except RuntimeError as error:
      seen.append(str(error))

  def call(x):
    made = x + 1
    for tensor in (x, made):
      thread = threading.Thread(target=look, args=(tensor,))
      thread.start()
      thread.join()
    return made

  aot.lower(call, (torch.ones(3),), steady=False)
  assert len(seen) == 2 and all("another thread's program for later" in text for text in seen), seen


def test_what_only_runs_on_the_host_is_refused():
  with pytest.raises((RuntimeError, NotImplementedError), match="geqrf|host"):
    aot.lower(torch.geqrf, (torch.ones(3, 3),))


def test_precision_is_the_target_s():
  with torch.tpu.precision("high"):
    (launch,) = aot.lower(lambda x: x @ x, (torch.ones(3, 3),)).launches
    (on_cpu,) = aot.lower(lambda x: x @ x, (torch.ones(3, 3),), platform="cpu").launches
  assert "precision HIGH>" in launch.text and "precision HIGHEST>" in on_cpu.text


# --- figures ---


def test_flops_of_matrices_count_passes():
  def flops(fn, *args):
    return _report.matrix_flops("".join(launch.text for launch in aot.lower(fn, args).launches))

  x, y = torch.ones(2, 3, 5), torch.ones(2, 5, 7)
  work = 2 * 2 * 3 * 5 * 7
  assert flops(torch.bmm, x, y) == (work, 6 * work)
  assert flops(torch.bmm, x.bfloat16(), y.bfloat16()) == (work, work)
  image, kernel = torch.ones(2, 6, 9, 9), torch.ones(8, 3, 3, 3)
  work = 2 * 2 * 8 * 7 * 7 * 3 * 9
  assert flops(lambda x, w: F.conv2d(x, w, groups=2), image, kernel) == (work, 6 * work)

  def backward(x, w):
    w = w.detach().requires_grad_()
    F.conv2d(x, w).sum().backward()
    return w.grad

  work = 2 * 2 * 8 * 7 * 7 * 6 * 9
  kernel = torch.ones(8, 6, 3, 3)
  assert flops(backward, image, kernel)[0] == work


def facts(**given):
  names = ("code", "arguments", "outputs", "aliased", "temporaries", "peak")
  costs = ("traffic", "flops", "transcendentals", "seconds")
  return dict.fromkeys(names, 0) | dict.fromkeys(costs, 0.0) | given


def test_memory_is_walked_launch_by_launch():
  def value(number, size, given=False, external=False):
    return aot._record.Value(number, external, given, "f32", (size // 4,), size)

  chip = chips.CHIPS["v5e"]
  launches = [
    aot._record.Launch("a", [value(0, 100, external=True)], [value(0, 40), value(1, 8)]),
    aot._record.Launch("b", [value(0, 40, given=True)], [value(2, 20)]),
  ]
  lowered = aot.Lowered("tpu", launches)
  programs = [
    _report.Program("a", launches[:1], facts(temporaries=5, code=3), chip),
    _report.Program("b", launches[1:], facts(temporaries=30, code=4, aliased=20), chip),
  ]
  report = aot.Report(lowered, "v5e:1x1", programs)
  assert (report.arguments, report.outputs, report.code) == (100, 28, 7)
  assert report.peak == max(100 + 48 + 5, 100 + 48 + 20 + 30 - 20) + 7
  assert report.fits and report.require_fit() is report
  report.fits = False
  with pytest.raises(aot.DoesNotFit, match="v5e:1x1"):
    report.require_fit()


def test_targets_have_names():
  assert chips.split_target("v7x:2x2x1") == ("tpu7x", "2x2x1")
  for wrong in ("v5e", "v1:1x1", "v5e:", "cpu", "v5e:big"):
    with pytest.raises(ValueError, match="such as v5e:1x1"):
      chips.split_target(wrong)


# --- libtpu ---


@with_libtpu
def test_a_report_from_libtpu():
  model = deep(3, width=256).bfloat16()
  report = aot.compile(model, (torch.ones(32, 256, dtype=torch.bfloat16),), target="v5e:1x1")
  assert report.fits and report.flops >= 3 * 2 * 32 * 256 * 256
  assert report.arguments >= 3 * 2 * 256 * 256 and 0 < report.seconds < 1
  assert "v5e:1x1: fits" in str(report) and "launches" in str(report)


@with_libtpu
def test_the_command_says_whether_it_fits(tmp_path):
  class Wide(torch.nn.Module):
    def __init__(self):
      super().__init__()
      self.register_buffer("scale", torch.ones(3))

    def forward(self, x):
      more = torch.arange(x.shape[0], device=x.device)
      return (x @ x).sum() + (x @ x.T + more).sum() * self.scale[0]

  for name, size, code, words in (
    ("small", 64, 0, "fits"),
    ("large", 65536, 1, "DOES NOT FIT"),
  ):
    path = tmp_path / f"{name}.pt2"
    with torch.device("meta"):
      torch.export.save(torch.export.export(Wide(), (torch.ones(size, size),)), path)
    program = f"import sys; sys.argv[1:] = [{str(path)!r}, '--target', 'v5e:1x1']\n"
    program += "from torch_tpu.aot.__main__ import main\nsys.exit(main())"
    done = child(program, check=False)
    assert done.returncode == code and words in done.stdout, done.stdout + done.stderr
