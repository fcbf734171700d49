"""Four models, forward, backward and optimizer steps, against the CPU, without any fallback."""

import pytest
import torch

import models
from support import counting, fallback_stats, has_modes

# eps: where a true gradient is zero (a key bias under softmax) Adam would otherwise turn rounding
# noise into full steps of either sign.
OPTIMIZERS = {
  "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
  "sgd_momentum": lambda p: torch.optim.SGD(
    p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01
  ),
  "sgd_foreach": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, foreach=True),
  "sgd_fused": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, fused=True),
  "adam": lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-3),
  "adam_single": lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-3, foreach=False),
  "adam_amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-3, amsgrad=True),
  "adam_fused": lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-3, fused=True),
  "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-3, weight_decay=0.1),
  "adamw_foreach": lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-3, foreach=True),
  "adamw_fused": lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-3, fused=True),
}
# Only accelerators have these; the reference is the same rule without the flag.
CAPTURABLE = {
  "adam": lambda p: torch.optim.Adam(p, lr=0.01, eps=1e-3, capturable=True),
  "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-3, weight_decay=0.1, capturable=True),
}
STEPS = 3


def compare(mine, expected, rtol=2e-4, atol=2e-5):
  """Losses, parameters, gradients and buffers of two (model, losses)."""
  (model, losses), (reference, reference_losses) = mine, expected
  torch.testing.assert_close(
    torch.stack(losses).cpu(), torch.stack(reference_losses), rtol=1e-4, atol=1e-6
  )
  for (name, p), (_, q) in zip(model.named_parameters(), reference.named_parameters(), strict=True):
    torch.testing.assert_close(
      p.grad.cpu(), q.grad, rtol=2e-3, atol=2e-5, msg=lambda m, n=name: f"gradient of {n}: {m}"
    )
    torch.testing.assert_close(
      p.detach().cpu(), q.detach(), rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
    )
    assert p.stride() == q.stride(), name
  for (name, p), (_, q) in zip(model.named_buffers(), reference.named_buffers(), strict=True):
    torch.testing.assert_close(p.cpu(), q, rtol=1e-4, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("name", models.NAMES)
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_training(name, optimizer, device):
  expected = models.train(name, "cpu", STEPS, OPTIMIZERS[optimizer])
  with counting(fallback_stats) as on_host:
    mine = models.train(name, device, STEPS, OPTIMIZERS[optimizer])
    compare(mine, expected)
  assert on_host == {}


@pytest.mark.parametrize("optimizer", [n for n in OPTIMIZERS if n not in ("sgd", "adam", "adamw")])
@pytest.mark.parametrize("name", ["mlp", "gpt"])
def test_optimizer_variants(name, optimizer, device):
  expected = models.train(name, "cpu", STEPS, OPTIMIZERS[optimizer])
  with counting(fallback_stats) as on_host:
    compare(models.train(name, device, STEPS, OPTIMIZERS[optimizer]), expected)
  assert on_host == {}


@pytest.mark.skipif(not has_modes(), reason="PyTorch has no capturable optimizers on the CPU")
@pytest.mark.parametrize("optimizer", list(CAPTURABLE))
def test_capturable(optimizer, device):
  expected = models.train("mlp", "cpu", STEPS, OPTIMIZERS[optimizer])
  with counting(fallback_stats) as on_host:
    compare(models.train("mlp", device, STEPS, CAPTURABLE[optimizer]), expected)
  assert on_host == {}


def test_steps_without_waiting_are_one_window(device):
  expected = models.train("mlp", "cpu", 4, OPTIMIZERS["adam"])
  compare(models.train("mlp", device, 4, OPTIMIZERS["adam"], wait=False), expected)


def test_every_mode_trains_the_cnn(mode, device):
  compare(
    models.train("resnet", device, 2, OPTIMIZERS["adam"]),
    models.train("resnet", "cpu", 2, OPTIMIZERS["adam"]),
  )


def test_evaluation_uses_running_statistics(device):
  reference, _ = models.train("resnet", "cpu", 2, OPTIMIZERS["sgd"])
  model, _ = models.train("resnet", device, 2, OPTIMIZERS["sgd"])
  batch, _ = models.build("resnet")[1](9)
  reference.eval(), model.eval()
  with torch.no_grad():
    torch.testing.assert_close(
      model(batch.to(device)).cpu(), reference(batch), rtol=1e-3, atol=1e-4
    )
  assert int(model.stem[1].num_batches_tracked) == 2


def test_dropout_scales_and_repeats(device):
  """Kept values are scaled; one seed gives one mask, forward and backward agree on it."""
  x = torch.ones(64, 64, device=device, requires_grad=True)
  torch.manual_seed(3)
  y = torch.nn.functional.dropout(x, 0.25)
  y.sum().backward()
  kept = y.detach().cpu()
  assert set(kept.unique().tolist()) == {0.0, torch.tensor(1 / 0.75).item()}
  assert 0.70 < (kept != 0).float().mean().item() < 0.80
  assert torch.equal(x.grad.cpu(), kept)
  torch.manual_seed(3)
  assert torch.equal(torch.nn.functional.dropout(x, 0.25).detach().cpu(), kept)
  assert not torch.equal(torch.nn.functional.dropout(x, 0.25).detach().cpu(), kept)


def test_gradient_clipping_and_accumulation(device):
  results = {}
  for place in ("cpu", device):
    model, batches, loss_of = models.build("gpt")
    model = model.to(place)
    for step in range(2):
      loss_of(model, batches(step).to(place)).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    results[str(place)] = (norm.cpu(), [p.grad.cpu() for p in model.parameters()])
  torch.testing.assert_close(results[str(device)], results["cpu"], rtol=1e-3, atol=1e-6)


def test_schedulers_change_the_rate(device):
  def run(place):
    model, batches, loss_of = models.build("mlp")
    model = model.to(place)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, eps=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=8)
    for step in range(8):
      optimizer.zero_grad(set_to_none=step % 2 == 0)
      loss_of(model, models.to_device(batches(step), place)).backward()
      optimizer.step()
      schedule.step()
    return [p.detach().cpu() for p in model.parameters()]

  torch.testing.assert_close(run(device), run("cpu"), rtol=5e-4, atol=2e-5)


def test_higher_order_gradients(device):
  def penalty(place):
    model, batches, _ = models.build("mlp")
    model = model.to(place)
    x = batches(0)[0].to(place).requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    (slope.norm(2, dim=1) - 1).square().mean().backward()
    return [p.grad.cpu() for p in model.parameters() if p.grad is not None]

  torch.testing.assert_close(penalty(device), penalty("cpu"), rtol=1e-3, atol=1e-5)
