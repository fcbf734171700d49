"""Several ranks in prepared child processes, each of which runs many checks.

A check is a function in tests/scripts/ranks_*.py. All ranks run the same checks in the same order,
on the device and, as the reference, on the CPU with Gloo, in one process group.
"""

import json
import tempfile
import threading
from pathlib import Path

from support import TESTS, child


def run_ranks(script, *names, size=2, timeout=240, env=None):
  """Runs checks of tests/scripts/<script>.py, all without names, as `size` ranks. Gives a dict name
  -> list of what went wrong by rank ("" for nothing)."""
  path = TESTS / "scripts" / f"{script}.py"
  with tempfile.TemporaryDirectory() as folder:
    done = [None] * size

    def run(rank):
      done[rank] = child(
        path, rank, size, Path(folder) / "store", *names, env=env, check=False, timeout=timeout
      )

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
      thread.start()
    for thread in threads:
      thread.join()
  results = {}
  for rank, process in enumerate(done):
    assert process is not None, f"rank {rank} did not end in {timeout} s"
    lines = process.stdout.splitlines()
    if process.returncode != 0 or not lines:
      raise AssertionError(f"rank {rank} ended with {process.returncode}\n{process.stderr}")
    for name, problem in json.loads(lines[-1]).items():
      results.setdefault(name, []).append(problem)
  return results
