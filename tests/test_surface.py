"""torch.tpu beside torch.cuda: the table of names, and what the newer names do."""

import subprocess
import sys
import threading
import warnings

import pytest
import torch

from support import ROOT, child, eager_mode, has_modes, memory_limit_env
from torch_tpu import __main__ as report

TIER = "interpreted"
pytestmark = pytest.mark.skipif(not has_modes(), reason="asks for torch.tpu")


def test_every_name_of_torch_cuda_has_an_entry():
  """tools/gen_surface.py refuses a name that neither works nor has a reason."""
  command = [sys.executable, ROOT / "tools" / "gen_surface.py", "--check"]
  done = subprocess.run(command, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stdout + done.stderr


# --- where the host waits ---


@pytest.fixture
def sync_debug():
  yield torch.tpu.set_sync_debug_mode
  torch.tpu.set_sync_debug_mode("default")


READS = {
  "item": lambda x: x.sum().item(),
  "tolist": lambda x: x.tolist(),
  "cpu": lambda x: x.cpu(),
  "bool": lambda x: bool(x[0] > 0),
  "print": lambda x: repr(x),
  "nonzero": lambda x: x.nonzero(),
  "mask": lambda x: x[x > 0],
  "copy_": lambda x: torch.empty(3).copy_(x),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS.keys())
def test_reading_is_refused_with_the_line_that_asked(sync_debug, read):
  x = torch.ones(3, device="tpu")
  sync_debug("error")
  with pytest.raises(RuntimeError, match=r"the host waits .*test_surface.py:\d+ in "):
    read(x)
  sync_debug(0)
  read(x)


@pytest.mark.parametrize("mode", ["fused", "strict", "debug"])
def test_work_without_reading_is_silent(sync_debug, mode):
  with eager_mode(mode):
    model = torch.nn.Linear(4, 4).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters())
    sync_debug(2)
    for _ in range(2):
      model(torch.ones(2, 4).to("tpu")).sum().backward()
      optimizer.step()
      optimizer.zero_grad()
    torch.tpu.synchronize()


def test_reading_warns_at_the_line_that_asked(sync_debug):
  x = torch.ones(3, device="tpu")
  sync_debug("warn")
  assert torch.tpu.get_sync_debug_mode() == 1
  with pytest.warns(UserWarning, match="to read 4 bytes") as caught:
    x.sum().item()
  assert caught[0].filename == __file__
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    sync_debug("default")
    x.sum().item()


def test_explaining_and_debugging_do_not_end_each_other(sync_debug):
  x = torch.ones(3, device="tpu")
  sync_debug("warn")
  with pytest.warns(UserWarning, match="to read"):
    explained = torch.tpu.explain(lambda: x.sum().item())
  assert [each["direction"] for each in explained.data["transfers"]] == ["to_host"]
  with pytest.warns(UserWarning, match="to read"):
    x.sum().item()


@pytest.mark.parametrize("mode", ["loud", 3, None, -1])
def test_other_modes_are_refused(mode):
  with pytest.raises(RuntimeError, match="invalid value of debug_mode"):
    torch.tpu.set_sync_debug_mode(mode)
  assert torch.tpu.get_sync_debug_mode() == 0


# --- memory ---


def test_a_share_of_the_memory():
  code = """
import torch
assert torch.tpu.get_per_process_memory_fraction() == 1.0
torch.tpu.set_per_process_memory_fraction(0.25)
assert torch.tpu.get_per_process_memory_fraction() == 0.25
kept = torch.ones(10 << 18, device="tpu"); torch.tpu.synchronize()
assert torch.tpu.device_memory_used() >= 10 << 20
try:
  more = torch.ones(10 << 18, device="tpu"); torch.tpu.synchronize()
except torch.tpu.OutOfMemoryError as error:
  print(error)
else:
  raise SystemExit("20 of 16 MiB")
torch.tpu.set_per_process_memory_fraction(1.0)
more = torch.ones(10 << 18, device="tpu"); torch.tpu.synchronize()
for wrong in (1.5, -0.1, float("nan")):
  try:
    torch.tpu.set_per_process_memory_fraction(wrong)
  except ValueError:
    continue
  raise SystemExit(wrong)
"""
  done = child(code, env=memory_limit_env(64))
  assert f"limit {16 << 20} bytes" in done.stdout


def test_pinned_memory_is_counted():
  torch.tpu.reset_peak_host_memory_stats()
  torch.tpu.reset_accumulated_host_memory_stats()
  before = torch.tpu.host_memory_stats()
  pinned = torch.empty(1000, dtype=torch.uint8, pin_memory=True)
  during = torch.tpu.host_memory_stats()
  del pinned
  after = torch.tpu.host_memory_stats_as_nested_dict()
  assert during["allocated_bytes.current"] == before["allocated_bytes.current"] + 1000
  assert during["allocations.allocated"] == 1
  assert after["allocated_bytes"]["current"] == before["allocated_bytes.current"]
  assert after["allocated_bytes"]["peak"] >= 1000 and after["allocations"]["freed"] == 1


# --- the rest ---


def test_errors_are_pytorchs():
  assert torch.tpu.OutOfMemoryError is torch.OutOfMemoryError
  assert torch.tpu.AcceleratorError is torch.AcceleratorError


def test_ranges_reach_the_profiler():
  nvtx = torch.tpu.nvtx
  activity = torch.profiler.ProfilerActivity.CPU
  with torch.profiler.profile(activities=[activity]) as profile:
    assert (nvtx.range_push("outer"), nvtx.range_push("inner")) == (0, 1)
    torch.ones(2) + 1
    assert (nvtx.range_pop(), nvtx.range_pop()) == (1, 0)
    with nvtx.range("step {}", 3):
      crossing = nvtx.range_start("crossing")
    nvtx.range_end(crossing)
    nvtx.mark("here")
  seen = {event.name for event in profile.events()}
  assert {"outer", "inner", "step 3", "crossing", "here"} <= seen
  for wrong in (nvtx.range_pop, lambda: nvtx.range_end(crossing)):
    with pytest.raises(RuntimeError, match="range"):
      wrong()


def test_ranges_are_of_their_thread():
  depths = []
  torch.tpu.nvtx.range_push("here")
  other = threading.Thread(target=lambda: depths.append(torch.tpu.nvtx.range_push("there")))
  other.start()
  other.join()
  assert depths == [0] and torch.tpu.nvtx.range_pop() == 0


def test_mixed_precision_under_cudas_names():
  amp = torch.tpu.amp
  x = torch.ones(2, 2, device="tpu")
  with amp.autocast():
    assert (x @ x).dtype is torch.bfloat16
  with amp.autocast(dtype=torch.float16), amp.autocast(enabled=False):
    assert (x @ x).dtype is torch.float32
  scaler = amp.GradScaler(init_scale=4.0)
  assert scaler.scale(x).tolist() == [[4, 4], [4, 4]]

  class Double(torch.autograd.Function):
    @staticmethod
    @amp.custom_fwd(cast_inputs=torch.float32)
    def forward(ctx, value):
      assert value.dtype is torch.float32 and not torch.is_autocast_enabled("tpu")
      return value * 2

    @staticmethod
    @amp.custom_bwd
    def backward(ctx, grad):
      return grad * 2

  with amp.autocast():
    assert Double.apply(x.bfloat16()).dtype is torch.float32


def test_events_and_streams():
  begin, end = (torch.tpu.Event(enable_timing=True) for _ in range(2))
  begin.record()
  torch.ones(100, 100, device="tpu").exp()
  end.record()
  torch.tpu.current_stream().wait_event(end)
  end.synchronize()
  assert end.query() and begin.elapsed_time(end) >= 0
  assert len(torch.tpu.default_generators) == torch.tpu.device_count()
  assert not torch.tpu.is_tf32_supported() and torch.tpu.get_arch_list() == []
  assert torch.tpu.can_device_access_peer(0, 0) and not torch.tpu.is_current_stream_capturing()
  torch.tpu.ipc_collect()


# --- python -m torch_tpu ---


def test_the_report(capsys):
  assert report.main() == 0
  said = capsys.readouterr().out
  for expected in (torch.__version__, torch.tpu.get_device_name(), "largest error", "works."):
    assert expected in said
  assert "FAILED" not in said and [title for title in report.SECTIONS if title not in said] == []


def test_the_report_of_a_broken_installation():
  env = {"TORCH_TPU_PJRT_PLUGIN": "/nowhere/plugin.so"}
  done = child(
    "import torch_tpu.__main__ as m; raise SystemExit(m.main())", env=env, check=False, fresh=True
  )
  assert done.returncode == 1 and "Something does not work" in done.stdout
  assert "'/nowhere/plugin.so' (environment)" in done.stdout
  assert done.stdout.count("FAILED") >= 3 and "Traceback" not in done.stderr
