"""Every file of examples/ runs, each in a process of its own and with short arguments."""

import re

import pytest

from support import ROOT, child
from torch_tpu import _discovery

EXAMPLES = ROOT / "examples"
COMPILED = re.compile(r"(\d+) programs compiled so far")


def test_every_example_has_a_test():
  tests = "".join(path.read_text() for path in (ROOT / "tests").glob("**/test_*.py"))
  assert not [path.name for path in EXAMPLES.glob("*.py") if f'"{path.name}"' not in tests]


def test_the_readmes_ten_lines_are_the_example():
  (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)
  assert block == (EXAMPLES / "ten_lines.py").read_text()


def test_ten_lines():
  out = child(EXAMPLES / "ten_lines.py").stdout.splitlines()
  loss, norm = map(float, out[0].split())
  assert 20 < loss < 50 and norm > 0
  assert "cpu" in out[1] and "DEFER_AND_FUSE" in out[1]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  """(folder that a short training wrote, what it printed)."""
  folder = tmp_path_factory.mktemp("trained")
  arguments = ["--steps", 8, "--layers", 1, "--batch", 2, "--sample", 4, "--out", folder]
  return folder, child(EXAMPLES / "train_gpt.py", *arguments).stdout


def test_train_gpt(trained):
  folder, out = trained
  first, last, held_out = map(
    float, re.search(r"loss: +(\S+) -> (\S+), on held-out text (\S+)", out).groups()
  )
  assert 5 < first < 6 and last < first and held_out < first
  assert "fallback: none" in out
  files = {path.name for path in folder.iterdir()}
  assert files == {"loss.csv", "loss.png", "checkpoint.pt", "sample.txt"}
  assert len((folder / "loss.csv").read_text().splitlines()) == 1 + 8
  assert (folder / "sample.txt").read_text().startswith("def ")


def generate(*arguments):
  """(the text, how many programs were compiled after the first and after the second run)."""
  out = child(EXAMPLES / "generate.py", "--length", 12, *arguments).stdout
  first, second, text = out.split("\n", 2)
  assert first.startswith("first run: ") and second.startswith("second run: ")
  return text, *(int(found) for found in COMPILED.findall(out))


def test_generate_gives_the_cpus_text_and_compiles_each_program_once(trained):
  arguments = ["--checkpoint", trained[0] / "checkpoint.pt", "--temperature", 0]
  text, first, second = generate(*arguments)
  assert (text,) == generate(*arguments, "--device", "cpu")
  assert text.startswith("def ") and 0 < first == second


def test_generate_draws_the_same_text_for_the_same_seed(trained):
  arguments = ["--checkpoint", trained[0] / "checkpoint.pt"]
  texts = [generate(*arguments, "--seed", seed)[0] for seed in (1, 1, 2)]
  assert texts[0] == texts[1] != texts[2]


@pytest.mark.skipif(
  not _discovery.locate("tpu"),
  reason="libtpu is not installed: pip install -r requirements/tpu.txt",
)
def test_price_a_decoder():
  out = child(
    EXAMPLES / "price_a_decoder.py", "small", "--tokens", 64, "--target", "v5e:1x1"
  ).stdout
  assert "v5e:1x1: fits" in out and "tokens/s" in out
