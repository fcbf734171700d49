"""Writes torch_tpu/_C.pyi from shim/bindings.def.

Usage: gen_stubs.py [--check]. With --check nothing is written; exit status 1 says that the stub is
not what the table gives.
"""

import sys
import textwrap
from pathlib import Path

from def_table import main_of, rows

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "shim" / "bindings.def"
STUB = ROOT / "torch_tpu" / "_C.pyi"
WIDTH = 100

HEAD = '''"""The extension module, generated from shim/bindings.def by tools/gen_stubs.py.

Loading it registers kernels, hooks and the allocator with PyTorch; it starts no device and loads no
plugin."""

import torch

__version__: str
'''


def stub() -> str:
  functions = [HEAD]
  for name, _, signature, doc in rows(TABLE.read_text(), "TPU_BINDING", 4):
    lines = textwrap.wrap(f'"""{doc}"""', WIDTH - 2)
    functions.append(f"def {name}{signature}:\n" + textwrap.indent("\n".join(lines), "  ") + "\n")
  return "\n".join(functions)


if __name__ == "__main__":
  sys.exit(main_of(__file__, STUB, stub()))
