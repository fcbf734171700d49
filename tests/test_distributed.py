"""torch.distributed on the device: equal to Gloo on CPU tensors, with the ranks in child processes
that run many checks each (tests/scripts/ranks_*.py)."""

import pytest

from ranks import run_ranks
from support import has_modes

pytestmark = pytest.mark.skipif(not has_modes(), reason="about the tpu device")


def expect_all(results):
  problems = {name: "\n".join(found) for name, found in results.items() if any(found)}
  assert results and not problems, "\n".join(f"{name}: {text}" for name, text in problems.items())


@pytest.mark.parametrize("size", [2, 3])
def test_collectives(size):
  expect_all(run_ranks("ranks_collectives", size=size))
