"""Writes docs/environment.md from core/base/env_table.def.

Usage: gen_env_docs.py [--check]. With --check nothing is written; exit status 1 says that the page
is not what the table gives.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "core" / "base" / "env_table.def"
PAGE = ROOT / "docs" / "environment.md"

HEAD = """# Environment variables

Every switch that the product reads. Values are read on first use and kept for the process. A value
that cannot be parsed is reported once on stderr and the default holds; an empty one counts as not
set. Whole numbers may carry a suffix K, M or G (powers of 1024). Truth values are 1/0, true/false,
on/off or yes/no.

This page is generated from `core/base/env_table.def` by `tools/gen_env_docs.py`.

| Variable | Kind | Default | Meaning |
|---|---|---|---|
"""

KINDS = {"TEXT": "text", "INT": "whole number", "BOOL": "truth value"}
STRING = r'"(?:[^"\\]|\\.)*"'
ROW = re.compile(
  rf"TPU_ENV\(\s*(\w+)\s*,\s*({STRING})\s*,\s*(\w+)\s*,\s*({STRING})\s*,"
  rf"\s*((?:{STRING}\s*)+)\)"
)


def text_of(literals: str) -> str:
  """The text of adjacent C string literals."""
  parts = re.findall(STRING, literals)
  return "".join(re.sub(r"\\(.)", r"\1", part[1:-1]) for part in parts)


def rows(table: str) -> list[tuple[str, str, str, str]]:
  """(variable, kind, default, meaning) of every row; raises ValueError for one it cannot read."""
  table = re.sub(r"/\*.*?\*/", "", table, flags=re.DOTALL)
  found = []
  for match in ROW.finditer(table):
    _, name, kind, default, doc = match.groups()
    if kind not in KINDS:
      raise ValueError(f"{text_of(name)}: unknown kind {kind}")
    found.append((text_of(name), KINDS[kind], text_of(default), text_of(doc)))
  if len(found) != table.count("TPU_ENV("):
    raise ValueError(f"read {len(found)} rows of {table.count('TPU_ENV(')}")
  return found


def page(table: str) -> str:
  lines = []
  for name, kind, default, doc in rows(table):
    shown = f"`{default}`" if default else "(empty)"
    lines.append(f"| `{name}` | {kind} | {shown} | {doc.replace('|', chr(92) + '|')} |\n")
  return HEAD + "".join(lines)


def main(arguments: list[str]) -> int:
  text = page(TABLE.read_text())
  if arguments == ["--check"]:
    same = PAGE.exists() and PAGE.read_text() == text
    if not same:
      print(f"{PAGE.relative_to(ROOT)} is out of date: run tools/gen_env_docs.py")
    return 0 if same else 1
  if arguments:
    print(__doc__)
    return 2
  PAGE.write_text(text)
  return 0


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
