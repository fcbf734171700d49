"""Child of test_platforms: operations that the tpu platform writes in another form than the CPU
platform, compared with PyTorch's CPU kernels. Prints the names of those that differ as JSON.

python tests/scripts/platform_forms.py
"""

import json
import math

import torch
from torch.nn import functional as F

torch.manual_seed(5)


def conv(channels, out, groups, kernel, dtype=torch.float32, stride=1, size=9):
  x = torch.randn(2, channels, size, size).to(dtype)
  w = torch.randn(out, channels // groups, kernel, kernel).to(dtype)
  return lambda x, w: F.conv2d(x, w, None, stride, kernel // 2, 1, groups), (x, w)


def attention(dtype, length=160, heads=4):
  parts = tuple(torch.randn(2, heads, length, 8).to(dtype) for _ in range(3))
  return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), parts


def pool_input(kind):
  """Ties: three values only. NaN: some, several in one window."""
  x = torch.randint(0, 3, (2, 3, 10, 11)).float()
  if kind == "nan":
    x[0, 0, 2, 2:4] = math.nan
    x[1, 2, 7, 5] = math.nan
  if kind == "infinite":
    x.fill_(-math.inf)
  return x


def max_pool(kind, kernel, stride, padding, dilation=1, ceil=False):
  def run(x):
    return F.max_pool2d(x, kernel, stride, padding, dilation, ceil, return_indices=True)

  return run, (pool_input(kind),)


def avg_pool(kernel, stride, padding, ceil, count_pad):
  return lambda x: F.avg_pool2d(x, kernel, stride, padding, ceil, count_pad), (
    torch.randn(2, 3, 10, 11),
  )


CASES = {
  "conv groups": conv(8, 16, 2, 3),
  "conv depthwise": conv(6, 12, 6, 3, stride=2),
  "conv pointwise": conv(8, 4, 1, 1, stride=2),
  "conv edge": conv(4, 4, 1, 3, size=2),
  "conv bfloat16": conv(8, 8, 2, 3, torch.bfloat16),
  "conv float16": conv(8, 8, 1, 3, torch.float16),
  "attention": attention(torch.float32),
  "attention bfloat16": attention(torch.bfloat16),
  "max pool ties": max_pool("ties", 3, 2, 1),
  "max pool overlap": max_pool("ties", 3, 1, 1),
  "max pool ceil": max_pool("ties", 3, 2, 0, ceil=True),
  "max pool dilated": max_pool("ties", 2, 1, 0, dilation=2),
  "max pool infinite": max_pool("infinite", 3, 2, 1),
  "avg pool": avg_pool(3, 2, 1, False, True),
  "avg pool ceil": avg_pool(3, 2, 1, True, False),
  "sort ties": (lambda x: x.sort(dim=1, stable=True), (pool_input("ties"),)),
  "sort nan": (lambda x: x.sort(dim=2, descending=True, stable=True), (pool_input("nan"),)),
  "sort int64": (lambda x: x.sort(dim=1, stable=True), (torch.randint(-3, 3, (4, 50)),)),
}
# Where gradients of a NaN go is not said by select_and_scatter.
FORWARD_ONLY = {"max pool nan": max_pool("nan", 3, 2, 1)}


def results(function, inputs, device, backward):
  inputs = [x.to(device) for x in inputs]
  leaves = [x.requires_grad_() for x in inputs if x.is_floating_point() and backward]
  found = function(*inputs)
  found = list(found) if isinstance(found, tuple) else [found]
  if leaves:
    weights = torch.arange(found[0].numel(), dtype=torch.float32).reshape(found[0].shape) % 7 - 3
    found[0].backward(weights.to(found[0].dtype).to(device))
  return [x.detach().cpu() for x in found + [leaf.grad for leaf in leaves]]


def differs(function, inputs, backward):
  want = results(function, [x.clone() for x in inputs], "cpu", backward)
  have = results(function, [x.clone() for x in inputs], "tpu", backward)
  half = inputs[0].dtype in (torch.bfloat16, torch.float16)
  close = {"rtol": 2e-2, "atol": 1e-1} if half else {"rtol": 1e-4, "atol": 1e-4}
  for a, b in zip(want, have, strict=True):
    try:
      torch.testing.assert_close(b, a, equal_nan=True, **(close if a.is_floating_point() else {}))
    except AssertionError as error:
      return str(error)
  return None


def main():
  cases = [(name, case, True) for name, case in CASES.items()]
  cases += [(name, case, False) for name, case in FORWARD_ONLY.items()]
  wrong = {name: differs(*case, backward) for name, case, backward in cases}
  print(
    json.dumps({"cases": len(cases), "wrong": {name: text for name, text in wrong.items() if text}})
  )


if __name__ == "__main__":
  main()
