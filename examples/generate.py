"""Generates text with the GPT of train_gpt.py, one token after another.

    python examples/generate.py --checkpoint out/checkpoint.pt     # what train_gpt.py wrote
    python examples/generate.py --length 40                        # random weights, random bytes

Keys and values of earlier tokens are kept in tensors of fixed sizes, and the position is a tensor
on the device. So every token runs the same programs, which are compiled for the first one.
"""

import argparse
import pathlib
import time

import torch
import torch.nn.functional as F
from train_gpt import GPT, ByteTokenizer, GPTConfig


def load_model(checkpoint, device, seed):
  """The trained model, or one with random weights when there is no checkpoint."""
  if checkpoint is None:
    torch.manual_seed(seed)
    return GPT(GPTConfig(layers=2)).to(device).eval()
  state = torch.load(checkpoint, weights_only=True, map_location="cpu")
  model = GPT(GPTConfig(**state["config"]))
  model.load_state_dict(state["model"])
  return model.to(device).eval()


class Cache:
  """Keys and values of one layer, (1, heads, context, width / heads); zeros in free places."""

  def __init__(self, config, device):
    sizes = (1, config.heads, config.context, config.width // config.heads)
    self.keys = torch.zeros(sizes, device=device)
    self.values = torch.zeros(sizes, device=device)


def attend(attention, x, cache, position, visible):
  """Attention of one token, x of (1, 1, width), to itself and what the cache holds."""
  heads = (1, 1, attention.heads, x.shape[2] // attention.heads)
  q, k, v = (part.view(heads).transpose(1, 2) for part in attention.qkv(x).chunk(3, dim=2))
  cache.keys.index_copy_(2, position, k)
  cache.values.index_copy_(2, position, v)
  y = F.scaled_dot_product_attention(q, cache.keys, cache.values, attn_mask=visible)
  return attention.out(y.transpose(1, 2).reshape(x.shape))


def next_logits(model, token, caches, position):
  """Logits (1, vocab) of the token that follows `token` (1), which stands at `position` (1)."""
  visible = (torch.arange(model.config.context, device=token.device) <= position).unsqueeze(0)
  x = (model.tokens(token) + model.positions(position)).unsqueeze(0)
  for block, cache in zip(model.blocks, caches):
    x = x + attend(block.attention, block.norm1(x), cache, position, visible)
    x = x + block.mlp(block.norm2(x))
  return model.head(model.norm(x)).squeeze(0)


def pick(logits, temperature):
  """The likeliest token, or with a temperature a random one. Reading it runs what was recorded."""
  if temperature == 0:
    return logits.argmax().item()
  return torch.multinomial((logits / temperature).softmax(-1), 1).item()


@torch.no_grad()
def generate(model, prompt, length, temperature):
  """The prompt's token ids and those of `length` more, as a list."""
  device = model.tokens.weight.device
  caches = [Cache(model.config, device) for _ in model.blocks]
  position = torch.zeros(1, dtype=torch.int64, device=device)
  tokens = list(prompt)
  for index in range(len(prompt) + length - 1):
    token = torch.tensor([tokens[index]], device=device)
    logits = next_logits(model, token, caches, position)
    if index + 1 == len(tokens):
      tokens.append(pick(logits, temperature))
    position += 1
  return tokens


def parse_args():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--device", default="tpu", choices=["tpu", "cpu"])
  parser.add_argument("--checkpoint", type=pathlib.Path, help="random weights without one")
  parser.add_argument("--prompt", default="def ")
  parser.add_argument("--length", type=int, default=100, help="tokens (bytes) to generate")
  parser.add_argument("--temperature", type=float, default=0.8, help="0: always the likeliest")
  parser.add_argument("--seed", type=int, default=1)
  args = parser.parse_args()
  args.prompt_tokens = ByteTokenizer().encode(args.prompt)
  if not args.prompt_tokens or args.length < 1:
    parser.error("--prompt must not be empty, and --length must be at least 1")
  return args


def main():
  args = parse_args()
  model = load_model(args.checkpoint, torch.device(args.device), args.seed)
  context = model.config.context
  if len(args.prompt_tokens) + args.length > context:
    raise SystemExit(f"Prompt and text have at most {context} tokens with this model.")
  torch.manual_seed(args.seed)
  for run in ("first run", "second run"):
    begin = time.perf_counter()
    tokens = generate(model, args.prompt_tokens, args.length, args.temperature)
    line = f"{run}: {args.length / (time.perf_counter() - begin):,.0f} tokens/s"
    if args.device == "tpu":
      line += f", {torch.tpu.compile_stats()['compiles']} programs compiled so far"
    print(line)
  print(ByteTokenizer().decode(tokens))


if __name__ == "__main__":
  main()
