"""Debug, Strict and Fused: equal results, every way to switch, and where errors are raised."""

import pytest
import torch
from torch.nn import functional as F

import models
import torch_tpu
from support import (
  MODES,
  child,
  child_json,
  compile_stats,
  counting,
  eager_mode,
  has_modes,
  mode_value,
  synchronize,
)

pytestmark = pytest.mark.skipif(not has_modes(), reason="this device has no eager modes")


def adamw(parameters):
  return torch.optim.AdamW(parameters, lr=1e-3, eps=1e-5)


def curve(device, steps=50):
  _, losses = models.train("gpt", device, steps, adamw)
  return torch.stack(losses).cpu().double()


@pytest.fixture(scope="module")
def curves():
  from support import DEVICE

  found = {"cpu": curve("cpu")}
  for name in MODES:
    with eager_mode(name):
      found[name] = curve(DEVICE)
  return found


@pytest.mark.parametrize("name", ["strict", "debug"])
def test_modes_give_the_same_loss_curve(curves, name):
  difference = ((curves[name] - curves["fused"]) / curves["fused"]).abs().max().item()
  assert difference < 1e-4, difference


@pytest.mark.parametrize("name", MODES)
def test_loss_curve_is_the_cpus(curves, name):
  difference = ((curves[name] - curves["cpu"]) / curves["cpu"]).abs().max().item()
  assert difference < 1e-3, difference
  assert curves[name][-1] != curves[name][0]


def test_switching_by_attribute():
  before = torch.tpu.eager_mode
  try:
    for name in MODES:
      torch.tpu.eager_mode = mode_value(name)
      assert torch.tpu.eager_mode == mode_value(name)
      assert (torch.ones(3, device="tpu") + 1).tolist() == [2, 2, 2]
  finally:
    torch.tpu.eager_mode = before


def test_switching_by_context_manager_nests_and_survives_errors():
  torch_mode = torch.tpu.eager_mode
  with torch.tpu.set_eager_mode(mode_value("strict")):
    assert torch.tpu.eager_mode == mode_value("strict")
    with pytest.raises(KeyError), torch.tpu.set_eager_mode(mode_value("debug")):
      assert torch.tpu.eager_mode == mode_value("debug")
      raise KeyError
    assert torch.tpu.eager_mode == mode_value("strict")
  assert torch.tpu.eager_mode == torch_mode


SPELLINGS = {
  "debug": ("Debug", "DEFER_NEVER_AND_LAUNCH_BLOCKING"),
  "strict": ("STRICT", "defer_never"),
  "fused": ("fused", "DEFER_AND_FUSE"),
}


@pytest.mark.parametrize("name", MODES)
def test_a_mode_can_be_given_by_name(name):
  for spelling in SPELLINGS[name]:
    with torch.tpu.set_eager_mode(spelling):
      assert torch.tpu.eager_mode is mode_value(name)


@pytest.mark.parametrize(
  "mode, error", [("sometimes", ValueError), ("", ValueError), (2, TypeError), (None, TypeError)]
)
def test_wrong_mode_is_refused(mode, error):
  from torch_tpu._internal import execution_mode

  before = torch.tpu.eager_mode
  for module in (torch.tpu, execution_mode):
    with pytest.raises(error, match="mode"):
      module.eager_mode = mode
    with pytest.raises(error, match="mode"):
      module.set_eager_mode(mode)
  assert torch.tpu.eager_mode == before


# What a process says of its mode before the first operation, and after it.
PRINT_MODES = """
import json, torch
from torch_tpu._internal import execution_mode
names = [torch.tpu.eager_mode.name]
torch.ones(1, device='tpu')
names += [torch.tpu.eager_mode.name, torch.tpu.get_eager_mode().name]
names += [execution_mode.eager_mode.name]
print(json.dumps(names))
"""
CLEAR = {
  "TORCH_TPU_EAGER_MODE": None,
  "TPU_LAUNCH_BLOCKING": None,
  "TORCH_TPU_DEFER_AND_FUSE": None,
}


@pytest.mark.parametrize(
  "env, expected",
  [
    ({}, "fused"),
    *[({"TORCH_TPU_EAGER_MODE": text}, name) for name in MODES for text in SPELLINGS[name]],
    ({"TORCH_TPU_EAGER_MODE": ""}, "fused"),
    ({"TPU_LAUNCH_BLOCKING": "1"}, "debug"),
    ({"TPU_LAUNCH_BLOCKING": "0"}, "fused"),
    ({"TORCH_TPU_DEFER_AND_FUSE": "1"}, "fused"),
    ({"TORCH_TPU_DEFER_AND_FUSE": "0"}, "strict"),
    ({"TPU_LAUNCH_BLOCKING": "1", "TORCH_TPU_EAGER_MODE": "fused"}, "debug"),
    ({"TPU_LAUNCH_BLOCKING": "1", "TORCH_TPU_DEFER_AND_FUSE": "1"}, "debug"),
    ({"TORCH_TPU_EAGER_MODE": "Strict", "TORCH_TPU_DEFER_AND_FUSE": "1"}, "strict"),
    ({"TORCH_TPU_EAGER_MODE": "Fused", "TORCH_TPU_DEFER_AND_FUSE": "0"}, "fused"),
  ],
)
def test_switching_by_environment(env, expected):
  names = child_json(PRINT_MODES, env={**CLEAR, **env})
  assert names == [mode_value(expected).name] * 4


@pytest.mark.parametrize(
  "use",
  [
    "torch.tpu.eager_mode",
    "torch.tpu.get_eager_mode()",
    "torch.tpu.set_eager_mode('fused')",
    "torch.tpu.init()",
    "torch.ones(1, device='tpu')",
  ],
)
@pytest.mark.parametrize("blocking", [None, "1"])
def test_wrong_environment_is_refused_by_each_way_to_begin(use, blocking):
  code = f"""
import torch
for _ in range(2):
  try:
    {use}
    print("accepted")
  except RuntimeError as error:
    print(error)
"""
  env = {**CLEAR, "TORCH_TPU_EAGER_MODE": "quick", "TPU_LAUNCH_BLOCKING": blocking}
  lines = [line for line in child(code, env=env).stdout.splitlines() if "eager mode" in line]
  assert len(lines) == 2, lines
  for line in lines:
    for word in ("TORCH_TPU_EAGER_MODE", "'quick'", *MODES, *torch.tpu.EagerMode.__members__):
      assert word in line


def test_fused_records_and_strict_does_not():
  """Fused mode launches nothing until a value is needed; Strict launches each op."""
  x = torch.ones(8, device="tpu")
  synchronize()
  with eager_mode("fused"):
    with counting(torch.tpu.engine_stats) as fused:
      y = x
      for _ in range(10):
        y = y + x
    # Leaving the mode would launch the window, too.
    with counting(torch.tpu.engine_stats) as reading:
      y.tolist()
  with eager_mode("strict"), counting(torch.tpu.engine_stats) as strict:
    z = x
    for _ in range(10):
      z = z + x
    synchronize()
  assert fused["records"] == 10 and strict["records"] == 10
  assert strict["launches"] == 10
  assert fused.get("launches", 0) == 0
  assert 1 <= reading["launches"] <= 2
  assert y.tolist() == z.tolist() == [11.0] * 8


def test_one_window_is_one_compile():
  """A chain of elementwise ops becomes one program, and the same chain again asks for nothing."""
  x = torch.arange(7, device="tpu").float()

  def chain():
    y = x
    for k in range(12):
      y = (y * 1.01 + k).sin() if k % 3 == 0 else y - x
    return y.sum().item()

  with eager_mode("fused"):
    synchronize()
    with counting(compile_stats) as first:
      one = chain()
    with counting(compile_stats) as second:
      two = chain()
  assert first.get("requests", 0) <= 2
  assert second.get("requests", 0) == 0
  assert one == two


def test_materialization_can_be_asked_for():
  from torch_tpu._internal import sync

  with eager_mode("fused"):
    x = torch.ones(4, device="tpu") + 1
    view = x[1:]
    assert not sync.is_materialized(x) and not sync.is_materialized(view)
    assert not sync.is_materializing(x)
    sync.synchronize(wait=True)
    assert sync.is_materialized(x) and sync.is_materialized(view)
    x.mul_(2)
    assert not sync.is_materialized(view)
    assert sync.is_materialized(torch.empty(0, device="tpu"))
  with eager_mode("debug"):
    assert sync.is_materialized(torch.ones(4, device="tpu") + 1)
  with pytest.raises(ValueError, match="cpu"):
    sync.is_materialized(torch.ones(1))
  with pytest.raises(TypeError):
    sync.is_materialized(1)


def test_dead_values_are_not_kept():
  """Only what is still referenced comes out of a window: temporaries take no memory."""
  x = torch.ones(1 << 18, device="tpu")
  synchronize()
  torch.tpu.reset_peak_memory_stats()
  start = torch.tpu.memory_allocated()
  with eager_mode("fused"):
    y = x
    for _ in range(20):
      y = y * 1.5 - x
    synchronize()
  assert torch.tpu.memory_allocated() - start == x.nbytes
  assert torch.tpu.max_memory_allocated() - start <= 3 * x.nbytes
  assert y[:2].tolist() != [0, 0]


# --- errors ---


def line_of(error):
  """The innermost line of this file in the traceback."""
  found, step = None, error.tb
  while step is not None:
    if step.tb_frame.f_code.co_filename == __file__:
      found = step.tb_lineno
    step = step.tb_next
  return found


@pytest.mark.parametrize(
  "bad",
  [
    lambda: torch.ones(2, 3, device="tpu") @ torch.ones(2, 3, device="tpu"),
    lambda: torch.ones(3, device="tpu") + torch.ones(4, device="tpu"),
    lambda: torch.ones(2, 3, device="tpu").view(5),
    lambda: torch.cat([torch.ones(2, 3, device="tpu"), torch.ones(2, 4, device="tpu")]),
    lambda: torch.nn.functional.conv2d(
      torch.ones(1, 3, 8, 8, device="tpu"), torch.ones(4, 2, 3, 3, device="tpu")
    ),
    lambda: torch.ones(2, device="tpu").expand(3, 3),
    lambda: torch.ones(2, 3, device="tpu").sum(5),
    lambda: torch.ones(2, device="tpu").as_strided((3,), (1,), 0),
    lambda: torch.ones(-1, device="tpu"),
  ],
)
def test_shape_errors_raise_at_the_line_in_every_mode(mode, bad):
  with pytest.raises((RuntimeError, IndexError)) as caught:
    bad()
  assert line_of(caught) is not None
  assert (torch.ones(2, device="tpu") * 2).tolist() == [2, 2]


PARTIAL_GRADIENTS = {
  "attention": (
    lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, attn_mask=m),
    [(1, 2, 5, 4), (1, 2, 6, 4), (1, 2, 6, 3), (5, 6)],
  ),
  "conv2d": (F.conv2d, [(2, 4, 5, 5), (4, 4, 3, 3), (4,)]),
  "layer_norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), [(3, 4), (4,), (4,)]),
  "group_norm": (lambda x, w, b: F.group_norm(x, 2, w, b), [(3, 4, 2), (4,), (4,)]),
  "batch_norm": (
    lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
    [(3, 4), (4,), (4,)],
  ),
  "grid_sample": (
    lambda x, g: F.grid_sample(x, g, align_corners=False),
    [(1, 2, 4, 4), (1, 3, 3, 2)],
  ),
  "bilinear": (F.bilinear, [(3, 4), (3, 2), (5, 4, 2), (5,)]),
  "cdist": (torch.cdist, [(3, 4), (5, 4)]),
}


@pytest.mark.parametrize("name", list(PARTIAL_GRADIENTS))
def test_gradients_of_some_inputs(mode, name):
  """Each input alone: a backward gives nothing for the others, and in no mode is it missed."""
  function, sizes = PARTIAL_GRADIENTS[name]
  generator = torch.Generator().manual_seed(3)
  inputs = [torch.randn(size, generator=generator) for size in sizes]
  for wanted in range(len(inputs)):
    gradients = []
    for device in ("cpu", "tpu"):
      leaves = [x.detach().to(device).requires_grad_(k == wanted) for k, x in enumerate(inputs)]
      result = function(*leaves)
      result.backward(torch.arange(result.numel(), device=device).view(result.shape).to(result))
      gradients.append([leaf.grad for leaf in leaves])
    assert [g is None for g in gradients[1]] == [k != wanted for k in range(len(inputs))]
    torch.testing.assert_close(
      gradients[1][wanted].cpu(), gradients[0][wanted], atol=2e-4, rtol=1e-4
    )


def test_error_kind_and_text_are_pytorchs():
  for bad in (
    lambda d: torch.ones(3, device=d) + torch.ones(4, device=d),
    lambda d: torch.ones(2, 3, device=d).sum(5),
  ):
    with pytest.raises(Exception) as expected:
      bad("cpu")
    with pytest.raises(type(expected.value)) as mine:
      bad("tpu")
    assert str(mine.value).splitlines()[0][:40] == str(expected.value).splitlines()[0][:40]


def overflowing(device):
  """By the way that it takes to the engine: an operation that makes infinities or NaN."""
  big, one = torch.full((4, 8), 3e38, device=device), torch.ones(4, 8, device=device)
  index = torch.zeros(4, dtype=torch.long, device=device)
  return {
    "add": lambda: big + big,
    "log": lambda: (one * 0).log(),
    "in place": lambda: big.clone().mul_(10),
    "through a view": lambda: big.clone()[1:3].mul_(10),
    "foreach": lambda: torch._foreach_mul([big, one], 10.0),
    "batch_norm": lambda: F.batch_norm(big, None, None, training=True),
    "attention": lambda: F.scaled_dot_product_attention(*[big[None, None]] * 3),
    "index_put": lambda: one.clone().index_put_((index,), big, accumulate=True),
    "backward": lambda: (one * 0).detach().requires_grad_().sqrt().sum().backward(),
    "cast": lambda: big.half(),
    "decomposed": lambda: torch.special.xlog1py(one, -one),
    "host": lambda: torch.special.bessel_y0(one * 0),
  }


@pytest.fixture
def looking_for_nonfinite():
  name = "TORCH_TPU_CHECK_NONFINITE"
  torch_tpu._C.env_override(name, "1")
  yield
  torch_tpu._C.env_override(name, None)


@pytest.mark.parametrize("way", overflowing("cpu"))
def test_debug_names_the_op_that_makes_infinities(way, looking_for_nonfinite):
  expected = "mul" if way in ("in place", "through a view", "foreach") else way
  with eager_mode("debug"):
    run = overflowing("tpu")[way]
    with pytest.raises(RuntimeError, match="made NaN or infinity from finite inputs") as caught:
      run()
  if way in ("add", "log", "batch_norm", "index_put") or expected == "mul":
    assert f"'{expected}'" in str(caught.value)


def test_infinities_that_were_asked_for_are_no_error(looking_for_nonfinite):
  with eager_mode("debug"):
    one = torch.ones(4, device="tpu")
    infinite = torch.full((4,), float("inf"), device="tpu")
    assert (infinite * one).tolist() == [float("inf")] * 4
    assert one.masked_fill(one > 0, float("-inf")).tolist() == [float("-inf")] * 4
    assert one.log().tolist() == [0] * 4


def test_nonfinite_results_are_no_error_unless_looked_for():
  with eager_mode("debug"):
    assert torch.zeros(2, device="tpu").log().tolist() == [float("-inf")] * 2


def test_a_failed_op_leaves_its_window_alive():
  """An error while recording keeps what was recorded before it."""
  with eager_mode("fused"):
    x = torch.ones(4, device="tpu")
    y = x * 3
    with pytest.raises(RuntimeError):
      y @ torch.ones(3, 3, device="tpu")
    y += 1
    assert y.tolist() == [4, 4, 4, 4]
