"""The models that tests and benchmarks train, with their data. No dropout: results are compared.

`build(name)` gives (model, batches, loss): batches(step) makes that step's CPU inputs, loss(model,
batch) the scalar to minimise. All are small: the point is which ops run, not how many numbers.
"""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
  """Pre-norm transformer block with causal attention over [batch, time, width]."""

  def __init__(self, width, heads):
    super().__init__()
    self.heads = heads
    self.norm1 = nn.LayerNorm(width)
    self.qkv = nn.Linear(width, 3 * width)
    self.proj = nn.Linear(width, width)
    self.norm2 = nn.LayerNorm(width)
    self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

  def forward(self, x):
    batch, time, width = x.shape
    q, k, v = self.qkv(self.norm1(x)).split(width, dim=2)
    q, k, v = (
      t.view(batch, time, self.heads, width // self.heads).transpose(1, 2) for t in (q, k, v)
    )
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    x = x + self.proj(y.transpose(1, 2).reshape(batch, time, width))
    return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
  """Decoder over tokens [batch, time] -> logits [batch, time, vocab]; head and tokens tied."""

  def __init__(self, layers=2, width=32, heads=4, context=16, vocab=64):
    super().__init__()
    self.tokens = nn.Embedding(vocab, width)
    self.places = nn.Embedding(context, width)
    self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
    self.norm = nn.LayerNorm(width)
    self.head = nn.Linear(width, vocab, bias=False)
    self.head.weight = self.tokens.weight
    for module in self.modules():
      if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.05)

  def forward(self, tokens):
    places = torch.arange(tokens.shape[1], device=tokens.device)
    x = self.tokens(tokens) + self.places(places)
    for block in self.blocks:
      x = block(x)
    return self.head(self.norm(x))


class LSTMClassifier(nn.Module):
  """Tokens [batch, time] -> logits [batch, classes] through a two-layer LSTM."""

  def __init__(self, vocab=32, width=16, hidden=24, classes=5):
    super().__init__()
    self.embed = nn.Embedding(vocab, width)
    self.lstm = nn.LSTM(width, hidden, num_layers=2, batch_first=True)
    self.head = nn.Linear(hidden, classes)

  def forward(self, tokens):
    outputs, _ = self.lstm(self.embed(tokens))
    return self.head(outputs[:, -1])


class Residual(nn.Module):
  """Two 3x3 convolutions with batch norm and a shortcut."""

  def __init__(self, channels_in, channels, stride):
    super().__init__()
    self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
    self.norm1 = nn.BatchNorm2d(channels)
    self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
    self.norm2 = nn.BatchNorm2d(channels)
    self.short = nn.Identity()
    if stride != 1 or channels_in != channels:
      self.short = nn.Sequential(
        nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
      )

  def forward(self, x):
    y = F.relu(self.norm1(self.conv1(x)), inplace=True)
    return F.relu(self.norm2(self.conv2(y)) + self.short(x))


class ResNet(nn.Module):
  """Images [batch, 3, 16, 16] -> logits [batch, classes]."""

  def __init__(self, classes=5):
    super().__init__()
    self.stem = nn.Sequential(
      nn.Conv2d(3, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
    )
    self.body = nn.Sequential(Residual(8, 8, 1), Residual(8, 16, 2))
    self.pool = nn.AdaptiveAvgPool2d(1)
    self.head = nn.Linear(16, classes)

  def forward(self, x):
    return self.head(torch.flatten(self.pool(self.body(self.stem(x))), 1))


def make_mlp(width=32, inputs=16, outputs=4):
  return nn.Sequential(
    nn.Linear(inputs, width),
    nn.ReLU(),
    nn.Linear(width, width),
    nn.SiLU(),
    nn.Linear(width, outputs),
  )


def _generator(step):
  return torch.Generator().manual_seed(1000 + step)


def _tokens(vocab, batch, time):
  def batches(step):
    return torch.randint(vocab, (batch, time + 1), generator=_generator(step))

  return batches


def _gpt_loss(model, batch):
  logits = model(batch[:, :-1])
  return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def _lstm_loss(model, batch):
  return F.cross_entropy(model(batch[:, 1:]), batch[:, 0] % 5)


def _image_batches(step):
  generator = _generator(step)
  return (
    torch.randn(4, 3, 16, 16, generator=generator),
    torch.randint(5, (4,), generator=generator),
  )


def _image_loss(model, batch):
  return F.cross_entropy(model(batch[0]), batch[1])


def _vector_batches(step):
  generator = _generator(step)
  return torch.randn(8, 16, generator=generator), torch.randn(8, 4, generator=generator)


def _vector_loss(model, batch):
  return F.mse_loss(model(batch[0]), batch[1])


_MODELS = {
  "gpt": (GPT, _tokens(64, 2, 16), _gpt_loss),
  "lstm": (LSTMClassifier, _tokens(32, 3, 6), _lstm_loss),
  "resnet": (ResNet, _image_batches, _image_loss),
  "mlp": (make_mlp, _vector_batches, _vector_loss),
}
NAMES = tuple(_MODELS)


def build(name, **options):
  """A freshly seeded CPU model, its batches(step) and its loss(model, batch)."""
  make, batches, loss = _MODELS[name]
  torch.manual_seed(7)
  return make(**options), batches, loss


def to_device(batch, device):
  if isinstance(batch, tuple):
    return tuple(part.to(device) for part in batch)
  return batch.to(device)


def train(name, device, steps, optimizer, model=None, wait=True, **options):
  """Trains a fresh model; gives (model, losses as device tensors).

  Waits after each step, as loops that log do; without, all steps are one window in Fused mode."""
  fresh, batches, loss_of = build(name, **options)
  model = (model or fresh).to(device)
  opt = optimizer(model.parameters())
  losses = []
  for step in range(steps):
    loss = loss_of(model, to_device(batches(step), device))
    opt.zero_grad()
    loss.backward()
    opt.step()
    losses.append(loss.detach())
    if wait and torch.device(device).type != "cpu":
      torch.accelerator.synchronize()
  return model, losses
