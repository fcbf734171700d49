"""Child of test_cache and test_partition: trains a model and prints counters as one JSON line.

python tests/scripts/train.py gpt --steps 4 --layers 2
"""

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
START = time.perf_counter()

import torch

import models


def main():
  parser = argparse.ArgumentParser()
  parser.add_argument("model", choices=models.NAMES)
  parser.add_argument("--steps", type=int, default=4)
  parser.add_argument("--layers", type=int)
  parser.add_argument("--width", type=int)
  args = parser.parse_args()
  options = {k: v for k, v in (("layers", args.layers), ("width", args.width)) if v}
  _, losses = models.train(
    args.model, "tpu", args.steps, lambda p: torch.optim.AdamW(p, lr=1e-3, eps=1e-5), **options
  )
  losses = [loss.item() for loss in losses]
  stats = dict(torch.tpu.compile_stats())
  print(
    json.dumps(
      {
        **stats,
        "losses": losses,
        "fallback": dict(torch.tpu.fallback_stats()),
        "engine": dict(torch.tpu.engine_stats()),
        "wall_seconds": time.perf_counter() - START,
      }
    )
  )


if __name__ == "__main__":
  main()
