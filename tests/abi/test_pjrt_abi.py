"""Our PJRT declarations against published ones: the header in the xla-cpu-pjrt wheel (PJRT 0.81)
and the layout table in pypjrt (0.114). Both are test-only dependencies.

Runs alone: `pytest --noconftest tests/abi`.
"""

import importlib
import importlib.util
import re
import shutil
import subprocess
from pathlib import Path

import pytest

CORE = Path(__file__).resolve().parents[2] / "core"
ABI_TEXT = (CORE / "pjrt/pjrt_abi.h").read_text()
CALLS_TEXT = (CORE / "pjrt/pjrt_calls.def").read_text()

# Rows of pjrt_calls.def: name, slot, args struct, last field.
CALLS = [
  (name, int(slot), struct, last)
  for name, slot, struct, last in re.findall(
    r"^PJRT_CALL\((\w+), (\d+), (\w+),\s+(\w+)\)", CALLS_TEXT, re.M
  )
]
# Our struct -> PJRT's.
STRUCTS = {struct: f"PJRT_{name}_Args" for name, _, struct, _ in CALLS} | {
  "pjrt_program_t": "PJRT_Program",
  "pjrt_named_value_t": "PJRT_NamedValue",
  "pjrt_execute_options_t": "PJRT_ExecuteOptions",
  "pjrt_memory_layout_t": "PJRT_Buffer_MemoryLayout",
  "pjrt_memory_layout_tiled_t": "PJRT_Buffer_MemoryLayout_Tiled",
  "pjrt_api_version_t": "PJRT_Api_Version",
}
# Our field -> the member of PJRT's unnamed union that has the union's offset and size.
UNIONS = {
  "pjrt_named_value_t": ("value", "string_value"),
  "pjrt_memory_layout_t": ("tiled", "tiled"),
}
# struct_size constants of structs that no call row names.
EXTRA_SIZES = {
  "pjrt_program_t": "program",
  "pjrt_named_value_t": "named_value",
  "pjrt_execute_options_t": "execute_options",
  "pjrt_memory_layout_t": "memory_layout",
  "pjrt_memory_layout_tiled_t": "memory_layout_tiled",
}


def struct_fields(text, pattern):
  """{struct: [field, ...]} of all definitions that match; nested unions count as one field."""
  text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
  text = text.replace("PJRT_ARGS_HEAD", "size_t struct_size; void* extension_start")
  result = {}
  for body, name in re.findall(pattern, text, re.S):
    body = re.sub(r"\{[^{}]*\}", "", body)  # inner unions
    fields = []
    for statement in body.split(";"):
      pointer = re.search(r"\(\*(\w+)\)\(", statement)
      plain = re.search(r"(\w+)(\[\w+\])?\s*$", statement.strip())
      if pointer or plain:
        fields.append((pointer or plain).group(1))
    result[name] = fields
  return result


OURS = struct_fields(ABI_TEXT, r"typedef struct pjrt_\w+ \{((?:[^{}]|\{[^{}]*\})*)\} (pjrt_\w+);")


def run_c(tmp_path, includes, folders, expressions):
  """Prints one integer per C expression."""
  compiler = shutil.which("cc") or shutil.which("gcc")
  if compiler is None:
    pytest.skip("no C compiler")
  lines = "\n".join(f'  printf("%lld\\n", (long long)({e}));' for e in expressions)
  heads = "\n".join(f'#include "{name}"' for name in includes)
  (tmp_path / "probe.c").write_text(
    f"#include <stdio.h>\n#include <stddef.h>\n{heads}\nint main(void) {{\n{lines}\n}}\n"
  )
  subprocess.run(
    [
      compiler,
      "-std=gnu17",
      *(f"-I{folder}" for folder in folders),
      str(tmp_path / "probe.c"),
      "-o",
      str(tmp_path / "probe"),
    ],
    check=True,
  )
  output = subprocess.run([str(tmp_path / "probe")], check=True, capture_output=True, text=True)
  return [int(word) for word in output.stdout.split()]


def layout(tmp_path, includes, folders, fields):
  """{(struct, field): (offset, size)}."""
  keys = [(struct, field) for struct, names in fields.items() for field in names]
  expressions = [
    e
    for struct, field in keys
    for e in (f"offsetof({struct}, {field})", f"sizeof((({struct}*)0)->{field})")
  ]
  numbers = run_c(tmp_path, includes, folders, expressions)
  return {key: (numbers[2 * i], numbers[2 * i + 1]) for i, key in enumerate(keys)}


@pytest.fixture(name="ours")
def our_layout(tmp_path):
  fields = {struct: OURS[struct] for struct in STRUCTS}
  return layout(tmp_path, ["pjrt/pjrt_abi.h"], [CORE], fields)


@pytest.fixture(name="sizes")
def our_sizes(tmp_path):
  """{our struct: struct_size}"""
  names = {struct: name for name, _, struct, _ in CALLS} | EXTRA_SIZES
  numbers = run_c(
    tmp_path,
    ["pjrt/plugin.h"],
    [CORE, CORE / "include"],
    [f"PJRT_SIZE_{name}" for name in names.values()],
  )
  return dict(zip(names, numbers))


@pytest.fixture(name="header")
def header_folder():
  package = pytest.importorskip("xla_plugins.xla_cpu_pjrt")
  folder = Path(package.__file__).parent / "include"
  assert (folder / "pjrt_c_api.h").exists()
  return folder


def test_parser_sees_everything():
  assert len(CALLS) == CALLS_TEXT.count("\nPJRT_CALL(") and len(CALLS) >= 28
  assert set(STRUCTS) <= set(OURS)
  assert OURS["pjrt_named_value_t"][-2:] == ["value", "value_size"]
  assert OURS["pjrt_executable_serialize_args_t"][-1] == "serialized_executable_deleter"


def test_structs_equal_header(ours, header, tmp_path):
  text = (header / "pjrt_c_api.h").read_text()
  theirs = struct_fields(
    text,
    r"struct PJRT_\w+ \{((?:[^{}]|\{[^{}]*\})*)\};\s*"
    r"PJRT_DEFINE_STRUCT_TRAITS\((PJRT_\w+),",
  )
  wanted = {name: theirs[name] for name in STRUCTS.values()}
  for struct, (ours_field, member) in UNIONS.items():
    at = OURS[struct].index(ours_field)
    wanted[STRUCTS[struct]][at] = member
  measured = layout(tmp_path, ["pjrt_c_api.h"], [header], wanted)
  for struct, their_name in STRUCTS.items():
    ours_field, member = UNIONS.get(struct, (None, None))
    our_fields = [member if f == ours_field else f for f in OURS[struct]]
    # The header is older: ours may be longer, but must begin with all that it has.
    assert our_fields[: len(wanted[their_name])] == wanted[their_name], struct
    for ours_field, field in zip(OURS[struct], wanted[their_name]):
      assert ours[struct, ours_field] == measured[their_name, field], (struct, field)


def test_structs_equal_pypjrt(ours, sizes):
  table = (
    importlib.import_module("pypjrt._abi.pjrt_0_114")
    if importlib.util.find_spec("pypjrt")
    else pytest.skip("pypjrt is not installed")
  )
  for struct, their_name in STRUCTS.items():
    theirs = getattr(table, their_name)
    union, _ = UNIONS.get(struct, (None, None))
    names = [union if name.startswith("_anon") else name for name, _ in theirs._fields_]
    assert OURS[struct] == names, struct
    for (name, _), field in zip(theirs._fields_, names):
      member = getattr(theirs, name)
      assert ours[struct, field] == (member.offset, member.size), (struct, field)
    if struct in sizes:
      assert sizes[struct] == getattr(table, f"{their_name}_STRUCT_SIZE"), struct
  for name, slot, _, _ in CALLS:
    assert table.SLOT[f"PJRT_{name}"] == slot
  assert f"PJRT_SLOT_COUNT = {len(table.SLOT)}" in ABI_TEXT


def test_last_fields_are_last():
  for name, _, struct, last in CALLS:
    assert OURS[struct][-1] == last, name


def test_slots_equal_header(header, tmp_path):
  expressions = [f"offsetof(PJRT_Api, PJRT_{name})" for name, _, _, _ in CALLS]
  numbers = run_c(tmp_path, ["pjrt_c_api.h"], [header], expressions)
  (base,) = run_c(tmp_path, ["pjrt/pjrt_abi.h"], [CORE], ["offsetof(pjrt_api_t, slots)"])
  for (name, slot, _, _), offset in zip(CALLS, numbers):
    assert offset == base + 8 * slot, name


def test_numbers_equal_header(header, tmp_path):
  """Enumerators: dtypes, error codes, option types and host buffer semantics."""
  rows = re.findall(
    r'^TPU_DTYPE\((\w+), "\w+", \d+, "[^"]+", (\d+),',
    (CORE / "types/dtype_table.def").read_text(),
    re.M,
  )
  assert len(rows) >= 17
  names = {n: "PRED" if n == "BOOL" else re.sub(r"^I(?=[0-9])", "S", n) for n, _ in rows}
  pairs = [(f"PJRT_Buffer_Type_{names[n]}", int(code)) for n, code in rows]
  codes = re.findall(r"^  TPU_(\w+) = (\d+),", (CORE / "base/status.h").read_text(), re.M)
  assert len(codes) == 17
  pairs += [(f"PJRT_Error_Code_{name}", int(code)) for name, code in codes if name != "OK"]
  pairs += [
    ("PJRT_NamedValue_kString", 0),
    ("PJRT_NamedValue_kInt64", 1),
    ("PJRT_NamedValue_kInt64List", 2),
    ("PJRT_NamedValue_kFloat", 3),
    ("PJRT_NamedValue_kBool", 4),
    ("PJRT_Extension_Type_FFI", 5),
    ("PJRT_HostBufferSemantics_kImmutableOnlyDuringCall", 0),
    ("PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes", 1),
    ("PJRT_HostBufferSemantics_kImmutableZeroCopy", 2),
    ("PJRT_HostBufferSemantics_kMutableZeroCopy", 3),
  ]
  numbers = run_c(tmp_path, ["pjrt_c_api.h"], [header], [name for name, _ in pairs])
  assert dict(zip((name for name, _ in pairs), numbers)) == dict(pairs)
