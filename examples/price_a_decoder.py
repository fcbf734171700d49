"""What large decoders need and cost on TPUs, asked of libtpu on a machine without one. See
docs/aot.md:

python examples/price_a_decoder.py 30b --tokens 5120 --target v7x:2x2x1
python examples/price_a_decoder.py 8b --tokens 4096 --target v6e:1x1 --train
"""

import argparse
from typing import NamedTuple

import torch
import torch.nn.functional as F

import torch_tpu.aot as aot


class Shape(NamedTuple):
  """A decoder with grouped queries, rotary positions and gated feed-forward layers."""

  layers: int
  width: int
  heads: int
  groups: int  # heads of keys and values
  inner: int
  words: int


SHAPES = {
  "30b": Shape(48, 6144, 48, 8, 28672, 32000),
  "8b": Shape(32, 4096, 32, 8, 14336, 128256),
  "small": Shape(6, 256, 4, 2, 512, 1000),
}


class Norm(torch.nn.Module):
  def __init__(self, width):
    super().__init__()
    self.weight = torch.nn.Parameter(torch.ones(width))

  def forward(self, x):
    return F.rms_norm(x, x.shape[-1:], self.weight, 1e-5)


def rotate(x, cos, sin):
  first, second = x.chunk(2, dim=-1)
  return x * cos + torch.cat((-second, first), dim=-1) * sin


class Layer(torch.nn.Module):
  def __init__(self, shape):
    super().__init__()
    self.shape, self.size = shape, shape.width // shape.heads
    keys = shape.groups * self.size
    self.before, self.between = Norm(shape.width), Norm(shape.width)
    self.query = torch.nn.Linear(shape.width, shape.width, bias=False)
    self.key = torch.nn.Linear(shape.width, keys, bias=False)
    self.value = torch.nn.Linear(shape.width, keys, bias=False)
    self.out = torch.nn.Linear(shape.width, shape.width, bias=False)
    self.gate = torch.nn.Linear(shape.width, shape.inner, bias=False)
    self.up = torch.nn.Linear(shape.width, shape.inner, bias=False)
    self.down = torch.nn.Linear(shape.inner, shape.width, bias=False)

  def forward(self, x, cos, sin):
    batch, length, _ = x.shape
    y = self.before(x)

    def heads(projected, count):
      return projected.view(batch, length, count, self.size).transpose(1, 2)

    query = rotate(heads(self.query(y), self.shape.heads), cos, sin)
    key = rotate(heads(self.key(y), self.shape.groups), cos, sin)
    value = heads(self.value(y), self.shape.groups)
    y = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    x = x + self.out(y.transpose(1, 2).reshape(batch, length, -1))
    y = self.between(x)
    return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(torch.nn.Module):
  def __init__(self, shape):
    super().__init__()
    self.embed = torch.nn.Embedding(shape.words, shape.width)
    self.layers = torch.nn.ModuleList([Layer(shape) for _ in range(shape.layers)])
    self.norm = Norm(shape.width)
    self.head = torch.nn.Linear(shape.width, shape.words, bias=False)

  def forward(self, tokens, cos, sin):
    """Logits of the next word: [batch, words]."""
    return self.head(self.hidden(tokens, cos, sin)[:, -1])

  def hidden(self, tokens, cos, sin):
    x = self.embed(tokens)
    for layer in self.layers:
      x = layer(x, cos, sin)
    return self.norm(x)


def prices(shape, tokens, target, train=False, batch=1):
  """The report for a prefill of so many tokens, or for a training step with AdamW."""
  with torch.device("meta"):
    model = Decoder(shape).bfloat16()
    size = shape.width // shape.heads
    rotary = [torch.empty(tokens, size, dtype=torch.bfloat16) for _ in range(2)]
    words = torch.empty(batch, tokens, dtype=torch.int64)
  if not train:
    return aot.compile(model, (words, *rotary), target=target)
  model.to_empty(device="tpu")
  optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

  def step(words, wanted, cos, sin):
    optimizer.zero_grad()
    logits = model.head(model.hidden(words, cos, sin))
    F.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten()).backward()
    optimizer.step()

  return aot.compile(step, (words, words, *rotary), target=target)


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("shape", choices=SHAPES)
  parser.add_argument("--layers", type=int)
  parser.add_argument("--tokens", type=int, default=1024)
  parser.add_argument("--target", default="v5e:1x1")
  parser.add_argument("--train", action="store_true")
  options = parser.parse_args()
  shape = SHAPES[options.shape]
  if options.layers:
    shape = shape._replace(layers=options.layers)
  report = prices(shape, options.tokens, options.target, options.train)
  print(report)
  print(f"  at the roofline: {options.tokens / report.seconds:,.0f} tokens/s")


if __name__ == "__main__":
  main()
