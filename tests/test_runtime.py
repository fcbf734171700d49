"""Data loading, autocast, memory, threads and processes."""

import gc
import threading

import pytest
import torch

import models
from support import child, eager_mode, has_modes, synchronize

needs_tpu = pytest.mark.skipif(not has_modes(), reason="the CPU device has no such thing")


# --- data loading, autocast, scaling ---


def test_pin_memory_and_loader(device):
  data = torch.utils.data.TensorDataset(torch.arange(40).float().view(20, 2), torch.arange(20))
  total = 0.0
  loader = torch.utils.data.DataLoader(data, batch_size=6, pin_memory=device.type == "tpu")
  for x, _ in loader:
    assert x.is_pinned() == (device.type == "tpu")
    total += x.to(device, non_blocking=True).sum().item()
  assert total == sum(range(40))
  if device.type == "tpu":
    pinned = torch.arange(5).pin_memory()
    assert pinned.is_pinned() and pinned.tolist() == [0, 1, 2, 3, 4]
    assert not torch.arange(5).is_pinned()


def test_loader_workers(device):
  """Worker processes only make CPU data; the parent has started the device before."""
  torch.ones(1, device=device).item()
  data = torch.utils.data.TensorDataset(torch.arange(12).float())
  loader = torch.utils.data.DataLoader(data, batch_size=3, num_workers=2)
  assert sum(x.to(device).sum().item() for (x,) in loader) == 66


def test_autocast(device):
  a = torch.randn(8, 8, device=device, requires_grad=True)
  with torch.autocast(device.type, dtype=torch.bfloat16):
    assert torch.is_autocast_enabled(device.type)
    product = a @ a
    total = product.softmax(-1).sum() if device.type == "tpu" else product.float().softmax(-1).sum()
    assert product.dtype is torch.bfloat16 and total.dtype is torch.float32
    assert (a + a).dtype is torch.float32
    with torch.autocast(device.type, enabled=False):
      assert (a @ a).dtype is torch.float32
  total.backward()
  assert a.grad.dtype is torch.float32
  exact = (a.detach().cpu().bfloat16() @ a.detach().cpu().bfloat16()).float()
  torch.testing.assert_close(product.detach().float().cpu(), exact, rtol=2e-2, atol=2e-2)


def test_training_under_autocast(device):
  losses = {}
  for place in ("cpu", device):
    model, batches, loss_of = models.build("mlp")
    model = model.to(place)
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    seen = []
    for k in range(4):
      with torch.autocast(torch.device(place).type, dtype=torch.bfloat16):
        loss = loss_of(model, models.to_device(batches(k), place))
      opt.zero_grad()
      loss.backward()
      opt.step()
      seen.append(loss.item())
    losses[str(place)] = seen
  assert losses[str(device)] == pytest.approx(losses["cpu"], rel=3e-2)


def test_grad_scaler(device):
  model = models.build("mlp")[0].to(device)
  opt = torch.optim.SGD(model.parameters(), lr=0.1)
  scaler = torch.amp.GradScaler(device.type, init_scale=1024.0, growth_interval=2)
  x = torch.randn(4, 16, device=device)
  before = model[0].weight.detach().clone()
  for _ in range(2):
    scaler.scale(model(x).square().mean()).backward()
    scaler.step(opt)
    scaler.update()
    opt.zero_grad()
  assert scaler.get_scale() == 2048.0
  assert not torch.equal(before.cpu(), model[0].weight.detach().cpu())
  before = model[0].weight.detach().clone()
  scaler.scale(model(x).mean() * float("inf")).backward()
  scaler.step(opt)  # skipped: gradients are not finite
  scaler.update()
  assert torch.equal(before.cpu(), model[0].weight.detach().cpu())
  assert scaler.get_scale() == 1024.0


# --- memory ---


@needs_tpu
def test_memory_goes_down_after_del():
  gc.collect()
  synchronize()
  start = torch.tpu.memory_allocated()
  x = torch.ones(1 << 20, device="tpu")
  synchronize()
  assert torch.tpu.memory_allocated() - start == 4 << 20
  view = x[::2]
  del x
  assert torch.tpu.memory_allocated() - start == 4 << 20
  del view
  synchronize()
  assert torch.tpu.memory_allocated() == start
  torch.tpu.reset_peak_memory_stats()
  assert torch.tpu.max_memory_allocated() == start
  y = torch.ones(1 << 18, device="tpu").add(1)
  synchronize()
  del y
  assert torch.tpu.max_memory_allocated() >= start + (1 << 20)
  assert torch.accelerator.memory_allocated() == torch.tpu.memory_allocated()
  stats = torch.accelerator.memory_stats()
  assert stats["allocated_bytes.all.current"] == torch.tpu.memory_allocated()
  torch.accelerator.empty_cache()
  free, total = torch.tpu.mem_get_info()
  assert 0 < free <= total


@needs_tpu
def test_training_does_not_leak(mode):
  model, batches, loss_of = models.build("mlp")
  model = model.to("tpu")
  opt = torch.optim.AdamW(model.parameters())

  def step(k):
    loss = loss_of(model, models.to_device(batches(k), "tpu"))
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss.item()

  for k in range(3):
    step(k)
  gc.collect()
  synchronize()
  bytes_before = torch.tpu.memory_allocated()
  for k in range(3, 30):
    step(k)
  gc.collect()
  synchronize()
  assert torch.tpu.memory_allocated() == bytes_before


@needs_tpu
def test_discarded_work_costs_nothing():
  """Ops whose results die before the window is launched allocate nothing."""
  x = torch.ones(1 << 16, device="tpu")
  synchronize()
  start = torch.tpu.memory_allocated()
  torch.tpu.reset_peak_memory_stats()
  with eager_mode("fused"):
    for _ in range(50):
      x * 2
    synchronize()
  assert torch.tpu.max_memory_allocated() == start


# --- threads and processes ---


def test_threads_share_the_device(device):
  """Eight threads with their own tensors and one that all of them only read."""
  shared = torch.arange(50, device=device).float()
  results, errors = {}, []

  def work(number):
    try:
      x = shared * number
      for k in range(30):
        x = x + shared
        if k % 10 == number % 10:
          assert x[1].item() == number + k + 1
      results[number] = x.sum().item()
    except Exception as error:
      errors.append(error)

  threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
  for thread in threads:
    thread.start()
  for thread in threads:
    thread.join()
  assert not errors, errors[0]
  assert results == {n: (n + 30) * 1225.0 for n in range(8)}


def test_backward_runs_on_autograds_thread(device):
  seen = []
  x = torch.ones(4, device=device, requires_grad=True)
  y = x * 2
  y.register_hook(lambda grad: seen.append(threading.get_ident()) or grad * 3)
  y.sum().backward()
  assert x.grad.tolist() == [6] * 4 and len(seen) == 1


@needs_tpu
def test_fork_after_start_is_an_error_not_a_hang():
  child(
    """
import os, torch
x = torch.ones(2, device="tpu"); x.sum().item()
pid = os.fork()
if pid == 0:
  try:
    torch.ones(2, device="tpu").sum().item()
  except RuntimeError as error:
    os._exit(0 if "fork" in str(error) or "spawn" in str(error) else 4)
  os._exit(5)
_, status = os.waitpid(pid, 0)
assert os.waitstatus_to_exitcode(status) == 0, os.waitstatus_to_exitcode(status)
assert x.sum().item() == 2
""",
    timeout=60,
  )


@needs_tpu
def test_fork_before_start_works():
  child(
    """
import os, torch
pid = os.fork()
if pid == 0:
  os._exit(0 if torch.ones(2, device="tpu").sum().item() == 2 else 3)
_, status = os.waitpid(pid, 0)
assert os.waitstatus_to_exitcode(status) == 0
assert torch.ones(2, device="tpu").sum().item() == 2
""",
    timeout=60,
  )


@needs_tpu
def test_exit_with_live_tensors_and_recorded_work():
  done = child(
    "import torch; x = torch.ones(9, device='tpu') * 3; keep = [x + k for k in range(9)]"
  )
  assert done.stderr.strip() == ""


@needs_tpu
def test_streams_and_events():
  stream = torch.tpu.Stream()
  start, end = torch.tpu.Event(enable_timing=True), torch.tpu.Event(enable_timing=True)
  start.record()
  with torch.tpu.stream(stream):
    x = torch.ones(100, device="tpu") * 2
  torch.tpu.current_stream().wait_stream(stream)
  end.record()
  end.synchronize()
  assert end.query() and start.elapsed_time(end) >= 0
  assert x.sum().item() == 200
