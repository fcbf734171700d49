"""Convolutions of 64-bit integers: native on the CPU plugin, sums of products where the platform's
compiler has none (a TPU; here in a child on the TPU-like plugin, which refuses them as libtpu)."""

import pytest
import torch
import torch.nn.functional as F

from support import DEVICE, child, is_tpu_like, tpu_like_env

CALLS = {
  "plain": lambda x, w: F.conv2d(x, w),
  "strided": lambda x, w: F.conv2d(x, w, stride=(2, 3), padding=(1, 2), dilation=(2, 1)),
  "grouped": lambda x, w: F.conv2d(x, w[:, :2], groups=2, padding=1),
  "line": lambda x, w: F.conv1d(x[..., 0], w[..., 0], padding=2),
  "place": lambda x, w: F.conv2d(x, w[..., :1, :1], stride=2),
  "transposed": lambda x, w: F.conv_transpose2d(
    x, w[:4], stride=(2, 3), padding=(1, 0), output_padding=(1, 0), dilation=(1, 2), groups=2
  ),
  "no images": lambda x, w: F.conv2d(x[:0], w),
}


def operands(device):
  random = torch.Generator().manual_seed(0)
  x = torch.randint(-(2**40), 2**40, (2, 4, 7, 6), generator=random)
  w = torch.randint(-1000, 1000, (6, 4, 3, 2), generator=random)
  return x.to(device), w.to(device)


@pytest.mark.parametrize("name", list(CALLS))
def test_integers_convolve_exactly(name):
  expected = CALLS[name](*operands("cpu"))
  assert torch.equal(CALLS[name](*operands(DEVICE)).cpu(), expected)


@pytest.mark.skipif(is_tpu_like(), reason="this is that child")
def test_on_a_platform_without_them():
  code = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
  done = child(code, "-q", "-p", "no:cacheprovider", __file__, env=tpu_like_env(), check=False)
  assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
