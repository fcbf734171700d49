"""The list of gaps that Hugging Face keeps of TPU backends (transformers, utils/tpu_ci): each is a
test, beside the CPU's result."""

import copy

import pytest
import torch
from torch.nn import functional as F

from support import DEVICE, child, has_modes

TIER = "interpreted"


def both(function, *inputs, tolerance=1e-5):
  """Runs on the CPU and on the device; results and gradients of what requires them are equal."""
  results = []
  for device in ("cpu", DEVICE):
    leaves = [x.detach().clone().to(device).requires_grad_(x.requires_grad) for x in inputs]
    out = function(*leaves)
    wanted = [leaf for leaf in leaves if leaf.requires_grad]
    grads = torch.autograd.grad(out.float().square().sum(), wanted) if wanted else ()
    results.append([x.detach().cpu() for x in (out, *grads)])
  torch.testing.assert_close(results[1], results[0], rtol=tolerance, atol=tolerance)
  return results[1]


def random(*sizes, grad=False, seed=0):
  generator = torch.Generator().manual_seed(seed)
  return torch.randn(*sizes, generator=generator).requires_grad_(grad)


def test_cholesky():
  x = random(5, 5)
  both(lambda a: torch.linalg.cholesky_ex(a)[0], x @ x.T + 5 * torch.eye(5), tolerance=1e-4)


def test_ctc_loss():
  def loss(scores):
    targets = torch.tensor([[1, 2, 3], [2, 1, 1]], device=scores.device)
    lengths = torch.tensor([8, 7]), torch.tensor([3, 2])
    return F.ctc_loss(scores.log_softmax(-1), targets, *lengths)

  both(loss, random(8, 2, 5, grad=True), tolerance=1e-4)


@pytest.mark.skipif(not has_modes(), reason="compiles for the device")
@pytest.mark.parametrize("backend", [None, "inductor", "tpu"])
def test_compile(backend):
  named = {} if backend is None else {"backend": backend}
  compiled = torch.compile(lambda x, w: torch.relu(x @ w) + 1, **named)
  both(lambda x, w: compiled(x, w) if x.is_tpu else torch.relu(x @ w) + 1, random(3, 4), random(4))


@pytest.mark.skipif(not has_modes(), reason="compiles for the device")
def test_compiled_code_is_reused_at_other_offsets():
  from torch._dynamo.testing import CompileCounterWithBackend

  counter = CompileCounterWithBackend("tpu")
  compiled = torch.compile(lambda x: x * 2, backend=counter)
  whole = torch.arange(12.0, device=DEVICE)
  for begin in (0, 3, 6):
    assert torch.equal(compiled(whole[begin : begin + 3]), whole[begin : begin + 3] * 2)
  assert counter.frame_count == 1


def test_tied_weights_stay_tied():
  model = torch.nn.ModuleDict({"a": torch.nn.Linear(4, 4), "b": torch.nn.Linear(4, 4)})
  model["b"].weight = model["a"].weight
  for moved in (copy.deepcopy(model).to(DEVICE), copy.deepcopy(model).to(DEVICE).to("cpu")):
    assert moved["a"].weight is moved["b"].weight
  kept = model["a"].weight
  model.to(DEVICE)
  assert model["a"].weight is kept and kept.device.type == DEVICE.type


@pytest.mark.parametrize("kind", [torch.bool, torch.float32], ids=["bool", "float"])
def test_rows_that_attend_to_nothing(kind):
  seen = torch.ones(2, 1, 4, 4, dtype=torch.bool)
  seen[0, :, 2] = False
  mask = seen if kind is torch.bool else torch.zeros(2, 1, 4, 4).masked_fill(~seen, -torch.inf)
  inputs = [random(2, 3, 4, 8, seed=i) for i in range(3)]

  def attend(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

  out, *_ = both(attend, *inputs, mask)
  assert torch.equal(out[0, :, 2], torch.zeros(3, 8))


def test_multinomial_is_seeded():
  weights = torch.rand(3, 20).to(DEVICE)
  drawn = [torch.manual_seed(4) and torch.multinomial(weights, 5) for _ in range(2)]
  assert torch.equal(*drawn)
  mine = [
    torch.multinomial(weights, 5, generator=torch.Generator(DEVICE).manual_seed(2))
    for _ in range(2)
  ]
  assert torch.equal(*mine)


def test_masks_of_attention_have_gradients():
  inputs = [random(2, 3, 4, 8, seed=i, grad=True) for i in range(3)]
  mask = random(1, 3, 4, 4, seed=9, grad=True)
  both(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), *inputs, mask)


CASES = {
  "avg_pool1d": (lambda x: F.avg_pool1d(x, 3, 2, 1), (2, 3, 9)),
  "boolean mask": (
    lambda x: x[:, :, torch.eye(4, dtype=torch.bool, device=x.device)],
    (2, 3, 4, 4),
  ),
  "interpolate to the same size": (lambda x: F.interpolate(x, size=7, mode="linear"), (2, 3, 7)),
  "interpolate": (lambda x: F.interpolate(x, size=12, mode="linear"), (2, 3, 7)),
  "antialias": (
    lambda x: F.interpolate(x, size=(3, 4), mode="bilinear", antialias=True),
    (2, 3, 7, 9),
  ),
  "bicubic, antialias": (
    lambda x: F.interpolate(x, size=(3, 4), mode="bicubic", antialias=True),
    (2, 3, 7, 9),
  ),
  "weight norm": (lambda x: torch._weight_norm(x, x[:, :1, :1].abs() + 1, 0), (4, 3, 5)),
}


@pytest.mark.parametrize("name", CASES)
def test_gradients(name):
  function, sizes = CASES[name]
  both(function, random(*sizes, grad=True), tolerance=1e-4)


def test_attention_is_as_precise_as_its_dtype():
  inputs = [random(2, 3, 64, 32, seed=i) for i in range(3)]
  both(F.scaled_dot_product_attention, *inputs, tolerance=2e-6)


@pytest.mark.skipif(not has_modes(), reason="numbers are of the accelerator")
def test_numbers_are_devices_of_the_accelerator():
  assert torch.ones(2).to(0).device == torch.device("tpu", 0)
  assert torch.zeros(2, device=0).is_tpu
  with pytest.raises((RuntimeError, ValueError), match="device"):
    torch.ones(2).to(99)


@pytest.mark.skipif(not has_modes(), reason="asks for the device")
def test_a_child_uses_the_device_beside_its_parent():
  torch.ones(2, device="tpu").add(1).cpu()
  assert "2." in child("import torch; print((torch.ones(2, device='tpu') + 1).cpu())").stdout
