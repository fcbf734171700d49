"""Sizes and strides of results are those that PyTorch's fake tensors promise: torch.compile and
torch.export take them for granted. Nothing is compiled or run for this: metadata is known once an
operation is recorded."""

import warnings

import pytest
import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import (
  DataDependentOutputException,
  DynamicOutputShapeException,
  FakeTensorMode,
)
from torch.testing._internal.common_methods_invocations import op_db

from support import TEST_ALL, has_modes
from torch_tpu import _C

TIER = "interpreted"  # about calls, not about programs
pytestmark = pytest.mark.skipif(not has_modes(), reason="fake tensors promise for devices")

SAMPLES = 8 if TEST_ALL else 3  # of each entry, from all over its list

# Where the promise is another device's habit.
EXEMPT = {
  "native_batch_norm": "in evaluation, fake tensors save CUDA's statistics, which nobody reads",
}


def entries():
  tested = {name for row in _C.op_table() for name in row[4].split()}
  for op in op_db:
    full = op.name + ("." + op.variant_test_name if op.variant_test_name else "")
    if (op.name in tested or full in tested) and torch.float32 in op.dtypes:
      if full not in EXEMPT:
        yield full, op


def each_tensor(function, tree):
  return pytree.tree_map(lambda x: function(x) if isinstance(x, torch.Tensor) else x, tree)


def swapped(tensor):
  """The same content with the last two dimensions exchanged in memory."""
  return tensor if tensor.dim() < 2 else tensor.mT.contiguous().mT


def channels_last(tensor):
  return tensor if tensor.dim() != 4 else tensor.contiguous(memory_format=torch.channels_last)


def heads_last(tensor):
  """A model makes queries as [batch, length, heads, size] and reads them with heads first."""
  return tensor if tensor.dim() != 4 else tensor.transpose(1, 2).contiguous().transpose(1, 2)


def geometry(tree):
  # Strides of at most one element lead nowhere.
  tensors = [t for t in pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]
  return [(tuple(t.shape), t.stride() if t.numel() > 1 else ()) for t in tensors]


def as_made(tensor):
  return tensor


@pytest.mark.parametrize("layout", [as_made, swapped, channels_last, heads_last])
def test_results_lie_as_fake_tensors_promise(layout, device):
  found, compared = [], 0
  for name, op in entries():
    samples = list(op.sample_inputs("cpu", torch.float32))
    for sample in samples[:: max(1, len(samples) // SAMPLES)]:
      given = (sample.input, sample.args, sample.kwargs)
      laid_out = each_tensor(lambda t: layout(t.detach()), given)
      inputs, args, kwargs = each_tensor(lambda t: t.to(device), laid_out)
      with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        real = geometry(op.op(inputs, *args, **kwargs))
        try:
          with FakeTensorMode() as mode:
            inputs, args, kwargs = each_tensor(mode.from_tensor, (inputs, args, kwargs))
            promised = geometry(op.op(inputs, *args, **kwargs))
        except (DynamicOutputShapeException, DataDependentOutputException):
          continue  # nothing can be promised before the content is known
      compared += 1
      if real != promised:
        found.append(f"{name}: {real}, promised {promised}, inputs {geometry(laid_out)}")
  assert compared > 500
  assert not found, "\n".join(found)


@pytest.mark.parametrize("layout", [as_made, swapped, channels_last, heads_last])
@pytest.mark.parametrize("value_size", [16, 5])
def test_attention_lies_as_fake_tensors_promise(layout, value_size, device):
  sizes = [(2, 3, 7, 16), (2, 3, 9, 16), (2, 3, 9, value_size)]
  real = [layout(torch.randn(size)).to(device) for size in sizes]
  attention = torch.ops.aten._scaled_dot_product_fused_attention_overrideable
  with FakeTensorMode() as mode:
    promised = attention(*map(mode.from_tensor, real))
  assert geometry(attention(*real)[:2]) == geometry(promised[:2])
  through_functional = torch.nn.functional.scaled_dot_product_attention(*real)
  assert geometry(through_functional) == geometry(promised[0])


# Name -> sizes of the input, of the weight, groups.
CONVOLUTIONS = {
  "plain": ((2, 4, 8, 8), (6, 4, 3, 3), 1),
  "pointwise": ((2, 4, 8, 8), (6, 4, 1, 1), 1),
  "grouped": ((2, 4, 8, 8), (6, 2, 3, 3), 2),
  "depthwise": ((2, 4, 8, 8), (4, 1, 3, 3), 4),
  "one channel": ((2, 1, 8, 8), (6, 1, 3, 3), 1),
  "volumes": ((2, 4, 5, 5, 5), (6, 4, 3, 3, 3), 1),
  "sequences": ((2, 4, 9), (6, 4, 3), 1),
}


def convolution_and_gradients(input, weight, transposed, groups):
  spatial = input.dim() - 2
  how = ([1] * spatial, [0] * spatial, [1] * spatial, transposed, [0] * spatial, groups)
  result = torch.ops.aten.convolution(input, weight, None, *how)
  grad = torch.ones_like(result, memory_format=torch.contiguous_format)
  masks = [True, True, False]
  grads = torch.ops.aten.convolution_backward(grad, input, weight, None, *how, masks)
  return result, grads[0], grads[1]


@pytest.mark.parametrize("last", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_keep_channels_last(name, last, device):
  """Where the input or the weight is so, as on CUDA and on the CPU."""
  input_sizes, weight_sizes, groups = CONVOLUTIONS[name]
  formats = {4: torch.channels_last, 5: torch.channels_last_3d}
  for transposed in (False, True):
    sizes = (input_sizes, (input_sizes[1], 5, *weight_sizes[2:]) if transposed else weight_sizes)
    host = [torch.randn(size) for size in sizes]
    for i, as_last in enumerate(last):
      if as_last and host[i].dim() in formats:
        host[i] = host[i].contiguous(memory_format=formats[host[i].dim()])
    how = (transposed, 1 if transposed else groups)
    on_device = [tensor.to(device) for tensor in host]
    real = convolution_and_gradients(*on_device, *how)
    with FakeTensorMode() as mode:
      promised = convolution_and_gradients(*map(mode.from_tensor, on_device), *how)
    expected = convolution_and_gradients(*host, *how)
    assert geometry(real) == geometry(promised)
    if any(last) and name in ("plain", "grouped", "volumes"):
      for tensor in real:
        assert tensor.is_contiguous(memory_format=formats[tensor.dim()])
    for mine, theirs in zip(real, expected, strict=True):
      torch.testing.assert_close(mine.cpu(), theirs)
