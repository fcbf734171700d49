"""Several ranks in prepared child processes, each of which runs many checks.

A check is a function in tests/scripts/ranks_*.py. All ranks run the same checks in the same order,
on the device and, as the reference, on the CPU with Gloo, in one process group.
"""

import json
import tempfile
import threading
from pathlib import Path

from support import TESTS, child


def run_processes(script, *args, size=2, timeout=500, env=None, expected=0):
  """Runs tests/scripts/<script>.py RANK SIZE STORE args as `size` ranks. Gives the completed
  processes; with `expected`, all must have ended with that exit code and said something."""
  path = TESTS / "scripts" / f"{script}.py"
  done = [None] * size
  with tempfile.TemporaryDirectory() as folder:

    def run(rank):
      done[rank] = child(
        path, rank, size, Path(folder) / "store", *args, env=env, check=False, timeout=timeout
      )

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
  for rank, process in enumerate(done):
    assert process is not None, f"rank {rank} did not end in {timeout} s"
    if expected is not None and (process.returncode != expected or not process.stdout):
      raise AssertionError(f"rank {rank} ended with {process.returncode}\n{process.stderr}")
  return done


def run_ranks(script, *names, **options):
  """Runs checks of tests/scripts/<script>.py, all without names. Gives a dict name -> list of what
  went wrong by rank ("" for nothing). Options as for run_processes."""
  results = {}
  for process in run_processes(script, *names, **options):
    for name, problem in json.loads(process.stdout.splitlines()[-1]).items():
      results.setdefault(name, []).append(problem)
  return results
