"""Trains a small GPT on the Python standard library's source code.

    python examples/train_gpt.py                        # device "tpu", Fused mode
    python examples/train_gpt.py --mode strict          # one operation at a time
    python examples/train_gpt.py --device cpu           # PyTorch's own CPU kernels, for comparison
    torchrun --nproc_per_node=2 examples/train_gpt.py --ddp    # two processes, each with a replica
    torchrun --nproc_per_node=2 examples/train_gpt.py --fsdp   # ... half of the parameters

Writes to --out: loss.csv, loss.png, checkpoint.pt and sample.txt. Nothing here is special to the
device except its name and the lines that print its mode and its compile statistics.
"""

import argparse
import csv
import math
import os
import pathlib
import sysconfig
import time
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

PROMPT = "def "


class ByteTokenizer:
  """Text to UTF-8 bytes and back; token ids are 0..255."""

  vocab_size = 256

  def encode(self, text):
    return list(text.encode("utf-8"))

  def decode(self, tokens):
    return bytes(tokens).decode("utf-8", errors="replace")


def load_text(limit=4_000_000):
  """The first `limit` characters of the standard library's modules, in alphabetical order."""
  folder = pathlib.Path(sysconfig.get_paths()["stdlib"])
  parts, size = [], 0
  for path in sorted(folder.glob("*.py")) + sorted(folder.glob("[a-h]*/*.py")):
    if size >= limit:
      break
    parts.append(path.read_text(encoding="utf-8", errors="replace"))
    size += len(parts[-1])
  if not parts:
    raise FileNotFoundError(f"No Python source in {folder}; is the standard library zipped?")
  return "".join(parts)[:limit]


@dataclass
class GPTConfig:
  vocab_size: int = 256
  context: int = 128
  layers: int = 6
  heads: int = 4
  width: int = 128
  dropout: float = 0.1


class Attention(nn.Module):
  """Causal self-attention over (batch, time, width)."""

  def __init__(self, config):
    super().__init__()
    self.heads = config.heads
    self.dropout = config.dropout
    self.qkv = nn.Linear(config.width, 3 * config.width)
    self.out = nn.Linear(config.width, config.width)

  def forward(self, x):
    batch, time_steps, width = x.shape
    heads = (batch, time_steps, self.heads, width // self.heads)
    q, k, v = (part.view(heads).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
    dropout = self.dropout if self.training else 0.0
    y = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
    y = self.out(y.transpose(1, 2).reshape(batch, time_steps, width))
    return F.dropout(y, self.dropout, self.training)


class Block(nn.Module):
  """One layer: attention and a two-layer perceptron, each behind a layer norm and a residual."""

  def __init__(self, config):
    super().__init__()
    self.norm1 = nn.LayerNorm(config.width)
    self.attention = Attention(config)
    self.norm2 = nn.LayerNorm(config.width)
    self.mlp = nn.Sequential(
      nn.Linear(config.width, 4 * config.width),
      nn.GELU(),
      nn.Linear(4 * config.width, config.width),
      nn.Dropout(config.dropout),
    )

  def forward(self, x):
    x = x + self.attention(self.norm1(x))
    return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
  """Token ids (batch, time) -> logits (batch, time, vocab); embedding and head share weights."""

  def __init__(self, config):
    super().__init__()
    self.config = config
    self.tokens = nn.Embedding(config.vocab_size, config.width)
    self.positions = nn.Embedding(config.context, config.width)
    self.dropout = nn.Dropout(config.dropout)
    self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
    self.norm = nn.LayerNorm(config.width)
    self.head = nn.Linear(config.width, config.vocab_size, bias=False)
    self.apply(self._init_weights)
    self.head.weight = self.tokens.weight
    for name, parameter in self.named_parameters():
      if name.endswith(("attention.out.weight", "mlp.2.weight")):  # ends of the residual path
        nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * config.layers))

  @staticmethod
  def _init_weights(module):
    if isinstance(module, (nn.Linear, nn.Embedding)):
      nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
      nn.init.zeros_(module.bias)

  def forward(self, ids, targets=None):
    """Logits, or with targets the mean cross entropy in nats per byte."""
    positions = torch.arange(ids.shape[1], device=ids.device)
    x = self.dropout(self.tokens(ids) + self.positions(positions))
    for block in self.blocks:
      x = block(x)
    logits = self.head(self.norm(x))
    if targets is None:
      return logits
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Batches:
  """Random pieces of a text; drawn on the CPU, so that every device sees the same ones."""

  def __init__(self, tokens, batch, context, device, seed):
    self.tokens, self.batch, self.context, self.device = tokens, batch, context, device
    self.generator = torch.Generator().manual_seed(seed)

  def draw(self):
    """(inputs, targets), each (batch, context); targets are the inputs shifted by one."""
    last = len(self.tokens) - self.context - 1
    starts = torch.randint(last, (self.batch,), generator=self.generator).tolist()
    rows = torch.stack([self.tokens[s : s + self.context + 1] for s in starts]).long()
    return rows[:, :-1].to(self.device), rows[:, 1:].to(self.device)


def join_ranks(args):
  """Joins the other processes if there are any. Gives this one's rank and their number."""
  if not (args.ddp or args.fsdp):
    return 0, 1
  if args.device == "tpu":
    torch.tpu.set_device(int(os.environ["LOCAL_RANK"]))
  dist.init_process_group("gloo" if args.device == "cpu" else None)
  return dist.get_rank(), dist.get_world_size()


def distribute(model, args):
  """The model as all ranks train it together."""
  if args.ddp:
    return nn.parallel.DistributedDataParallel(model)
  if args.fsdp:
    from torch.distributed.fsdp import fully_shard

    mesh = dist.device_mesh.init_device_mesh(args.device, (dist.get_world_size(),))
    for block in model.blocks:
      fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
  return model


def make_optimizer(model, lr):
  """AdamW with weight decay on matrices only."""
  matrices = [p for p in model.parameters() if p.dim() >= 2]
  vectors = [p for p in model.parameters() if p.dim() < 2]
  groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
  return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95))


def scheduled_lr(step, steps, peak):
  """Linear warm-up over a tenth of the steps, then a cosine down to a tenth of the peak."""
  warmup = max(1, steps // 10)
  if step < warmup:
    return peak * (step + 1) / warmup
  progress = (step - warmup) / max(1, steps - warmup)
  return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))


def train_step(model, optimizer, batch, lr):
  """One step; returns the loss tensor, still on the device."""
  for group in optimizer.param_groups:
    group["lr"] = lr
  optimizer.zero_grad(set_to_none=True)
  loss = model(*batch)
  loss.backward()
  nn.utils.clip_grad_norm_(model.parameters(), 1.0)
  optimizer.step()
  loss = loss.detach()
  if dist.is_initialized():
    dist.all_reduce(loss)
    loss /= dist.get_world_size()
  return loss


def train(model, optimizer, batches, args, rank, ranks):
  """Runs args.steps steps; returns the losses as floats."""
  tokens_per_step = args.batch * batches.context * ranks
  losses = []
  times = [time.perf_counter()]
  with tqdm(total=args.steps, unit="step", dynamic_ncols=True, disable=rank > 0) as bar:
    for step in range(args.steps):
      lr = scheduled_lr(step, args.steps, args.lr)
      losses.append(train_step(model, optimizer, batches.draw(), lr).item())
      times.append(time.perf_counter())
      if step == 0:
        bar.write(f"first step, with compiling: {times[1] - times[0]:.1f} s")
      recent = times[-21:]
      speed = (len(recent) - 1) * tokens_per_step / (recent[-1] - recent[0])
      bar.set_postfix_str(f"loss {losses[-1]:.3f}, {speed:,.0f} tokens/s", refresh=False)
      bar.update()
  return losses


@torch.no_grad()
def evaluate(model, batches, count=10):
  """Mean loss over `count` batches without dropout."""
  model.eval()
  return sum(model(*batches.draw()).item() for _ in range(count)) / count


@torch.no_grad()
def generate(model, tokenizer, device, length, seed, context, temperature=0.8):
  """Continues PROMPT by `length` bytes. The input always has the full context length, so that one
  compiled program serves every step."""
  model.eval()
  generator = torch.Generator().manual_seed(seed)
  tokens = tokenizer.encode(PROMPT)
  for _ in range(length):
    window = tokens[-context:]
    ids = torch.tensor([window + [0] * (context - len(window))], device=device)
    logits = model(ids)[0, len(window) - 1].cpu() / temperature
    tokens.append(torch.multinomial(logits.softmax(-1), 1, generator=generator).item())
  return tokenizer.decode(tokens)


def whole_state(model, optimizer):
  """State of the model and the optimizer as one process would have it. All ranks call this."""
  if not dist.is_initialized():
    return model.state_dict(), optimizer.state_dict()
  from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

  return get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True))


def save_checkpoint(path, config, state, step):
  model, optimizer = state
  torch.save({"config": asdict(config), "model": model, "optimizer": optimizer, "step": step}, path)


def check_checkpoint(path, expected, ids):
  """Loads the checkpoint into a new model and compares its output; raises if it differs."""
  state = torch.load(path, weights_only=True)
  copy = GPT(GPTConfig(**state["config"])).to(ids.device)
  copy.load_state_dict(state["model"])
  if not dist.is_initialized():  # ranks have it by names
    make_optimizer(copy, 0.0).load_state_dict(state["optimizer"])
  copy.eval()
  with torch.no_grad():
    if not torch.equal(expected, copy(ids)):
      raise RuntimeError(f"{path} does not reproduce the model it was saved from.")


def save_losses(folder, losses, title, unit="nats per byte"):
  """loss.csv and loss.png."""
  import matplotlib

  matplotlib.use("Agg")
  from matplotlib import pyplot

  with open(folder / "loss.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["step", "loss"])
    writer.writerows(enumerate(losses))
  smooth, total, weight = [], 0.0, 0.0
  for loss in losses:
    total, weight = 0.9 * total + loss, 0.9 * weight + 1
    smooth.append(total / weight)
  figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
  axes.plot(losses, color="0.75", linewidth=1, label="each step")
  axes.plot(smooth, color="tab:blue", linewidth=2, label="running mean")
  axes.set_title(title, fontsize="small")
  axes.set(xlabel="step", ylabel=f"training loss ({unit})")
  axes.grid(alpha=0.3)
  axes.legend()
  figure.savefig(folder / "loss.png", dpi=120)
  pyplot.close(figure)


def parse_args():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--device", default="tpu", choices=["tpu", "cpu"])
  parser.add_argument("--mode", choices=["debug", "strict", "fused"], help="eager mode")
  several = parser.add_mutually_exclusive_group()
  several.add_argument("--ddp", action="store_true", help="with torchrun: a replica per process")
  several.add_argument(
    "--fsdp", action="store_true", help="with torchrun: parameters are shared out"
  )
  parser.add_argument("--steps", type=int, default=300)
  parser.add_argument("--batch", type=int, default=4)
  parser.add_argument("--layers", type=int, default=6)
  parser.add_argument("--lr", type=float, default=3e-3)
  parser.add_argument("--seed", type=int, default=1)
  parser.add_argument("--no-dropout", action="store_true")
  parser.add_argument("--sample", type=int, default=300, help="bytes to generate at the end")
  parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out"))
  args = parser.parse_args()
  if args.steps < 1 or args.batch < 1:
    parser.error("--steps and --batch must be at least 1")
  return args


def describe_device(args):
  """Sets the eager mode and returns a line about the device."""
  if args.device == "cpu":
    return f"cpu, PyTorch {torch.__version__}, {torch.get_num_threads()} threads"
  if args.mode:
    torch.tpu.set_eager_mode(args.mode)
  return f"{torch.tpu.get_device_name()}, mode {torch.tpu.eager_mode.name}"


def print_statistics(args):
  if args.device == "tpu":
    compiled = torch.tpu.compile_stats()
    print(
      "compile:  "
      + "  ".join(
        f"{key} {value:.1f}" if isinstance(value, float) else f"{key} {value}"
        for key, value in compiled.items()
      )
    )
    print("engine:   " + "  ".join(f"{k} {v}" for k, v in torch.tpu.engine_stats().items()))
    print(f"fallback: {torch.tpu.fallback_stats() or 'none'}")


def main():
  args = parse_args()
  rank, ranks = join_ranks(args)
  say = print if rank == 0 else lambda *_: None
  device = torch.device(args.device)
  line = describe_device(args)
  say(f"device:   {line}" + (f", {ranks} processes" if ranks > 1 else ""))
  torch.manual_seed(args.seed)
  tokenizer = ByteTokenizer()
  tokens = torch.tensor(tokenizer.encode(load_text()), dtype=torch.uint8)
  split = int(0.9 * len(tokens))
  config = GPTConfig(layers=args.layers, dropout=0.0 if args.no_dropout else 0.1)
  model = GPT(config).to(device)
  count = sum(p.numel() for p in model.parameters())
  say(f"model:    {config.layers} layers, width {config.width}, {count:,} parameters")
  say(f"text:     {len(tokens):,} bytes of the Python standard library")

  model = distribute(model, args)
  optimizer = make_optimizer(model, args.lr)
  batches = Batches(tokens[:split], args.batch, config.context, device, args.seed + 1000 * rank)
  held_out = Batches(tokens[split:], args.batch, config.context, device, args.seed)
  losses = train(model, optimizer, batches, args, rank, ranks)
  held_out_loss = evaluate(model, held_out)
  say(f"loss:     {losses[0]:.3f} -> {losses[-1]:.3f}, on held-out text {held_out_loss:.3f}")

  state, ids = whole_state(model, optimizer), held_out.draw()[0]
  with torch.no_grad():
    logits = model(ids)
  sample = generate(model, tokenizer, device, args.sample, args.seed, config.context)
  if dist.is_initialized():
    dist.destroy_process_group()
  if rank > 0:
    return
  args.out.mkdir(parents=True, exist_ok=True)
  save_losses(args.out, losses, f"{config.layers}-layer GPT on the Python standard library\n{line}")
  save_checkpoint(args.out / "checkpoint.pt", config, state, args.steps)
  check_checkpoint(args.out / "checkpoint.pt", logits, ids)
  (args.out / "sample.txt").write_text(sample)
  print(f"--- sample ---\n{sample}\n--------------")
  print_statistics(args)
  print(f"written:  {args.out}/loss.png, loss.csv, checkpoint.pt (reloads equal), sample.txt")


if __name__ == "__main__":
  main()
