"""What PyTorch code expects of any device: saving, copying, moving, printing, seeds, autocast, memory,
threads and processes. Numbers of single operations are in test_ops.py."""

import copy
import gc
import io
import pickle
import re
import threading

import pytest
import torch
from torch import nn

import models
from support import DEVICE, child, eager_mode, has_modes, synchronize

needs_tpu = pytest.mark.skipif(not has_modes(), reason="the CPU device has no such thing")


def reload(value, **options):
  file = io.BytesIO()
  torch.save(value, file)
  file.seek(0)
  return torch.load(file, **options)


# --- devices ---

@needs_tpu
def test_device_names():
  assert torch.device("tpu").type == "tpu"
  assert torch.ones(1, device="tpu").device == torch.device("tpu:0")
  assert torch.tpu.is_available() and torch.tpu.device_count() == 1
  assert torch.tpu.get_device_name().startswith("TPU")
  assert torch.accelerator.is_available()
  assert torch.accelerator.current_accelerator() == torch.device("tpu")
  assert torch.accelerator.device_count() == 1
  assert torch.accelerator.current_device_index() == 0
  torch.accelerator.synchronize()
  x = torch.ones(2).tpu()
  assert x.is_tpu and x.device.type == "tpu"
  assert torch.get_device_module("tpu") is torch.tpu


@needs_tpu
def test_import_starts_nothing():
  child("import torch; assert not torch.tpu.is_initialized(); torch.ones(1, device='tpu').cpu(); "
        "assert torch.tpu.is_initialized()")


@needs_tpu
def test_autoload_can_be_switched_off():
  child("import torch; assert not hasattr(torch, 'tpu'); import torch_tpu; "
        "assert torch.ones(2, device='tpu').sum().item() == 2",
        env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})


@needs_tpu
def test_wrong_device_index():
  with pytest.raises((RuntimeError, ValueError)):
    torch.ones(1, device="tpu:7")
  assert torch.ones(1, device="tpu").item() == 1


def test_default_device(device):
  with torch.device(device):
    layer = nn.Linear(3, 2)
    x = torch.ones(4, 3)
  assert layer.weight.device.type == x.device.type == layer(x).device.type == device.type


def test_factories(device):
  for make in (lambda d: torch.zeros(2, 3, device=d), lambda d: torch.ones(2, device=d),
               lambda d: torch.full((3,), 7, device=d), lambda d: torch.full((2,), 1.5, device=d),
               lambda d: torch.arange(3, 20, 4, device=d), lambda d: torch.arange(5.0, device=d),
               lambda d: torch.linspace(0, 1, 7, device=d), lambda d: torch.eye(3, 4, device=d),
               lambda d: torch.tensor([[1, 2], [3, 4]], device=d),
               lambda d: torch.tensor(True, device=d), lambda d: torch.tensor([], device=d),
               lambda d: torch.zeros(0, 4, device=d), lambda d: torch.tril(torch.ones(4, 4, device=d)),
               lambda d: torch.ones(2, 3, device=d, dtype=torch.bfloat16),
               lambda d: torch.ones(2, device=d).new_zeros(3, dtype=torch.int64)):
    mine, expected = make(device), make("cpu")
    assert mine.dtype == expected.dtype and mine.stride() == expected.stride()
    torch.testing.assert_close(mine.cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32,
                                   torch.int64, torch.float16, torch.bfloat16, torch.float32,
                                   torch.float64, torch.complex64])
def test_copies_keep_every_bit(dtype, device):
  generator = torch.Generator().manual_seed(1)
  if dtype is torch.bool:
    host = torch.rand(3, 8, generator=generator) > 0.5
  else:
    raw = torch.randint(0, 256, (3, 8 * dtype.itemsize), dtype=torch.uint8, generator=generator)
    host = raw.view(dtype)
  back = host.to(device).cpu()
  assert torch.equal(back.view(torch.uint8), host.view(torch.uint8))
  across = host.t().to(device)
  assert across.stride() == host.t().stride()
  assert torch.equal(across.cpu().contiguous().view(torch.uint8),
                     host.t().contiguous().view(torch.uint8))


def test_copies_between_dtypes_and_layouts(device):
  x = torch.randn(4, 6, generator=torch.Generator().manual_seed(2)) * 3
  for dtype in (torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.bool, torch.uint8):
    source = x.abs() if dtype is torch.uint8 else x
    assert torch.equal(source.to(device).to(dtype).cpu(), source.to(dtype))
    target = torch.empty(6, 4, dtype=dtype, device=device)
    target.copy_(source.t())          # host, other layout, other dtype -> device
    assert torch.equal(target.cpu(), source.t().to(dtype))
    back = torch.empty(4, 6, dtype=dtype)
    back.copy_(source.to(device))     # device -> host of another dtype
    assert torch.equal(back, source.to(dtype))
  images = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
  assert images.to(device).is_contiguous(memory_format=torch.channels_last)


@needs_tpu
def test_non_blocking_upload_takes_the_values_at_call_time(device):
  host = torch.ones(1000)
  there = host.to(device, non_blocking=True)
  host.fill_(5)
  assert there.sum().item() == 1000


# --- storages ---

def test_storage_identity(device):
  x = torch.zeros(4, 5, device=device)
  view = x.t()[1:]
  assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() != 0
  assert view.data_ptr() == x.data_ptr() + view.storage_offset() * 4
  others = [torch.zeros(4, 5, device=device) for _ in range(50)]
  assert len({o.data_ptr() for o in others}) == 50
  ends = sorted((o.data_ptr(), o.data_ptr() + o.untyped_storage().nbytes()) for o in others)
  assert all(a[1] <= b[0] for a, b in zip(ends, ends[1:]))
  assert torch.zeros(0, device=device).data_ptr() == 0
  assert x.untyped_storage().nbytes() == 80


def test_set_and_resize(device):
  x = torch.arange(12, device=device).float()
  y = torch.empty(0, device=device)
  y.set_(x.untyped_storage(), 2, (2, 3), (5, 1))
  assert y.tolist() == [[2, 3, 4], [7, 8, 9]]
  y.mul_(10)
  assert x.tolist()[2:5] == [20, 30, 40] and x[11].item() == 11
  x.resize_(4)
  assert x.tolist() == [0, 1, 20, 30]
  x.resize_(12)
  assert x.tolist()[6:] == [6, 70, 80, 90, 10, 11]
  x.resize_(20)
  assert x.tolist()[:12] == [0, 1, 20, 30, 40, 5, 6, 70, 80, 90, 10, 11]
  storage = x.untyped_storage()
  storage.resize_(0)
  assert storage.nbytes() == 0 and x.untyped_storage().data_ptr() == 0
  storage.resize_(80)
  x.fill_(3)
  assert x.sum().item() == 60


def test_storage_copy_and_bytes(device):
  x = torch.arange(6, device=device).float()
  storage = x.untyped_storage()
  assert storage.device.type == device.type
  assert bytes(storage.cpu().tolist()) == torch.arange(6).float().numpy().tobytes()
  clone = storage.clone()
  x.zero_()
  assert any(clone.cpu().tolist())
  storage.copy_(clone)
  assert x.tolist() == [0, 1, 2, 3, 4, 5]


def test_data_assignment_moves_a_parameter(device):
  layer = nn.Linear(3, 3)
  weight = layer.weight
  before = weight.detach().clone()
  weight.data = weight.data.to(device)
  assert layer.weight is weight and weight.device.type == device.type
  assert torch.equal(weight.detach().cpu(), before)
  weight.data = torch.zeros(3, 3, device=device)
  assert weight.sum().item() == 0


@needs_tpu
def test_dlpack_is_refused_and_numpy_says_how():
  x = torch.ones(3, device="tpu")
  with pytest.raises((RuntimeError, BufferError, TypeError)):
    torch.utils.dlpack.to_dlpack(x)
  with pytest.raises(TypeError, match="(?i)cpu"):
    x.numpy()


def test_version_counter_guards_saved_tensors(device):
  x = torch.ones(3, device=device, requires_grad=True)
  y = x.exp()
  y.add_(1)
  with pytest.raises(RuntimeError, match="modified by an inplace operation"):
    y.sum().backward()


# --- saving, loading, copying ---

def test_save_and_load_share_storages(device):
  base = torch.arange(20, device=device).float()
  saved = {"base": base, "view": base.view(4, 5).t(), "row": base[5:10], "half": base.bfloat16(),
           "empty": torch.empty(0, 3, device=device)}
  loaded = reload(saved)
  for key, value in saved.items():
    assert loaded[key].device.type == device.type, key
    assert loaded[key].stride() == value.stride() and loaded[key].dtype == value.dtype
    assert torch.equal(loaded[key].cpu(), value.cpu()), key
  loaded["base"].zero_()
  assert loaded["row"].sum().item() == 0 and loaded["view"].sum().item() == 0
  on_cpu = reload(saved, map_location="cpu")
  assert on_cpu["view"].device.type == "cpu" and torch.equal(on_cpu["view"], saved["view"].cpu())
  assert reload({"x": torch.ones(2)}, map_location=device)["x"].device.type == device.type


def test_load_with_mmap(tmp_path, device):
  path = tmp_path / "x.pt"
  torch.save({"x": torch.arange(1000, device=device)}, path)
  assert torch.load(path, mmap=True, map_location="cpu")["x"].sum().item() == 499500
  assert torch.load(path)["x"].sum().item() == 499500


def test_pickle_and_deepcopy(device):
  x = torch.arange(6, device=device).float().view(2, 3)
  assert torch.equal(pickle.loads(pickle.dumps(x)).cpu(), x.cpu())
  pair = [x, x.t()]
  first, second = copy.deepcopy(pair)
  assert first.device.type == device.type and first.data_ptr() == second.data_ptr() != x.data_ptr()
  first.add_(1)
  assert torch.equal(second.cpu(), first.t().cpu()) and x.sum().item() == 15
  twin = copy.deepcopy(nn.Parameter(torch.ones(2, device=device)))
  assert isinstance(twin, nn.Parameter) and twin.device.type == device.type
  leaf = torch.ones(2, device=device, requires_grad=True)
  leaf.grad = torch.full((2,), 3.0, device=device)
  assert copy.deepcopy(leaf).grad.tolist() == [3, 3]


def test_module_to_keeps_parameters_and_ties(device):
  model, batches, loss_of = models.build("gpt")
  parameters = list(model.parameters())
  optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
  model.to(device)
  assert all(p is q for p, q in zip(parameters, model.parameters()))
  assert model.head.weight is model.tokens.weight
  loss_of(model, batches(0).to(device)).backward()
  before = model.head.weight.detach().clone().cpu()
  optimizer.step()
  assert not torch.equal(model.tokens.weight.detach().cpu(), before)
  model.to("cpu")
  assert model.head.weight is model.tokens.weight and parameters[0].device.type == "cpu"
  assert parameters[0].grad.device.type == "cpu"
  model.to(device, torch.bfloat16)
  assert model.head.weight.dtype is torch.bfloat16 and model.head.weight is model.tokens.weight


def test_state_dict_resumes_training(device):
  def optimizer(parameters):
    return torch.optim.AdamW(parameters, lr=0.01)

  def steps(model, opt, first, last):
    _, batches, loss_of = models.build("mlp")
    for k in range(first, last):
      opt.zero_grad()
      loss_of(model, models.to_device(batches(k), device)).backward()
      opt.step()

  straight = models.build("mlp")[0].to(device)
  opt = optimizer(straight.parameters())
  steps(straight, opt, 0, 4)
  half = models.build("mlp")[0].to(device)
  opt = optimizer(half.parameters())
  steps(half, opt, 0, 2)
  saved = reload({"model": half.state_dict(), "opt": opt.state_dict()}, map_location="cpu")
  torch.manual_seed(99)
  resumed = models.make_mlp().to(device)
  opt = optimizer(resumed.parameters())
  resumed.load_state_dict(saved["model"])
  opt.load_state_dict(saved["opt"])
  steps(resumed, opt, 2, 4)
  for p, q in zip(straight.parameters(), resumed.parameters()):
    assert torch.equal(p.detach().cpu(), q.detach().cpu())


def test_safetensors(tmp_path, device):
  safetensors = pytest.importorskip("safetensors.torch")
  path = tmp_path / "x.safetensors"
  tensors = {"a": torch.arange(6, device=device).float().view(2, 3),
             "b": torch.ones(4, device=device, dtype=torch.bfloat16)}
  safetensors.save_file(tensors, path)
  loaded = safetensors.load_file(path)
  assert all(torch.equal(loaded[k], tensors[k].cpu()) for k in tensors)
  with pytest.raises(RuntimeError, match="share memory"):
    safetensors.save_file({"a": tensors["a"], "b": tensors["a"].view(-1)}, path)
  model = models.build("gpt")[0].to(device)
  safetensors.save_model(model, path)  # tied weights are found through storage pointers
  twin = models.build("gpt")[0].to(device)
  with torch.no_grad():
    twin.tokens.weight.zero_()
  safetensors.load_model(twin, path)
  assert torch.equal(twin.head.weight.detach().cpu(), model.head.weight.detach().cpu())


# --- printing, host values ---

def test_printing(device):
  for value in (torch.arange(5), torch.randn(3, 3), torch.ones(100, 100), torch.tensor(2.5),
                torch.zeros(0, 3), torch.tensor([True, False]), torch.ones(2).bfloat16()):
    text = repr(value.to(device))
    assert f"device='{device.type}" in text or device.type == "cpu"
    assert re.sub(r",\s*device='\w+:0'", "", text) == repr(value)
  assert f"{torch.tensor(1.25, device=device):.1f}" == "1.2"
  assert "grad_fn" in repr(torch.ones(1, device=device, requires_grad=True) * 2)


def test_host_values(device):
  x = torch.tensor([[1, 2], [3, 4]], device=device)
  assert x.tolist() == [[1, 2], [3, 4]] and x[1, 0].item() == 3
  assert int(x[0, 1]) == 2 and float(x[0, 0]) == 1.0 and bool(x[0, 0] == 1)
  assert [row.sum().item() for row in x] == [3, 7] and len(x) == 2
  assert range(10)[x[0, 1]] == 2
  assert (x == x).all() and not (x != x).any()
  assert x.nonzero().tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
  assert x[x > 2].tolist() == [3, 4]
  assert torch.equal(x, x.clone()) and torch.allclose(x.float(), x.float() + 1e-9)
  assert x.cpu().numpy().sum() == 10


def test_python_numbers_and_cpu_scalars_mix(device):
  x = torch.arange(3, device=device)
  assert (x + 1.5).dtype is torch.float32
  assert (x + torch.tensor(2.0, dtype=torch.float64)).dtype is torch.float64
  assert (x.float() + torch.tensor(2.0, dtype=torch.float64)).dtype is torch.float32
  assert (2 ** x).tolist() == [1, 2, 4] and (1 / (x + 1)).dtype is torch.float32
  assert (x * torch.tensor(3)).tolist() == [0, 3, 6]
  assert (x > 0.5).tolist() == [False, True, True]
  assert (x + True).tolist() == [1, 2, 3]
  big = torch.tensor([2 ** 53 + 1], device=device)
  assert (big + 1).item() == 2 ** 53 + 2   # int64 must not pass through a double
  assert (big * 1 + (2 ** 60)).item() == 2 ** 53 + 1 + 2 ** 60


@needs_tpu
def test_mixing_devices_is_pytorchs_error():
  with pytest.raises(RuntimeError, match="(?i)same device|expected all tensors"):
    torch.ones(2, device="tpu") + torch.ones(2)
  with pytest.raises(RuntimeError, match="(?i)device"):
    torch.ones(2, 2, device="tpu") @ torch.ones(2, 2)
  with pytest.raises(RuntimeError, match="(?i)device"):
    torch.nn.functional.linear(torch.ones(2, 2, device="tpu"), torch.ones(2, 2))


# --- random numbers ---

SAMPLERS = {
    "rand": lambda d: torch.rand(500, device=d),
    "randn": lambda d: torch.randn(500, device=d),
    "randint": lambda d: torch.randint(-5, 40, (500,), device=d),
    "randperm": lambda d: torch.randperm(100, device=d),
    "bernoulli": lambda d: torch.bernoulli(torch.full((500,), 0.3, device=d)),
    "normal_": lambda d: torch.empty(500, device=d).normal_(2, 3),
    "uniform_": lambda d: torch.empty(500, device=d).uniform_(-1, 4),
    "dropout": lambda d: torch.nn.functional.dropout(torch.ones(500, device=d), 0.4),
    "multinomial": lambda d: torch.multinomial(torch.ones(50, device=d), 20),
    "exponential_": lambda d: torch.empty(500, device=d).exponential_(),
    "rand_half": lambda d: torch.rand(500, device=d, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("name", list(SAMPLERS))
def test_seeds_repeat_in_all_modes(name, device):
  sample = SAMPLERS[name]
  seen = []
  for where in ("fused", "strict", "debug", "fused"):
    with eager_mode(where):
      torch.manual_seed(11)
      seen.append((sample(device).cpu(), sample(device).cpu()))
  for first, second in seen[1:]:
    assert torch.equal(first, seen[0][0]) and torch.equal(second, seen[0][1])
  assert not torch.equal(*seen[0])
  torch.manual_seed(12)
  assert not torch.equal(sample(device).cpu(), seen[0][0])


def test_random_numbers_have_their_distribution(device):
  torch.manual_seed(0)
  u = torch.rand(40000, device=device).cpu()
  assert 0 <= u.min() and u.max() < 1 and abs(u.mean() - 0.5) < 0.01 and abs(u.var() - 1 / 12) < 0.003
  assert torch.histc(u, 20, 0, 1).sub(2000).abs().max() < 250
  n = torch.randn(40000, device=device).cpu()
  assert abs(n.mean()) < 0.02 and abs(n.std() - 1) < 0.02 and abs((n ** 3).mean()) < 0.1
  assert 2.5 < (n ** 4).mean() < 3.5
  assert abs((n[:-1] * n[1:]).mean()) < 0.02
  k = torch.randint(3, 10, (40000,), device=device).cpu()
  assert k.unique().tolist() == list(range(3, 10))
  assert torch.bincount(k)[3:].sub(40000 / 7).abs().max() < 400
  assert sorted(torch.randperm(1000, device=device).tolist()) == list(range(1000))
  assert abs(torch.bernoulli(torch.full((40000,), 0.3, device=device)).mean().item() - 0.3) < 0.01


def test_generators_have_their_own_state(device):
  a, b = torch.Generator(device).manual_seed(1), torch.Generator(device).manual_seed(1)
  first = torch.rand(5, device=device, generator=a)
  torch.rand(5, device=device)
  assert torch.equal(first.cpu(), torch.rand(5, device=device, generator=b).cpu())
  state = a.get_state()
  second = torch.rand(5, device=device, generator=a)
  a.set_state(state)
  assert torch.equal(torch.rand(5, device=device, generator=a).cpu(), second.cpu())
  assert a.initial_seed() == 1 and a.device.type == device.type


@needs_tpu
def test_default_generator_state_and_fork():
  torch.tpu.manual_seed(4)
  state = torch.tpu.get_rng_state()
  first = torch.rand(3, device="tpu").cpu()
  torch.tpu.set_rng_state(state)
  assert torch.equal(torch.rand(3, device="tpu").cpu(), first)
  torch.tpu.manual_seed(4)
  with torch.random.fork_rng(devices=[0], device_type="tpu"):
    torch.rand(100, device="tpu")
  assert torch.equal(torch.rand(3, device="tpu").cpu(), first)


def test_checkpointing_repeats_dropout(device):
  from torch.utils.checkpoint import checkpoint
  x = torch.ones(64, 64, device=device, requires_grad=True)
  torch.manual_seed(0)
  y = checkpoint(lambda t: nn.functional.dropout(t, 0.5) * 2, x, use_reentrant=False)
  y.sum().backward()
  assert torch.equal(x.grad.cpu(), y.detach().cpu())


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
  assert sum(x.to(device).sum().item() for x, in loader) == 66


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
  scaler.step(opt)   # skipped: gradients are not finite
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
  child("""
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
""", timeout=60)


@needs_tpu
def test_fork_before_start_works():
  child("""
import os, torch
pid = os.fork()
if pid == 0:
  os._exit(0 if torch.ones(2, device="tpu").sum().item() == 2 else 3)
_, status = os.waitpid(pid, 0)
assert os.waitstatus_to_exitcode(status) == 0
assert torch.ones(2, device="tpu").sum().item() == 2
""", timeout=60)


@needs_tpu
def test_exit_with_live_tensors_and_recorded_work():
  done = child("import torch; x = torch.ones(9, device='tpu') * 3; keep = [x + k for k in range(9)]")
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


# --- the fallback ---

@needs_tpu
def test_fallback_counts_warns_and_refuses():
  code = """
import sys, torch, warnings
x = torch.tensor([3.0, 1.0, 2.0], device="tpu")
with warnings.catch_warnings(record=True) as caught:
  warnings.simplefilter("always")
  try:
    y = torch.special.bessel_j0(x)
    print("ran", torch.allclose(y.cpu(), torch.special.bessel_j0(x.cpu())), len(caught),
          any("bessel_j0" in key for key in torch.tpu.fallback_stats()))
  except NotImplementedError as error:
    print("refused", "bessel_j0" in str(error), "TORCH_TPU_FALLBACK" in str(error))
"""
  run = {mode: child(code, env={"TORCH_TPU_FALLBACK": mode}).stdout.split()
         for mode in ("allow", "warn", "error")}
  assert run["allow"] == ["ran", "True", "0", "True"]
  assert run["warn"] == ["ran", "True", "1", "True"]
  assert run["error"] == ["refused", "True", "True"]


def test_inference_mode_and_no_grad(device):
  x = torch.ones(3, device=device, requires_grad=True)
  with torch.inference_mode():
    y = x * 2
    y.add_(1)
  assert y.is_inference() and y.tolist() == [3, 3, 3]
  with torch.no_grad():
    x.add_(1)
  assert x.tolist() == [2, 2, 2] and x.is_leaf


def test_function_transforms(device):
  from torch.func import grad, vmap
  x = torch.arange(3, device=device).float()
  assert grad(lambda t: (t ** 3).sum())(x).tolist() == [0, 3, 12]
  assert vmap(lambda t: t * 2 + t.sum())(x.view(3, 1)).flatten().tolist() == [0, 3, 6]


def test_custom_autograd_function(device):
  class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
      ctx.save_for_backward(x)
      return x * 2

    @staticmethod
    def backward(ctx, grad):
      x, = ctx.saved_tensors
      return grad * 2 + 0 * x

  x = torch.ones(2, device=device, requires_grad=True)
  Double.apply(x).sum().backward()
  assert x.grad.tolist() == [2, 2] and x.device.type == DEVICE.type
