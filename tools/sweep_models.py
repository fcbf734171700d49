"""Runs hundreds of model architectures on the device and compares each with the CPU.

Usage: sweep_models.py --python PYTHON [--shard I/N] [--every N] [--only REGEX] [--again]
       sweep_models.py --summary

The cases, tiny random copies of models of transformers, timm, torchvision and diffusers, are those
of the harness in ../shared/models, which is not a part of this repository. What was found is a line
per case in build/sweep/*.jsonl, a file per shard; a later run adds the cases that are missing, so
that it may be ended at any time. --summary writes docs/models.md from all lines, and runs nothing.
"""

import argparse
import collections
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "sweep"
PAGE = ROOT / "docs" / "models.md"
FAMILIES = {"tf": "Transformers", "timm": "timm", "tv": "torchvision", "df": "Diffusers"}

HEAD = """# Models

Tiny random copies of model architectures: forward, loss, backward; outputs, loss, every gradient
and every buffer beside the CPU's. `make sweep` runs them, and `tools/sweep_models.py --summary`
wrote this. A case passes within 1e-4 + 0.1 %. Times are those of the first run of each model in a
process, on the CPU plugin, one thread, eager, beside PyTorch's CPU kernels; those written here are
of a shim compiled with -O0, on a machine with other work.

| Library | cases | pass | first run / CPU, median | over 3x |
|---|---|---|---|---|
"""


def harness():
  """The harness's folder: $SWEEP_HARNESS, or shared/models beside the repository or above it."""
  places = [os.environ.get("SWEEP_HARNESS", "")]
  places += [parent / "shared" / "models" for parent in ROOT.parents]
  for place in places:
    if place and (Path(place) / "sweep.py").is_file():
      return Path(place)
  sys.exit("make sweep: no harness: set SWEEP_HARNESS to a folder with sweep.py and its recipes")


def run(options):
  """Runs the cases that have no line yet; gives the harness's exit status."""
  RESULTS.mkdir(parents=True, exist_ok=True)
  results = RESULTS / f"{(options.shard or 'all').replace('/', '-of-')}.jsonl"
  if options.again:
    results.unlink(missing_ok=True)
  setup = RESULTS / "setup.py"
  setup.write_text("import torch\n")
  command = [options.python, harness() / "sweep.py", "--dev", "tpu", "--setup", setup]
  command += ["--buildable", "--fresh", "--timeout", "90", "--build-timeout", "90"]
  command += ["--json", results]
  for name in ("shard", "every", "only"):
    if getattr(options, name):
      command += [f"--{name}", getattr(options, name)]
  return subprocess.run(
    list(map(str, command)), env=os.environ | {"OMP_NUM_THREADS": "1"}
  ).returncode


def read():
  """The last line of each case in all files."""
  cases = {}
  for file in sorted(RESULTS.glob("*.jsonl")):
    for line in file.read_text().splitlines():
      case = json.loads(line)
      cases[case["id"]] = case
  return cases


def summary(cases, reasons):
  """The page, of cases by their ids; `reasons` are lines for failures, by id."""
  groups = collections.defaultdict(list)
  for name, case in cases.items():
    groups[name.split(":")[0]].append(case)
  text = HEAD
  for family in sorted(groups, key=list(FAMILIES).index):
    each = groups[family]
    passed = [case for case in each if case["status"] == "PASS"]
    times = [case["dev_s"] / case["cpu_s"] for case in passed if case.get("cpu_s")]
    middle = f"{statistics.median(times):.1f}" if times else "-"
    slow = sum(time > 3 for time in times)
    text += f"| {FAMILIES[family]} | {len(each)} | {len(passed)} | {middle} | {slow} |\n"
  failed = sorted(name for name, case in cases.items() if case["status"] != "PASS")
  text += "\n## What does not pass\n\n" if failed else "\nAll pass.\n"
  for name in failed:
    error = " ".join(cases[name].get("error", "").split())[:160]
    seen = f"{cases[name]['status']}: {error}"
    text += f"- `{name}`: {reasons.get(name, seen)}\n"
  return text


# Why a case cannot pass, where that was looked into.
REASONS = {
  "tf:clvp_encoder:*:found": "the model keeps a table of rotary positions on the device of its "
  "first call, here the CPU; moved afterwards it raises on any accelerator"
}


def main():
  parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawTextHelpFormatter
  )
  parser.add_argument("--python", default=sys.executable)
  parser.add_argument("--shard")
  parser.add_argument("--every", type=int)
  parser.add_argument("--only")
  parser.add_argument("--again", action="store_true")
  parser.add_argument("--summary", action="store_true")
  options = parser.parse_args()
  if not options.summary:
    return run(options)
  cases = read()
  if not cases:
    sys.exit(f"nothing in {RESULTS}: run `make sweep` first")
  PAGE.write_text(summary(cases, REASONS))
  return 0


if __name__ == "__main__":
  sys.exit(main())
