"""The checkers and scripts in tools/: each rule that they state must be able to fail."""

import subprocess
import sys
import textwrap

import pytest

from support import ROOT

TOOLS = ROOT / "tools"


def run(script, *arguments, cwd=ROOT):
  return subprocess.run(
    [sys.executable, TOOLS / script, *map(str, arguments)], cwd=cwd, capture_output=True, text=True
  )


def tree(folder, **files):
  """A source tree with these files; `__` in a name stands for a slash."""
  for name, text in files.items():
    path = folder / (name.replace("__", "/") + ".c")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
  return folder


@pytest.mark.parametrize(
  "files, problem",
  [
    ({"core__base__a": '#include "engine/engine.h"\n'}, "core/base/a.c:1: base/ must not include"),
    ({"core__base__a": "\n#include <Python.h>\n"}, "core/base/a.c:2: core/ must not include"),
    ({"core__mine__a": ""}, "core/mine: not in the order of folders"),
    (
      {"core__lower__a": "int f(int op) { switch (op) { case TPU_OP_ADD: return 1; } }\n"},
      "TPU_OP_ADD",
    ),
    ({"core__base__a": "int tpui_x;", "core__lower__a": "int tpui_x;"}, "tpui_x crosses folders"),
    ({"core__base__a": "int tpui_x;", "core__lower__a": "int tpu_x;"}, "names one letter apart"),
    ({"core__base__a": "\nvoid set_x(void) {}\n"}, "core/base/a.c:2: set_x: make it static"),
    ({"core__base__a": "static int tpu_x(int a) {}\n"}, "static tpu_x: the prefixes"),
    ({"core__base__a": "static int work(int a) {}\n"}, "static work: two words"),
    ({"tests__a": f"/* {'x' * 95} */\n"}, "tests/a.c:1: 101 columns"),
  ],
)
def test_layering(files, problem, tmp_path):
  done = run("check_layering.py", tree(tmp_path, **files))
  assert done.returncode == 1 and problem in done.stdout, done.stdout


def test_comments_include_nothing(tmp_path):
  code = '/* #include "engine/engine.h" */ // case TPU_OP_ADD:\nint core_has_this;\n'
  done = run("check_layering.py", tree(tmp_path, core__base__a=code))
  assert done.returncode == 0, done.stdout


MAKEFILE = """
good other:
\t@echo says $@
bad:
\t@echo says bad; exit 3
"""


@pytest.fixture
def jobs(tmp_path):
  (tmp_path / "Makefile").write_text(MAKEFILE)
  return lambda *targets: run("run_jobs.py", "make", *targets, cwd=tmp_path)


def table(done):
  """The rows behind the last heading, as lists of words."""
  rows = done.stdout.rsplit("== jobs ", 1)[1].splitlines()[1:]
  return [row.split() for row in rows]


def test_jobs_end_with_a_table(jobs):
  done = jobs("good", "other")
  assert done.returncode == 0
  assert "says good" in done.stdout and done.stdout.index("== good") < done.stdout.index("== other")
  assert [(row[0], row[-1]) for row in table(done)] == [
    ("good", "ok"),
    ("other", "ok"),
    ("all", "s"),
  ]


@pytest.mark.parametrize("targets", [["good", "bad", "other"], ["good,bad", "other"]])
def test_a_failing_job_fails_the_run_and_ends_it(jobs, targets):
  done = jobs(*targets)
  assert done.returncode != 0 and "says bad" in done.stdout and "says other" not in done.stdout
  assert "FAILED" in table(done)[1] and table(done)[2] == ["other", "not", "run"]
