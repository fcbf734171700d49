"""Calls that capture.py records beside PyTorch's op_db samples: operations without an entry there,
and branches of a lowering that no sample reaches."""

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
  torch.empty(3, 2, device=DEVICE).to(torch.float16).view(torch.int16).clone()
  normal(4, 2).view(torch.int32).clone()
  torch.view_as_complex(normal(3, 2)).clone()
  torch.view_as_real(normal(3, dtype=torch.complex64)).clone()


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
  one(4, 4, dropout_p=0.5)
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


def resampling():
  for rank in (1, 2, 3):
    modes = {1: ["linear"], 2: ["bilinear", "bicubic"], 3: ["trilinear"]}[rank]
    for mode in ("nearest", "nearest-exact", *modes):
      x = normal(1, 2, *range(3, 3 + rank), grad=True)
      backward(F.interpolate(x, scale_factor=2, mode=mode))
      backward(F.interpolate(x, (4, 5, 3)[:rank], mode=mode))


CALLS = [
  views,
  offsets,
  numbers,
  storages,
  convolutions,
  pools,
  products,
  attention,
  recurrence,
  random_numbers,
  optimizers,
  loss_scale,
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
