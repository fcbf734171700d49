"""torch.distributed on the device: equal to Gloo on CPU tensors, with the ranks in child processes
that run many checks each (tests/scripts/ranks_*.py)."""

import json

import pytest

from ranks import run_processes, run_ranks
from support import TEST_ALL, child_json, has_modes

pytestmark = pytest.mark.skipif(not has_modes(), reason="about the tpu device")


def expect_all(results):
  problems = {name: "\n".join(found) for name, found in results.items() if any(found)}
  assert results and not problems, "\n".join(f"{name}: {text}" for name, text in problems.items())


# make test-all has three processes: beside another worker on two cores, one run in five ended with
# a collective that failed (random_sequences; cause not found yet).
@pytest.mark.parametrize("size", [2, 3] if TEST_ALL else [2])
def test_collectives(size):
  expect_all(run_ranks("ranks_collectives", size=size))


def test_what_stands_above():
  """DDP, FSDP, DTensor, tensor and pipeline parallelism, checkpoints, SyncBatchNorm."""
  expect_all(run_ranks("ranks_training"))


def test_disagreement_is_the_same_error_on_all_ranks():
  first, second = (
    json.loads(process.stdout.splitlines()[-1]) for process in run_processes("ranks_faults")
  )
  assert len(first) == 10
  for name in first:
    assert "disagree" in first[name], (name, first[name])
    if name != "messages":
      assert first[name] == second[name], name
      assert first[name].startswith("DistBackendError"), first[name]
    if name not in ("messages", "splits"):
      assert "rank 0 called" in first[name] and "rank 1 called" in first[name], first[name]
  assert "rank 0 sent of Float[500]" in second["messages"], second["messages"]


@pytest.mark.parametrize("how", ["kill", "exit", "raise", "stall"])
def test_the_others_are_told_of_a_rank_that_is_gone(how):
  rank = run_processes("ranks_faults", how, expected=None)[0]
  assert rank.returncode == 0, rank.stderr
  *errors, ended = map(json.loads, rank.stdout.splitlines())
  assert errors and all(error[0] == "DistBackendError" for error in errors)
  assert all("all_reduce(SUM) of Float[1000]" in error[1] for error in errors), errors
  assert ended[0] == "ended"


FORMS = """
import json, warnings
import torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
warnings.simplefilter("ignore")
seen = {}
forms = [{}, {"device_id": torch.device("tpu:0")}]
names = "tpu_dist", "TPU_DIST", "tpu", "cpu:gloo,tpu:tpu_dist", "tpu:tpu_dist", "fake", "tpu:fake"
for form in forms + [{"backend": name} for name in names]:
  fake = "fake" in form.get("backend", "")
  store, size = (FakeStore(), 8) if fake else (dist.HashStore(), 1)
  dist.init_process_group(store=store, rank=0, world_size=size, **form)
  x, objects = torch.ones(3, device="tpu"), [None]
  dist.all_reduce(x)
  if not fake:
    dist.barrier()
    dist.all_gather_object(objects, 5)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 2).tpu())
    model(x).sum().backward()
  seen[str(form)] = [x.tolist(), objects, dist.get_world_size()]
  dist.destroy_process_group()
assert dist.is_backend_available("tpu_dist")
print(json.dumps(seen))
"""


def test_every_form_of_a_group():
  """Of one process, also without a name; DDP works in each. Fake ranks take tpu tensors."""
  seen = child_json(FORMS)
  assert len(seen) == 9
  for form, found in seen.items():
    fake = "fake" in form
    assert found == [[1, 1, 1], [None] if fake else [5], 8 if fake else 1], form
