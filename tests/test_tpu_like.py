"""What differs on a TPU, seen through the plugin of tests/tpu_like. Under that plugin the tests
here run as they are; elsewhere one child runs all of them, with a part of the other files."""

import pytest
import torch

from support import TPU_LIKE, TpuLike, child, is_tpu_like, tpu_like_env

on_plugin = pytest.mark.skipif(not is_tpu_like(), reason="only on the TPU-like plugin")
# Files, and what of them, that run there with every `make test`.
QUICK = ("tests/test_tpu_like.py",)


@pytest.mark.skipif(is_tpu_like(), reason="this is that child")
def test_quick_subset_as_on_a_tpu():
  assert TPU_LIKE.exists(), f"{TPU_LIKE} is not built: make build-tests"
  code = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
  done = child(code, "-q", "-x", "-p", "no:cacheprovider", *QUICK, env=tpu_like_env(), check=False)
  assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.fixture
def like():
  plugin = TpuLike()
  changed = {name: getattr(plugin, name) for name in ("delay_us", "fail_runs", "hbm_bytes")}
  yield plugin
  for name, value in changed.items():
    setattr(plugin, name, value)


SHAPES = [(128, 64), (256, 3), (8, 3, 5), (2, 130, 7, 3), (3, 200), (40,), ()]


@on_plugin
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_values_come_back_row_major(dtype, like):
  before = like.other_layouts
  for shape in SHAPES:
    want = (torch.arange(torch.Size(shape).numel()) % 251).reshape(shape).to(dtype)
    x = want.to("tpu")
    assert torch.equal(x.cpu(), want), (shape, "upload and download")
    assert torch.equal(torch.logical_not(x).cpu(), torch.logical_not(want)), (shape, "result")
    assert x.tolist() == want.tolist(), shape
  assert like.other_layouts >= before + 3, "the plugin chose row-major layouts only"


@on_plugin
def test_programs_pass_values_on_in_the_device_s_order():
  """Results that are inputs, in place and donated, of uploads and of programs."""
  start = torch.arange(256 * 3.0).remainder_(13).reshape(256, 3)
  x, want = start.to("tpu"), start.clone()
  for step in range(4):
    for tensor in (x, want):
      tensor.mul_(2).add_(tensor.amax(0)).remainder_(11)
      tensor[1 : 5 + step, 1:].fill_(step)
    torch.tpu.synchronize()
  assert torch.equal(x.cpu(), want)
  assert torch.equal((x.t() @ x).cpu(), want.t() @ want)
