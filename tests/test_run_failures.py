"""A run that fails for want of memory: every tensor then holds what program order says.

The failure is put at every operation of a training step. Beside it runs the same step on the CPU,
where the operation that fails and those that depend on it are left out; afterwards all parameters,
statistics and optimizer states are equal, and stay so when the loop goes on.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from support import DEVICE, TEST_ALL, eager_mode, has_modes, synchronize

pytestmark = pytest.mark.skipif(not has_modes(), reason="needs a device that refuses 4 TiB")

HIDDEN_WRITES = {"native_batch_norm": (3, 4)}  # not in the schema
OVERWRITES = ("zero_", "fill_", "copy_")


def storage_of(tensor):
  return tensor.untyped_storage()._cdata


def written(func, args):
  """The tensors that a call writes to."""
  found = [
    args[i]
    for i, argument in enumerate(func._schema.arguments)
    if argument.alias_info is not None and argument.alias_info.is_write and i < len(args)
  ]
  found += [args[i] for i in HIDDEN_WRITES.get(func._schema.name.split("::")[1], ())]
  return [t for t in found if isinstance(t, torch.Tensor)]


def is_view(func):
  infos = [r.alias_info for r in func._schema.returns]
  return func._schema.name == "aten::_unsafe_view" or any(
    info is not None and not info.is_write for info in infos
  )


def can_fail(name, tensor):
  if name.endswith("_like") or not tensor.is_floating_point():
    return False  # made from the sizes alone; for what cannot hold a number of the huge tensor
  return not (name.endswith("_") and tensor.dim() == 0)  # Adam's step counts stay on the host


def tensors(value):
  return [v for v in torch.utils._pytree.tree_leaves(value) if isinstance(v, torch.Tensor)]


class Counting(TorchDispatchMode):
  """Counts calls, and operations that can fail; says which of those is number `target`."""

  def __init__(self, target):
    super().__init__()
    self.target, self.count, self.name = target, 0, None
    self.calls, self.newest = 0, None

  def __torch_dispatch__(self, func, types, args=(), kwargs=None):
    kwargs = kwargs or {}
    hit = False
    inputs = tensors((args, kwargs))
    if not is_view(func) and inputs:
      self.calls, self.newest = self.calls + 1, func._schema.name
    if not is_view(func) and inputs and can_fail(func._schema.name, inputs[0]):
      hit = self.count == self.target
      if hit:
        self.name = func._schema.name
      self.count += 1
    return self.call(func, args, kwargs, hit)


class Failing(Counting):
  """Gives operation `target` an operand that no device has memory for."""

  def __init__(self, target, wait):
    super().__init__(target)
    self.wait, self.kept = wait, []

  def call(self, func, args, kwargs, hit):
    if not hit:
      result = func(*args, **kwargs)
    else:
      huge = torch.ones(1, device=DEVICE).expand(1 << 40).clone()
      self.kept.append(huge)  # else a program need not make it
      targets = [storage_of(t) for t in written(func, args)]
      leaves, spec = torch.utils._pytree.tree_flatten((args, kwargs))
      for i, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor) and storage_of(leaf) not in targets:
          leaves[i] = leaf + huge[0].to(leaf.dtype)
          break
      else:  # nothing but what it writes to: that write fails then
        return args[0].add_(huge[0].to(args[0].dtype))
      args, kwargs = torch.utils._pytree.tree_unflatten(leaves, spec)
      result = func(*args, **kwargs)
    if self.wait:
      synchronize()
    return result


class Aborted(Exception):
  pass


class Reference(Counting):
  """What program order says: leaves out operation `target` and what depends on it. Stops at call
  number `stop`, if that is given."""

  def __init__(self, target, stop):
    super().__init__(target)
    self.stop, self.bad, self.kept = stop, set(), []

  def call(self, func, args, kwargs, hit):
    if self.calls == self.stop:
      raise Aborted
    inputs = tensors((args, kwargs))
    self.kept.append(inputs)  # so that no storage is another's successor
    targets = written(func, args)
    bad = hit or any(storage_of(t) in self.bad for t in inputs)
    if bad and targets and not hit and func._schema.name.split("::")[1] in OVERWRITES:
      if not any(storage_of(t) in self.bad for t in inputs[1:]):
        bad = False
        self.bad.discard(storage_of(targets[0]))
    if not bad or is_view(func):
      return func(*args, **kwargs)
    self.bad.update(storage_of(t) for t in targets)
    if targets and func._schema.name.endswith("_"):
      return args[0]
    copies = [t.clone() if t.numel() < 1 << 20 else t for t in targets]
    result = func(*args, **kwargs)
    for t, copy in zip(targets, copies):
      t.copy_(copy)
    self.bad.update(storage_of(t) for t in tensors(result))
    return result


class Net(torch.nn.Module):
  def __init__(self):
    super().__init__()
    self.conv = torch.nn.Conv2d(2, 3, 3, bias=False)  # its gradient would be noise
    self.norm = torch.nn.BatchNorm2d(3)
    self.out = torch.nn.Linear(3 * 4 * 4, 5)

  def forward(self, x):
    return self.out(torch.relu(self.norm(self.conv(x))).flatten(1))


def make(optimizer, device):
  torch.manual_seed(3)
  net = Net().to(device)
  if optimizer == "sgd":
    return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, foreach=False)
  return net, torch.optim.Adam(net.parameters(), lr=0.01, foreach=False)


def batch(index, device):
  generator = torch.Generator().manual_seed(index)
  x = torch.randn(4, 2, 6, 6, generator=generator)
  y = torch.randint(5, (4,), generator=generator)
  return x.to(device), y.to(device)


def step(net, optimizer, x, y):
  optimizer.zero_grad()
  loss = torch.nn.functional.cross_entropy(net(x), y)
  loss.backward()
  optimizer.step()
  return loss


def state(net, optimizer):
  """Everything that a loop takes along, by name."""
  result = dict(net.state_dict())
  for index, values in optimizer.state_dict()["state"].items():
    result.update({f"{index}.{key}": v for key, v in values.items() if torch.is_tensor(v)})
  return {key: value.detach().cpu().clone() for key, value in result.items()}


def compare(device_pair, cpu_pair, where):
  left, right = state(*device_pair), state(*cpu_pair)
  assert left.keys() == right.keys()
  for key, value in left.items():
    if not torch.allclose(value, right[key], rtol=2e-4, atol=2e-5):
      raise AssertionError(f"{where}, {key}: {value} and {right[key]}")


def operation_count(optimizer):
  net, opt = make(optimizer, "cpu")
  step(net, opt, *batch(0, "cpu"))
  with Counting(-1) as counting:
    counting.call = lambda func, args, kwargs, hit: func(*args, **kwargs)
    step(net, opt, *batch(1, "cpu"))
  return counting.count


def fail_at(target, optimizer, mode):
  """One step fails at operation `target`; the loop goes on."""
  wait = mode == "strict"  # then the operation itself raises, and the step ends there
  on_device, on_cpu = make(optimizer, DEVICE), make(optimizer, "cpu")
  for pair, device in ((on_device, DEVICE), (on_cpu, "cpu")):
    step(*pair, *batch(0, device))
  synchronize()
  loss, data, stop = None, batch(1, DEVICE), None
  with pytest.raises(torch.OutOfMemoryError, match="4398046511104 bytes"):
    with Failing(target, wait) as failing:
      try:
        loss = step(*on_device, *data)
      except torch.OutOfMemoryError:
        stop = failing.calls  # this call read what failed, or is what failed
        raise
    synchronize()
  synchronize()  # told once
  reference = Reference(target, stop)
  try:
    with reference:
      reference_loss = step(*on_cpu, *batch(1, "cpu"))
  except Aborted:
    assert failing.newest == reference.newest
  else:
    failed = storage_of(reference_loss) in reference.bad
    if failed:
      with pytest.raises(torch.OutOfMemoryError):
        loss.item()
    else:
      torch.testing.assert_close(loss.cpu(), reference_loss, rtol=1e-4, atol=1e-5)
  assert (failing.name, failing.calls) == (reference.name, reference.calls)
  where = f"{optimizer}, {mode}: operation {target} ({failing.name})"
  compare(on_device, on_cpu, where)
  failing.kept.clear()
  for pair, device in ((on_device, DEVICE), (on_cpu, "cpu")):
    step(*pair, *batch(2, device))
  compare(on_device, on_cpu, where + ", one step later")


STRIDE = 1 if TEST_ALL else 8


@pytest.mark.parametrize("mode", ["fused", "strict"])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_failure_at_every_operation_of_a_training_step(optimizer, mode):
  count = operation_count(optimizer)
  assert count > 25
  for target in range(0 if TEST_ALL else hash_of(optimizer, mode), count, STRIDE):
    with eager_mode(mode):
      fail_at(target, optimizer, mode)


def hash_of(*words):
  """Where a partial sweep begins: another place for each."""
  return sum(map(ord, "".join(words))) % STRIDE
