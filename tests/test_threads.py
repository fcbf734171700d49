"""Several Python threads: each fills windows of its own, and the order of records is the order of
the program where their tensors meet (docs/decisions/016-recorders-and-threads.md)."""

import contextlib
import queue
import random
import threading

import pytest
import torch

from support import child, compile_stats, counting, eager_mode, synchronize
from torch_tpu import _C

TIER = "compiled"
pytestmark = pytest.mark.skipif(not torch.tpu.is_available(), reason="needs the device")


def run_threads(*works):
  """Runs all at once; raises the first error of any."""
  errors = []

  def guard(work):
    try:
      work()
    except BaseException as error:
      errors.append(error)

  threads = [threading.Thread(target=guard, args=(work,)) for work in works]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  if errors:
    raise errors[0]


class Meet(torch.nn.Module):
  """Where all threads meet in the middle of a model, so that their records surely mix."""

  barrier = None

  def forward(self, x):
    if Meet.barrier is not None:
      Meet.barrier.wait(timeout=60)
    return x


@contextlib.contextmanager
def meeting(count):
  Meet.barrier = threading.Barrier(count)
  yield
  Meet.barrier = None


def model(width=16):
  return torch.nn.Sequential(
    torch.nn.Linear(width, width),
    Meet(),
    torch.nn.LayerNorm(width),
    Meet(),
    torch.nn.GELU(),
    torch.nn.Linear(width, 4),
  )


# --- inference and training side by side ---


@pytest.mark.parametrize("tier", ["compiled", "interpreted"])
def test_inference_on_one_model(device, tier):
  """What one thread has run compiles nothing in four, and gives the same bits."""
  _C.env_override("TORCH_TPU_TIERS", tier)
  _C.env_override("TORCH_TPU_INTERPRETATIONS", "3")
  net = model().to(device).eval()
  inputs = [torch.randn(8, 16) for _ in range(4)]
  answers = [[] for _ in inputs]

  def serve(k, times):
    with torch.inference_mode():
      for _ in range(times):
        answers[k].append(net(inputs[k].to(device)).cpu())

  try:
    for k in range(4):
      serve(k, 2)
    answers = [[answer[-1]] if k > 1 else [] for k, answer in enumerate(answers)]
    with counting(compile_stats) as compiled, counting(_C.engine_stats) as engine, meeting(4):
      run_threads(*(lambda k=k: serve(k, 25) for k in range(4)))
  finally:
    _C.env_override("TORCH_TPU_TIERS", TIER)
    _C.env_override("TORCH_TPU_INTERPRETATIONS", None)
  assert compiled.get("requests", 0) == 0, compiled
  assert engine["flushes"] == engine["window_hits"] == 100
  assert not engine.keys() & {"window_plans", "interpretations"}
  for answer in answers:
    assert len(answer) >= 25 and all(torch.equal(answer[0], other) for other in answer)


class Trainer:
  def __init__(self, seed, device):
    torch.manual_seed(seed)
    self.net = model().to(device)
    self.optimizer = torch.optim.Adam(self.net.parameters(), lr=1e-2)
    self.numbers = torch.Generator().manual_seed(seed)
    self.device = device

  def run(self, steps):
    losses = []
    for _ in range(steps):
      x = torch.randn(8, 16, generator=self.numbers).to(self.device)
      y = torch.randint(0, 4, (8,), generator=self.numbers).to(self.device)
      loss = torch.nn.functional.cross_entropy(self.net(x), y)
      self.optimizer.zero_grad()
      loss.backward()
      self.optimizer.step()
      losses.append(loss.item())
    return losses


def test_training_on_models_of_their_own(device):
  """Two trainings at once, backward by autograd's one thread for both: the programs and the losses
  of each are those that it has alone."""
  with counting(_C.engine_stats) as alone:
    expected = [Trainer(seed, device).run(12) for seed in (1, 2)]
  losses, trainers = [None, None], [Trainer(seed, device) for seed in (1, 2)]

  def train(k):
    losses[k] = trainers[k].run(12)

  with counting(_C.engine_stats) as together, counting(compile_stats) as compiled, meeting(2):
    run_threads(lambda: train(0), lambda: train(1))
  assert losses == expected
  assert compiled.get("requests", 0) == 0, compiled
  assert together["flushes"] <= alone["flushes"], (together, alone)


def test_a_training_step_is_recorded_in_one_window(device):
  """Although autograd's thread records its middle."""
  net, x = model().to(device), torch.randn(8, 16, device=device)
  for _ in range(3):
    synchronize()
    before = _C.engine_stats()["flushes"]
    net.zero_grad()
    net(x).sum().backward()
    total = sum(p.grad.sum() for p in net.parameters())
    assert _C.engine_stats()["flushes"] == before
    total.item()
    assert _C.engine_stats()["flushes"] == before + 1


def test_data_parallel(device):
  """Threads that live for one forward pass each, on the same parameters; one backward for all."""
  torch.manual_seed(0)
  net, x = model(), torch.randn(12, 16)
  net(x).square().sum().backward()
  expected = [p.grad for p in net.parameters()]
  ours = model().to(device)
  ours.load_state_dict(net.state_dict())
  for _ in range(3):
    ours.zero_grad()
    parts = list(x.to(device).chunk(3))

    def forward(k):
      parts[k] = ours(parts[k])  # noqa: B023

    run_threads(*(lambda k=k: forward(k) for k in range(3)))
    torch.cat(parts).square().sum().backward()
    for mine, theirs in zip(ours.parameters(), expected, strict=True):
      torch.testing.assert_close(mine.grad.cpu(), theirs, rtol=1e-4, atol=1e-5)


def test_backward_passes_into_the_same_parameters(device):
  """Whole numbers, so that the order of the sums does not matter."""
  weight = torch.arange(16.0, device=device).requires_grad_()

  def accumulate(k):
    for n in range(10):
      (weight * (k + 1) + weight * n).sum().backward()
      if n % 4 == k:
        synchronize()

  run_threads(*(lambda k=k: accumulate(k) for k in range(3)))
  assert weight.grad.tolist() == [10 * (1 + 2 + 3) + 3 * 45] * 16


# --- tensors that threads share or hand over ---


def change(pair, random):
  """One change of a (base, view) pair, the same on any device; sometimes of another base."""
  base, view = pair
  number = random.randint(1, 5)
  kind = random.randrange(8)
  if kind == 0:
    view.add_(number)
  elif kind == 1:
    base.mul_(2).sub_(number)
  elif kind == 2:
    view.copy_(base.flatten()[: view.numel()].reshape(view.shape) + number)
  elif kind == 3:
    base.fill_(number)
  elif kind == 4:
    view[number % view.shape[0]] = base.sum() % 7
  elif kind == 5:
    base = base.flip(0) - number
  elif kind == 6:
    torch.sub(base, number, out=base)
  else:
    base = base.clone()
  if base is not pair[0] or random.random() < 0.2:
    start = random.randrange(2)
    view = base[start:, ::2] if random.random() < 0.5 else base.t()[start:]
  return base.remainder_(101), view


def start_pair(k, device):
  base = (torch.arange(24.0).reshape(4, 6) + k).to(device)
  return base, base[1:, ::2]


@pytest.mark.parametrize("mode", ["fused", "strict"])
def test_shared_tensors_under_a_lock(device, mode):
  """Threads take turns to change the same tensors in place: each sees what all did before."""
  ours = [start_pair(k, device) for k in range(3)]
  theirs = [start_pair(k, "cpu") for k in range(3)]
  lock = threading.Lock()

  def work(thread):
    numbers = random.Random(thread)
    for turn in range(12):
      k, seed = numbers.randrange(3), numbers.random()
      with lock:
        ours[k] = change(ours[k], random.Random(seed))
        theirs[k] = change(theirs[k], random.Random(seed))
        if turn % 5 == thread:
          assert torch.equal(ours[k][1].cpu(), theirs[k][1])

  with eager_mode(mode):
    run_threads(*(lambda t=t: work(t) for t in range(4)))
    for mine, other in zip(ours, theirs, strict=True):
      for a, b in zip(mine, other, strict=True):
        assert torch.equal(a.cpu(), b)


def test_tensors_handed_over_by_queues(device):
  """A pipeline: each stage changes what the stage before recorded, while that goes on recording."""
  stages, items = 3, 10
  queues = [queue.Queue() for _ in range(stages + 1)]
  kept = []

  def stage(number):
    for item in range(items):
      pair = queues[number].get(timeout=60)
      if number == 1 and item % 3 == 0:
        kept.append((item, pair[0].clone()))
      queues[number + 1].put(change(pair, random.Random(item * stages + number)))

  def feed():
    for item in range(items):
      queues[0].put(start_pair(item, device))

  run_threads(feed, *(lambda n=n: stage(n) for n in range(stages)))
  kept = dict(kept)
  for item in range(items):
    pair = start_pair(item, "cpu")
    for number in range(stages):
      if item in kept and number == 1:
        assert torch.equal(kept[item].cpu(), pair[0])
      pair = change(pair, random.Random(item * stages + number))
    for mine, theirs in zip(queues[stages].get(), pair, strict=True):
      assert torch.equal(mine.cpu(), theirs)


# --- the end of a thread ---


def test_thread_that_ends_with_recorded_work(device):
  shared, made = torch.zeros(8, device=device), []

  def work():
    shared.add_(1)
    made.append(shared * 3)

  for turn in range(1, 7):
    run_threads(work)
    if turn % 3 == 0:
      shared.add_(0)
    if turn % 3 == 1:
      synchronize()
    assert made[-1].tolist() == [3 * turn] * 8
  assert shared.tolist() == [6] * 8


def test_process_that_ends_before_its_threads(cache_dir):
  """Records of a daemon that nobody launched are launched at the end, and its errors told."""
  done = child(
    """
import threading, torch
x = torch.ones(8, device="tpu")
index = torch.tensor([9], device="tpu")
torch.tpu.synchronize()
begun = threading.Barrier(3)
def work(step):
  kept = step()
  begun.wait()
  threading.Event().wait()
for step in (lambda: x * 3, lambda: x[index]):
  threading.Thread(target=work, args=(step,), daemon=True).start()
begun.wait()
""",
    env={"TORCH_TPU_CACHE_DIR": cache_dir},
  )
  assert "index 9 is out of range" in done.stderr, done.stderr
