"""Two processes over Gloo: collectives and training steps on the device and on the CPU.

    torchrun --nproc_per_node=2 benchmarks/distributed.py

Each line is the best of four rounds, in wall time, and CPU seconds of one rank as a ratio.
"""

import os
import resource
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
ROUNDS = 4


def cpu_seconds():
  usage = resource.getrusage(resource.RUSAGE_SELF)
  return usage.ru_utime + usage.ru_stime


def measure(function, count, device):
  """(wall seconds, CPU seconds) of one call."""
  finish = torch.tpu.synchronize if device == "tpu" else lambda: None
  for _ in range(max(3, count // 4)):
    function()
  finish()
  rounds = []
  for _ in range(ROUNDS):
    dist.all_reduce(torch.ones(1))  # begin together
    used, begin = cpu_seconds(), time.perf_counter()
    for _ in range(count):
      function()
    finish()
    rounds.append(((time.perf_counter() - begin) / count, (cpu_seconds() - used) / count))
  return min(wall for wall, _ in rounds), min(used for _, used in rounds)


def reducing(elements):
  def make(device):
    x = torch.ones(elements, device=device)

    def reduce():
      work = dist.all_reduce(x, async_op=True)
      work.wait(timedelta(seconds=60))  # until it is there

    return reduce

  return make


def step_of(model, optimizer, *batch):
  def step():
    optimizer.zero_grad()
    loss = model(*batch)
    (loss if loss.dim() == 0 else loss.square().mean()).backward()
    optimizer.step()

  return step


def ddp_mlp(device):
  torch.manual_seed(0)
  layers = nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
  model = DDP(nn.Sequential(*layers).to(device))
  return step_of(model, torch.optim.SGD(model.parameters(), 0.01), torch.randn(64, 256).to(device))


def gpt(sharded):
  def make(device):
    import train_gpt
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    model = train_gpt.GPT(train_gpt.GPTConfig(dropout=0.0)).to(device)
    if sharded:
      mesh = dist.device_mesh.init_device_mesh(device, (dist.get_world_size(),))
      for block in model.blocks:
        fully_shard(block, mesh=mesh)
      fully_shard(model, mesh=mesh)
    else:
      model = DDP(model)
    ids = torch.randint(256, (4, 128)).to(device)
    return step_of(model, torch.optim.AdamW(model.parameters(), 1e-3), ids, ids)

  return make


LINES = (
  ("all_reduce 4 B", reducing(1), 200),
  ("all_reduce 4 MB", reducing(1 << 20), 20),
  ("DDP MLP step", ddp_mlp, 20),
  ("DDP GPT step", gpt(sharded=False), 4),
  ("FSDP2 GPT step", gpt(sharded=True), 4),
)


def main():
  torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
  dist.init_process_group("cpu:gloo,tpu:tpu_dist")
  for name, make, count in LINES:
    cpu, ours = (measure(make(device), count, device) for device in ("cpu", "tpu"))
    if dist.get_rank() == 0:
      print(
        f"{name:20}{cpu[0] * 1e6:10.0f} us CPU + gloo{ours[0] * 1e6:10.0f} us here"
        f"   wall {ours[0] / cpu[0]:5.2f}   CPU seconds {ours[1] / cpu[1]:5.2f}",
        flush=True,
      )
  dist.destroy_process_group()


if __name__ == "__main__":
  main()
