"""A part of what `make tpu-compile` compiles for TPUs, which needs none; and its bookkeeping."""

import re
import sys

import pytest

from support import ROOT, child
from torch_tpu import _C, _discovery

sys.path.insert(0, str(ROOT / "tools"))

import tpu_compile

PROGRAMS = 24  # 25 ms and more each


def test_some_programs_compile_for_a_tpu():
  if not _discovery.locate("tpu"):
    pytest.skip("libtpu is not installed: pip install -r requirements/tpu.txt")
  done = child(
    ROOT / "tools" / "tpu_compile.py", "--sample", PROGRAMS, "--target", "v5e:1x1", check=False
  )
  assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_expected_to_fail_is_a_strict_list():
  bad = {"origin": "golden a.golden x", "error": "no such thing"}
  good = {"origin": "golden b.golden y"}
  listed = [(re.compile("a.golden"), re.compile("no such"))]
  assert tpu_compile.judge([bad, good], listed) == ([], [])
  assert tpu_compile.judge([bad, good], []) == ([bad], [])
  other = [(re.compile("a.golden"), re.compile("another"))]
  assert tpu_compile.judge([bad], other) == ([bad], ["a.golden"])
  idle = [(re.compile("b.golden"), re.compile("."))]
  assert tpu_compile.judge([good], idle) == ([], ["b.golden"])
  absent = [(re.compile("c.golden"), re.compile("."))]
  assert tpu_compile.judge([good], absent) == ([], [])


def test_every_golden_program_for_a_tpu_is_collected():
  programs = tpu_compile.collect([], 0)
  names = {program.origin.split()[1] for program in programs}
  assert len(programs) > 500 and "matmul.golden" in names and "window_gpt.golden" in names
  assert all(program.text.count("func.func @main(") == 1 for program in programs)


def test_a_plugin_without_topologies_says_so():
  plugin, platform = _C.plugin()
  with pytest.raises(Exception, match="[Tt]opology"):
    _C.compile_for(plugin, platform, "v5e:1x1", "module {}")
