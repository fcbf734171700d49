"""What bench.py times: each workload builds on a device and gives a function that runs it once."""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))


def synchronize(device):
  if torch.device(device).type == "tpu":
    torch.tpu.synchronize()


def dependent_adds(device, count=1000):
  """`count` times x = x + y on 4 floats, no gradients, the result waited for."""
  start = torch.zeros(4, device=device)
  y = torch.ones(4, device=device)

  def run():
    with torch.no_grad():
      x = start
      for _ in range(count):
        x = x + y
      synchronize(device)
    return x

  return run


def elementwise(device, size=1_000_000):
  """20 elementwise operations on a million floats."""
  x = torch.linspace(-2, 2, size).to(device)
  y = torch.linspace(0.5, 1.5, size).to(device)

  def run():
    with torch.no_grad():
      z = x
      for k in range(4):
        z = (z * y + x) * (0.5 + k)
        z = torch.sigmoid(z) - y
      synchronize(device)
    return z

  return run


class Trainer:
  """A model, its optimizer and one batch; `step` runs one step and returns the loss as a float."""

  def __init__(self, model, optimizer, loss):
    self.model, self.optimizer, self.loss = model, optimizer, loss
    self.steps = 0

  def step(self):
    self.steps += 1
    self.optimizer.zero_grad(set_to_none=True)
    loss = self.loss()
    loss.backward()
    self.optimizer.step()
    return loss.item()

  def run(self, steps):
    for _ in range(steps):
      value = self.step()
    return value


def mlp(device, width=256, batch=32):
  """Three layers of 256 by 256 with ReLU between them, mean squared error, Adam."""
  torch.manual_seed(0)
  model = nn.Sequential(
    nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)
  ).to(device)
  x = torch.randn(batch, width).to(device)
  y = torch.randn(batch, width).to(device)
  optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
  return Trainer(model, optimizer, lambda: F.mse_loss(model(x), y))


class GptTrainer(Trainer):
  """The training step of examples/train_gpt.py, with dropout off so that devices agree."""

  def __init__(self, device, batch=4):
    import train_gpt

    torch.manual_seed(0)
    model = train_gpt.GPT(train_gpt.GPTConfig(dropout=0.0)).to(device)
    super().__init__(model, train_gpt.make_optimizer(model, 1e-3), None)
    ids = torch.randint(256, (batch, model.config.context + 1))
    self.batch = ids[:, :-1].to(device), ids[:, 1:].to(device)
    self.train_step = train_gpt.train_step

  def step(self):
    self.steps += 1
    rate = 1e-3 / (1 + 0.01 * self.steps)
    return self.train_step(self.model, self.optimizer, self.batch, rate).item()


def changing_numbers(device):
  """A step whose learning rate, loss scale and step count differ each time; Adam, weight decay."""
  trainer = mlp(device, width=64, batch=8)
  optimizer = torch.optim.AdamW(trainer.model.parameters())
  compute = trainer.loss

  def step(number):
    scale = 2.0**16 / (1 + number)
    for group in optimizer.param_groups:
      group["lr"] = 1e-3 * (1 + 0.1 * number)
    optimizer.zero_grad()
    loss = compute()
    (loss * scale).backward()
    for parameter in trainer.model.parameters():
      parameter.grad.mul_(1 / scale)
    optimizer.step()
    return loss.item()

  return step
