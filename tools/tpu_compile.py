"""Compiles this project's programs for TPUs, on a machine without one, and says which do not.

  python tools/tpu_compile.py                    the golden programs, for v5e and v6e
  python tools/tpu_compile.py --dump DIR ...     also those that TORCH_TPU_DUMP_DIR=DIR collected
  python tools/tpu_compile.py --sample 40        every n-th, so that about 40 are left
  python tools/tpu_compile.py --summary          also rewrites tests/tpu_compile/summary.md

A dump comes from a run with TORCH_TPU_PLATFORM=tpu and the plugin of tests/tpu_like. libtpu
compiles in child processes, each program within a limit. Results are kept in build/tpu_compile
and not asked for again. tests/tpu_compile/expected.txt lists what is known not to compile, with
the reason: an entry that compiles is as wrong as a failure that is not listed.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from torch_tpu import _discovery  # noqa: E402
from torch_tpu.aot._compiler import DIED, Child  # noqa: E402

FOLDER = ROOT / "tests" / "tpu_compile"
GOLDEN = ROOT / "build/tests/tests/golden/tpu_golden"
TARGETS = ("v5e:1x1", "v6e:1x1")
SECONDS = 60  # of a processor, for one program


class Program(NamedTuple):
  """A program's text and where it was first met."""

  origin: str
  text: str

  @property
  def key(self):
    return hashlib.sha256(self.text.encode()).hexdigest()[:24]


def golden_programs():
  """What the golden windows become on a TPU."""
  printed = subprocess.run(
    [GOLDEN, "print", ROOT / "tests" / "golden"], capture_output=True, text=True, check=True
  ).stdout
  for case in re.split(r"^== ", printed, flags=re.M)[1:]:
    name = case.splitlines()[0]
    for part in re.split(r"^-- ", case, flags=re.M)[1:]:
      if "tpu" not in part.splitlines()[0].split(", "):
        continue
      for text in re.findall(r"^module @tpu \{.*?^\}\n\}\n", part, re.M | re.S):
        yield Program(f"golden {name}", text)


def dumped_programs(folder):
  for path in sorted(Path(folder).glob("*.mlir")):
    yield Program(f"{Path(folder).name} {path.stem}", path.read_text())


def collect(dumps, sample):
  """Each text once. A sample is chosen by the texts alone."""
  found = {}
  for source in [golden_programs(), *map(dumped_programs, dumps)]:
    for program in source:
      found.setdefault(program.key, program)
  keys = sorted(found)
  if sample:
    keys = keys[:: max(1, len(keys) // sample)]
  return [found[key] for key in keys]


# --- results ---


def results_path(plugin, target):
  """One file per libtpu and target."""
  size = Path(plugin).stat().st_size
  return ROOT / "build" / "tpu_compile" / f"{target.replace(':', '_')}_{size}.jsonl"


def known_results(path):
  if not path.exists():
    return {}
  rows = map(json.loads, path.read_text().splitlines())
  return {row["key"]: row for row in rows if row.get("error") != DIED}  # those are asked again


def compile_all(programs, plugin, target):
  """{key: row}, from the file or from libtpu."""
  path = results_path(plugin, target)
  path.parent.mkdir(parents=True, exist_ok=True)
  rows = known_results(path)
  with open(path, "a") as file, Child(SECONDS) as child:
    for program in programs:
      if program.key in rows:
        continue
      row = {"key": program.key, "origin": program.origin}
      rows[program.key] = row | child.compile(plugin, target, program.text)
      file.write(json.dumps(rows[program.key]) + "\n")
      file.flush()
  return {program.key: rows[program.key] for program in programs}


def expected_failures(target):
  """[(pattern of an origin, pattern of the error)]; the last part of a line is the reason."""
  rows = []
  for line in (FOLDER / "expected.txt").read_text().splitlines():
    if line and not line.startswith("#"):
      targets, origin, error, _ = line.split(" | ")
      if re.search(targets, target):
        rows.append((re.compile(origin), re.compile(error)))
  return rows


def judge(rows, expected):
  """Failures that are not listed, and entries of the list whose programs all compile."""
  used, unlisted = set(), []
  for row in rows:
    hits = [i for i, (origin, _) in enumerate(expected) if origin.search(row["origin"])]
    if "error" in row:
      hits = [i for i in hits if expected[i][1].search(row["error"])]
      used.update(hits)
      if not hits:
        unlisted.append(row)
  idle = [
    expected[i][0].pattern
    for i in range(len(expected))
    if i not in used and any(expected[i][0].search(row["origin"]) for row in rows)
  ]
  return unlisted, idle


def table(results, plugin_version):
  lines = [
    f"Programs compiled by libtpu {plugin_version} on a machine without a TPU",
    "",
    "| target | programs | compile | do not | CPU s in all | longest | largest code |",
    "|---|---|---|---|---|---|---|",
  ]
  for target, rows in results.items():
    rows = list(rows.values())
    failed = sum("error" in row for row in rows)
    seconds = [row.get("seconds", SECONDS) for row in rows]
    code = max((row.get("code", 0) for row in rows), default=0)
    lines.append(
      f"| {target} | {len(rows)} | {len(rows) - failed} | {failed} | {sum(seconds):.0f} | "
      f"{max(seconds, default=0):.1f} s | {code / 2**20:.1f} MiB |"
    )
  kinds = Counter(row["origin"].split()[0] for row in next(iter(results.values())).values())
  lines += ["", "From " + ", ".join(f"{name} ({count})" for name, count in kinds.items()) + "."]
  return "\n".join(lines) + "\n"


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--dump", action="append", default=[], metavar="DIR")
  parser.add_argument("--target", action="append", metavar="NAME", help="libtpu's, as v5e:1x1")
  parser.add_argument("--sample", type=int, default=0, metavar="N")
  parser.add_argument("--summary", action="store_true")
  options = parser.parse_args()
  plugin = _discovery.locate("tpu")
  if not plugin:
    raise SystemExit("tpu_compile: libtpu is not installed: pip install -r requirements/tpu.txt")
  programs = collect(options.dump, options.sample)
  results, wrong = {}, 0
  for target in options.target or TARGETS:
    results[target] = compile_all(programs, plugin, target)
    unlisted, idle = judge(results[target].values(), expected_failures(target))
    for row in unlisted:
      print(f"{target}: {row['origin']} ({row['key']}): {row['error'][:300]}")
    for pattern in idle:
      print(f"{target}: expected.txt lists '{pattern}', and all of it compiles")
    wrong += len(unlisted) + len(idle)
  version = re.search(r"libtpu==(\S+)", (ROOT / "requirements/tpu.txt").read_text()).group(1)
  print(table(results, version))
  if options.summary:
    (FOLDER / "summary.md").write_text(table(results, version))
  return 1 if wrong else 0


if __name__ == "__main__":
  sys.exit(main())
