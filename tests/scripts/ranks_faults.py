"""What happens when ranks disagree, come late or die: an exception, never a hang or an abort."""

import json
import os
import signal
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

CASES = {}
LATE = 3.0  # seconds after which a rank is given up


def case(function):
  CASES[function.__name__] = function
  return function


def ones(*sizes, dtype=torch.float32):
  return torch.ones(*sizes, dtype=dtype, device="tpu")


def both(rank, first, second):
  """One rank makes one call, the other one another; then both the same, which must work."""
  result = (first if rank == 0 else second)()
  return None if result is None else result.cpu()


def reduced(x, op=dist.ReduceOp.SUM):
  dist.all_reduce(x, op)
  return x


def told(x, root):
  dist.broadcast(x, root)
  return x


def gathered(x):
  out = ones(2 * x.numel())
  dist.all_gather_single(out, x)
  return out


@case
def sizes(rank):
  both(rank, lambda: reduced(ones(4)), lambda: reduced(ones(6)))


@case
def large_sizes(rank):
  both(rank, lambda: reduced(ones(40_000)), lambda: reduced(ones(60_000)))


@case
def dtypes(rank):
  both(rank, lambda: reduced(ones(400)), lambda: reduced(ones(400, dtype=torch.float64)))


@case
def same_width(rank):
  both(rank, lambda: reduced(ones(400)), lambda: reduced(ones(400, dtype=torch.int32)))


@case
def operations(rank):
  both(rank, lambda: reduced(ones(9)), lambda: reduced(ones(9), dist.ReduceOp.MAX))


@case
def kinds(rank):
  both(rank, lambda: reduced(ones(9)), lambda: told(ones(9), 0))


@case
def roots(rank):
  both(rank, lambda: told(ones(9), 0), lambda: told(ones(9), 1))
  torch.tpu.synchronize()  # each is its own root, and reads nothing of the other


@case
def kinds_of_other_traffic(rank):
  both(rank, lambda: gathered(ones(5000)), lambda: reduced(ones(5000)))


@case
def splits(rank):
  out = ones(4)
  dist.all_to_all_single(out, ones(4), [2, 2], [1, 3] if rank == 0 else [3, 1])
  out.cpu()


@case
def messages(rank):
  if rank == 0:
    dist.send(ones(500), 1)
    raise RuntimeError("the ranks disagree: the receiver is told")
  x = ones(600)
  dist.recv(x, 0)
  x.cpu()


def run(rank, size, store, names):
  os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
  torch.tpu.set_device(rank)
  dist.init_process_group(
    init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=20)
  )
  results = {}
  for name in names:
    begin = time.monotonic()
    try:
      CASES[name](rank)
      results[name] = "nothing happened"
    except RuntimeError as error:
      results[name] = f"{type(error).__name__}: {error}"
    assert time.monotonic() - begin < 15, name
    check = ones(2) * (rank + 1)  # the group goes on
    dist.all_reduce(check)
    assert check.tolist() == [3, 3], name
  dist.destroy_process_group()
  print(json.dumps(results), flush=True)


def stop_others(rank, size, store, how):
  """Rank 1 dies, leaves or stalls in the middle; rank 0 says what it saw."""
  os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_WORLD_SIZE": str(size)}
  dist.init_process_group(
    init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=LATE)
  )
  x = ones(1000)
  for step in range(50):
    if rank == 1 and step == 20:
      if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
      elif how == "exit":
        sys.exit(0)
      elif how == "raise":
        raise ValueError("this rank has a bug")
      else:
        time.sleep(2 * LATE)
        break
    try:
      dist.all_reduce(x)
      x = x / 2
      if step % 7 == 0:
        x.sum().item()
    except RuntimeError as error:
      print(json.dumps([type(error).__name__, str(error)]), flush=True)
      break
  if rank == 0:
    try:
      x.sum().item()
    except RuntimeError as error:
      print(json.dumps([type(error).__name__, str(error)]), flush=True)
    begin = time.monotonic()
    dist.destroy_process_group()
    print(json.dumps(["ended", time.monotonic() - begin]), flush=True)


if __name__ == "__main__":
  rank, size, store, what = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]
  if what and what[0] in ("kill", "exit", "raise", "stall"):
    stop_others(rank, size, store, what[0])
  else:
    run(rank, size, store, what or list(CASES))
