"""torch.compile on "tpu" of operators that are no plain ATen calls: control flow, flex_attention,
function transforms, custom operators, sizes that depend on data; and torch.export."""

import copy

import pytest
import torch

import models
from support import has_modes
from test_compile import close, fresh, on_both, whole  # noqa: F401  fresh is used by all tests

TIER = "interpreted"  # about graphs
pytestmark = pytest.mark.skipif(not has_modes(), reason="asks for the backend")


def hop_cases():
  from torch._higher_order_ops import associative_scan, map, scan, while_loop

  def looped(x):
    start = (torch.zeros((), dtype=torch.int64, device=x.device), x)
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), start)[1]

  return {
    "cond": lambda x: torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,)),
    "while_loop": looped,
    "scan": lambda x: scan(lambda c, y: (c + y, c * y), x[0], x)[1],
    "map": lambda x: map(lambda row: row.sin(), x),
    "associative_scan": lambda x: associative_scan(
      lambda a, b: a + b, x, 0, combine_mode="generic"
    ),
  }


@pytest.mark.parametrize("name", ["cond", "while_loop", "scan", "map", "associative_scan"])
def test_higher_order_operators(name):
  function = hop_cases()[name]
  compiled = whole(function)
  for sign in (1, -1):
    x = sign * torch.arange(1.0, 7.0).view(3, 2)
    close(compiled(x.to("tpu")), function(x))


def test_flex_attention():
  from torch.nn.attention.flex_attention import create_block_mask, flex_attention

  def attend(q, k, v, mask):
    return flex_attention(
      q, k, v, score_mod=lambda s, b, h, i, j: s + (i - j) * 0.01, block_mask=mask
    )

  inputs = [torch.randn(1, 2, 128, 16) for _ in range(3)]
  results = []
  for device, function in (("cpu", attend), ("tpu", whole(attend))):
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 128, 128, device=device)
    leaves = [x.to(device).requires_grad_(device == "tpu") for x in inputs]
    results.append(function(*leaves, mask))
  close(results[1], results[0])
  results[1].sum().backward()
  eager = [x.to("tpu").requires_grad_() for x in inputs]
  mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 128, 128, device="tpu")
  attend(*eager, mask).sum().backward()
  close([x.grad for x in leaves], [x.grad for x in eager], tolerance=1e-4)


def test_function_transforms_inside():
  weight, x = torch.randn(4, 4), torch.randn(4, 4)
  on_both(lambda w, x: torch.func.grad(lambda w: (x @ w).tanh().sum())(w), weight, x)
  on_both(lambda w, x: torch.func.vmap(lambda row: (row * w).sum())(x), weight, x)
  on_both(lambda w, x: torch.func.jacrev(lambda w: (x @ w).sum(0))(w), weight, x)


def test_opaque_operators_run_at_every_call():
  seen = []

  @torch.library.custom_op("torch_tpu_test::twice", mutates_args=())
  def twice(x: torch.Tensor) -> torch.Tensor:
    seen.append(x.shape)
    return x * 2

  twice.register_fake(torch.empty_like)
  compiled = whole(lambda x: twice(x + 1) * 3)
  for _ in range(3):
    close(compiled(torch.ones(3, device="tpu")), torch.full((3,), 12.0))
  assert len(seen) == 3


def test_data_dependent_sizes():
  compiled = whole(lambda x: x.nonzero().float().sum() + x.sum().item())
  for k in (1, 3):
    x = torch.tensor([0.0] * 3 + [2.0] * k)
    close(compiled(x.to("tpu")), x.nonzero().float().sum() + x.sum().item())


def test_export_save_and_load(tmp_path):
  model, batches, _ = models.build("mlp")
  x = batches(0)[0]
  exported = torch.export.export(copy.deepcopy(model).to("tpu"), (x.to("tpu"),))
  torch.export.save(exported, tmp_path / "model.pt2")
  loaded = torch.export.load(tmp_path / "model.pt2").module()
  close(loaded(x.to("tpu")), model(x))
