"""Small models in plain PyTorch whose first minute bench.py times: what users begin with."""

import torch
from torch import nn
from torch.nn import functional as F


class Residual(nn.Module):
  def __init__(self, inputs, outputs, stride):
    super().__init__()
    self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
    self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
    self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
    self.shortcut = nn.Identity()
    if stride != 1 or inputs != outputs:
      self.shortcut = nn.Sequential(
        nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
      )

  def forward(self, x):
    y = F.relu(self.norm1(self.conv1(x)))
    return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet18(nn.Sequential):
  """The network of the paper, 11 million parameters, for ten classes."""

  def __init__(self):
    layers = [
      nn.Conv2d(3, 64, 7, 2, 3, bias=False),
      nn.BatchNorm2d(64),
      nn.ReLU(),
      nn.MaxPool2d(3, 2, 1),
    ]
    inputs = 64
    for outputs in (64, 128, 256, 512):
      layers += [Residual(inputs, outputs, 1 if outputs == inputs else 2)]
      layers += [Residual(outputs, outputs, 1)]
      inputs = outputs
    super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


class TimedBlock(nn.Module):
  """Two convolutions with group norm, and the time added between them."""

  def __init__(self, inputs, outputs, time):
    super().__init__()
    self.norm1, self.norm2 = nn.GroupNorm(8, inputs), nn.GroupNorm(8, outputs)
    self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
    self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
    self.time = nn.Linear(time, outputs)
    self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

  def forward(self, x, time):
    y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(time))[:, :, None, None]
    return self.conv2(F.silu(self.norm2(y))) + self.shortcut(x)


class UNet(nn.Module):
  """A denoiser with one step down, attention in the middle, one step up."""

  def __init__(self, width=32):
    super().__init__()
    time = 2 * width
    self.embed = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
    self.enter = nn.Conv2d(3, width, 3, padding=1)
    self.down = TimedBlock(width, width, time)
    self.shrink = nn.Conv2d(width, width, 3, 2, 1)
    self.middle1 = TimedBlock(width, 2 * width, time)
    self.attention = nn.MultiheadAttention(2 * width, 4, batch_first=True)
    self.middle2 = TimedBlock(2 * width, 2 * width, time)
    self.grow = nn.Conv2d(2 * width, width, 3, padding=1)
    self.up = TimedBlock(2 * width, width, time)
    self.leave = nn.Conv2d(width, 3, 3, padding=1)

  def forward(self, x, times):
    half = self.enter.out_channels // 2
    rates = torch.exp(torch.arange(half, device=x.device) * (-9.2 / half))
    angles = times[:, None] * rates
    time = self.embed(torch.cat([angles.sin(), angles.cos()], 1))
    x = self.enter(x)
    skip = self.down(x, time)
    x = self.middle1(self.shrink(skip), time)
    rows = x.flatten(2).transpose(1, 2)
    x = x + self.attention(rows, rows, rows)[0].transpose(1, 2).view_as(x)
    x = self.grow(F.interpolate(self.middle2(x, time), scale_factor=2.0))
    return self.leave(self.up(torch.cat([x, skip], 1), time))


class LlamaLayer(nn.Module):
  def __init__(self, width, heads, key_heads):
    super().__init__()
    self.heads, self.key_heads, self.width = heads, key_heads, width // heads
    self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
    self.q = nn.Linear(width, width, bias=False)
    self.k = nn.Linear(width, key_heads * self.width, bias=False)
    self.v = nn.Linear(width, key_heads * self.width, bias=False)
    self.out = nn.Linear(width, width, bias=False)
    self.gate, self.rise = (
      nn.Linear(width, 2 * width, bias=False),
      nn.Linear(width, 2 * width, bias=False),
    )
    self.fall = nn.Linear(2 * width, width, bias=False)

  def split(self, x, heads):
    return x.view(*x.shape[:2], heads, self.width).transpose(1, 2)

  def forward(self, x, cos, sin, cache):
    def turn(t):
      a, b = t.chunk(2, -1)
      return t * cos + torch.cat([-b, a], -1) * sin

    y = self.norm1(x)
    q, k = turn(self.split(self.q(y), self.heads)), turn(self.split(self.k(y), self.key_heads))
    v = self.split(self.v(y), self.key_heads)
    if cache is not None:
      if cache:
        k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
      cache[:] = [k, v]
    y = F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1, enable_gqa=True)
    x = x + self.out(y.transpose(1, 2).flatten(2))
    y = self.norm2(x)
    return x + self.fall(F.silu(self.gate(y)) * self.rise(y))


class Llama(nn.Module):
  """A decoder with rotary positions, grouped heads and a cache that grows by a word each step."""

  def __init__(self, layers=2, width=32, words=256):
    super().__init__()
    self.embed = nn.Embedding(words, width)
    self.layers = nn.ModuleList(LlamaLayer(width, 4, 2) for _ in range(layers))
    self.norm = nn.RMSNorm(width)
    self.head = nn.Linear(width, words, bias=False)
    self.rates = 10000.0 ** (-torch.arange(0, width // 4, 2) / (width // 4))

  def forward(self, ids, caches=None, start=0):
    x = self.embed(ids)
    places = torch.arange(start, start + ids.shape[1], device=ids.device)
    angles = torch.outer(places.float(), self.rates.to(ids.device)).repeat(1, 2)
    cos, sin = angles.cos(), angles.sin()
    for layer, cache in zip(self.layers, caches or [None] * len(self.layers)):
      x = layer(x, cos, sin, cache)
    return self.head(self.norm(x))

  @torch.no_grad()
  def generate(self, ids, count):
    caches = [[] for _ in self.layers]
    words, start = [], 0
    for _ in range(count):
      ids, start = self(ids, caches, start)[:, -1:].argmax(-1), start + ids.shape[1]
      words.append(ids[0, 0].item())
    return words
