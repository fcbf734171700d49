"""Saving, loading, copying and moving tensors, modules and optimizers."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import models
from support import has_modes

needs_tpu = pytest.mark.skipif(not has_modes(), reason="the CPU device has no such thing")


def reload(value, **options):
  file = io.BytesIO()
  torch.save(value, file)
  file.seek(0)
  return torch.load(file, **options)


def test_save_and_load_share_storages(device):
  base = torch.arange(20, device=device).float()
  saved = {
    "base": base,
    "view": base.view(4, 5).t(),
    "row": base[5:10],
    "half": base.bfloat16(),
    "empty": torch.empty(0, 3, device=device),
  }
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
  tensors = {
    "a": torch.arange(6, device=device).float().view(2, 3),
    "b": torch.ones(4, device=device, dtype=torch.bfloat16),
  }
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
