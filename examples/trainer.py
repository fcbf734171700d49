"""Trains a small Llama with Transformers' Trainer, then writes text as it is generated.

    python examples/trainer.py             # bfloat16 autocast, a checkpoint, an evaluation
    python examples/trainer.py --cpu       # the same on PyTorch's own CPU kernels, for comparison

Needs what requirements/ecosystem.txt names: make test-ecosystem puts it into .venv-ecosystem.
Nothing here names the device: Trainer finds it. Writes to --out: loss.csv, loss.png and the last
checkpoint.
"""

import argparse
import pathlib

import torch
from train_gpt import ByteTokenizer, load_text, save_losses
from transformers import (
  LlamaConfig,
  LlamaForCausalLM,
  TextStreamer,
  Trainer,
  TrainingArguments,
  set_seed,
)

PROMPT = "def "


class Chunks(torch.utils.data.Dataset):
  """Consecutive pieces of a text, int64[length] token ids each; the model shifts labels itself."""

  def __init__(self, tokens, length):
    self.pieces = torch.tensor(tokens[: len(tokens) // length * length]).view(-1, length)

  def __len__(self):
    return len(self.pieces)

  def __getitem__(self, index):
    return {"input_ids": self.pieces[index], "labels": self.pieces[index]}


def make_model(layers):
  width, heads = 128, 4
  return LlamaForCausalLM(
    LlamaConfig(
      vocab_size=ByteTokenizer.vocab_size,
      hidden_size=width,
      intermediate_size=3 * width,
      num_hidden_layers=layers,
      num_attention_heads=heads,
      num_key_value_heads=heads // 2,
      max_position_embeddings=512,
      bos_token_id=None,
      eos_token_id=None,
      pad_token_id=0,
    )
  )


def parse_args():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--cpu", action="store_true")
  parser.add_argument("--steps", type=int, default=200)
  parser.add_argument("--layers", type=int, default=4)
  parser.add_argument("--sample", type=int, default=200, help="bytes to generate at the end")
  parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out/trainer"))
  return parser.parse_args()


def main():
  args = parse_args()
  set_seed(1)
  tokenizer = ByteTokenizer()
  tokens = tokenizer.encode(load_text(limit=1_000_000))
  split = int(0.98 * len(tokens))
  trainer = Trainer(
    model=make_model(args.layers),
    args=TrainingArguments(
      output_dir=str(args.out),
      max_steps=args.steps,
      per_device_train_batch_size=8,
      learning_rate=2e-3,
      warmup_steps=10,
      bf16=True,
      logging_steps=1,
      save_total_limit=1,
      report_to="none",
      disable_tqdm=None,
      use_cpu=args.cpu,
    ),
    train_dataset=Chunks(tokens[:split], 128),
    eval_dataset=Chunks(tokens[split:], 128),
  )
  print(f"device:   {trainer.args.device}")
  trainer.train()
  losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
  held_out = trainer.evaluate()["eval_loss"]
  print(f"loss:     {losses[0]:.3f} -> {losses[-1]:.3f}, on held-out text {held_out:.3f}")
  save_losses(args.out, losses, f"{args.layers}-layer Llama by Trainer on {trainer.args.device}")

  model = trainer.model.eval()
  prompt = torch.tensor([tokenizer.encode(PROMPT)], device=model.device)
  model.generate(
    prompt,
    attention_mask=torch.ones_like(prompt),
    max_new_tokens=args.sample,
    do_sample=True,
    temperature=0.8,
    streamer=TextStreamer(tokenizer),
  )


if __name__ == "__main__":
  main()
