"""The op table as the extension has it: the rows that the tests are made from."""

from dataclasses import dataclass

from torch_tpu import _C


@dataclass(frozen=True)
class Row:
  name: str
  aten: tuple  # overloads that the row serves, such as "add.Tensor"
  family: str  # such as "POINTWISE"
  flags: tuple  # such as ("PROMOTE",)
  opinfo: tuple  # names in PyTorch's op_db


def _row(name, aten, family, flags, opinfo):
  return Row(
    name,
    tuple(aten.split()),
    family.removeprefix("TPU_FAMILY_"),
    tuple(f.strip().removeprefix("TPU_OP_") for f in flags.split("|") if f != "0"),
    tuple(opinfo.split()),
  )


def read():
  return [_row(*columns) for columns in _C.op_table()]
