"""Autocast of "tpu" against autocast of "cuda", operation by operation.

PyTorch's CPU build registers CUDA's autocast kernels as well. Fake tensors of both devices go
through them, so what is compared is what autocast does with a call: the casts in front of it and
the dtypes of its results."""

import itertools

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from support import has_modes

pytestmark = pytest.mark.skipif(not has_modes(), reason="compares the tpu device with another one")

aten = torch.ops.aten
KEYS = {"tpu": "AutocastPrivateUse1", "cuda": "AutocastCUDA"}


def registered(device):
  names = torch._C._dispatch_get_registrations_for_dispatch_key(KEYS[device])
  return {name.removeprefix("aten::") for name in names if name.startswith("aten::")}


class F(tuple):
  """Sizes of a floating-point tensor; its dtype is what a case varies."""

  def __new__(cls, *sizes):
    return super().__new__(cls, sizes)


class I(tuple):  # noqa: E742
  """Sizes of a tensor of indices."""

  def __new__(cls, *sizes):
    return super().__new__(cls, sizes)


CONV1, CONV2, CONV3 = [(F(2, 4, *s), F(4, 4, *s), F(4)) for s in ((3,), (3, 3), (3, 3, 3))]
CELL = (F(2, 3), F(2, 4))  # input, hidden; then weights and biases of 1, 3 or 4 gates of 4
IMAGE = F(1, 2, 4, 4)


def gates(k):
  return (F(k * 4, 3), F(k * 4, 4), F(k * 4), F(k * 4))


def conv(k, *more):
  return ([1] * k, [0] * k, [1] * k, False, [0] * k, 1, *more)


SAMPLES = {
  "_convolution.deprecated": (*CONV2, *conv(2, False, False, True)),
  "_convolution": (*CONV2, *conv(2, False, False, True, True)),
  "convolution": (*CONV2, *conv(2)),
  "conv1d": CONV1,
  "conv2d": CONV2,
  "conv3d": CONV3,
  "conv_tbc": (F(5, 2, 3), F(2, 3, 4), F(4)),
  "conv_transpose1d": CONV1,
  "conv_transpose2d.input": CONV2,
  "conv_transpose3d.input": CONV3,
  "prelu": (F(2, 3), F(1)),
  "addmm": (F(3, 4), F(3, 2), F(2, 4)),
  "addmv": (F(3), F(3, 2), F(2)),
  "addr": (F(3, 2), F(3), F(2)),
  "matmul": (F(3, 2), F(2, 4)),
  "einsum": ("ij,jk->ik", [F(3, 2), F(2, 4)]),
  "mm": (F(3, 2), F(2, 4)),
  "mv": (F(3, 2), F(2)),
  "linalg_vecdot": (F(3, 2), F(3, 2)),
  "linear": (F(3, 2), F(4, 2), F(4)),
  "addbmm": (F(3, 4), F(5, 3, 2), F(5, 2, 4)),
  "baddbmm": (F(5, 3, 4), F(5, 3, 2), F(5, 2, 4)),
  "bmm": (F(5, 3, 2), F(5, 2, 4)),
  "chain_matmul": ([F(3, 2), F(2, 4), F(4, 3)],),
  "linalg_multi_dot": ([F(3, 2), F(2, 4), F(4, 3)],),
  "lstm_cell": (F(2, 3), [F(2, 4), F(2, 4)], *gates(4)),
  "gru_cell": (*CELL, *gates(3)),
  "rnn_tanh_cell": (*CELL, *gates(1)),
  "rnn_relu_cell": (*CELL, *gates(1)),
  "_thnn_fused_lstm_cell": (F(2, 16), F(2, 16), F(2, 4), F(16), F(16)),
  "_thnn_fused_gru_cell": (F(2, 12), F(2, 12), F(2, 4), F(12), F(12)),
  "_scaled_dot_product_flash_attention": (F(1, 2, 8, 8), F(1, 2, 8, 8), F(1, 2, 8, 8)),
  "scaled_dot_product_attention": (F(1, 2, 8, 8), F(1, 2, 8, 8), F(1, 2, 8, 8), F(8, 8)),
  "pow.Tensor_Scalar": (F(3), 1.5),
  "pow.Tensor_Tensor": (F(3), F(3)),
  "pow.Scalar": (1.5, F(3)),
  "layer_norm": (F(3, 4), [4], F(4), F(4)),
  "native_layer_norm": (F(3, 4), [4], F(4), F(4), 1e-5),
  "rms_norm": (F(3, 4), [4], F(4)),
  "group_norm": (F(3, 4, 2), 2, F(4), F(4)),
  "frobenius_norm.dim": (F(3, 4), [0, 1]),
  "nuclear_norm": (F(3, 4),),
  "nuclear_norm.dim": (F(3, 4), [0, 1]),
  "poisson_nll_loss": (F(3), F(3), True, False, 1e-8, 1),
  "cosine_embedding_loss": (F(3, 4), F(3, 4), F(3)),
  "nll_loss": (F(3, 4), I(3)),
  "nll_loss2d": (F(2, 4, 3, 3), I(2, 3, 3)),
  "margin_ranking_loss": (F(3), F(3), F(3)),
  "multilabel_margin_loss": (F(3, 4), I(3, 4)),
  "triplet_margin_loss": (F(3, 4), F(3, 4), F(3, 4)),
  "multi_margin_loss": (F(3, 4), I(3)),
  "pdist": (F(3, 4),),
  "cdist": (F(3, 4), F(2, 4)),
  "renorm": (F(3, 4), 2, 0, 1.0),
  "logsumexp": (F(3, 4), [1]),
  "upsample_linear1d": (F(1, 2, 4), [8], False),
  "upsample_bilinear2d": (IMAGE, [8, 8], False),
  "_upsample_bilinear2d_aa": (IMAGE, [8, 8], False),
  "upsample_trilinear3d": (F(1, 2, 4, 4, 4), [8, 8, 8], False),
  "upsample_bicubic2d": (IMAGE, [8, 8], False),
  "_upsample_bicubic2d_aa": (IMAGE, [8, 8], False),
  "prod.dim_int": (F(3, 4), 1),
  "softmax.int": (F(3, 4), 1),
  "log_softmax.int": (F(3, 4), 1),
  "cumprod": (F(3, 4), 1),
  "cumsum": (F(3, 4), 1),
  "linalg_vector_norm": (F(3, 4), 1),
  "linalg_matrix_norm": (F(3, 4), 1),
  "linalg_matrix_norm.str_ord": (F(3, 4), "fro"),
  "sum.dim_IntList": (F(3, 4), [1]),
  "norm.Scalar": (F(3, 4), 1),
  "norm.ScalarOpt_dim": (F(3, 4), 1, [1]),
  "addcdiv": (F(3), F(3), F(3)),
  "addcmul": (F(3), F(3), F(3)),
  "bilinear": (F(2, 3), F(2, 4), F(5, 3, 4), F(5)),
  "cosine_similarity": (F(3, 4), F(3, 4)),
  "cross": (F(3, 3), F(3, 3)),
  "grid_sampler": (F(2, 3, 4, 4), F(2, 5, 5, 2), 0, 0, False),
  "index_put": (F(5), [I(2)], F(2)),
  "tensordot": (F(3, 2), F(2, 4), [1], [0]),
  "scatter_add": (F(5), 0, I(2), F(2)),
  "cat": ([F(2), F(3)],),
  "stack": ([F(3), F(3)],),
}
SAMPLES |= {
  f"{exact}{k}d": (F(1, 2, *[4] * k), [8] * k)
  for exact in ("upsample_nearest", "_upsample_nearest_exact")
  for k in (1, 2, 3)
}
# One tensor: prod, sum and elementwise functions; two tensors of a kind: losses and products.
ONE = (
  "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan softplus prod sum"
).split()
TWO = (
  "hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss "
  "soft_margin_loss binary_cross_entropy_with_logits binary_cross_entropy dist atan2 dot vdot"
).split()
SAMPLES |= {name: (F(3),) for name in ONE} | {name: (F(3), F(3)) for name in TWO}

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64)
# Dtypes of the floating-point tensors of a sample, in order; the last one repeats.
CASES = [(d,) for d in FLOATS] + list(itertools.permutations(FLOATS[:4], 2))


class Casts(TorchDispatchMode):
  """Source and destination dtypes of all casts below autocast."""

  def __init__(self):
    super().__init__()
    self.seen = []

  def __torch_dispatch__(self, func, types, args=(), kwargs=None):
    if func is aten._to_copy.default:
      self.seen.append((args[0].dtype, kwargs["dtype"]))
    return func(*args, **(kwargs or {}))


def overload(name):
  base, _, variant = name.partition(".")
  return getattr(getattr(aten, base), variant or "default")


def make_arguments(sample, case, device):
  left = iter(case)
  last = case[-1]

  def make(leaf):
    if isinstance(leaf, F):
      return torch.empty(leaf, dtype=next(left, last), device=device)
    if isinstance(leaf, I):
      return torch.zeros(leaf, dtype=torch.int64, device=device)
    if isinstance(leaf, (list, tuple)):
      return type(leaf)(make(x) for x in leaf)
    return leaf

  return make(tuple(sample))


def dtypes(result):
  return [x.dtype if isinstance(x, torch.Tensor) else x for x in tree_flatten(result)[0]]


def under_autocast(name, case, device, low):
  """Casts and result dtypes of one call, or the kind of its error."""
  before = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
  with FakeTensorMode():
    args = make_arguments(SAMPLES[name], case, device)
    assert all(
      x.device.type == device for x in tree_flatten(args)[0] if isinstance(x, torch.Tensor)
    )
    try:
      torch.set_autocast_enabled(device, True)
      torch.set_autocast_dtype(device, low)
      with Casts() as casts:
        result = overload(name)(*args)
    except Exception as e:
      return type(e)
    finally:
      torch.set_autocast_enabled(device, before[0])
      torch.set_autocast_dtype(device, before[1])
  return sorted(casts.seen, key=str), dtypes(result)


def test_names_are_cudas():
  """All of them but cuDNN's own, and none that PyTorch does not have."""
  names = {name for name in registered("cuda") if not name.startswith("cudnn_")}
  assert registered("tpu") == names
  assert set(SAMPLES) == names | {"cat", "stack"}
  dangling = torch._C._dispatch_find_dangling_impls()
  assert not [text for text in dangling if "PrivateUse1" in text]


# PyTorch's CPU build has no CUDA kernel for these; what CUDA does is stated.
CUDA_DOES = {
  "grid_sampler": "widest",
  "gru_cell": "low",
  "_thnn_fused_gru_cell": "low",
}
# Below autocast, these take a path of their own on one device: other casts, the same result dtypes.
OTHER_CASTS = {"softmax.int", "log_softmax.int", "scaled_dot_product_attention", "cat", "stack"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("name", sorted(set(SAMPLES) - set(CUDA_DOES)))
def test_same_casts_as_cuda(name, low):
  succeeded = 0
  for case in CASES:
    if name in OTHER_CASTS and case == (torch.int64,):
      continue
    cuda, tpu = (under_autocast(name, case, device, low) for device in ("cuda", "tpu"))
    if name in OTHER_CASTS and not isinstance(cuda, type):
      cuda, tpu = cuda[1], tpu[1]
    assert tpu == cuda, case
    succeeded += not isinstance(tpu, type)
  assert (succeeded == 0) == (name == "binary_cross_entropy")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", sorted(CUDA_DOES))
def test_casts_without_cudas_kernel(name):
  f32, low = torch.float32, torch.bfloat16
  for case in [(f32,), (low,), (f32, low), (low, f32)]:
    to = f32 if CUDA_DOES[name] == "widest" and f32 in case else low
    casts, results = under_autocast(name, case, "tpu", low)
    assert set(results) == {to}, case
    assert set(casts) == {(d, to) for d in case if d is not to}, case


def test_default_is_bfloat16():
  assert torch.get_autocast_dtype("tpu") is torch.bfloat16
  x = torch.ones(2, 2, device="tpu")
  with torch.autocast("tpu"):
    assert (x @ x).dtype is torch.bfloat16


def test_refused_operation_says_what_to_use():
  x = torch.rand(3, device="tpu")
  with torch.autocast("tpu"), pytest.raises(RuntimeError, match="binary_cross_entropy_with_logits"):
    torch.nn.functional.binary_cross_entropy(x, x)


def test_tensors_of_other_devices_and_masks_stay():
  x = torch.randn(5, dtype=torch.bfloat16, device="tpu")
  with torch.autocast("tpu"):
    assert (torch.exp(x.cpu()).dtype, torch.exp(x).dtype) == (torch.bfloat16, torch.float32)
    # The list of optional index tensors takes no part in the cast of index_put.
    put = torch.index_put(x, (torch.tensor([1, 0, 0, 0, 1], device="tpu").bool(),), x[:1].float())
  assert put.dtype is torch.float32
  expected = x.cpu().float()
  expected[[0, 4]] = x[0].item()
  torch.testing.assert_close(put.cpu(), expected, rtol=0, atol=0)
