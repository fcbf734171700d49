"""Random programs of views, in-place writes and copies against the CPU (see fuzz_views.py).

FUZZ_PROGRAMS sets how many run (300; 2,000 in make test-all), FUZZ_SEED the first seed (0). Seven
of ten run in Fused mode with few value checks, so that long windows are exercised; the others in
Strict and Debug."""

import os

import pytest

import fuzz_views
from support import TEST_ALL, eager_mode, has_modes

PROGRAMS = int(os.environ.get("FUZZ_PROGRAMS", "2000" if TEST_ALL else "300"))
FIRST = int(os.environ.get("FUZZ_SEED", "0"))
CHUNK = 50
MODES = ("fused",) * 7 + ("strict",) * 2 + ("debug",)


@pytest.mark.parametrize("first", range(FIRST, FIRST + PROGRAMS, CHUNK))
def test_programs(first, device):
  last = min(first + CHUNK, FIRST + PROGRAMS)
  print(f"seeds {first} to {last - 1}")
  failures = []
  for seed in range(first, last):
    mode = MODES[seed % len(MODES)]
    with eager_mode(mode):
      try:
        fuzz_views.check_seed(seed, device, value_checks=0.15 if mode == "fused" else 0.5)
      except AssertionError as error:
        failures.append(f"[{mode}] {error}")
    if len(failures) == 5:
      break
  assert not failures, "\n\n".join(failures)


@pytest.mark.skipif(not has_modes(), reason="needs windows")
def test_long_windows(device):
  """Programs of 100 steps whose values are only compared at the end."""
  for seed in range(FIRST, FIRST + 8):
    with eager_mode("fused"):
      fuzz_views.check_seed(10**6 + seed, device, steps=100, value_checks=0.0)


def test_harness_sees_a_wrong_write(monkeypatch):
  """Comparison and shrinking work: a device whose zero_ writes ones is caught and reduced."""
  run = fuzz_views.World.run

  def wrong(world, statement):
    if world.device.type == "meta_cpu":
      statement = statement.replace(".zero_()", ".fill_(1)")
    run(world, statement)

  class FakeDevice:
    type = "meta_cpu"

    def __call__(self, *_):
      return self

  monkeypatch.setattr(fuzz_views.World, "run", wrong)
  program = [
    "v0 = make(1, (3, 4), torch.float32, 'cpu')",
    "v1 = v0.t()",
    "v2 = v1[1:3]",
    "v3 = v0.clone()",
    "v2.zero_()",
    "v3.add_(1)",
  ]
  init = fuzz_views.World.__init__

  def start(world, device):
    init(world, "cpu")
    if device == "wrong":
      world.device = FakeDevice()

  monkeypatch.setattr(fuzz_views.World, "__init__", start)
  monkeypatch.setattr(fuzz_views, "compare_geometry", lambda *_: None)
  text = fuzz_views.run_program(program, "wrong", {4})
  assert text is not None and "value differs" in text
  small, again = fuzz_views.shrink(program, "wrong", True)
  assert again and len(small) == 4 and "v2.zero_()" in small and "v3.add_(1)" not in small


def test_harness_sees_wrong_metadata_and_aliasing():
  cpu, dev = fuzz_views.World("cpu"), fuzz_views.World("cpu")
  cpu.run("v0 = make(1, (2, 3), torch.float32, dev)")
  dev.run("v0 = make(1, (2, 3), torch.float32, dev)")
  cpu.run("v1 = v0.t()")
  dev.run("v1 = v0.t().clone(memory_format=torch.preserve_format)")
  with pytest.raises(fuzz_views.Mismatch, match="shares its storage"):
    fuzz_views.compare_geometry(cpu, dev, "")
  dev.run("v1 = v0.t().contiguous()")
  with pytest.raises(fuzz_views.Mismatch, match="metadata"):
    fuzz_views.compare_geometry(cpu, dev, "")
