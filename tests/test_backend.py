"""What PyTorch code expects of any device: names, factories, copies, storages, host values."""

import itertools
import re

import pytest
import torch
from torch import nn

from support import DEVICE, child, has_modes

needs_tpu = pytest.mark.skipif(not has_modes(), reason="the CPU device has no such thing")


# --- devices ---


@needs_tpu
def test_device_names():
  assert torch.device("tpu").type == "tpu"
  assert torch.ones(1, device="tpu").device == torch.device("tpu:0")
  assert torch.tpu.is_available() and torch.tpu.device_count() == 1
  assert torch.tpu.get_device_name().startswith("TPU")
  assert torch.accelerator.is_available()
  assert torch.accelerator.current_accelerator() == torch.device("tpu")
  assert torch.accelerator.device_count() == 1
  assert torch.accelerator.current_device_index() == 0
  torch.accelerator.synchronize()
  x = torch.ones(2).tpu()
  assert x.is_tpu and x.device.type == "tpu"
  assert torch.get_device_module("tpu") is torch.tpu


@needs_tpu
def test_import_starts_nothing():
  child(
    "import torch; assert not torch.tpu.is_initialized(); torch.ones(1, device='tpu').cpu(); "
    "assert torch.tpu.is_initialized()",
    fresh=True,
  )


@needs_tpu
def test_autoload_can_be_switched_off():
  child(
    "import torch; assert not hasattr(torch, 'tpu'); import torch_tpu; "
    "assert torch.ones(2, device='tpu').sum().item() == 2",
    env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
  )


@needs_tpu
def test_wrong_device_index():
  with pytest.raises((RuntimeError, ValueError)):
    torch.ones(1, device="tpu:7")
  assert torch.ones(1, device="tpu").item() == 1


def test_default_device(device):
  with torch.device(device):
    layer = nn.Linear(3, 2)
    x = torch.ones(4, 3)
  assert layer.weight.device.type == x.device.type == layer(x).device.type == device.type


def test_factories(device):
  for make in (
    lambda d: torch.zeros(2, 3, device=d),
    lambda d: torch.ones(2, device=d),
    lambda d: torch.full((3,), 7, device=d),
    lambda d: torch.full((2,), 1.5, device=d),
    lambda d: torch.arange(3, 20, 4, device=d),
    lambda d: torch.arange(5.0, device=d),
    lambda d: torch.linspace(0, 1, 7, device=d),
    lambda d: torch.eye(3, 4, device=d),
    lambda d: torch.tensor([[1, 2], [3, 4]], device=d),
    lambda d: torch.tensor(True, device=d),
    lambda d: torch.tensor([], device=d),
    lambda d: torch.zeros(0, 4, device=d),
    lambda d: torch.tril(torch.ones(4, 4, device=d)),
    lambda d: torch.ones(2, 3, device=d, dtype=torch.bfloat16),
    lambda d: torch.ones(2, device=d).new_zeros(3, dtype=torch.int64),
  ):
    mine, expected = make(device), make("cpu")
    assert mine.dtype == expected.dtype and mine.stride() == expected.stride()
    torch.testing.assert_close(mine.cpu(), expected)


def length_or_error(*args, **kwargs):
  try:
    return torch.arange(*args, **kwargs).shape
  except (RuntimeError, ValueError) as error:
    return type(error)


@pytest.mark.parametrize("dtype", [None, torch.int64, torch.int32, torch.float32, torch.bfloat16])
def test_arange_counts_as_the_cpu_does(dtype, device):
  for args in itertools.product((0, 0.0, -3, 2.5), (5, -8.000001, 7.0), (1, -4.0, 0.3, 0)):
    expected = length_or_error(*args, dtype=dtype)
    assert length_or_error(*args, dtype=dtype, device=device) == expected, args


@pytest.mark.parametrize(
  "dtype",
  [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
  ],
)
def test_copies_keep_every_bit(dtype, device):
  generator = torch.Generator().manual_seed(1)
  if dtype is torch.bool:
    host = torch.rand(3, 8, generator=generator) > 0.5
  else:
    raw = torch.randint(0, 256, (3, 8 * dtype.itemsize), dtype=torch.uint8, generator=generator)
    host = raw.view(dtype)
  back = host.to(device).cpu()
  assert torch.equal(back.view(torch.uint8), host.view(torch.uint8))
  across = host.t().to(device)
  assert across.stride() == host.t().stride()
  assert torch.equal(
    across.cpu().contiguous().view(torch.uint8), host.t().contiguous().view(torch.uint8)
  )


def test_copies_between_dtypes_and_layouts(device):
  x = torch.randn(4, 6, generator=torch.Generator().manual_seed(2)) * 3
  for dtype in (torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.bool, torch.uint8):
    source = x.abs() if dtype is torch.uint8 else x
    assert torch.equal(source.to(device).to(dtype).cpu(), source.to(dtype))
    target = torch.empty(6, 4, dtype=dtype, device=device)
    target.copy_(source.t())  # host, other layout, other dtype -> device
    assert torch.equal(target.cpu(), source.t().to(dtype))
    back = torch.empty(4, 6, dtype=dtype)
    back.copy_(source.to(device))  # device -> host of another dtype
    assert torch.equal(back, source.to(dtype))
  images = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
  assert images.to(device).is_contiguous(memory_format=torch.channels_last)


@needs_tpu
@pytest.mark.parametrize(
  "geometry",
  [((1, 3), (7, 1)), ((3, 1, 2), (2, 5, 1)), ((1, 1), (9, 4)), ((0, 3), (5, 1)), ((3, 2), (1, 3))],
)
def test_copies_keep_strides_that_lead_nowhere(geometry, device):
  """Strides of dimensions with one element, and of empty tensors, are PyTorch's too."""
  cpu, mine = (torch.zeros(24, device=d).as_strided(*geometry) for d in ("cpu", device))
  for copy in (
    lambda t: t.clone(),
    lambda t: t.to(torch.float64),
    lambda t: torch.empty_like(t),
    lambda t: t.contiguous(),
    lambda t: t.clone().neg_(),
    lambda t: t.clone().detach()[..., None],
  ):
    assert copy(mine).stride() == copy(cpu).stride()
  assert mine.cpu().stride() == cpu.clone().stride()


def test_non_blocking_upload_takes_the_values_at_call_time(device):
  host = torch.ones(1000)
  there = host.to(device, non_blocking=True)
  host.fill_(5)
  assert there.sum().item() == 1000


# --- storages ---


def test_storage_identity(device):
  x = torch.zeros(4, 5, device=device)
  view = x.t()[1:]
  assert view.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() != 0
  assert view.data_ptr() == x.data_ptr() + view.storage_offset() * 4
  others = [torch.zeros(4, 5, device=device) for _ in range(50)]
  assert len({o.data_ptr() for o in others}) == 50
  ends = sorted((o.data_ptr(), o.data_ptr() + o.untyped_storage().nbytes()) for o in others)
  assert all(a[1] <= b[0] for a, b in zip(ends, ends[1:]))
  assert torch.zeros(0, device=device).data_ptr() == 0
  assert x.untyped_storage().nbytes() == 80


def test_set_and_resize(device):
  x = torch.arange(12, device=device).float()
  y = torch.empty(0, device=device)
  y.set_(x.untyped_storage(), 2, (2, 3), (5, 1))
  assert y.tolist() == [[2, 3, 4], [7, 8, 9]]
  y.mul_(10)
  assert x.tolist()[2:5] == [20, 30, 40] and x[11].item() == 11
  x.resize_(4)
  assert x.tolist() == [0, 1, 20, 30]
  x.resize_(12)
  assert x.tolist()[6:] == [6, 70, 80, 90, 10, 11]
  x.resize_(20)
  assert x.tolist()[:12] == [0, 1, 20, 30, 40, 5, 6, 70, 80, 90, 10, 11]
  storage = x.untyped_storage()
  storage.resize_(0)
  assert storage.nbytes() == 0 and x.untyped_storage().data_ptr() == 0
  storage.resize_(80)
  x.fill_(3)
  assert x.sum().item() == 60


def test_storage_copy_and_bytes(device):
  x = torch.arange(6, device=device).float()
  storage = x.untyped_storage()
  assert storage.device.type == device.type
  assert bytes(storage.cpu().tolist()) == torch.arange(6).float().numpy().tobytes()
  clone = storage.clone()
  x.zero_()
  assert any(clone.cpu().tolist())
  storage.copy_(clone)
  assert x.tolist() == [0, 1, 2, 3, 4, 5]


def test_data_assignment_moves_a_parameter(device):
  layer = nn.Linear(3, 3)
  weight = layer.weight
  before = weight.detach().clone()
  weight.data = weight.data.to(device)
  assert layer.weight is weight and weight.device.type == device.type
  assert torch.equal(weight.detach().cpu(), before)
  weight.data = torch.zeros(3, 3, device=device)
  assert weight.sum().item() == 0


@needs_tpu
def test_dlpack_is_refused_and_numpy_says_how():
  x = torch.ones(3, device="tpu")
  with pytest.raises((RuntimeError, BufferError, TypeError)):
    torch.utils.dlpack.to_dlpack(x)
  with pytest.raises(TypeError, match="(?i)cpu"):
    x.numpy()


def test_version_counter_guards_saved_tensors(device):
  x = torch.ones(3, device=device, requires_grad=True)
  y = x.exp()
  y.add_(1)
  with pytest.raises(RuntimeError, match="modified by an inplace operation"):
    y.sum().backward()


# --- printing, host values ---


def test_printing(device):
  for value in (
    torch.arange(5),
    torch.randn(3, 3),
    torch.ones(100, 100),
    torch.tensor(2.5),
    torch.zeros(0, 3),
    torch.tensor([True, False]),
    torch.ones(2).bfloat16(),
  ):
    text = repr(value.to(device))
    assert f"device='{device.type}" in text or device.type == "cpu"
    assert re.sub(r",\s*device='\w+:0'", "", text) == repr(value)
  assert f"{torch.tensor(1.25, device=device):.1f}" == "1.2"
  assert "grad_fn" in repr(torch.ones(1, device=device, requires_grad=True) * 2)


def test_host_values(device):
  x = torch.tensor([[1, 2], [3, 4]], device=device)
  assert x.tolist() == [[1, 2], [3, 4]] and x[1, 0].item() == 3
  assert int(x[0, 1]) == 2 and float(x[0, 0]) == 1.0 and bool(x[0, 0] == 1)
  assert [row.sum().item() for row in x] == [3, 7] and len(x) == 2
  assert range(10)[x[0, 1]] == 2
  assert (x == x).all() and not (x != x).any()
  assert x.nonzero().tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]
  assert x[x > 2].tolist() == [3, 4]
  assert torch.equal(x, x.clone()) and torch.allclose(x.float(), x.float() + 1e-9)
  assert x.cpu().numpy().sum() == 10


def test_python_numbers_and_cpu_scalars_mix(device):
  x = torch.arange(3, device=device)
  assert (x + 1.5).dtype is torch.float32
  assert (x + torch.tensor(2.0, dtype=torch.float64)).dtype is torch.float64
  assert (x.float() + torch.tensor(2.0, dtype=torch.float64)).dtype is torch.float32
  assert (2**x).tolist() == [1, 2, 4] and (1 / (x + 1)).dtype is torch.float32
  assert (x * torch.tensor(3)).tolist() == [0, 3, 6]
  assert (x > 0.5).tolist() == [False, True, True]
  assert (x + True).tolist() == [1, 2, 3]
  big = torch.tensor([2**53 + 1], device=device)
  assert (big + 1).item() == 2**53 + 2  # int64 must not pass through a double
  assert (big * 1 + (2**60)).item() == 2**53 + 1 + 2**60


@needs_tpu
def test_mixing_devices_is_pytorchs_error():
  with pytest.raises(RuntimeError, match="(?i)same device|expected all tensors"):
    torch.ones(2, device="tpu") + torch.ones(2)
  with pytest.raises(RuntimeError, match="(?i)device"):
    torch.ones(2, 2, device="tpu") @ torch.ones(2, 2)
  with pytest.raises(RuntimeError, match="(?i)device"):
    torch.nn.functional.linear(torch.ones(2, 2, device="tpu"), torch.ones(2, 2))


# --- the fallback ---


@needs_tpu
def test_fallback_counts_warns_and_refuses():
  code = """
import sys, torch, warnings
x = torch.tensor([3.0, 1.0, 2.0], device="tpu")
with warnings.catch_warnings(record=True) as caught:
  warnings.simplefilter("always")
  try:
    y = torch.special.bessel_j0(x)
    print("ran", torch.allclose(y.cpu(), torch.special.bessel_j0(x.cpu())), len(caught),
          any("bessel_j0" in key for key in torch.tpu.fallback_stats()))
  except NotImplementedError as error:
    print("refused", "bessel_j0" in str(error), "TORCH_TPU_FALLBACK" in str(error))
"""
  run = {
    mode: child(code, env={"TORCH_TPU_FALLBACK": mode}).stdout.split()
    for mode in ("allow", "warn", "error")
  }
  assert run["allow"] == ["ran", "True", "0", "True"]
  assert run["warn"] == ["ran", "True", "1", "True"]
  assert run["error"] == ["refused", "True", "True"]
  refused = child(code, env={"TORCH_TPU_FALLBACK": "forbid"}, check=False)
  assert refused.returncode != 0
  assert "ValueError: TORCH_TPU_FALLBACK: 'forbid'" in refused.stderr
  assert "use allow, warn or error" in refused.stderr


def test_inference_mode_and_no_grad(device):
  x = torch.ones(3, device=device, requires_grad=True)
  with torch.inference_mode():
    y = x * 2
    y.add_(1)
  assert y.is_inference() and y.tolist() == [3, 3, 3]
  with torch.no_grad():
    x.add_(1)
  assert x.tolist() == [2, 2, 2] and x.is_leaf


def test_function_transforms(device):
  from torch.func import grad, vmap

  x = torch.arange(3, device=device).float()
  assert grad(lambda t: (t**3).sum())(x).tolist() == [0, 3, 12]
  assert vmap(lambda t: t * 2 + t.sum())(x.view(3, 1)).flatten().tolist() == [0, 3, 6]


def products_of_lazy_views(matrix, other, third, vector):
  """Core hands conjugated and negated views to products as they are."""
  yield from (matrix.conj() @ other, matrix @ other.conj(), matrix.mH @ other)
  yield torch.addmm(third.conj(), matrix, other.mH)
  yield torch.bmm(matrix[None].conj(), other[None])
  yield torch.baddbmm(third[None].conj(), matrix[None], other[None].mH)
  yield from (torch.dot(vector.conj(), vector), torch.vdot(vector, vector), matrix.conj() @ vector)
  yield torch.einsum("ij,kj->ik", matrix, other.conj())
  written = third.clone()
  written.conj().addmm_(matrix, other)
  yield written
  written.conj().mul_(2j)
  yield written
  negated = torch._neg_view(matrix.clone())
  yield negated @ other
  negated.addmm_(matrix, other)
  yield negated
  yield from (torch.cat([matrix.conj(), other]), matrix.conj().t().contiguous())
  leaf = matrix.clone().requires_grad_()
  (leaf @ other).abs().sum().backward()
  yield leaf.grad


def test_products_of_lazy_views(device):
  generator = torch.Generator().manual_seed(4)
  host = [torch.randn(4, 4, dtype=torch.complex64, generator=generator) for _ in range(3)]
  host.append(torch.randn(4, dtype=torch.complex64, generator=generator))
  mine = products_of_lazy_views(*(t.to(device) for t in host))
  for number, (a, b) in enumerate(zip(mine, products_of_lazy_views(*host), strict=True)):
    torch.testing.assert_close(a.cpu(), b, msg=lambda m, number=number: f"product {number}: {m}")


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("padding, dilation, stride", [(1, 1, 1), (2, 2, 1), (2, 1, 2), (4, 2, 3)])
def test_convolution_of_small_maps(size, padding, dilation, stride, device):
  """Kernels that reach over the whole input."""
  generator = torch.Generator().manual_seed(6)
  x, w = (torch.randn(s, generator=generator) for s in ((2, 3, size, size), (4, 3, 3, 3)))
  found = []
  for d in ("cpu", device):
    leaves = [t.to(d, copy=True).requires_grad_() for t in (x, w)]
    y = nn.functional.conv2d(*leaves, padding=padding, dilation=dilation, stride=stride)
    found.append([y, *torch.autograd.grad(y.square().sum(), leaves)])
  for expected, mine in zip(*found):
    torch.testing.assert_close(mine.cpu(), expected, atol=1e-4, rtol=1e-4)


def test_encoder_with_padding_mask_in_eval_mode(device):
  """PyTorch would pack the batch into a nested tensor, which the device does not have."""
  torch.manual_seed(0)
  layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
  model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=True).eval()
  x = torch.randn(2, 5, 8)
  padding = torch.tensor([[False] * 3 + [True] * 2, [False] * 5])
  with torch.no_grad():
    expected = model(x, src_key_padding_mask=padding)
    mine = model.to(device)(x.to(device), src_key_padding_mask=padding.to(device)).cpu()
  torch.testing.assert_close(mine[~padding], expected[~padding], atol=1e-5, rtol=1e-4)


def test_vmap_over_attention(device):
  q = torch.randn(3, 1, 2, 4, 4, generator=torch.Generator().manual_seed(1))
  attention = nn.functional.scaled_dot_product_attention
  mine = torch.vmap(lambda a: attention(a, a, a))(q.to(device)).cpu()
  torch.testing.assert_close(mine, attention(q, q, q), atol=1e-5, rtol=1e-4)


def test_custom_autograd_function(device):
  class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
      ctx.save_for_backward(x)
      return x * 2

    @staticmethod
    def backward(ctx, grad):
      (x,) = ctx.saved_tensors
      return grad * 2 + 0 * x

  x = torch.ones(2, device=device, requires_grad=True)
  Double.apply(x).sum().backward()
  assert x.grad.tolist() == [2, 2] and x.device.type == DEVICE.type
