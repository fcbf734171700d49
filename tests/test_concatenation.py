"""Concatenations of many tensors: programs whose compile does not grow with the square of the
parts, and that no consumer takes apart."""

import pytest
import torch

from support import DEVICE, has_modes

PARTS = 600  # more than one statement joins
MOST_PARTS = 256  # of one statement
FUSIBLE_PARTS = 16

# Name -> what is computed of many tensors of 2 x 3.
CASES = {
  "cat": lambda ts: torch.cat(ts),
  "cat, sum": lambda ts: torch.cat(ts).sum(0),
  "cat of columns": lambda ts: torch.cat(ts, 1),
  "cat of results": lambda ts: torch.cat([t.exp() for t in ts[:300]]) + 1,
  "cat of dtypes": lambda ts: torch.cat([t.double() if i % 2 else t for i, t in enumerate(ts)]),
  "cat of uneven parts": lambda ts: torch.cat([t[: i % 3] for i, t in enumerate(ts)]).sum(0),
  "stack": lambda ts: torch.stack(ts).mean(1),
  "stack of numbers": lambda ts: torch.stack([t.sum() for t in ts[:300]]) * 2,
  "hstack": lambda ts: torch.hstack([t.flatten() for t in ts]).cumsum(0),
}


def parts(device):
  numbers = torch.arange(6 * PARTS).view(PARTS, 2, 3) % 11 / 8
  return [number.clone().to(device) for number in numbers]


@pytest.mark.parametrize("name", CASES)
def test_many_tensors_give_the_cpus_result(name, device):
  torch.testing.assert_close(CASES[name](parts(device)).cpu(), CASES[name](parts("cpu")))


def test_gradients_of_many_parts(device):
  def gradients(device):
    ts = [t.requires_grad_() for t in parts(device)[:60]]
    for _ in range(2):  # the second time, gradients are added to
      (torch.cat(ts).square() * torch.stack(ts).view(-1, 3)).sum().backward()
    return torch.stack([t.grad for t in ts])

  torch.testing.assert_close(gradients(device).cpu(), gradients("cpu"))


def joins(text):
  """Of each concatenation: the number of its parts, and whether consumers cannot take it in."""
  found = []
  for line in text.splitlines():
    if "stablehlo.concatenate" not in line:
      continue
    name, operands = line.split(" = ", 1)[0].strip(), line.split(" <{", 1)[0]
    users = [user for user in text.splitlines() if f"({name})" in user or f"{name}," in user]
    found.append((operands.count("%") - 1, all("optimization_barrier" in user for user in users)))
  return found


@pytest.mark.skipif(not has_modes(), reason="reads the device's programs")
@pytest.mark.parametrize("name", ["cat", "cat, sum", "stack", "stack of numbers"])
def test_no_statement_joins_more_than_compile_well(name, tmp_path):
  """2,000 parts took 3.5 CPU seconds to compile, 4,000 took 15; now 0.8 and 1.9."""
  from torch_tpu import _C

  inputs = parts(DEVICE)
  torch.tpu.synchronize()
  _C.env_override("TORCH_TPU_DUMP_DIR", str(tmp_path))
  _C.env_override("TORCH_TPU_CACHE", "0")
  torch.tpu.clear_cache()
  result = CASES[name](inputs)
  torch.tpu.synchronize()
  _C.env_override("TORCH_TPU_CACHE", None)
  _C.env_override("TORCH_TPU_DUMP_DIR", None)
  del result
  texts = [path.read_text() for path in tmp_path.glob("*.mlir")]
  found = [join for text in texts for join in joins(text)]
  assert sum(count for count, _ in found) >= 300
  assert all(count <= MOST_PARTS for count, _ in found)
  assert all(alone for count, alone in found if count > FUSIBLE_PARTS)
