"""A loop's windows become programs once, all numbers known: no further sets in later steps."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from support import DEVICE, compile_stats
from torch_tpu import _C

pytestmark = pytest.mark.skipif(
  torch.tpu.is_available() and _C.platform_name() != "cpu", reason="needs buffers in host memory"
)

TIMES = 4  # that a window is interpreted


@pytest.fixture(autouse=True)
def interpreted():
  _C.env_override("TORCH_TPU_TIERS", "interpreted")
  _C.env_override("TORCH_TPU_INTERPRETATIONS", str(TIMES))
  torch.tpu.clear_cache()
  yield
  _C.env_override("TORCH_TPU_TIERS", None)
  _C.env_override("TORCH_TPU_INTERPRETATIONS", None)
  torch.tpu.clear_cache()


def compiles_of(step, steps):
  """Programs compiled in each call."""
  counts = []
  for _ in range(steps):
    before = compile_stats()["compiles"]
    step()
    counts.append(compile_stats()["compiles"] - before)
  return counts


def check(counts):
  """Nothing is compiled for long, and each structure of windows has one set at most. (A structure
  that is new in the second or third step is compiled so many steps later.)"""
  late = counts[TIMES + 3 :]
  assert sum(counts) > 0 and late == [0] * len(late), counts
  assert max(window["sets"] for window in torch.tpu.window_stats()) == 1, torch.tpu.window_stats()


def image_model():
  first = (nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
  return nn.Sequential(*first, nn.MaxPool2d(2), nn.Dropout(0.1), nn.Flatten(), nn.Linear(64, 5))


@pytest.mark.parametrize("with_all", [False, True])
def test_a_training_makes_one_set(with_all):
  """Adam, whose state is made by the first step, gradients that are None in the first; and a loss
  scale, clipping, a moving average of the weights, and a rate that changes."""
  torch.manual_seed(0)
  model = image_model().to(DEVICE)
  optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
  scaler = torch.amp.GradScaler("tpu", init_scale=8.0, enabled=with_all)
  rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
  mean = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
  average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=mean)
  x, y = torch.randn(2, 3, 8, 8), torch.tensor([1, 4])

  def step():
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x.to(DEVICE)), y.to(DEVICE))
    scaler.scale(loss).backward()
    if with_all:
      scaler.unscale_(optimizer)
      nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    if with_all:
      average.update_parameters(model)
      rates.step()
    loss.item()

  counts = compiles_of(step, TIMES + 7)
  assert counts[:TIMES] == [0] * TIMES, counts
  check(counts)


def test_a_served_model_makes_one_set():
  """A paged cache that the first request makes, requests of one length in other blocks, positions
  that move: the second prompt compiled again, since the first one's window made the cache."""
  torch.manual_seed(0)
  width, block = 16, 4
  table = nn.Embedding(32, width).to(DEVICE)
  qkv, out = nn.Linear(width, 3 * width).to(DEVICE), nn.Linear(width, 32).to(DEVICE)
  cache = torch.zeros(2, 8 * block, width, device=DEVICE)

  def attend(ids, places, slots):
    q, k, v = qkv(table(ids)).chunk(3, -1)
    cache[0][slots], cache[1][slots] = k, v
    seen = cache[:, places]
    mask = torch.arange(places.numel(), device=DEVICE)[None] < places.numel() - 1
    scores = (q @ seen[0].T / width**0.5).masked_fill(~mask, -1e9)
    return out(scores.softmax(-1) @ seen[1])[-1].argmax().view(1)

  numbers = iter(range(1000))

  @torch.no_grad()
  def request():
    turn = next(numbers)
    blocks = torch.tensor([turn % 8, (turn * 3 + 1) % 8, (turn * 5 + 2) % 8]).to(DEVICE)
    position = torch.arange(3 * block, device=DEVICE)
    places = blocks[position // block] * block + position % block
    word = attend(torch.arange(turn, turn + 6).to(DEVICE) % 32, places, places[:6])
    for at in range(6, 9):
      word.item()
      word = attend(word, places, places[at : at + 1])
    return word.item()

  check(compiles_of(request, TIMES + 7))
