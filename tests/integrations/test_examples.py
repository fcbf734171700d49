"""The examples that need libraries run, each in a process of its own and with short arguments."""

import re

from support import ROOT, child

EXAMPLES = ROOT / "examples"


def test_trainer(tmp_path):
  arguments = ["--steps", 6, "--layers", 1, "--sample", 8, "--out", tmp_path]
  out = child(EXAMPLES / "trainer.py", *arguments, env={"TORCH_TPU_TIERS": None}).stdout
  first, last, held_out = map(
    float, re.search(r"loss: +(\S+) -> (\S+), on held-out text (\S+)", out).groups()
  )
  assert 5 < first < 6 and last < first and held_out < first
  assert "device:   tpu" in out and "def " in out.splitlines()[-1]
  assert {"loss.csv", "loss.png", "checkpoint-6"} <= {path.name for path in tmp_path.iterdir()}


def test_diffusion_digits(tmp_path):
  arguments = ["--steps", 8, "--batch", 16, "--draw", 2, "--out", tmp_path]
  out = child(EXAMPLES / "diffusion_digits.py", *arguments, env={"TORCH_TPU_TIERS": None}).stdout
  first, last = map(float, re.search(r"loss: +(\S+) -> (\S+)", out).groups())
  assert 0.5 < first < 2 and last < first
  assert "device:   tpu" in out
  assert {path.name for path in tmp_path.iterdir()} == {"loss.csv", "loss.png", "digits.png"}
