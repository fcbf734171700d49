"""Captures windows from PyTorch and keeps those that golden files need: new branches of a lowering.

    python tests/golden/capture.py          # adds cases for operations that have none
    python tests/golden/capture.py OP...    # makes the cases of these operations anew
    python tests/golden/capture.py --all    # of all operations; takes a quarter of an hour

`--log FILE` selects from a log that an earlier run has left there, or leaves one there.

The samples are PyTorch's own for the op_db entries of each row of the op table, forward and
backward, and the calls of captured_calls.py. Strict mode gives a window per operation. Of an
operation's windows those are kept whose programs differ in more than sizes.
"""

import argparse
import contextlib
import itertools
import os
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent))

TOOL = ROOT / "build" / "tests" / "tests" / "golden" / "tpu_golden"
BLOCKS = ROOT / "build" / "blocks" / "tests" / "golden" / "tpu_golden"
SAMPLES = 6  # of an op_db entry in a dtype
PER_ROW = 3  # cases of an operation, unless more are needed to reach all that its samples reach
EXTRA_BYTES = 2500  # most of a case that only adds dtypes
FUSED = 3  # fewest operations of a window that is kept as a whole


def build_tools():
  """Both forms of the tool, in the build folders that make uses."""
  for folder, option in ((TOOL, "OFF"), (BLOCKS, "ON")):
    build = folder.parent.parent.parent
    if not (build / "build.ninja").exists():
      options = ["-DTPU_BUILD_SHIM=OFF", "-DTPU_BUILD_TESTS=ON", f"-DTPU_GOLDEN_BLOCKS={option}"]
      command = ["cmake", "-G", "Ninja", "-S", ROOT, "-B", build, "--log-level=WARNING", *options]
      subprocess.run(command, check=True)
    subprocess.run(["ninja", "-C", build, "--quiet", "tpu_golden"], check=True)


class Row(NamedTuple):
  """A row of the op table, as the tool prints it."""

  lowering: str
  internal: bool
  opinfo: list


def read_rows():
  """{operation: Row}."""
  out = subprocess.run([TOOL, "table"], capture_output=True, text=True, check=True).stdout
  words = [line.split() for line in out.splitlines()]
  return {op: Row(name, kind == "internal", rest) for op, name, kind, *rest in words}


# --- capturing ---


def capture(log, rows, wanted, windows):
  """Runs the samples of the wanted operations with the trace log on; `log` is what it writes."""
  with open(log, "wb") as file:
    saved = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
      run_samples(rows, wanted, windows)
    finally:
      os.dup2(saved, 2)


def run_samples(rows, wanted, windows):
  import captured_calls
  import torch

  import support
  import test_ops

  torch.manual_seed(0)
  ran = set()
  with support.eager_mode("strict"):
    for position, (name, row) in enumerate(rows.items()):
      for op in (op for entry in row.opinfo for op in test_ops.entries_for(entry)):
        dtypes = [*test_ops.dtypes_for(op, position), torch.complex64]
        for dtype in set(dtypes) & set(op.supported_dtypes("cpu")):
          if name in wanted and (test_ops.full_name(op), dtype) not in ran:
            ran.add((test_ops.full_name(op), dtype))
            run_entry(test_ops, op, dtype)
    for call in captured_calls.CALLS:
      call()
  support.synchronize()
  for name in windows:
    os.write(2, f"captured: {name}\n".encode())
    results = captured_calls.WINDOWS[name]()
    support.synchronize()
    del results  # what nobody holds is not computed


def run_entry(test_ops, op, dtype):
  import torch

  grad = op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")
  # What PyTorch or the device refuses leaves no window worth keeping.
  with contextlib.suppress(Exception):
    samples = list(itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=grad), SAMPLES))
    for sample in samples:
      with contextlib.suppress(Exception):
        results, leaves = test_ops.run_sample(op, sample, torch.device("tpu"))
        if grad:
          test_ops.backward(results, leaves)


def windows_of(log):
  """(name or "", window text) per flush of the log, each once."""
  name, lines, found = "", [], []
  for line in [*log.read_text(errors="replace").splitlines(), "torch_tpu flush: end"]:
    if line.startswith("torch_tpu trace: "):
      lines.append(line.removeprefix("torch_tpu trace: "))
    elif line.startswith(("torch_tpu flush: ", "captured: ")):
      if lines and lines[-1].startswith("live "):
        found.append((name, "\n".join(lines) + "\n"))
      lines = []
      if line.startswith("captured: "):
        name = line.removeprefix("captured: ")
  return list(dict.fromkeys(found))


# --- choosing ---


def ops_of(window, rows):
  """Operations of a window, in order."""
  found = []
  for match in re.finditer(r"(?m)^%.* = (\w+?)(_?)(\.out)?\(", window):
    name = match[1] + match[2]
    found.append(name if name in rows else match[1])
  return found


class Case(NamedTuple):
  window: str
  programs: str
  blocks: frozenset  # of the lowering's code that it reached

  def cost(self):
    return is_trivial(self.window), len(self.window) + len(self.programs), self.window


def is_trivial(window):
  """True when all tensors are scalars or empty."""
  return not re.search(r"\[(?:\d+,)*(?!1\])[1-9]\d*(?:,\d+)*\]", window)


def kinds(programs):
  """Kinds of dtypes in a case's programs."""
  return set(re.findall(r"tensor<[0-9x]*(complex|[fi]|ui|bf)", programs))


def lower_folder(folder):
  """Case per case of a folder's files, by the tool, with the name of its file and its own."""
  out = subprocess.run([BLOCKS, "blocks", folder], capture_output=True, text=True, check=True)
  for part in re.split(r"(?m)^== ", out.stdout)[1:]:
    name, blocks, programs = part.split("\n", 2)
    yield name, frozenset(map(int, blocks.split())), programs


def lower_all(windows):
  """The case of each window."""
  with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "all.golden"
    path.write_text("".join(f"== {i}\n{text}-- cpu\n" for i, text in enumerate(windows)))
    lowered = list(lower_folder(folder))
  return [
    Case(w, programs, blocks) for w, (_, blocks, programs) in zip(windows, lowered, strict=True)
  ]


def candidates(windows, rows):
  """{operation: [Case]}, the cheapest of those that run the same code."""
  found = defaultdict(dict)
  for case in sorted(lower_all(windows), key=Case.cost):
    ops = set(ops_of(case.window, rows))
    aten = {op for op in ops if not rows[op].internal}
    if len(aten) <= 1 and "\nerror: " not in case.programs:
      for op in aten or ops:
        found[op].setdefault((case.blocks, *sorted(kinds(case.programs))), case)
  return {op: list(cases.values()) for op, cases in found.items()}


def choose(found, covered):
  """{operation: [Case]}: one for each, what reaches more of the lowering, and other dtypes."""
  chosen = {op: cases[:1] for op, cases in found.items()}
  covered = covered.union(*(case.blocks for cases in chosen.values() for case in cases))
  rest = [(op, case) for op, cases in found.items() for case in cases[1:]]
  while rest:
    gains = [len(case.blocks - covered) / case.cost()[1] for _, case in rest]
    best = max(range(len(rest)), key=gains.__getitem__)
    if gains[best] == 0:
      break
    op, case = rest[best]
    chosen[op].append(case)
    covered |= case.blocks
    rest = [pair for pair, gain in zip(rest, gains, strict=True) if gain > 0]
  for op, cases in chosen.items():
    add_dtypes(cases, found[op])
  return chosen


def add_dtypes(cases, others):
  seen = {frozenset(kinds(case.programs)) for case in cases}
  for case in others:
    if len(cases) < PER_ROW and frozenset(kinds(case.programs)) not in seen:
      if case.cost()[1] <= EXTRA_BYTES:
        seen.add(frozenset(kinds(case.programs)))
        cases.append(case)


# --- writing ---


def split_cases(text):
  """[(name, all of the case)]."""
  return re.findall(r"(?ms)^== (.*?)\n(.*?)(?=^== |\Z)", text)


def case_name(row, window, taken):
  dtypes = dict.fromkeys(re.findall(r"(?:[fi]|ui|bf)\d+(?=\[)|complex<f\d+>|f8E\w+", window))
  base = " ".join([row, *list(dtypes)[:3]])
  for number in itertools.count(1):
    name = base if number == 1 else f"{base} {number}"
    if name not in taken:
      taken.add(name)
      return name


def operation_of(name):
  """A case's name begins with its operation."""
  return name.split()[0]


def present_rows():
  """Operations that have a case of their own."""
  texts = [path.read_text() for path in HERE.glob("*.golden")]
  return {operation_of(name) for text in texts for name, _ in split_cases(text)}


def covered_without(operations):
  """Blocks that the present cases of other operations reach."""
  kept = [
    b for name, b, _ in lower_folder(HERE) if operation_of(name.split(" ", 1)[1]) not in operations
  ]
  return frozenset().union(*kept)


def write_row(row, windows, rows):
  """Puts the cases of an operation into its file, in place of those that are there."""
  path = HERE / f"{rows[row].lowering}.golden"
  old = split_cases(path.read_text()) if path.exists() else []
  kept = [(name, body) for name, body in old if operation_of(name) != row]
  taken = {name for name, _ in kept}
  made = [(case_name(row, window, taken), window + "-- cpu\n") for window in windows]
  order = list(rows)
  cases = sorted(kept + made, key=lambda case: order.index(operation_of(case[0])))
  path.write_text("".join(f"== {name}\n{body}" for name, body in cases))


def write_windows(name, texts):
  path = HERE / f"window_{name}.golden"
  path.write_text("".join(f"== window {i}\n{text}-- cpu\n" for i, text in enumerate(texts)))


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("operations", nargs="*", metavar="OP")
  parser.add_argument("--all", action="store_true")
  parser.add_argument("--log", type=Path, metavar="FILE")
  options = parser.parse_args()
  os.environ["TORCH_TPU_LOG"] = "flush,trace"  # before torch is imported
  build_tools()
  rows = read_rows()
  missing = set(rows) - present_rows()
  wanted = set(rows) if options.all else set(options.operations) or missing
  import captured_calls

  windows = [
    name
    for name in captured_calls.WINDOWS
    if options.all or not (HERE / f"window_{name}.golden").exists()
  ]
  if not wanted and not windows:
    print("every operation has a case")
    return
  with tempfile.TemporaryDirectory() as folder:
    log = options.log or Path(folder) / "log"
    if not log.exists():
      capture(log, rows, wanted, windows)
    found = windows_of(log)
  found_cases = candidates([text for name, text in found if not name], rows)
  found_cases = {op: cases for op, cases in found_cases.items() if op in wanted}
  for row, cases in choose(found_cases, covered_without(wanted)).items():
    write_row(row, [case.window for case in cases], rows)
  for name in dict.fromkeys(name for name, _ in found if name):
    texts = [text for other, text in found if other == name]
    write_windows(name, [text for text in texts if text.count(" -> ") >= FUSED])
  subprocess.run([TOOL, "write", HERE], check=True)
  missing = sorted(set(rows) - present_rows())
  print(f"{len(found)} windows; operations without a case: {' '.join(missing) or 'none'}")


if __name__ == "__main__":
  main()
