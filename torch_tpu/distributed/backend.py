"""Registers the backend with torch.distributed."""

import functools
import inspect

from torch_tpu import _C
from torch_tpu._after_import import after_import

from . import sharding

# The first one is what a process group without a name gets.
NAMES = ("tpu_dist", "tpu")


def install(torch):
  """Registers the backend under both names; called once. Costs no import: torch has imported
  torch.distributed.distributed_c10d by itself. Does nothing in a PyTorch without it."""
  if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    return
  from torch.distributed import distributed_c10d as c10d

  for name in NAMES:
    c10d.Backend.register_backend(name, _create, devices=["tpu"])
  # A group of fake ranks has no devices of its own: it takes all tensors.
  after_import(
    "torch.testing._internal.distributed.fake_pg",
    lambda module: c10d.Backend.backend_capability["fake"].append("tpu"),
  )
  c10d._new_process_group_helper = _naming_the_backend(c10d, c10d._new_process_group_helper)
  ddp = torch.nn.parallel.DistributedDataParallel
  ddp._check_comm_hook = _allowing_bfloat16(ddp._check_comm_hook)
  after_import("torch.distributed.tensor", sharding.install)


def _create(store, rank, size, timeout):
  from torch.distributed import ProcessGroupGloo

  gloo = ProcessGroupGloo(store, rank, size, timeout=timeout)
  return _C.make_process_group(gloo, rank, size, int(timeout.total_seconds() * 1000))


def _naming_the_backend(c10d, make):
  """A group without a name gets the accelerator's backend, but PyTorch then calls it Gloo, and DDP
  looks for that one. Here it has the name that it would have been given."""

  @functools.wraps(make)
  def new_process_group(size, rank, ranks, backend, *args, **kwargs):
    if str(backend) == c10d.Backend.UNDEFINED:
      import torch

      if torch._C._get_accelerator().type == "tpu":
        backend = c10d.Backend(NAMES[0])
    return make(size, rank, ranks, backend, *args, **kwargs)

  return new_process_group


def _allowing_bfloat16(check):
  """DDP refuses the hooks that reduce bfloat16 where it finds no NCCL. On this device Gloo does."""

  @functools.wraps(check)
  def check_comm_hook(model, hook):
    if model.device_type == "tpu" and getattr(hook, "__name__", "").startswith("bf16_compress"):
      signature = inspect.signature(hook)

      def renamed(state, bucket):
        """The same signature under a name that DDP has nothing against."""

      renamed.__signature__ = signature
      hook = renamed
    return check(model, hook)

  return check_comm_hook
