"""New windows are interpreted with PyTorch's CPU kernels, and compiled when they keep coming."""

import pytest
import torch

import fuzz_views
import models
from support import TEST_ALL, child, compile_stats, counting, eager_mode
from test_ops import cases, check_op, full_name, run_listed
from torch_tpu import _C

pytestmark = pytest.mark.skipif(
  torch.tpu.is_available() and _C.platform_name() != "cpu", reason="needs buffers in host memory"
)

# What PyTorch's CPU kernels do otherwise than the device on purpose.
DIFFERENT = {
  ("complex", "float16"): "its result is ComplexHalf, which the device has no dtype for",
}


@pytest.fixture(autouse=True)
def interpreted():
  """The tier of new windows, with few occurrences, whatever the other tests run with."""
  _C.env_override("TORCH_TPU_TIERS", "interpreted")
  _C.env_override("TORCH_TPU_INTERPRETATIONS", "4")
  torch.tpu.clear_cache()
  yield
  _C.env_override("TORCH_TPU_TIERS", None)
  _C.env_override("TORCH_TPU_INTERPRETATIONS", None)
  torch.tpu.clear_cache()


def interpretations():
  return _C.engine_stats()["interpretations"]


# --- numbers ---


@pytest.mark.parametrize("row, op, dtype", cases()[:: 1 if TEST_ALL else 4])
def test_op_interpreted(row, op, dtype):
  """Rows of the op table against the CPU, forward and backward, by their host forms: every row has
  one."""
  _C.env_override("TORCH_TPU_INTERPRETATIONS", "512")

  def check():
    with counting(compile_stats) as compiled:
      if check_op(op, dtype, 1, grad=dtype is torch.float32) == 0:
        pytest.skip("no samples")
    assert "requests" not in compiled, "some row has no host form: TORCH_TPU_LOG=launch says which"

  run_listed(DIFFERENT, full_name(op), dtype, check)


def test_programs_interpreted_then_compiled(device):
  """Random programs of views and writes, twice as often as they are interpreted."""
  _C.env_override("TORCH_TPU_INTERPRETATIONS", "1")
  for seed in range(500 if TEST_ALL else 40):
    for _ in range(2):
      with eager_mode("fused"):
        fuzz_views.check_seed(seed, device, value_checks=0.15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
  "heads, key_heads, length, keys, width, value_width",
  [
    (3, 3, 7, 7, 8, 8),
    (2, 2, 5, 9, 8, 8),
    (2, 2, 9, 5, 8, 8),
    (4, 2, 6, 6, 8, 8),
    (2, 2, 6, 6, 8, 4),
  ],
)
def test_attention_interpreted(heads, key_heads, length, keys, width, value_width, causal, dtype):
  """Plain heads take PyTorch's blocked kernel; grouped ones and other widths plain products."""
  generator = torch.Generator().manual_seed(0)
  shapes = [(heads, length, width), (key_heads, keys, width), (key_heads, keys, value_width)]
  inputs = [torch.randn(2, *shape, generator=generator).to(dtype) for shape in shapes]
  results = []
  for device in ("cpu", "tpu"):
    leaves = [x.to(device).detach().clone().requires_grad_() for x in inputs]
    out = torch.nn.functional.scaled_dot_product_attention(
      *leaves, is_causal=causal, enable_gqa=heads != key_heads, scale=0.3
    )
    out.sum().backward()
    results.append([out.detach().cpu()] + [x.grad.cpu() for x in leaves])
  tolerance = 2e-5 if dtype is torch.float32 else 4e-2
  torch.testing.assert_close(results[1], results[0], rtol=tolerance, atol=tolerance)


LAYOUTS = {
  "channel attention": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
  "heads last": lambda x: x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
  "every other": lambda x: x.repeat_interleave(2, -1)[..., ::2],
  "expanded": lambda x: x[:1, :, :, :1].expand_as(x),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("which", range(4), ids=["query", "key", "value", "grad"])
def test_attention_interpreted_of_any_layout(which, layout):
  """The blocked kernel reads heads of adjacent numbers, and would read past others."""
  generator = torch.Generator().manual_seed(0)
  inputs = [torch.randn(2, 3, 6, 8, generator=generator) for _ in range(4)]
  results = []
  for device in ("cpu", "tpu"):
    leaves = [x.to(device).requires_grad_() for x in inputs]
    q, k, v, grad = (layout(x) if i == which else x for i, x in enumerate(leaves))
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    grads = torch.autograd.grad(out, leaves[:3], grad.detach())
    results.append([out.detach().cpu()] + [x.cpu() for x in grads])
  torch.testing.assert_close(results[1], results[0], rtol=2e-5, atol=2e-5)


FUSED = {
  "Adam": dict(lr=0.1, amsgrad=True),
  "AdamW": dict(lr=0.1),
  "SGD": dict(lr=0.1, momentum=0.9),
  "Adagrad": dict(lr=0.1),
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("name", FUSED)
def test_fused_optimizers_interpreted_with_gradients_of_any_layout(name, layout):
  updated = []
  for device, fused in (("cpu", False), ("tpu", True)):
    generator = torch.Generator().manual_seed(0)
    draw = [torch.randn(2, 3, 4, 6, generator=generator).to(device) for _ in range(3)]
    parameter = torch.nn.Parameter(draw[0])
    optimizer = getattr(torch.optim, name)([parameter], fused=fused, **FUSED[name])
    for grad in draw[1:]:
      parameter.grad = layout(grad)
      optimizer.step()
    updated.append(parameter.detach().cpu())
  torch.testing.assert_close(*updated, rtol=1e-5, atol=1e-5)


# --- numbers that are drawn ---


def filled(dtype, *bounds):
  return lambda device, weights: torch.empty(33, dtype=dtype, device=device).random_(*bounds)


DRAWS = {
  "rand": lambda device, weights: torch.rand(33, device=device),
  "randn": lambda device, weights: torch.randn(33, device=device, dtype=torch.bfloat16),
  "randint": lambda device, weights: torch.randint(-5, 1000, (33,), device=device),
  "randint of many": lambda device, weights: torch.randint(0, 10**12, (33,), device=device),
  "randint of bool": lambda device, weights: torch.randint(
    2, (33,), device=device, dtype=torch.bool
  ),
  "random_": filled(torch.int64),
  "random_ of a byte": filled(torch.uint8),
  "random_ to": filled(torch.float32, 17),
  "random_ from": filled(torch.int64, -(2**63), None),
  "randperm": lambda device, weights: torch.randperm(1000, device=device),
  "randperm of floats": lambda device, weights: torch.randperm(
    9, device=device, dtype=torch.float32
  ),
  "multinomial": lambda device, weights: weights.multinomial(5),
  "multinomial, one": lambda device, weights: weights[0].multinomial(1),
  "multinomial, again": lambda device, weights: weights.double().multinomial(80, replacement=True),
  "dropout": lambda device, weights: torch.nn.functional.dropout(weights, 0.3),
  "no dropout": lambda device, weights: torch.native_dropout(weights, 0.3, False)[1],
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_same_random_bits_in_both_tiers(draw, device):
  drawn = []
  for tier in ("interpreted", "compiled"):
    _C.env_override("TORCH_TPU_TIERS", tier)
    torch.manual_seed(3)
    with counting(compile_stats) as compiled:
      weights = torch.rand(3, 50, device=device)
      drawn.append(draw(device, weights).cpu())
    assert ("requests" in compiled) == (tier == "compiled")
  assert torch.equal(*drawn)


@pytest.mark.parametrize("bias", [False, True])
def test_attention_drops_the_same_in_both_tiers(bias, device):
  """Forward and backward, with grouped heads."""
  generator = torch.Generator().manual_seed(0)
  q = torch.randn(2, 4, 5, 8, generator=generator).to(device).requires_grad_()
  k = torch.randn(2, 2, 7, 8, generator=generator).to(device).requires_grad_()
  mask = torch.randn(5, 7, generator=generator).to(device) if bias else None
  results = []
  for tier in ("interpreted", "compiled"):
    _C.env_override("TORCH_TPU_TIERS", tier)
    torch.manual_seed(3)
    out = torch.nn.functional.scaled_dot_product_attention(
      q, k, k, attn_mask=mask, dropout_p=0.4, enable_gqa=True
    )
    grads = torch.autograd.grad(out.square().sum(), (q, k))
    results.append([out.detach().cpu()] + [grad.cpu() for grad in grads])
  torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", ["GRU", "LSTM"])
def test_recurrent_cells_interpreted(kind, bias, dtype, device):
  torch.manual_seed(0)
  model = getattr(torch.nn, kind)(4, 6, bias=bias).to(dtype)
  x = torch.randn(3, 2, 4).to(dtype)
  results = []
  for where in ("cpu", device):
    model.to(where).zero_grad()
    with counting(compile_stats) as compiled:
      out = model(x.to(where))[0]
      out.square().sum().backward()
      results.append([out.detach().cpu()] + [p.grad.cpu().clone() for p in model.parameters()])
    assert "requests" not in compiled
  tolerance = 1e-5 if dtype is torch.float32 else 5e-2
  torch.testing.assert_close(results[1], results[0], rtol=tolerance, atol=tolerance)


WRONG = {
  "p_in": lambda device: torch.bernoulli(torch.full((3,), 2.0, device=device)),
  "std >= 0": lambda device: torch.normal(0.0, torch.full((3,), -1.0, device=device)),
  "element < 0": lambda device: torch.full((3,), -1.0, device=device).multinomial(1),
  "sum of probabilities <= 0": lambda device: torch.zeros(3, device=device).multinomial(1),
}


@pytest.mark.parametrize("text, draw", WRONG.items())
def test_wrong_probabilities_are_refused_interpreted(text, draw, device):
  with pytest.raises(RuntimeError, match=text):
    draw(device).tolist()


def test_default_dtype_of_the_recording(device):
  """Kernels run later, when the default is another one; and programs are not needed for it."""
  x = torch.arange(1, 6, device=device)
  torch.set_default_dtype(torch.float64)
  try:
    scaled = x.sqrt() * 0.1
  finally:
    torch.set_default_dtype(torch.float32)
  with counting(compile_stats) as compiled:
    got = scaled.cpu()
  wanted = torch.arange(1, 6).double().sqrt() * 0.1
  assert got.dtype == torch.float64 and torch.equal(got, wanted) and "requests" not in compiled


def test_complex_numbers_interpreted(device):
  x = torch.arange(4.0, device=device)
  with counting(compile_stats) as compiled:
    got = [(x * 2j).cpu(), torch.add(x, 1, alpha=2).cpu(), (x + 1j).cpu()]
  x = torch.arange(4.0)
  assert all(map(torch.equal, got, [x * 2j, torch.add(x, 1, alpha=2), x + 1j]))
  assert "requests" not in compiled


def sgd(parameters):
  return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


@pytest.mark.parametrize("name", ["gpt", "resnet", "lstm"])
def test_training_goes_on_across_the_tiers(name):
  """Interpreted steps, then compiled ones, against the CPU."""
  _, wanted = models.train(name, "cpu", 7, sgd)
  with counting(lambda: {"n": interpretations()}) as ran, counting(compile_stats) as compiled:
    _, got = models.train(name, "tpu", 7, sgd)
  torch.testing.assert_close(torch.stack(got).cpu(), torch.stack(wanted), rtol=2e-3, atol=1e-4)
  assert ran["n"] >= 4
  assert compiled.get("compiles", 0) + compiled.get("disk_hits", 0) > 0


INTERPRETED = {"TORCH_TPU_TIERS": "interpreted", "TORCH_TPU_INTERPRETATIONS": "4"}
TRAINING = """
import sys
sys.path[:0] = {paths!r}
import models, torch
_, losses = models.train("mlp", "tpu", 9, lambda p: torch.optim.AdamW(p, lr=0.01))
print([float(x).hex() for x in losses])
"""


def test_same_numbers_with_and_without_a_cache(tmp_path):
  """The tier depends on occurrences, not on what is cached or how long something takes."""
  folder = tmp_path / "cache"
  folder.mkdir(mode=0o700)
  code = TRAINING.format(paths=[str(fuzz_views.__file__).rsplit("/", 1)[0]])
  env = INTERPRETED | {"TORCH_TPU_CACHE_DIR": str(folder)}
  first, second = (child(code, env=env).stdout for _ in range(2))
  assert first == second and first.count("0x") == 9


# --- when ---


def test_what_does_not_repeat_never_compiles(device):
  x = torch.ones(5, device=device)
  with counting(compile_stats) as compiled:
    for length in range(1, 12):
      y = x
      for _ in range(length):
        y = y * 2 + 1
      assert y[0].item() == 2 ** (length + 1) - 1
  assert "requests" not in compiled


def test_one_set_of_programs_for_a_training(device):
  """Changing numbers are learnt while interpreting: after the switch nothing compiles again."""
  model = torch.nn.Linear(6, 3).to(device)
  optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False)
  schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
  x = torch.randn(4, 6, device=device)

  def step():
    optimizer.zero_grad()
    model(x).pow(2).mean().backward()
    optimizer.step()
    schedule.step()
    torch.tpu.synchronize()

  for _ in range(7):
    step()
  with counting(compile_stats) as compiled:
    for _ in range(6):
      step()
  assert "requests" not in compiled


def test_deterministic_algorithms_compile_at_once(device):
  torch.use_deterministic_algorithms(True)
  try:
    with counting(lambda: {"n": interpretations()}) as ran:
      (torch.ones(3, device=device) * 3).sum().item()
  finally:
    torch.use_deterministic_algorithms(False)
  assert not ran


def test_unknown_tier_is_refused_with_the_words(device):
  x = torch.ones(3, device=device)
  torch.tpu.synchronize()
  _C.env_override("TORCH_TPU_TIERS", "sometimes")
  with pytest.raises(RuntimeError, match="interpreted or compiled"):
    (x + 1).tolist()
  _C.env_override("TORCH_TPU_TIERS", None)
  assert (x + 1).tolist() == [2, 2, 2]


def test_mode_of_each_launch_is_counted(device):
  """Per structure and for all together, with what its programs are."""
  x = torch.ones(6, device=device)
  torch.tpu.synchronize()
  with counting(compile_stats) as counted:
    for _ in range(7):
      ((x + 1) * 3).tolist()
  window = torch.tpu.window_stats()[0]
  assert (window["first"], window["last"], window["records"]) == ("add", "mul", 2)
  assert (window["interpreted"], window["interpretations"], window["compiled"]) == (4, 4, 3)
  assert (window["programs"], window["sets"], window["building"]) == (1, 1, False)
  assert (counted["interpreted_windows"], counted["compiled_windows"]) == (4, 3)


# --- errors and memory ---


@pytest.mark.parametrize("eager", ["fused", "strict", "debug"])
def test_failed_operation_leaves_the_rest(device, eager):
  """A bad index fails its own result; what was written before and beside it is there."""
  with eager_mode(eager):
    x = torch.zeros(4, device=device)
    index = torch.tensor([9], device=device)
    x.add_(1)
    with pytest.raises(IndexError, match="out of (range|bounds)"):
      torch.ones(4, device=device).index_select(0, index).tolist()
    assert x.tolist() == [1, 1, 1, 1]
    assert (x * 2).tolist() == [2, 2, 2, 2]


def test_programs_built_in_the_background_check_their_data():
  """In a process of its own: nothing else has made a program before."""
  code = """
import torch
x = torch.arange(4.0, device="tpu")
def pick(i):
  return x.index_select(0, torch.tensor([i, 1]).to("tpu")).tolist()
for _ in range(6):
  assert pick(2) == [2.0, 1.0]
compiled = torch.tpu.compile_stats()["compiles"]
try:
  pick(7)
except IndexError as error:
  print(compiled, error)
"""
  out = child(code, env=INTERPRETED | {"TORCH_TPU_CACHE": "0"}).stdout
  assert out.startswith("1 ") and "index 7 is out of range for size 4" in out


def test_content_goes_between_the_tiers(device):
  """Memory of a CPU kernel is given to programs, which write in it, and comes back."""
  x = torch.zeros(1000, device=device)
  for step in range(12):
    x.add_(1)  # becomes a program
    if step % 5 == 0:
      x.mul_(1).sub_(step * 0)  # stays interpreted
    assert x[7].item() == step + 1
  assert x.tolist() == [12.0] * 1000


def test_memory_is_counted(device):
  before = torch.tpu.memory_allocated()
  x = torch.ones(1000, device=device)
  torch.tpu.synchronize()
  assert torch.tpu.memory_allocated() - before == 4000
  del x
  assert torch.tpu.memory_allocated() == before


def test_process_ends_while_programs_are_compiled():
  code = """
import torch
x = torch.ones(64, 64, device="tpu")
for _ in range(3):
  y = x
  for _ in range(30):
    y = torch.tanh(y @ x) + y
  torch.tpu.synchronize()
print("done")
"""
  assert (
    child(code, env={"TORCH_TPU_INTERPRETATIONS": "4", "TORCH_TPU_CACHE": "0"}).stdout == "done\n"
  )
