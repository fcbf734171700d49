"""Collectives: every kind, dtype and reduction, equal to Gloo's on CPU tensors."""

import random
import sys

import torch
import torch.distributed as dist
from rank_main import main

FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.uint8, torch.int32, torch.int64]
OURS = [torch.int16, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.bool]
OP = dist.ReduceOp
CHECKS = {}


def check(function):
  CHECKS[function.__name__] = function
  return function


def numbers(rank, dtype, *sizes, device="cpu", start=0):
  """Small numbers, so that sums are exact; other ones on each rank."""
  count = torch.Size(sizes).numel()
  values = (torch.arange(count) * 7 + 3 * rank + start) % 11
  return values.reshape(sizes).to(dtype).to(device)


@check
def reductions(r):
  for dtype in FLOATS + INTEGERS:
    for sizes in ((3,), (40, 5), (0,), ()):
      ops = [OP.SUM, OP.MIN, OP.MAX] + [OP.PRODUCT] * (dtype != torch.bfloat16)
      if dtype in INTEGERS:
        ops += [OP.BAND, OP.BOR, OP.BXOR]
      for op in ops:

        def reduce(device, op=op, dtype=dtype, sizes=sizes):
          x = numbers(r.rank, dtype, *sizes, device=device)
          dist.all_reduce(x, op)
          root = numbers(r.rank, dtype, *sizes, device=device)
          dist.reduce(root, 1, op)
          return x, root if r.rank == 1 else x

        r.same(reduce)


@check
def reductions_that_gloo_has_not(r):
  for dtype in FLOATS + INTEGERS + OURS:
    all_ranks = [numbers(k, dtype, 300) for k in range(r.size)]
    wide = torch.stack([t.to(torch.float64) for t in all_ranks])
    cases = {OP.MIN: wide.amin(0), OP.MAX: wide.amax(0), OP.SUM: wide.sum(0)}
    if dtype != torch.bool:
      average = wide.sum(0) / r.size
      cases[OP.AVG] = average if dtype.is_floating_point else average.trunc()
    else:
      cases[OP.SUM] = wide.amax(0)
    for count in (3, 300):
      for op, expected in cases.items():
        x = all_ranks[r.rank][:count].tpu()
        dist.all_reduce(x, op)
        assert torch.equal(x.cpu(), expected[:count].to(dtype)), (dtype, op, x, expected)
  x = numbers(r.rank, torch.float32, 9).tpu()
  dist.all_reduce(x, torch.distributed._make_nccl_premul_sum(0.5))
  assert torch.equal(x.cpu(), sum(numbers(k, torch.float32, 9) for k in range(r.size)) * 0.5)
  z = torch.complex(numbers(r.rank, torch.float32, 50), torch.ones(50))
  y = z.tpu()
  dist.all_reduce(z)
  dist.all_reduce(y)
  assert torch.equal(y.cpu(), z)
  for bad, op in ((z, OP.MAX), (torch.ones(2), OP.BAND)):
    try:
      dist.all_reduce(bad.tpu(), op)
      raise AssertionError("not refused")
    except (RuntimeError, ValueError) as error:
      assert "RedOpType" in str(error) or "ReduceOp" in str(error), error


def moves(r, device, dtype, sizes, root, order):
  def mine(start=0, *shape):
    return numbers(r.rank, dtype, *(shape or sizes), device=device, start=start)

  def empty(*shape):
    return torch.zeros(shape or sizes, dtype=dtype, device=device)

  results = []
  for kind in order:
    if kind == "broadcast":
      out = mine(1)
      dist.broadcast(out, root)
    elif kind == "all_gather":
      out = [empty() for _ in range(r.size)]
      dist.all_gather(out, mine(2))
    elif kind == "all_gather_single":
      out = empty(r.size * sizes[0], *sizes[1:])
      dist.all_gather_single(out, mine(3))
    elif kind == "gather":
      out = [empty() for _ in range(r.size)] if r.rank == root else []
      dist.gather(mine(4), out or None, root)
    elif kind == "scatter":
      out = empty()
      given = [mine(k) for k in range(r.size)] if r.rank == root else None
      dist.scatter(out, given, root)
    elif kind == "all_to_all_single":
      out = empty(r.size * 2, *sizes)
      dist.all_to_all_single(out, mine(5, r.size * 2, *sizes))
    elif kind == "uneven":
      # Rank a sends a + b rows to rank b.
      out = empty(sum(a + r.rank for a in range(r.size)), 3)
      sent = [r.rank + b for b in range(r.size)]
      dist.all_to_all_single(out, mine(6, sum(sent), 3), [a + r.rank for a in range(r.size)], sent)
    elif kind == "view":
      whole = torch.zeros(4, 6, dtype=dtype, device=device)
      dist.broadcast(whole[1:3, :], root) if r.rank == root else dist.broadcast(whole[1:3], root)
      part = whole.t()[2:4]
      part += mine(7, 2, 4)
      out = whole
    results.append(out)
  return results


KINDS = (
  *("broadcast", "all_gather", "all_gather_single", "gather", "scatter", "all_to_all_single"),
  *("uneven", "view"),
)


@check
def moves_of_all_dtypes(r):
  for dtype in FLOATS + INTEGERS:
    for sizes in ((2,), (50, 4)):
      kinds = [k for k in KINDS if dtype != torch.bool or k != "view"]
      r.same(lambda d, a=dtype, s=sizes, k=kinds: moves(r, d, a, s, r.size - 1, k))
  for dtype in OURS:  # Gloo refuses them: as bytes they are the same
    bytes_of = {d: [] for d in r.devices}
    for device in r.devices:
      kind = dtype if device == "tpu" else torch.uint8
      for sizes in ((2,), (50, 4)):
        kinds = [k for k in KINDS if k not in ("view", "uneven")]
        bytes_of[device].append(moves(r, device, kind, sizes, 0, kinds))
    for a, b in zip(
      torch.utils._pytree.tree_leaves(bytes_of["cpu"]),
      torch.utils._pytree.tree_leaves(bytes_of["tpu"]),
      strict=True,
    ):
      assert torch.equal(b.cpu().double(), a.to(dtype).double()), dtype


@check
def lists(r):
  def run(device):
    ins = [numbers(r.rank, torch.float32, 4, device=device, start=k) for k in range(r.size)]
    scattered = torch.zeros(4, device=device)
    dist.reduce_scatter(scattered, ins)
    single = torch.zeros(4, 3, device=device)
    dist.reduce_scatter_single(single, torch.cat(ins * 3).reshape(-1, 3))
    many = [torch.full((k + 1,), float(r.rank), device=device) for k in range(3)]
    dist.all_reduce_coalesced(many)
    return scattered, single, many

  r.same(run)
  outs = [torch.zeros(a + r.rank + 1, device="tpu") for a in range(r.size)]
  dist.all_to_all(
    outs, [torch.full((r.rank + b + 1,), 10.0 * r.rank + b).tpu() for b in range(r.size)]
  )
  assert [t.tolist() for t in outs] == [
    [10.0 * a + r.rank] * (a + r.rank + 1) for a in range(r.size)
  ]
  uneven = [torch.zeros(k + 2, device="tpu") for k in range(r.size)]
  dist.all_gather(uneven, torch.full((r.rank + 2,), 5.0 + r.rank).tpu())
  assert [t.tolist() for t in uneven] == [[5.0 + k] * (k + 2) for k in range(r.size)]


@check
def coalesced(r):
  outs = [torch.zeros(3 * r.size, device="tpu") for _ in range(3)]
  with dist._coalescing_manager():
    for k in range(3):
      dist.all_gather_single(outs[k], torch.full((3,), float(k + 10 * r.rank)).tpu())
  for k in range(3):
    assert outs[k].tolist() == [k + 10.0 * a for a in range(r.size) for _ in range(3)]
  sums = [torch.zeros(2, device="tpu") for _ in range(2)]
  with dist._coalescing_manager(async_ops=True) as manager:
    for k in range(2):
      dist.reduce_scatter_single(sums[k], torch.arange(2.0 * r.size).tpu() + k)
  manager.wait()
  assert [t.tolist() for t in sums] == [
    [(2.0 * r.rank + i + k) * r.size for i in range(2)] for k in range(2)
  ]


@check
def objects(r):
  everyone = [None] * r.size
  dist.all_gather_object(everyone, {"rank": r.rank, "text": "x" * (10 + 300 * r.rank)})
  assert [o["rank"] for o in everyone] == list(range(r.size))
  told = [f"from {r.rank}", r.rank] if r.rank == 1 else [None, None]
  dist.broadcast_object_list(told, 1, device=torch.device("tpu"))
  assert told == ["from 1", 1]
  got = [None]
  dist.scatter_object_list(got, ["a", "b", "c", "d"][: r.size] if r.rank == 0 else None, 0)
  assert got == ["abcd"[r.rank]]
  kept = [None] * r.size if r.rank == 0 else None
  dist.gather_object(r.rank, kept, 0)
  assert r.rank or kept == list(range(r.size))


@check
def messages(r):
  left, right = (r.rank - 1) % r.size, (r.rank + 1) % r.size
  for count in (1, 20, 100_000):
    mine = torch.full((count,), float(r.rank), device="tpu")
    got = torch.zeros(count, device="tpu")
    # Crossing sends, each before the receive that the other one waits for.
    sent = dist.isend(mine, right)
    received = dist.irecv(got, left)
    mine += 100  # what is sent was taken before
    for work in (received, sent):
      work.wait()
    assert got.unique().tolist() == [left]
    ops = [
      dist.P2POp(dist.irecv, torch.zeros(count, device="tpu"), left),
      dist.P2POp(dist.isend, mine, right),
    ]
    for work in dist.batch_isend_irecv(ops):
      work.wait()
    assert ops[0].tensor.unique().tolist() == [left + 100]
  if r.rank == 0:
    for _ in range(1, r.size):
      got = torch.zeros(2, device="tpu")
      source = dist.recv(got)
      assert got.tolist() == [source, 7]
  else:
    dist.send(torch.tensor([r.rank, 7.0]).tpu(), 0)
  dist.barrier()


@check
def works_and_futures(r):
  x = torch.full((70_000,), 1.0 + r.rank, device="tpu")
  work = dist.all_reduce(x, async_op=True)
  y = torch.ones(3, device="tpu") * 2  # meanwhile
  future = work.get_future().then(lambda f: f.value()[0] / r.size)
  z = x * 2
  assert work.wait() is not False
  assert torch.equal(future.wait().cpu() * r.size, x.cpu()) and torch.equal(z.cpu(), 2 * x.cpu())
  assert y.tolist() == [2, 2, 2]
  work.wait(__import__("datetime").timedelta(seconds=10))
  assert work.is_completed() and work.is_success()
  group = dist.new_group(list(range(r.size)))  # its own threads
  other = torch.ones(2, device="tpu")
  dist.all_reduce(other, group=group)
  assert other.tolist() == [r.size] * 2
  dist.destroy_process_group(group)


@check
def in_place_on_any_view(r):
  def run(device):
    base = torch.arange(48.0, device=device).reshape(6, 8) + r.rank
    parts = [base[1:3].clone(), base.t().contiguous().t()]
    dist.all_reduce(base[2:4])  # rows of a larger storage
    shared = base.view(-1)
    dist.all_reduce(parts[1]) if device == "tpu" else parts[1].copy_(_reduced(parts[1]))
    dist.all_reduce(parts[0])
    return base, shared, parts

  def _reduced(x):
    y = x.contiguous()
    dist.all_reduce(y)
    return y

  r.same(run)
  x = torch.ones(3, device="tpu", requires_grad=True)
  dist.broadcast(x.detach(), 0)
  (x * 2).sum().backward()
  assert x.grad.tolist() == [2, 2, 2]


@check
def autograd_functions(r):
  from torch.distributed._functional_collectives import all_gather_tensor, all_reduce
  from torch.distributed.nn.functional import all_gather as nn_all_gather

  def run(device):
    x = numbers(r.rank, torch.float32, 6, device=device).requires_grad_()
    loss = sum((k + 1) * t.square().sum() for k, t in enumerate(nn_all_gather(x)))
    loss.backward()
    whole = all_gather_tensor(x.detach(), 0, dist.group.WORLD)
    return x.grad, all_reduce(whole * 2, "sum", dist.group.WORLD) + 1

  r.same(run)


MODES = ("DEFER_NEVER_AND_LAUNCH_BLOCKING", "DEFER_NEVER", "DEFER_AND_FUSE")


@check
def random_sequences(r):
  """Ranks read other tensors than each other, at other times: their windows differ."""
  same, own = random.Random(5), random.Random(50 + r.rank)
  pool = {d: [torch.ones(40, 2, device=d) * k for k in range(4)] for d in r.devices}
  for step in range(60):
    if step % 20 == 0:
      torch.tpu.set_eager_mode(MODES[2 - step // 20])
    kind, k, op = same.choice(KINDS[:6]), same.randrange(4), same.choice([OP.SUM, OP.MAX, OP.MIN])
    root, size = same.randrange(r.size), same.choice([2, 40])
    for device in r.devices:
      moved = moves(r, device, torch.float32, (size, 2), root, [kind])[0]
      reduced = pool[device][k][:size] * 0.5 + r.rank
      work = dist.all_reduce(reduced, op, async_op=same is None)
      pool[device][k] = pool[device][k].clone()
      pool[device][k][:size] += reduced
      first = moved[0] if isinstance(moved, list) and moved else moved
      if isinstance(first, torch.Tensor):
        pool[device][(k + 1) % 4][:2] += first.reshape(-1, 2)[:2].float()
      del work
    if own.random() < 0.3:
      pool["tpu"][own.randrange(4)].sum().item()
    if own.random() < 0.2:
      torch.tpu.synchronize()
  r.equal(pool["cpu"], pool["tpu"])


if __name__ == "__main__":
  sys.exit(main(CHECKS))
