"""What bench.py times: each workload builds on a device and gives a function that runs it once."""

import sys
import threading
from pathlib import Path

import small_models
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


class Server:
  """Answers requests with one model: copies a batch to the device, runs it, copies the result back;
  `run(threads, requests)` from so many threads, each with its share."""

  def __init__(self, device, width, batch, layers=6):
    torch.manual_seed(0)
    parts = [
      part(width) for _ in range(layers) for part in (lambda w: nn.Linear(w, w), nn.LayerNorm)
    ]
    self.model = nn.Sequential(*parts).to(device).eval()
    self.device = device
    self.request = torch.randn(batch, width)

  def serve(self, requests):
    with torch.inference_mode():
      for _ in range(requests):
        self.model(self.request.to(self.device)).cpu()

  def run(self, threads, requests):
    workers = [
      threading.Thread(target=self.serve, args=(requests // threads,)) for _ in range(threads)
    ]
    for worker in workers:
      worker.start()
    for worker in workers:
      worker.join()


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


# --- first contact: what a user does in the first minute, each made for a device ---

FIRST = {}


def first(function):
  """Registers make(device) -> work(), which ends with numbers on the host."""
  FIRST[function.__name__] = function
  return function


@first
def gpt(device):
  return GptTrainer(device).step


@first
def resnet18(device):
  torch.manual_seed(0)
  model = small_models.ResNet18().to(device)
  x, y = torch.randn(4, 3, 32, 32).to(device), torch.randint(10, (4,)).to(device)
  optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
  return Trainer(model, optimizer, lambda: F.cross_entropy(model(x), y)).step


@first
def unet(device):
  torch.manual_seed(0)
  model = small_models.UNet().to(device)
  x, noise = (torch.randn(2, 3, 16, 16).to(device) for _ in range(2))
  times = torch.tensor([5, 9]).to(device)
  optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
  return Trainer(model, optimizer, lambda: F.mse_loss(model(x, times), noise)).step


@first
def llama(device):
  torch.manual_seed(0)
  model = small_models.Llama().to(device)
  ids = torch.randint(256, (2, 17)).to(device)

  def loss():
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

  return Trainer(model, torch.optim.AdamW(model.parameters(), lr=1e-3), loss).step


def generator(device, length):
  """Twelve words after a prompt of this length, by a tiny Llama with a cache."""
  torch.manual_seed(0)
  model = small_models.Llama().to(device)
  ids = torch.randint(256, (1, length)).to(device)
  return lambda: model.generate(ids, 12)


@first
def metrics(device):
  """Ten metrics of a classifier and of a regression, as evaluation code computes them."""
  torch.manual_seed(0)
  scores, labels = torch.randn(64, 5).to(device), torch.randint(5, (64,)).to(device)
  x, y = torch.randn(64).to(device), torch.randn(64).to(device)

  def work():
    found = F.one_hot(scores.argmax(1), 5)
    true = F.one_hot(labels, 5)
    hits = (found * true).sum(0).float()
    precision, recall = hits / found.sum(0).clamp(min=1), hits / true.sum(0).clamp(min=1)
    order = scores[:, 0].sort(descending=True).indices
    rates = (labels[order] == 0).float().cumsum(0), (labels[order] != 0).float().cumsum(0)
    results = [
      (scores.argmax(1) == labels).float().mean(),
      precision.mean(),
      recall.mean(),
      (2 * precision * recall / (precision + recall).clamp(min=1e-9)).mean(),
      (scores.topk(3).indices == labels[:, None]).any(1).float().mean(),
      torch.trapezoid(rates[0] / rates[0][-1], rates[1] / rates[1][-1]),
      (x - y).square().mean(),
      (x - y).abs().mean(),
      1 - (x - y).square().sum() / (y - y.mean()).square().sum(),
      torch.corrcoef(torch.stack([x, y]))[0, 1],
    ]
    return [result.item() for result in results]

  return work


@first
def gradcheck(device):
  torch.manual_seed(0)
  x = torch.randn(3, 3, dtype=torch.float64).to(device).requires_grad_()
  return lambda: torch.autograd.gradcheck(lambda x: (x @ x).tanh().sum(1), (x,))


@first
def prints(device):
  """Ten dtypes."""
  kinds = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8")
  tensors = [torch.arange(6).view(2, 3).to(getattr(torch, kind)).to(device) for kind in kinds]
  tensors.append(torch.tensor([True, False]).to(device))
  return lambda: [repr(tensor) for tensor in tensors]


def compiled_call(device, backend, calls=200):
  """A compiled function of three operations on 8 floats, called again and again."""
  compiled = torch.compile(lambda a, b: torch.relu(a * b + a), backend=backend)
  x = torch.ones(8, device=device)

  def run():
    with torch.no_grad():
      for _ in range(calls):
        result = compiled(x, x)
      synchronize(device)
    return result

  return run


class CompiledGpt(Trainer):
  """A GPT of 6 layers of 128 under torch.compile: ours on the device, Inductor on the CPU."""

  def __init__(self, device):
    import train_gpt

    torch.manual_seed(0)
    config = train_gpt.GPTConfig(layers=6, width=128, context=128, dropout=0.0)
    model = train_gpt.GPT(config).to(device)
    super().__init__(torch.compile(model), torch.optim.AdamW(model.parameters(), lr=1e-3), None)
    ids = torch.randint(256, (4, config.context + 1)).to(device)
    self.tokens, targets = ids[:, :-1], ids[:, 1:]
    self.loss = lambda: F.cross_entropy(self.model(self.tokens).flatten(0, 1), targets.flatten())

  def forward(self):
    with torch.no_grad():
      return self.model(self.tokens).cpu()


def next_words(device, words=4096, width=64, batch=512, ignored=-100):
  """An embedding, a linear layer, cross entropy over the words, SGD: the step with the largest
  share of work by index. Two with other `ignored` do the same in programs of their own."""
  torch.manual_seed(0)
  model = nn.Sequential(nn.Embedding(words, width), nn.Linear(width, words)).to(device)
  x = torch.randint(words, (batch,)).to(device)
  y = torch.randint(words, (batch,)).to(device)
  optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
  return Trainer(model, optimizer, lambda: F.cross_entropy(model(x), y, ignore_index=ignored))


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


# --- a few rows written through a view of a large buffer, as caches of keys and values are ---

VIEW_WRITES = {}


def view_write(*sizes):
  """Registers write(base, i, j, v): `sizes` of the base, with "n" for the long dimension; i and j
  are index tensors of two elements, v(*sizes) makes new values."""

  def register(function):
    VIEW_WRITES[function.__name__] = (sizes, function)
    return function

  return register


@view_write(2, "n", 2, 64)
def rows_of_a_layer(a, i, j, v):
  a[1][i] = v(2, 2, 64)


@view_write(2, "n", 2, 64)
def two_indices(a, i, j, v):
  a[1][i, j] = v(2, 64)


@view_write("n", 2, 2, 64)
def indices_apart(a, i, j, v):
  a[i, :, j] = v(2, 2, 64)


@view_write(2, 2, "n", 64)
def not_leading(a, i, j, v):
  a[:, 1][:, i] = v(2, 2, 64)


@view_write(2, "n", 2, 64)
def permuted(a, i, j, v):
  a.permute(2, 0, 3, 1)[1, 1].index_copy_(1, i, v(64, 2))


@view_write(2, "n", 2, 64)
def scattered(a, i, j, v):
  a[1].scatter_(0, i.view(2, 1, 1).expand(2, 2, 64), v(2, 2, 64))


@view_write("n", 512)
def other_dtype(a, i, j, v):
  whole = a.view(torch.int8).flatten()
  layers = whole.as_strided((2, a.shape[0] // 2, 2048), (1024 * a.shape[0], 2048, 1))
  layers[1].view(torch.bfloat16)[i] = v(2, 1024).bfloat16()


@view_write(2, "n", 2, 64)
def slices(a, i, j, v):
  a[1, 3:5].copy_(v(2, 2, 64))
  a[0, 5:7, 1].fill_(3.0)


@view_write(2, "n", 2, 64)
def filled(a, i, j, v):
  a.view(-1, 64)[5:].index_fill_(0, i, 2.0)


@view_write(2, "n", 2, 64)
def accumulated(a, i, j, v):
  a[1].index_put_((i,), v(2, 2, 64), accumulate=True)


@view_write("n", 512)
def half_sums(a, i, j, v):
  layer, new = a.view(torch.bfloat16).view(2, -1, 1024)[1], v(2, 1024).bfloat16()
  layer.index_add_(0, i, new)
  layer.index_put_((i,), new, accumulate=True)
  layer.scatter_add_(0, i.view(2, 1).expand(2, 1024), new)


@view_write(2, "n", 2, 64)
def reduced(a, i, j, v):
  index, new = i.view(2, 1, 1).expand(2, 2, 64), v(2, 2, 64)
  a[1].scatter_reduce_(0, index, new, "mean", include_self=False)
  a[0].scatter_reduce_(0, index, new, "amax")
  a[:, :, 1].index_reduce_(1, i, v(2, 2, 64), "mean")


@view_write("n", 64)
def odd_strides(a, i, j, v):
  a.as_strided((a.shape[0] // 3, 2, 60), (131, 64, 1), 7)[i] = v(2, 2, 60)


@view_write(2, "n", 2, 64)
def read_rows(a, i, j, v):
  a[0, 3:5] = a[1][i] + a[1, 7:9] + a[1].gather(0, i.view(2, 1, 1).expand(2, 2, 64))


def view_writes(name, mebibytes, device):
  """The base, and what writes two rows of it through a view, and again each time."""
  sizes, write = VIEW_WRITES[name]
  rest = 1
  for size in sizes:
    rest *= 1 if size == "n" else size
  rows = (mebibytes << 20) // 4 // rest
  base = torch.zeros(*[rows if size == "n" else size for size in sizes], device=device)
  i, j = torch.tensor([3, 5], device=device), torch.tensor([0, 1], device=device)

  def values(*wanted):
    return torch.arange(1.0, torch.Size(wanted).numel() + 1, device=device).view(wanted)

  return base, lambda: write(base, i, j, values)
