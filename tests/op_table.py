"""Reads core/ops/op_table*.def: the rows that the tests are made from."""

import re
from dataclasses import dataclass
from pathlib import Path

OPS = Path(__file__).resolve().parent.parent / "core" / "ops"


@dataclass(frozen=True)
class Row:
  id: str
  aten: tuple  # overloads that the row serves, such as "add.Tensor"
  family: str
  flags: str
  opinfo: tuple  # names in PyTorch's op_db
  file: str


def _split(text):
  """Top-level commas of a macro's arguments; commas inside quotes or parentheses do not count."""
  parts, depth, quoted, current = [], 0, False, ""
  for char in text:
    if char == '"':
      quoted = not quoted
    elif not quoted:
      depth += (char == "(") - (char == ")")
    if char == "," and depth == 0 and not quoted:
      parts.append(current)
      current = ""
    else:
      current += char
  return [part.strip() for part in [*parts, current]]


def _unquote(text):
  """Adjacent string literals, joined as C does."""
  return "".join(re.findall(r'"([^"]*)"', text))


def _calls(text):
  """The argument text of each TPU_OP(...) row."""
  position = 0
  while (start := re.compile(r"^TPU_OP\(", re.M).search(text, position)) is not None:
    depth, quoted, end = 1, False, start.end()
    while depth:
      char = text[end]
      quoted ^= char == '"'
      if not quoted:
        depth += (char == "(") - (char == ")")
      end += 1
    yield text[start.end() : end - 1]
    position = end


def read():
  rows = []
  for path in sorted(OPS.glob("op_table*.def")):
    text = re.sub(r"/\*.*?\*/", "", path.read_text(), flags=re.S)
    text = re.sub(r"(?m)//.*$", "", text)
    for call in _calls(text):
      fields = _split(call)
      if len(fields) != 7:
        raise ValueError(f"{path.name}: a row with {len(fields)} columns: {call[:80]}")
      rows.append(
        Row(
          fields[0],
          tuple(_unquote(fields[1]).split()),
          fields[2],
          fields[5],
          tuple(_unquote(fields[6]).split()),
          path.name,
        )
      )
  return rows
