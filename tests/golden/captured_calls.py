"""Calls that capture.py records beside PyTorch's op_db samples: operations without an entry there,
and branches of a lowering that no sample reaches."""

import contextlib

import torch
from torch import nn
from torch.nn import functional as F

import models

DEVICE = torch.device("tpu")


def normal(*sizes, dtype=torch.float32, grad=False):
  return torch.randn(sizes).to(dtype).to(DEVICE).requires_grad_(grad)


def backward(result):
  result.sum().backward()


def views():
  x = normal(4, 6)
  x.t().contiguous()
  x[1:3, ::2].clone()
  x.as_strided((3, 3), (2, 1), 1).clone()
  x.diagonal().clone()
  x.expand(2, 4, 6).clone()
  x.unfold(1, 3, 2).clone()
  x[:, 2:4].fill_(1.5)
  x.t()[1:3].add_(1)
  x[::2, ::3].mul_(2)
  x.diagonal().zero_()
  x.as_strided((5,), (2,), 3).copy_(normal(5))
  x.t().copy_(normal(6, 4))
  y = normal(6, 4).t().mul(2)
  y[1:3, 2:5] = 1
  normal(0, 4).clone()


def other_dtypes():
  """Views of a storage through another dtype, read and written."""
  for dtype in (torch.int32, torch.int16, torch.float64, torch.uint8):
    x = normal(4, 6)
    x.view(dtype).clone()
    x.view(dtype).zero_()
    x.view(dtype)[1, 2:].fill_(1)
  for x in (normal(3, 2), normal(2, 3, 2)):
    torch.view_as_complex(x).clone()
    torch.view_as_complex(x)[1:].mul_(2)
  x = normal(3, dtype=torch.complex64)
  torch.view_as_real(x).clone()
  torch.view_as_real(x)[:, 1].fill_(3)
  x.imag.neg_()
  x = torch.ones(8, dtype=torch.bool, device=DEVICE)
  x.view(torch.uint8).add_(1)
  torch.ones(8, dtype=torch.uint8, device=DEVICE).view(torch.bool).logical_not_()
  x = torch.empty(7, dtype=torch.uint8, device=DEVICE)
  torch.empty(0, dtype=torch.int16, device=DEVICE).set_(x.untyped_storage()).fill_(1)


def offsets():
  """The second offset makes it an argument of the program."""
  x = normal(8, 6)
  for i in range(3):
    x[i].clone()
    x[i : i + 2, 1:4].clone()
    x[:, i].fill_(2)
    x.as_strided((2, 3), (7, 2), i).clone()
    x.as_strided((2, 3), (7, 2), i).fill_(1)


def numbers():
  """The second number makes it an argument of the program."""
  x, whole = normal(4), torch.arange(4, device=DEVICE)
  for number in (1.0, 2.0, 3.0):
    (x * number).add_(number)
    x.clamp(-number, number)
    x.masked_fill(x > number, number)
    torch.full((3,), number, device=DEVICE)
    F.softplus(x, beta=number, threshold=number)
    F.gelu(x.half()).pow(number)
    whole.add(int(number), alpha=int(number))
    torch.addcmul(x, x, x, value=number)


def storages():
  x = normal(6)
  x.untyped_storage().resize_(48)
  x.untyped_storage().resize_(8)
  torch.empty(4, device=DEVICE).add_(1)


def convolutions():
  for channels, out, groups in ((4, 4, 4), (4, 8, 4), (4, 6, 2), (3, 5, 1)):
    for dtype in (torch.float32, torch.bfloat16):
      x = normal(2, channels, 7, 6, dtype=dtype, grad=True)
      w = normal(out, channels // groups, 3, 3, dtype=dtype, grad=True)
      backward(F.conv2d(x, w, None, 2, 1, 1, groups))
      backward(F.conv2d(x, w, normal(out, dtype=dtype, grad=True), 1, 1, 2, groups))
      w = normal(channels, out // groups, 3, 3, dtype=dtype, grad=True)
      backward(F.conv_transpose2d(x, w, None, 2, 1, 1, groups))
  backward(F.conv1d(normal(2, 3, 8, grad=True), normal(4, 3, 3, grad=True)))
  backward(F.conv2d(normal(2, 3, 4, 4, grad=True), normal(4, 3, 1, 1, grad=True)))
  backward(F.conv3d(normal(1, 2, 4, 4, 4, grad=True), normal(3, 2, 2, 2, 2, grad=True)))
  F.conv2d(normal(2, 3, 4, 4).to(memory_format=torch.channels_last), normal(4, 3, 3, 3))


def pools():
  x = normal(2, 3, 8, 8, grad=True)
  for size, stride, padding in ((2, 2, 0), (3, 2, 1), (3, 1, 1)):
    backward(F.max_pool2d(x, size, stride, padding))
    backward(F.avg_pool2d(x, size, stride, padding, count_include_pad=False))
  backward(F.max_pool2d(normal(1, 1, 12, 12, grad=True), 7, 3, 2))
  backward(F.max_pool2d(normal(1, 1, 6, 6, grad=True), 5, 1, 2))


def products():
  for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.complex64):
    a = torch.ones(3, 4, device=DEVICE).to(dtype)
    b = torch.ones(4, 5, device=DEVICE).to(dtype)
    a @ b
    a.t() @ a
    a @ a.t()
    a.unsqueeze(0) @ b.unsqueeze(0)
  normal(40, 300) @ normal(300, 200)
  normal(1, 300) @ normal(300, 200)
  normal(1, 300) @ normal(200, 300).t()
  normal(50, 300).t() @ normal(50, 40)


def attention():
  def one(length, keys, dtype=torch.float32, **options):
    q = normal(2, 2, length, 8, dtype=dtype, grad=True)
    k, v = (normal(2, 2, keys, 8, dtype=dtype, grad=True) for _ in range(2))
    backward(F.scaled_dot_product_attention(q, k, v, **options))

  one(5, 5)
  one(5, 7, torch.bfloat16)
  one(6, 6, is_causal=True)
  one(5, 7, attn_mask=normal(5, 7))
  one(5, 7, attn_mask=normal(5, 7) > 0)
  one(5, 7, attn_mask=normal(5, 7, grad=True))
  one(5, 7, attn_mask=normal(2, 1, 1, 7, grad=True), scale=0.3)
  one(5, 7, torch.bfloat16, attn_mask=normal(5, 7) > 0, is_causal=False)
  one(4, 4, dropout_p=0.5)
  one(0, 4)
  one(4, 0)
  one(256, 256, is_causal=True)
  one(520, 520, is_causal=True)


def recurrence():
  x = normal(2, 3)
  for cell in (nn.LSTMCell(3, 4), nn.GRUCell(3, 4)):
    out = cell.to(DEVICE)(x)
    backward(out[0] + out[1] if isinstance(out, tuple) else out)


def random_numbers():
  for dtype in (torch.float32, torch.bfloat16, torch.float64):
    x = torch.empty(5, device=DEVICE, dtype=dtype)
    x.bernoulli_(0.3).bernoulli_(torch.full((5,), 0.5, device=DEVICE))
    x.random_().normal_().uniform_(1, 3)
  for dtype in (torch.int64, torch.int32, torch.uint8, torch.bool):
    torch.empty(5, device=DEVICE, dtype=dtype).random_()
  torch.empty(5, device=DEVICE, dtype=torch.int64).random_(3, 10)
  torch.empty(5, device=DEVICE, dtype=torch.int64).random_(1 << 40)
  torch.randperm(6, device=DEVICE)
  torch.randperm(6, device=DEVICE, dtype=torch.int32)
  F.dropout(normal(4, grad=True), 0.3).sum().backward()


def optimizers():
  for make in (
    lambda p: torch.optim.SGD(p, 0.1, fused=True),
    lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.1, fused=True),
    lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, dampening=0.5, maximize=True, fused=True),
    lambda p: torch.optim.Adam(p, 0.1, fused=True),
    lambda p: torch.optim.Adam(p, 0.1, amsgrad=True, weight_decay=0.1, fused=True),
    lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.1, maximize=True, fused=True),
    lambda p: torch.optim.Adagrad(p, 0.1, lr_decay=0.1, weight_decay=0.1, fused=True),
  ):
    for dtype in (torch.float32, torch.bfloat16):
      parameters = [normal(3, dtype=dtype, grad=True), normal(2, 2, dtype=dtype, grad=True)]
      optimizer = make(parameters)
      for _ in range(2):
        for p in parameters:
          p.grad = torch.ones_like(p)
        optimizer.step()


def loss_scale():
  scaler = torch.amp.GradScaler("tpu")
  parameter = normal(3, grad=True)
  optimizer = torch.optim.SGD([parameter], 0.1)
  scaler.scale(parameter.sum()).backward()
  scaler.step(optimizer)
  scaler.update()


def rest():
  backward(torch._weight_norm(normal(3, 4, grad=True), normal(3, 1, grad=True), 0))
  backward(F.fold(normal(1, 12, 4, grad=True), (3, 3), (2, 2)))
  x, index = normal(3, 4), torch.zeros(1, 4, dtype=torch.int64, device=DEVICE)
  torch.ops.aten.norm.ScalarOpt_dim(x, 3, [1])
  torch.cross(x, x, dim=0)
  x.clamp_min(0.5).clamp_max_(1)
  x.int().clamp_min(x.int()).clamp_max(2)
  x.scatter_(0, index, 2.0, reduce="multiply")


def selecting():
  x = normal(3, 40)
  for dtype in (torch.float32, torch.bfloat16, torch.int32, torch.uint8, torch.int64):
    y = (x * 3).to(dtype)
    y.topk(3)
    y.topk(3, largest=False)
    y.t().topk(3, dim=0)
    y.topk(1)
    y.topk(30)
    torch.searchsorted(y.sort().values.repeat(1, 3), y)
  torch.tensor(3.0, device=DEVICE).topk(1)
  normal(3, 0).median()
  torch.multinomial(x.abs(), 1)
  torch.multinomial(x.abs(), 5)
  torch.multinomial(x.abs(), 5, replacement=True)


def index_writes():
  x, mask = normal(3, 4), normal(3, 4) > 0
  rows = torch.tensor([0, 2], device=DEVICE)
  x[mask] = 2
  x[mask[:, 0]] = 3
  torch.ops.aten.index_put_(x, [mask], torch.ones((), device=DEVICE), True)
  (x > 0).index_put_((mask,), torch.ones((), dtype=torch.bool, device=DEVICE), True)
  x[rows] = 1
  x[rows, rows] += 1
  x.index_put_((rows, rows), torch.ones(2, device=DEVICE), True)
  y = normal(3, 2, 4)
  y[rows, :, rows] = 5
  y[rows, :, rows].clone()
  y[:, None, rows[:1], 1].clone()
  x.masked_scatter_(mask, normal(12))
  x.masked_scatter_(mask, normal(0))
  for options in ({}, {"padding_idx": 1}, {"scale_grad_by_freq": True}):
    backward(F.embedding(rows, normal(4, 3, grad=True), **options))


def numbers_and_dtypes():
  for dtype in (torch.int8, torch.int16, torch.uint8, torch.uint16, torch.int32, torch.int64):
    x = torch.ones(3, dtype=dtype, device=DEVICE)
    x.float().to(dtype)
    with contextlib.suppress(RuntimeError, NotImplementedError):
      x + 2
      x.amax()
      x.pow(x)
      x.pow(3)
      x.signbit()
      x.random_()
      x.cummax(0)
  for dtype in (torch.float8_e5m2, torch.float8_e4m3fn):
    normal(3).to(dtype).float()
  flags = torch.ones(3, dtype=torch.bool, device=DEVICE)
  for call in (
    torch.add,
    torch.mul,
    torch.bitwise_xor,
    torch.maximum,
    torch.pow,
    torch.logical_xor,
  ):
    with contextlib.suppress(RuntimeError):
      call(flags, flags)
  flags.add(flags, alpha=True)
  x, z = normal(3), normal(3, dtype=torch.complex64)
  for exponent in (1, 2, 3, -1, -2, 0.5, 0.7, -0.5):
    x.pow(exponent)
    z.pow(exponent)
  z.to(torch.bool)
  z + 1.5
  z.fill_(2)
  torch.vdot(z, z)
  torch.nan_to_num(x.int())
  x.roll(1)
  normal(3, 4).roll((1, 2), (0, 1))
  x.half().random_()


def sampling():
  for mode in ("bilinear", "nearest", "bicubic"):
    for padding in ("zeros", "border", "reflection"):
      for corners in (False, True):
        x, grid = normal(1, 1, 3, 3, grad=True), normal(1, 2, 2, 2, grad=True)
        backward(F.grid_sample(x, grid, mode, padding, corners))
  F.grid_sample(normal(1, 1, 3, 3), normal(1, 0, 2, 2), align_corners=False)


def empty_ones():
  """No elements: shortcuts of most lowerings."""
  backward(F.max_pool2d(normal(0, 3, 4, 4, grad=True), 2))
  backward(F.conv2d(normal(0, 3, 4, 4, grad=True), normal(4, 3, 3, 3, grad=True)))
  backward(normal(0, 3, grad=True) @ normal(3, 2, grad=True))
  backward(normal(2, 0, grad=True) @ normal(0, 3, grad=True))
  torch.randperm(0, device=DEVICE)
  normal(0).sort()
  torch.cat([normal(0), normal(3)])
  F.dropout(normal(3), 1.0)
  torch.native_dropout(normal(3), 0.0, True)
  torch.native_dropout(normal(3), 1.0, True)


def norms():
  x = normal(2, 4, 3, grad=True)
  for training in (True, False):
    mean, var = torch.zeros(4, device=DEVICE), torch.ones(4, device=DEVICE)
    backward(F.batch_norm(x, mean, var, None, None, training))
    backward(F.batch_norm(x, mean, var, normal(4, grad=True), None, training))
  backward(F.instance_norm(x))
  backward(F.group_norm(x, 2))
  backward(F.layer_norm(x, (3,)))
  F.batch_norm(x.bfloat16(), mean, var)


def resampling():
  for rank in (1, 2, 3):
    modes = {1: ["linear"], 2: ["bilinear", "bicubic"], 3: ["trilinear"]}[rank]
    for mode in ("nearest", "nearest-exact", *modes):
      x = normal(1, 2, *range(3, 3 + rank), grad=True)
      backward(F.interpolate(x, scale_factor=2, mode=mode))
      backward(F.interpolate(x, (4, 5, 3)[:rank], mode=mode))


CALLS = [
  views,
  other_dtypes,
  offsets,
  numbers,
  numbers_and_dtypes,
  storages,
  convolutions,
  pools,
  products,
  attention,
  selecting,
  index_writes,
  sampling,
  norms,
  recurrence,
  random_numbers,
  optimizers,
  loss_scale,
  empty_ones,
  rest,
  resampling,
]


def train(name, **options):
  def run():
    models.train(name, DEVICE, 1, lambda p: torch.optim.SGD(p, 0.1), **options)

  return run


def pointwise_chain():
  x, y = normal(4, 8), normal(8)
  z = F.gelu(x * 0.3 + y) - y.mean()
  x.add_(z.sum(0))
  return x, z


# Windows of several operations, in Fused mode.
WINDOWS = {
  "chain": pointwise_chain,
  "mlp": train("mlp"),
  "gpt": train("gpt", width=8, heads=2, layers=1),
}
