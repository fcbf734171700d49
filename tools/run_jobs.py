"""Runs targets of the Makefile one after another, says how long each took, and sums up in a table.

Usage: run_jobs.py MAKE TARGET...

Targets that are joined by commas run side by side; what they print is shown when they end. Stops
behind the first target that fails, with its exit status.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor


def heading(text):
  width = min(shutil.get_terminal_size((100, 24)).columns, 100)
  print(f"\n== {text} ".ljust(width, "="), flush=True)


def run(make, target, output=None):
  """(seconds, exit status) of one target; `output` is a file, None for our own."""
  begin = time.monotonic()
  command = [make, "--no-print-directory", target]
  done = subprocess.run(command, stdout=output, stderr=output and subprocess.STDOUT)
  return time.monotonic() - begin, done.returncode


def run_together(make, targets):
  """The results of several targets, by name."""
  files = [tempfile.TemporaryFile() for _ in targets]
  with ThreadPoolExecutor(len(targets)) as pool:
    results = list(pool.map(lambda target, file: run(make, target, file), targets, files))
  for target, file in zip(targets, files):
    heading(target)
    file.seek(0)
    print(file.read().decode(errors="replace"), end="", flush=True)
  return dict(zip(targets, results))


def print_table(targets, results, seconds):
  heading("jobs")
  for target in targets:
    took, status = results.get(target, (None, None))
    state = "not run" if status is None else "ok" if status == 0 else f"FAILED ({status})"
    print(f"{target:<12}{'' if took is None else f'{took:.1f} s':>10}  {state}")
  print(f"{'all':<12}{seconds:>8.1f} s")


def main(make, *groups):
  begin = time.monotonic()
  groups = [group.split(",") for group in groups]
  results = {}
  for group in groups:
    if len(group) > 1:
      results |= run_together(make, group)
    else:
      heading(group[0])
      results[group[0]] = run(make, group[0])
    if any(status != 0 for _, status in results.values()):
      break
  print_table(sum(groups, []), results, time.monotonic() - begin)
  return next((status for _, status in results.values() if status != 0), 0)


if __name__ == "__main__":
  if len(sys.argv) < 3:
    sys.exit(__doc__)
  sys.exit(main(*sys.argv[1:]))
