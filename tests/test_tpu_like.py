"""What differs on a TPU, seen through the plugin of tests/tpu_like. Under that plugin the tests
here run as they are; elsewhere one child runs all of them, with a part of the other files."""

import io
import textwrap

import pytest
import torch

import torch_tpu._C as _C
from support import (
  TPU_LIKE,
  TpuLike,
  child,
  child_json,
  compile_stats,
  counting,
  eager_mode,
  is_tpu_like,
  tpu_like_env,
)
from torch_tpu import _discovery

on_plugin = pytest.mark.skipif(not is_tpu_like(), reason="only on the TPU-like plugin")
# Files, and what of them, that run there with every `make test`.
QUICK = ("tests/test_tpu_like.py", "tests/test_saving.py")


@pytest.mark.skipif(is_tpu_like(), reason="this is that child")
def test_quick_subset_as_on_a_tpu():
  assert TPU_LIKE.exists(), f"{TPU_LIKE} is not built: make build-tests"
  code = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
  done = child(code, "-q", "-x", "-p", "no:cacheprovider", *QUICK, env=tpu_like_env(), check=False)
  assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


MACHINE_WITHOUT_A_TPU = """
  import ctypes, json, torch
  before = [torch.tpu.is_available(), torch.tpu.device_count(), torch.backends.tpu.is_available()]
  text = ""
  try:
    torch.ones(1, device="tpu")
  except RuntimeError as error:
    text = str(error)
  libc = ctypes.CDLL(None)
  libc.getenv.restype = ctypes.c_char_p
  left = libc.getenv(b"TPU_SKIP_MDS_QUERY")
  print(json.dumps({"before": before, "text": text, "left": left is not None}))
"""


@pytest.mark.skipif(is_tpu_like(), reason="a plugin of its own")
def test_libtpu_on_a_machine_without_a_tpu(tmp_path):
  """The plugin fails at once only if it was told not to search; else it took ten minutes."""
  if _discovery.count_tpu_hardware():
    pytest.skip("this machine has a TPU")
  path = tmp_path / "libtpu.so"
  path.symlink_to(TPU_LIKE)
  env = tpu_like_env(no_tpu=1) | {"TORCH_TPU_PJRT_PLUGIN": path, "TPU_SKIP_MDS_QUERY": None}
  found = child_json(textwrap.dedent(MACHINE_WITHOUT_A_TPU), env=env)
  assert found["before"] == [False, 0, False]
  for word in (str(path), "No TPU is on this machine's bus", "TORCH_TPU_PLATFORM=cpu"):
    assert word in found["text"], found["text"]
  assert "No jellyfish device" in found["text"] and not found["left"]


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


@on_plugin
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_saving_compiles_no_program_that_takes_numbers_apart(layout, tmp_path):
  """It compiled for 0.28 ms per element. What is stored row-major needs no program at all."""
  values = [torch.arange(2 * 3 * 4 * n).reshape(2, 3, 4, n).float() for n in (5, 6)]
  tensors = [value.to("tpu", memory_format=layout) for value in values]
  torch.tpu.synchronize()
  file = io.BytesIO()
  _C.env_override("TORCH_TPU_DUMP_DIR", str(tmp_path))
  with counting(compile_stats) as grown:
    torch.save(tensors, file)
  _C.env_override("TORCH_TPU_DUMP_DIR", None)
  texts = [path.read_text() for path in tmp_path.glob("*.mlir")]
  assert not any("bitcast" in text or "ui8" in text for text in texts), texts
  assert layout is torch.channels_last or "compiles" not in grown
  file.seek(0)
  for have, want in zip(torch.load(file, map_location="cpu"), values, strict=True):
    assert torch.equal(have, want)


@on_plugin
def test_reading_elements_moves_little_and_compiles_little(like):
  want = torch.arange(1 << 20).reshape(1024, 1024)
  x = want.to("tpu")
  before = like.bytes_to_host
  with counting(compile_stats) as grown:
    for i in range(12):
      assert x[i + 5, 3 * i].item() == want[i + 5, 3 * i]
      assert x[40 * i].tolist() == want[40 * i].tolist()
  assert like.bytes_to_host - before < 12 * 8200 + 12 * 64
  assert grown["compiles"] <= 6
  assert torch.equal(x[:700].cpu(), want[:700]), "most of it: the whole is fetched"


@on_plugin
def test_synchronize_waits_for_work_whose_results_are_gone(like):
  x = torch.ones(8, device="tpu")
  torch.tpu.synchronize()
  before = like.runs, like.ended_runs
  like.delay_us = 40_000
  with eager_mode("strict"):
    for _ in range(3):
      x * 2
    assert like.runs == before[0] + 3 and like.ended_runs < before[1] + 3
    torch.tpu.synchronize()
  assert like.ended_runs == before[1] + 3


@on_plugin
def test_late_errors_surface_once(like):
  x = torch.ones(8, device="tpu")
  torch.tpu.synchronize()
  with eager_mode("strict"):
    like.fail_runs = 1
    x * 3  # nobody holds the result
    with pytest.raises(RuntimeError, match="the device failed while this program ran"):
      torch.tpu.synchronize()
    torch.tpu.synchronize()
    like.fail_runs = 1
    y = (x * 4) + 1  # the second program fails because of the first
    for _ in range(2):
      with pytest.raises(RuntimeError, match="the device failed while this program ran"):
        y.cpu()
    torch.tpu.synchronize()
  assert (x * 5).tolist() == [5] * 8


@on_plugin
def test_memory_counts_whole_tiles():
  torch.tpu.synchronize()
  before = torch.tpu.memory_allocated()
  x = torch.ones(4).to("tpu")
  assert torch.tpu.memory_allocated() - before == 512
  y = torch.ones(128, 64).to("tpu")
  assert torch.tpu.memory_allocated() - before == 512 + 128 * 64 * 4
  peak = torch.tpu.max_memory_allocated()
  assert peak >= torch.tpu.memory_allocated()
  del x, y
  torch.tpu.reset_peak_memory_stats()
  assert torch.tpu.max_memory_allocated() == torch.tpu.memory_allocated() == before < peak


@on_plugin
def test_memory_ends(like):
  """At an upload and at a program; what was there before is there afterwards."""
  kept = torch.ones(256, 256).to("tpu")
  torch.tpu.synchronize()
  like.hbm_bytes = torch.tpu.memory_allocated() + (3 << 20)
  with pytest.raises(torch.OutOfMemoryError):
    torch.ones(1024, 1024).to("tpu")
  with pytest.raises(torch.OutOfMemoryError):
    (kept.flatten()[:1, None] + torch.zeros(1 << 20, device="tpu")).sum(0).cpu()
    torch.tpu.synchronize()
  assert (kept * 2).sum().item() == 2 * 256 * 256


@on_plugin
def test_full_memory_can_be_read(like):
  x = torch.arange(1 << 20, dtype=torch.float32).to("tpu")
  torch.tpu.synchronize()
  like.hbm_bytes = torch.tpu.memory_allocated()
  assert x[77_777].item() == 77_777


@on_plugin
def test_products_of_wide_integers():
  """libtpu does not compile them as products."""
  x = torch.arange(-30, 30).reshape(3, 4, 5)
  y = torch.arange(60).reshape(3, 5, 4) * (1 << 33)
  for name, left, right in (
    ("bmm", x, y),
    ("mm", x[0], y[1]),
    ("mv", x[0], y[0, :, 1]),
    ("dot", x[0, 1], y[0, :, 1]),
    ("mm", x[0, :, :0], y[0, :0]),
  ):
    want = getattr(torch, name)(left, right)
    have = getattr(torch, name)(left.to("tpu"), right.to("tpu"))
    assert torch.equal(have.cpu(), want), name
  want = torch.addmm(x[0, :, :4], x[1], y[2], beta=2, alpha=3)
  have = torch.addmm(*(t.to("tpu") for t in (x[0, :, :4], x[1], y[2])), beta=2, alpha=3)
  assert torch.equal(have.cpu(), want)


def forward_of_layers(count):
  """How many programs `count` equal layers need."""
  layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
  encoder = torch.nn.TransformerEncoder(layer, count, enable_nested_tensor=False).to("tpu")
  x = torch.ones(1, 3, 8, device="tpu")
  torch.tpu.synchronize()
  with counting(compile_stats) as grown:
    assert encoder(x).sum().isfinite().item()
  return grown["compiles"]


@on_plugin
def test_programs_do_not_grow_with_the_number_of_layers():
  few = forward_of_layers(3)
  assert forward_of_layers(9) <= few + 1
