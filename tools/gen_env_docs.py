"""Writes docs/environment.md from core/base/env_table.def.

Usage: gen_env_docs.py [--check]. With --check nothing is written; exit status 1 says that the page
is not what the table gives.
"""

import sys
from pathlib import Path

from def_table import main_of, rows

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


def page() -> str:
  lines = []
  for _, name, kind, default, doc in rows(TABLE.read_text(), "TPU_ENV", 5):
    if kind not in KINDS:
      raise ValueError(f"{name}: unknown kind {kind}")
    shown = f"`{default}`" if default else "(empty)"
    lines.append(f"| `{name}` | {KINDS[kind]} | {shown} | {doc.replace('|', chr(92) + '|')} |\n")
  return HEAD + "".join(lines)


if __name__ == "__main__":
  sys.exit(main_of(__file__, PAGE, page()))
