"""Runs targets of the Makefile one after another, says how long each took, and sums up in a table.

Usage: run_jobs.py MAKE TARGET...

Ends at the first target that fails, with its exit status.
"""

import shutil
import subprocess
import sys
import time


def heading(text):
  width = min(shutil.get_terminal_size((100, 24)).columns, 100)
  print(f"\n== {text} ".ljust(width, "="), flush=True)


def run(make, target):
  """(seconds, exit status) of one target; what it prints goes where ours goes."""
  heading(target)
  begin = time.monotonic()
  done = subprocess.run([make, "--no-print-directory", target])
  return time.monotonic() - begin, done.returncode


def main(make, *targets):
  results = {}
  for target in targets:
    results[target] = run(make, target)
    if results[target][1] != 0:
      break
  heading("jobs")
  for target in targets:
    seconds, status = results.get(target, (None, None))
    state = "not run" if status is None else "ok" if status == 0 else f"FAILED ({status})"
    print(f"{target:<12}{'' if seconds is None else f'{seconds:.1f} s':>10}  {state}")
  print(f"{'all':<12}{sum(seconds for seconds, _ in results.values()):>8.1f} s")
  return max(abs(status) for _, status in results.values())


if __name__ == "__main__":
  if len(sys.argv) < 3:
    sys.exit(__doc__)
  sys.exit(main(*sys.argv[1:]))
