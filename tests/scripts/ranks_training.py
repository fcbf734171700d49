"""What stands above collectives: DDP, FSDP, DTensor, tensor and pipeline parallelism, checkpoints.
Each check runs the same program on the CPU with Gloo and on the device, and compares numbers."""

import copy
import functools
import sys
import tempfile
import warnings

import torch
import torch.distributed as dist
from rank_main import main
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel as DDP

warnings.filterwarnings("ignore")
CHECKS = {}


def check(function):
  CHECKS[function.__name__] = function
  return function


def mlp(device, seed=0, width=16):
  torch.manual_seed(seed)
  model = nn.Sequential(
    nn.Linear(8, width), nn.ReLU(), nn.Linear(width, width), nn.Linear(width, 4)
  )
  return model.to(device)


class Branches(nn.Module):
  """Uses one of two branches, so that some parameters have no gradient."""

  def __init__(self):
    super().__init__()
    self.a, self.b, self.end = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)

  def forward(self, x):
    return self.end(self.a(x) if x.sum() > 0 else self.b(x))


def batch(r, step, device, rows=6):
  generator = torch.Generator().manual_seed(100 * step + r.rank)
  return torch.randn(rows, 8, generator=generator).to(device)


def train(r, model, device, steps=3, lr=0.05, optimizer=torch.optim.SGD, before=None):
  opt = optimizer(model.parameters(), lr=lr)
  losses = []
  for step in range(steps):
    x = batch(r, step, device)
    loss = model(x).square().mean()
    opt.zero_grad()
    loss.backward()
    if before is not None:
      before(model)
    opt.step()
    losses.append(loss.detach())
  return losses


def full(model):
  return [
    (p.full_tensor() if hasattr(p, "full_tensor") else p).detach() for p in model.parameters()
  ]


def ddp(r, **options):
  def run(device, model=None, hook=None, **more):
    model = DDP((model or mlp)(device), **options)
    if hook is not None:
      hook(model)
    return train(r, model, device, **more), full(model)

  return run


@check
def ddp_plain(r):
  r.same(ddp(r), exact=False)
  r.same(ddp(r, bucket_cap_mb=0.0005, gradient_as_bucket_view=True), exact=False)
  r.same(ddp(r, static_graph=True), exact=False)
  r.same(lambda d: ddp(r)(d, optimizer=torch.optim.AdamW), exact=False)


@check
def ddp_device_ids(r):
  model = DDP(mlp("tpu"), device_ids=[r.rank], output_device=r.rank)
  r.equal(DDP(mlp("cpu"))(batch(r, 0, "cpu")).detach(), model(batch(r, 0, "cpu")).detach(), False)


@check
def ddp_unused_parameters(r):
  def branches(device):
    torch.manual_seed(1)
    return Branches().to(device)

  r.same(lambda d: ddp(r, find_unused_parameters=True)(d, branches), exact=False)


@check
def ddp_no_sync_and_join(r):
  def run(device):
    model = DDP(mlp(device))
    with model.no_sync():
      model(batch(r, 0, device)).sum().backward()
    model(batch(r, 1, device)).sum().backward()
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with model.join():
      for step in range(2 + r.rank):
        model(batch(r, step, device)).sum().backward()
    return grads

  r.same(run, exact=False)


@check
def ddp_hooks(r):
  from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

  for hook in (default_hooks.allreduce_hook, default_hooks.fp16_compress_hook):
    r.same(lambda d, h=hook: ddp(r)(d, hook=lambda m: m.register_comm_hook(None, h)), exact=False)
  r.same(
    lambda d: ddp(r)(
      d,
      hook=lambda m: m.register_comm_hook(
        powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, min_compression_rate=0.5),
        powerSGD_hook.powerSGD_hook,
      ),
      steps=4,
    ),
    exact=False,
  )


@check
def ddp_bf16_hook(r):
  from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

  model = DDP(mlp("tpu"))
  model.register_comm_hook(None, default_hooks.bf16_compress_hook)
  train(r, model, "tpu")
  plain = DDP(mlp("cpu"))
  train(r, plain, "cpu")
  for p, q in zip(plain.parameters(), model.parameters(), strict=True):
    torch.testing.assert_close(q.detach().cpu(), p.detach(), rtol=0.02, atol=0.02)


@check
def ddp_mixed_precision(r):
  def run(device):
    model = DDP(mlp(device))
    scaler, opt = torch.amp.GradScaler(device), torch.optim.SGD(model.parameters(), 0.05)
    losses = []
    for step in range(3):
      with torch.autocast(device, dtype=torch.bfloat16):
        loss = model(batch(r, step, device)).float().square().mean()
      opt.zero_grad()
      scaler.scale(loss).backward()
      scaler.step(opt)
      scaler.update()
      losses.append(loss.detach())
    return losses

  a, b = run("cpu"), run("tpu")
  torch.testing.assert_close(torch.stack(b).cpu(), torch.stack(a), rtol=0.02, atol=0.02)


@check
def zero_optimizer(r):
  from torch.distributed.optim import ZeroRedundancyOptimizer

  def run(device):
    model = DDP(mlp(device))
    opt = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
    for step in range(3):
      opt.zero_grad()
      model(batch(r, step, device)).square().mean().backward()
      opt.step()
    return full(model)

  r.same(run, exact=False)


@check
def sync_batch_norm(r):
  torch.manual_seed(0)
  x = torch.randn(r.size, 4, 3, 5, 5)
  plain = nn.BatchNorm2d(3)
  model = nn.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(plain)).to("tpu")
  whole = x.flatten(0, 1).requires_grad_()
  expected = plain(whole)
  (expected * torch.arange(5.0)).sum().backward()
  mine = x[r.rank].tpu().requires_grad_()
  actual = model(mine)
  (actual * torch.arange(5.0).tpu()).sum().backward()
  rows = slice(4 * r.rank, 4 * r.rank + 4)
  r.equal(expected[rows].detach(), actual.detach(), False)
  torch.testing.assert_close(mine.grad.cpu(), whole.grad[rows], rtol=1e-4, atol=1e-4)
  r.equal(plain.running_mean, model.running_mean, False)
  r.equal(plain.running_var, model.running_var, False)


def fsdp2(r, device, clip=False, **options):
  from torch.distributed.fsdp import fully_shard

  mesh = init_device_mesh(device, (r.size,))
  model = mlp(device)
  for layer in (model[0], model[2]):
    fully_shard(layer, mesh=mesh, **options)
  fully_shard(model, mesh=mesh, **options)
  before = (lambda m: nn.utils.clip_grad_norm_(m.parameters(), 0.1)) if clip else None
  return train(r, model, device, optimizer=torch.optim.AdamW, before=before), full(model)


@check
def fsdp2_plain(r):
  r.same(lambda d: fsdp2(r, d), exact=False)
  r.same(lambda d: fsdp2(r, d, reshard_after_forward=False), exact=False)
  r.same(lambda d: fsdp2(r, d, clip=True), exact=False)


@check
def fsdp2_mixed_precision(r):
  from torch.distributed.fsdp import MixedPrecisionPolicy

  policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
  a, b = (fsdp2(r, d, mp_policy=policy) for d in r.devices)
  for x, y in zip(a[1], b[1], strict=True):
    torch.testing.assert_close(y.cpu(), x, rtol=0.05, atol=0.02)


@check
def fsdp2_meta_init_and_checkpointing(r):
  from torch.distributed.fsdp import fully_shard
  from torch.utils.checkpoint import checkpoint

  def run(device):
    mesh = init_device_mesh(device, (r.size,))
    with torch.device("meta"):
      model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4))
    for layer in model:
      fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device=device)
    for k, p in enumerate(model.parameters()):
      with torch.no_grad():
        p.copy_(torch.full_like(p, 0.1 * (k + 1)))
    loss = checkpoint(model, batch(r, 0, device), use_reentrant=False).square().mean()
    loss.backward()
    return loss.detach(), [p.grad.full_tensor() for p in model.parameters()]

  r.same(run, exact=False)


@check
def fsdp1(r):
  from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

  def run(device):
    options = {"device_id": torch.device(f"tpu:{r.rank}" if device == "tpu" else "cpu")}
    model = FSDP(mlp(device), use_orig_params=True, **options)
    losses = train(r, model, device)
    with FSDP.summon_full_params(model):
      return losses, [p.detach().clone() for p in model.parameters()]

  r.same(run, exact=False)


@check
def dtensor(r):
  from torch.distributed.tensor import Replicate, Shard, distribute_tensor

  def run(device):
    mesh = init_device_mesh(device, (r.size,))
    torch.manual_seed(3)
    x, w = torch.randn(6, 5, device="cpu"), torch.randn(5, 7)
    results = []
    for a in (Shard(0), Shard(1), Replicate()):
      for b in (Shard(0), Shard(1), Replicate()):
        left = distribute_tensor(x.to(device), mesh, [a]).requires_grad_()
        right = distribute_tensor(w.to(device), mesh, [b])
        out = left @ right
        out.sum().backward()
        results += [out.full_tensor().detach(), left.grad.full_tensor()]
    s = distribute_tensor(x.to(device), mesh, [Shard(0)])
    for ops in (
      lambda t: t.softmax(-1),
      lambda t: t.sum(0),
      lambda t: t.mean(),
      torch.relu,
      lambda t: t.t(),
      lambda t: nn.functional.layer_norm(t, (5,)),
      lambda t: t + 1,
      lambda t: torch.cat([t, t], 1),
      lambda t: t.max(1).values,
    ):
      results.append(ops(s).full_tensor())
    results.append(s.redistribute(mesh, [Shard(1)]).full_tensor())
    uneven = distribute_tensor(torch.arange(5.0).to(device), mesh, [Shard(0)])
    results += [uneven.full_tensor(), (uneven * 2).redistribute(mesh, [Replicate()]).to_local()]
    repr(s)
    copy.deepcopy(s)
    return results

  r.same(run, exact=False)


@check
def dtensor_random(r):
  from torch.distributed.tensor import Shard, ones, rand

  mesh = init_device_mesh("tpu", (r.size,))
  torch.manual_seed(7)
  whole = rand(4, 6, device_mesh=mesh, placements=[Shard(0)]).full_tensor()
  assert whole.unique().numel() == 24, whole  # other numbers on each rank
  drops = nn.functional.dropout(ones(8, 8, device_mesh=mesh, placements=[Shard(0)]), 0.5)
  gathered = [torch.zeros(8, 8, device="tpu") for _ in range(r.size)]
  dist.all_gather(gathered, drops.full_tensor())
  assert all(torch.equal(gathered[0], g) for g in gathered)


@check
def tensor_parallel(r):
  from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
  )

  def run(device):
    mesh = init_device_mesh(device, (r.size,))
    model = mlp(device)
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    parallelize_module(model, mesh, plan)
    same = type("Same", (), {"rank": 0})
    plain = functools.partial(torch.optim.SGD, foreach=False)  # DTensors and tensors
    losses = train(same, model, device, optimizer=plain)
    head = parallelize_module(
      nn.Sequential(nn.Linear(8, 6 * r.size)).to(device),
      mesh,
      {"0": ColwiseParallel(use_local_output=False)},
    )
    for p in head.parameters():
      nn.init.constant_(p, 0.05)
    with loss_parallel():
      loss = nn.functional.cross_entropy(
        head(batch(same, 0, device)), torch.arange(6, device=device)
      )
      loss.backward()
    return losses, full(model), loss.full_tensor().detach()

  r.same(run, exact=False)


@check
def fsdp_and_tensor_parallel(r):
  if r.size != 4:
    return
  from torch.distributed.fsdp import fully_shard
  from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
  )

  def run(device):
    mesh = init_device_mesh(device, (2, 2), mesh_dim_names=("dp", "tp"))
    model = mlp(device)
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(model, mesh=mesh["dp"])
    same = type("Same", (), {"rank": r.rank // 2})
    return train(same, model, device), full(model)

  r.same(run, exact=False)


@check
def pipelines(r):
  from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
  )

  def run(device, schedule):
    stages = 2 if schedule is ScheduleInterleaved1F1B else 1
    count = stages * r.size
    torch.manual_seed(0)
    parts = [nn.Linear(8, 8).to(device) for _ in range(count)]
    mine = [k for k in range(count) if k % r.size == r.rank]
    made = [PipelineStage(parts[k], k, count, torch.device(device)) for k in mine]
    loss = lambda out, target: (out - target).square().mean()  # noqa: E731
    plan = schedule(made if stages > 1 else made[0], 4, loss_fn=loss)
    same = type("Same", (), {"rank": 0})
    x, losses = batch(same, 0, device, 8), []
    target = torch.ones(8, 8, device=device)
    if r.rank == 0 and r.rank == r.size - 1:
      plan.step(x, target=target, losses=losses)
    elif r.rank == 0:
      plan.step(x)
    elif r.rank == r.size - 1:
      plan.step(target=target, losses=losses)
    else:
      plan.step()
    return [p.grad.detach() for k in mine for p in parts[k].parameters()], [
      x.detach() for x in losses
    ]

  for schedule in (ScheduleGPipe, Schedule1F1B, ScheduleInterleaved1F1B):
    r.same(lambda d, s=schedule: run(d, s), exact=False)


@check
def checkpoints(r):
  import torch.distributed.checkpoint as dcp
  from torch.distributed.tensor import Replicate, Shard, distribute_tensor

  folder = [tempfile.mkdtemp() if r.rank == 0 else None]
  dist.broadcast_object_list(folder, 0, device=torch.device("cpu"))
  mesh = init_device_mesh("tpu", (r.size,))
  whole = torch.arange(30.0).reshape(6, 5)
  state = {"w": distribute_tensor(whole.tpu(), mesh, [Shard(0)]), "step": 3, "b": whole.tpu()}
  dcp.save(state, checkpoint_id=folder[0])
  fresh = {
    "w": distribute_tensor(torch.zeros(6, 5).tpu(), mesh, [Shard(1)]),  # another layout
    "step": 0,
    "b": torch.zeros(6, 5, device="tpu"),
  }
  dcp.load(fresh, checkpoint_id=folder[0])
  assert fresh["step"] == 3 and torch.equal(fresh["b"].cpu(), whole)
  assert torch.equal(fresh["w"].full_tensor().cpu(), whole)
  dcp.async_save(state, checkpoint_id=folder[0] + "/later").result()
  plain = {"w": distribute_tensor(torch.zeros(6, 5).tpu(), mesh, [Replicate()])}
  dcp.load(plain, checkpoint_id=folder[0] + "/later")
  assert torch.equal(plain["w"].to_local().cpu(), whole)


@check
def attention_on_dtensors(r):
  from torch.distributed.tensor import Shard, distribute_tensor

  mesh = init_device_mesh("tpu", (r.size,))
  torch.manual_seed(0)
  q, k, v = (torch.randn(2, 4, 6, 8).requires_grad_() for _ in range(3))
  expected = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
  expected.sum().backward()
  parts = [
    distribute_tensor(t.detach().tpu(), mesh, [Shard(1)]).requires_grad_() for t in (q, k, v)
  ]
  actual = nn.functional.scaled_dot_product_attention(*parts, is_causal=True)
  actual.sum().backward()
  torch.testing.assert_close(actual.full_tensor().cpu(), expected, rtol=1e-4, atol=1e-5)
  torch.testing.assert_close(parts[0].grad.full_tensor().cpu(), q.grad, rtol=1e-4, atol=1e-5)


@check
def functional_collectives_compiled(r):
  from torch.distributed._functional_collectives import all_reduce

  def step(x):
    return all_reduce(x * 2, "sum", dist.group.WORLD) + 1

  x = torch.arange(4.0) + r.rank
  compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
  r.equal(step(x), compiled(x.tpu()))


if __name__ == "__main__":
  sys.exit(main(CHECKS))
