"""What the scripts of tests/ranks.py share: a rank, its groups, and the loop over its checks."""

import json
import os
import sys
import traceback
from datetime import timedelta

import torch
import torch.distributed as dist


class Rank:
  """A rank of a group with both backends. `devices`: the CPU, which is the reference, and ours."""

  devices = ("cpu", "tpu")

  def __init__(self, rank, size, store):
    self.rank, self.size = rank, size
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
    torch.tpu.set_device(rank)
    dist.init_process_group(
      "cpu:gloo,tpu:tpu_dist",
      init_method=f"file://{store}",
      rank=rank,
      world_size=size,
      timeout=timedelta(seconds=120),
    )

  def same(self, function, exact=True):
    """function(device) gives tensors; they must be equal on both devices."""
    results = [function(device) for device in self.devices]
    self.equal(*results, exact=exact)

  def equal(self, expected, actual, exact=True):
    if isinstance(expected, torch.Tensor):
      assert actual.device.type == "tpu", actual.device
      options = {"rtol": 0, "atol": 0} if exact else {}
      torch.testing.assert_close(actual.cpu(), expected, equal_nan=True, **options)
    elif isinstance(expected, (list, tuple)):
      assert len(expected) == len(actual)
      for a, b in zip(expected, actual, strict=True):
        self.equal(a, b, exact)
    else:
      assert expected == actual, (expected, actual)


def main(checks):
  rank, size, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
  names, results = sys.argv[4:] or list(checks), {}
  here = Rank(rank, size, store)
  for name in names:
    try:
      torch.manual_seed(0)
      checks[name](here)
      results[name] = ""
    except Exception:
      results[name] = traceback.format_exc()
      print(results[name], file=sys.stderr)
    if results[name] and "RANKS_GO_ON" not in os.environ:
      break  # the ranks may be at different places now
  if not any(results.values()):
    dist.destroy_process_group()
  print(json.dumps(results), flush=True)
