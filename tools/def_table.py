"""Reads the tables of this project that are lists of C macro calls, such as env_table.def."""

import re
import sys
from pathlib import Path

STRING = r'"(?:[^"\\]|\\.)*"'
# What a column is made of; nothing inside a string counts as a comma or parenthesis.
TOKEN = re.compile(rf"{STRING}|.", re.DOTALL)


def _without_comments(text: str) -> str:
  pattern = rf"({STRING})|/\*.*?\*/|//[^\n]*"
  return re.sub(pattern, lambda match: match.group(1) or "", text, flags=re.DOTALL)


def _value(column: str) -> str:
  """The text of adjacent string literals; anything else as it is written."""
  column = column.strip()
  if not re.fullmatch(rf"(?:{STRING}\s*)+", column):
    return column
  parts = re.findall(STRING, column)
  return "".join(re.sub(r"\\(.)", r"\1", part[1:-1]) for part in parts)


def _columns(text: str, begin: int) -> list[str]:
  """The columns of the call whose opening parenthesis ends at `begin`."""
  columns, depth = [""], 1
  for match in TOKEN.finditer(text, begin):
    token = match.group()
    depth += (token == "(") - (token == ")")
    if depth == 0:
      return [_value(column) for column in columns]
    if token == "," and depth == 1:
      columns.append("")
    else:
      columns[-1] += token
  raise ValueError(f"no end of the row that begins with {columns[0][:60]}")


def rows(text: str, macro: str, count: int) -> list[list[str]]:
  """The columns of every `macro(...)` that begins a line; ValueError unless each has `count`."""
  text = _without_comments(text)
  found = [_columns(text, m.end()) for m in re.finditer(rf"^{macro}\(", text, re.MULTILINE)]
  for columns in found:
    if len(columns) != count:
      raise ValueError(f"{macro}({columns[0]}, ...): {len(columns)} columns instead of {count}")
  return found


def main_of(script: str, path: Path, text: str) -> int:
  """The command line of a generator: writes `text` to `path`, or compares with --check. Gives the
  exit status: 1 for a file that is out of date, 2 for other arguments."""
  arguments = sys.argv[1:]
  if arguments == ["--check"]:
    same = path.exists() and path.read_text() == text
    if not same:
      print(f"{path.name} is out of date: run tools/{Path(script).name}")
    return 0 if same else 1
  if arguments:
    print(f"usage: {Path(script).name} [--check]")
    return 2
  path.write_text(text)
  return 0
