"""Shows how the emitted programs of two commits differ.

    python tools/program_diff.py A [B]            # B: by default the working tree
    python tools/program_diff.py A B --only conv  # cases whose file or name contains "conv"
    python tools/program_diff.py A B --names      # which cases, without the diffs

Builds the core and its lowering tool of both (no PyTorch, no plugin), lets each lower all windows
in B's tests/golden, and prints a unified diff of the programs of each case that changed. Exit
status: 0 no difference, 1 some, 2 it could not be found out.
"""

import argparse
import contextlib
import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

WINDOWS = Path("tests/golden")


class Trouble(Exception):
  """What keeps the two from being compared, for the user to read."""


def git(*arguments):
  done = subprocess.run(["git", *arguments], capture_output=True, text=True)
  if done.returncode != 0:
    raise Trouble(f"git {' '.join(map(str, arguments))}: {done.stderr.strip()}")
  return done.stdout.strip()


@contextlib.contextmanager
def checkout(commit, folder):
  """A tree with the commit's files; the working tree for None."""
  if commit is None:
    yield Path(git("rev-parse", "--show-toplevel"))
    return
  git("rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}")
  git("worktree", "add", "--quiet", "--detach", str(folder), commit)
  try:
    yield folder
  finally:
    git("worktree", "remove", "--force", str(folder))


def command(name):
  """A program of the virtual environment that runs this, or of the PATH."""
  own = Path(sys.executable).parent / name
  found = str(own) if own.exists() else shutil.which(name)
  if found is None:
    raise Trouble(f"{name} is needed: run this with .venv/bin/python, or install it")
  return found


def build(tree, build_folder, label):
  """Builds the lowering tool of a tree and gives its path."""
  if not (tree / WINDOWS / "main.c").exists():
    raise Trouble(f"{label} has no {WINDOWS}/main.c: it is from before the lowering tool")
  options = ["-DTPU_BUILD_SHIM=OFF", "-DTPU_BUILD_TESTS=ON", "--log-level=WARNING"]
  options += [f"-DCMAKE_MAKE_PROGRAM={command('ninja')}"]
  if shutil.which("ccache"):
    options += ["-DCMAKE_C_COMPILER_LAUNCHER=ccache"]
  cmake = command("cmake")
  for step in (
    [cmake, "-G", "Ninja", "-S", tree, "-B", build_folder, *options],
    [cmake, "--build", build_folder, "--target", "tpu_golden"],
  ):
    done = subprocess.run(step, capture_output=True, text=True)
    if done.returncode != 0:
      raise Trouble(f"{label} does not build:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
  return next(build_folder.rglob("tpu_golden"))


def lower(tool, windows, label):
  """{"file case": programs} for all windows."""
  done = subprocess.run([tool, "print", windows], capture_output=True, text=True)
  if done.returncode != 0:
    raise Trouble(f"the lowering tool of {label} failed: {done.stderr.strip()}")
  return split_cases(done.stdout)


def split_cases(text):
  """The tool's output by case."""
  parts = re.split(r"(?m)^== (.*)\n", text)[1:]
  return dict(zip(parts[::2], parts[1::2], strict=True))


def compare(old, new, labels, only="", names=False):
  """Lines that say what differs, and the number of cases that do."""
  lines, changed = [], 0
  for case in sorted(old.keys() | new.keys()):
    before, after = old.get(case, ""), new.get(case, "")
    if only not in case or before == after:
      continue
    changed += 1
    lines.append(f"== {case}")
    if not names:
      lines += difflib.unified_diff(
        before.splitlines(), after.splitlines(), labels[0], labels[1], lineterm=""
      )
  return lines, changed


def main(arguments=None):
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("old", metavar="A", help="a commit")
  parser.add_argument("new", metavar="B", nargs="?", help="a commit; the working tree without it")
  parser.add_argument("--only", default="", metavar="TEXT", help="cases with this in their name")
  parser.add_argument("--names", action="store_true", help="no diffs")
  options = parser.parse_args(arguments)
  labels = (options.old, options.new or "working tree")
  try:
    with tempfile.TemporaryDirectory(prefix="program_diff_") as folder:
      folder = Path(folder)
      with (
        checkout(options.old, folder / "old") as old_tree,
        checkout(options.new, folder / "new") as new_tree,
      ):
        trees = ((old_tree, "build_old", labels[0]), (new_tree, "build_new", labels[1]))
        tools = [build(tree, folder / name, label) for tree, name, label in trees]
        windows = new_tree / WINDOWS
        old, new = (lower(t, windows, label) for t, label in zip(tools, labels, strict=True))
  except Trouble as trouble:
    print(trouble, file=sys.stderr)
    return 2
  lines, changed = compare(old, new, labels, options.only, options.names)
  with contextlib.suppress(BrokenPipeError):
    print("\n".join([*lines, f"{changed} of {len(new)} cases differ"]))
  return 1 if changed else 0


if __name__ == "__main__":
  os.environ.setdefault("GIT_OPTIONAL_LOCKS", "0")
  sys.exit(main())
