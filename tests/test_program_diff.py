"""tools/program_diff.py: what it says, and what it refuses. Real builds take a minute and are left
to its users."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

import program_diff

OLD = "== a.golden one\n-- cpu\nx\ny\n== b.golden two\n-- cpu\nz\n"
NEW = "== a.golden one\n-- cpu\nx\nq\n== b.golden two\n-- cpu\nz\n== c.golden three\n-- cpu\n"


def differences(**options):
  old, new = program_diff.split_cases(OLD), program_diff.split_cases(NEW)
  return program_diff.compare(old, new, ("A", "B"), **options)


def test_changed_and_new_cases_are_shown():
  lines, changed = differences()
  assert changed == 2
  assert lines[:3] == ["== a.golden one", "--- A", "+++ B"]
  assert "-y" in lines and "+q" in lines and "== c.golden three" in lines
  assert not any("two" in line for line in lines)


def test_filter_and_names():
  assert differences(only="one", names=True) == (["== a.golden one"], 1)
  assert differences(only="two") == ([], 0)


def test_equal_programs_are_no_difference():
  cases = program_diff.split_cases(OLD)
  assert program_diff.compare(cases, cases, ("A", "B")) == ([], 0)


@pytest.fixture
def repository(tmp_path, monkeypatch):
  """A repository with one commit that has no lowering tool."""
  monkeypatch.chdir(tmp_path)
  for step in (
    "git init --quiet .",
    "git -c user.name=t -c user.email=t@t commit --quiet --allow-empty -m first",
  ):
    subprocess.run(step.split(), check=True)
  return tmp_path


def test_commits_without_the_tool_are_refused(repository, capsys):
  assert program_diff.main(["HEAD"]) == 2
  assert "HEAD has no tests/golden/main.c" in capsys.readouterr().err
  assert len(subprocess.check_output(["git", "worktree", "list"], text=True).splitlines()) == 1


def test_unknown_commits_are_refused(repository, capsys):
  assert program_diff.main(["nonsense"]) == 2
  assert "nonsense" in capsys.readouterr().err
