"""Checks the names of core/. check_layering.py runs it.

- `tpui_` (and TPUI_) names are used in one folder of core/ only, and not in shim/: what crosses
  folders is `tpu_`. Tests may use both.
- No `tpui_` name differs from a `tpu_` name by that letter only.
- A function without `static` in a .c file has one of the prefixes; a static one has neither, and a
  name of two words at least.

Usage: check_names.py [root]. Lists `tpu_` functions that one folder only uses, which could be
`tpui_`; those of the public interface and those that tests call are left out.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

NAME = re.compile(r"\b(tpui?_[a-z0-9_]*[a-z0-9]|TPUI_\w+)\b")
# A definition begins in the first column; what stands before its name is on one line.
DEFINITION = re.compile(r"^(static\s+)?(?!static\b)[A-Za-z_][\w *]*?[ *]([a-z]\w*)\(", re.MULTILINE)
COMMENT_OR_TEXT = re.compile(
  r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|/\*.*?\*/|//[^\n]*', re.DOTALL
)


def bare(path: Path) -> str:
  """The code without comments and texts; line numbers stay."""
  text = path.read_text(errors="replace")
  return COMMENT_OR_TEXT.sub(lambda match: re.sub(r"[^\n]", " ", match.group()), text)


def sources(root: Path) -> Iterator[tuple[Path, str]]:
  """(path, folder) of all code; the folder is base, types, ..., or shim or tests."""
  for top in ("core", "shim", "tests"):
    for path in sorted((root / top).rglob("*")):
      if path.suffix in (".c", ".h", ".def", ".cpp"):
        yield path, path.relative_to(root).parts[1] if top == "core" else top


def uses(root: Path) -> dict[str, dict[str, Path]]:
  """name -> folder -> a file that uses it there."""
  found: dict[str, dict[str, Path]] = {}
  for path, folder in sources(root):
    for name in set(NAME.findall(bare(path))):
      found.setdefault(name, {})[folder] = path.relative_to(root)
  return found


def check_functions(path: Path) -> Iterator[str]:
  code = bare(path)
  for match in DEFINITION.finditer(code):
    static, name = match.groups()
    prefixed = name.startswith(("tpu_", "tpui_"))
    line = code.count("\n", 0, match.start()) + 1
    if static and prefixed:
      yield f"{line}: static {name}: the prefixes are for what other files use"
    elif static and "_" not in name:
      yield f"{line}: static {name}: two words at least"
    elif not static and not prefixed:
      yield f"{line}: {name}: make it static or give it a prefix"


def problems(root: Path) -> Iterator[str]:
  found = uses(root)
  for name, folders in sorted(found.items()):
    inside = {folder: path for folder, path in folders.items() if folder != "tests"}
    if name.lower().startswith("tpui_") and len(inside) > 1:
      places = ", ".join(str(path) for path in inside.values())
      yield f"{name} crosses folders ({places}): it should be tpu_"
    if name.startswith("tpui_") and "tpu_" + name[5:] in found:
      yield f"{name} and tpu_{name[5:]}: names one letter apart"
  for path, _ in sources(root):
    if path.suffix == ".c" and path.relative_to(root).parts[0] == "core":
      for text in check_functions(path):
        yield f"{path.relative_to(root)}:{text}"


def main(arguments: list[str]) -> int:
  root = Path(arguments[0] if arguments else Path(__file__).parent.parent).resolve()
  found = list(problems(root))
  print("\n".join(found) or "OK")
  for name, folders in sorted(uses(root).items()):
    if len(folders) == 1 and name.startswith("tpu_") and not set(folders) & {"shim", "tests"}:
      print(f"note: {name} is used in {next(iter(folders))}/ only")
  return 1 if found else 0


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
