"""Checks the rules that keep core/ simple.

- A folder of core/ includes only itself and folders above it in ORDER (docs/architecture.md).
- core/ includes no shim, PyTorch or Python header.
- The public header and the shim do not see the op table: a new row would compile the shim anew.
- Nothing outside a table branches on op ids: no `case TPU_OP_...` in core/ or shim/.
- Names follow the rules of check_names.py.
- Lines of C and C++ have at most 100 columns; comments too, which clang-format leaves alone.

Usage: check_layering.py [root]. Prints what it found and exits with 1, or one OK line.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import check_names

ORDER = [
    "base", "types", "pjrt", "device", "host", "ops", "trace", "partition", "lower", "compile",
    "launch", "engine",
]  # fmt: skip
FOREIGN = re.compile(r"^(shim|torch|ATen|c10|pybind11|torch_tpu)/|^Python\.h$")
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]', re.MULTILINE)
OP_TABLE = re.compile(r"^ops/(op_ids\.h|op_table\w*\.def)$")
OP_CASE = re.compile(r"\bcase\s+TPU_OP_\w+")
COLUMNS = 100
SOURCES = {".c", ".h", ".cc", ".cpp", ".hpp", ".def"}


def without_comments(text: str) -> str:
  """The text with comments blanked; line numbers stay."""

  def blank(match: re.Match) -> str:
    found = match.group()
    return found if found[0] in "\"'" else re.sub(r"[^\n]", " ", found)

  pattern = r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|/\*.*?\*/|//[^\n]*'
  return re.sub(pattern, blank, text, flags=re.DOTALL)


def check_include(folder: str, included: str) -> str | None:
  """What is wrong with an include in core/<folder>, or None."""
  if FOREIGN.search(included):
    return f"core/ must not include {included}"
  target = included.split("/")[0]
  if folder not in ORDER or "/" not in included or target not in ORDER:
    return None
  if ORDER.index(target) > ORDER.index(folder):
    return f"{folder}/ must not include {included}: {target}/ is below it"
  return None


def check_file(root: Path, path: Path) -> Iterator[str]:
  text = path.read_text(errors="replace")
  parts = path.relative_to(root).parts
  code = without_comments(text)
  for number, line in enumerate(text.splitlines(), 1):
    if len(line) > COLUMNS:
      yield f"{number}: {len(line)} columns; at most {COLUMNS}"
  if parts[0] == "core":
    for match in INCLUDE.finditer(code):
      problem = check_include(parts[1], match.group(1))
      if problem:
        yield f"{code.count(chr(10), 0, match.start(1)) + 1}: {problem}"
  if parts[0] in ("core", "shim"):
    for match in OP_CASE.finditer(code):
      line = code.count("\n", 0, match.start()) + 1
      yield f"{line}: `{match.group()}`: what differs between ops is a column of the op table"


def check_public_header(root: Path) -> Iterator[str]:
  """Follows the includes of tpu_core.h and of the shim."""
  waiting = [root / "core/include/tpu_core.h", *sorted((root / "shim").glob("*.[ch]*"))]
  seen = set(waiting)
  while waiting:
    path = waiting.pop()
    if not path.is_file():
      continue
    for included in INCLUDE.findall(without_comments(path.read_text(errors="replace"))):
      if OP_TABLE.search(included):
        yield f"{path.relative_to(root)}: includes {included}, which the shim must not see"
      elif (target := root / "core" / included) not in seen:
        seen.add(target)
        waiting.append(target)


def files(root: Path) -> Iterator[Path]:
  for top in ("core", "shim", "tests"):
    yield from sorted(path for path in (root / top).rglob("*") if path.suffix in SOURCES)


def main(arguments: list[str]) -> int:
  root = Path(arguments[0] if arguments else Path(__file__).parent.parent).resolve()
  problems, count = [], 0
  for path in files(root):
    count += 1
    problems += [f"{path.relative_to(root)}:{text}" for text in check_file(root, path)]
  core = root / "core"
  for folder in sorted(p.name for p in core.iterdir() if p.is_dir()) if core.is_dir() else []:
    if folder not in ORDER and folder != "include":
      problems.append(f"core/{folder}: not in the order of folders")
  problems += check_public_header(root)
  problems += check_names.problems(root)
  if count == 0:
    problems.append(f"{root}: no sources found")
  for problem in problems:
    print(problem)
  if not problems:
    print(f"OK: {count} files")
  return 1 if problems else 0


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
