"""Tensors sent to other processes through torch.multiprocessing: copies, through host memory."""

import pytest
import torch
from torch import nn

from support import child_json, has_modes

pytestmark = pytest.mark.skipif(not has_modes(), reason="the CPU shares memory instead")

# Sends one of each kind to a spawned process, which adds one to it and sends it back.
ROUND_TRIP = """
import json
import torch
from torch import nn


def add_one(inbox, outbox):
  while (item := inbox.get()) is not None:
    if isinstance(item, torch.UntypedStorage):
      outbox.put((item.device.type, list(item.cpu())))
      del item
      continue
    facts = (item.device.type, type(item).__name__, item.requires_grad, item.stride())
    outbox.put((facts, item.detach() + 1))
    del item


def main():
  context = torch.multiprocessing.get_context("spawn")
  inbox, outbox = context.Queue(), context.Queue()
  process = context.Process(target=add_one, args=(inbox, outbox))
  process.start()
  x = torch.arange(6.0, device="tpu").reshape(2, 3)
  found = {}
  items = {"plain": x, "transposed": x.t(), "row": x[1], "half": x.bfloat16(), "flags": x > 2,
           "empty": x[:0], "scalar": x[1, 2], "parameter": nn.Parameter(x.clone()),
           "leaf": x.clone().requires_grad_()}
  for name, item in items.items():
    inbox.put(item)
    facts, back = outbox.get()
    found[name] = [*facts, back.device.type, torch.equal(back, item.detach() + 1)]
  inbox.put(torch.arange(8, dtype=torch.uint8, device="tpu").untyped_storage())
  found["storage"] = outbox.get()
  inbox.put(None)
  process.join()
  print(json.dumps([found, process.exitcode]))


if __name__ == "__main__":
  main()
"""


def test_queue_sends_copies_to_a_spawned_process(tmp_path):
  script = tmp_path / "round_trip.py"  # spawn imports the main module from its file
  script.write_text(ROUND_TRIP)
  found, exitcode = child_json(script)
  assert exitcode == 0
  assert found.pop("storage") == ["tpu", list(range(8))]
  kinds = {"parameter": ["Parameter", True], "leaf": ["Tensor", True]}
  strides = {"transposed": [1, 3], "row": [1], "scalar": []}
  for name, facts in found.items():
    kind = kinds.get(name, ["Tensor", False])
    assert facts == ["tpu", *kind, strides.get(name, [3, 1]), "tpu", True], name


def test_what_autograd_made_is_not_sent(device):
  from multiprocessing.reduction import ForkingPickler

  made = torch.ones(2, device=device, requires_grad=True) * 2
  with pytest.raises(RuntimeError, match="not a leaf.*detach"):
    ForkingPickler.dumps(made)


@pytest.mark.parametrize("share", ["tensor", "module", "storage"])
def test_sharing_memory_is_refused(device, share):
  tensor = torch.ones(3, device=device)
  owner = {
    "tensor": tensor,
    "module": nn.Linear(2, 2).to(device),
    "storage": tensor.untyped_storage(),
  }[share]
  with pytest.raises(RuntimeError, match="share_memory_.*'tpu'.*queue"):
    owner.share_memory() if share == "module" else owner.share_memory_()
  assert torch.ones(3).share_memory_().is_shared()
