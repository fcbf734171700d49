"""Ctrl-C while the host waits for the device or the compiler: the wait ends at once, and nothing is
lost."""

import pytest

from support import child, has_modes

pytestmark = pytest.mark.skipif(not has_modes(), reason="needs a queue of launches")

CODE = """
import os, signal, threading, time, torch
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells let background jobs ignore it
import torch_tpu._C as core
a = torch.rand(512, 512, device="tpu") / 512
start = torch.rand(512, 512, device="tpu")
kept = torch.arange(4.0, device="tpu")

def work(turns):
  x = start
  for _ in range(turns):
    x = a @ x
  kept.add_(1)
  return x

# A window that runs for some seconds, and is compiled.
turns, seconds = 100, 0
while seconds < 1.5:
  turns *= 2
  for _ in range(2):
    began = time.monotonic()
    work(turns)
    x = work(turns)
    torch.tpu.synchronize()
    seconds = time.monotonic() - began
right = x.cpu()
kept.copy_(torch.arange(4.0))
torch.tpu.synchronize()

work(turns)
x = work(turns)
timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
timer.start()
try:
  WAIT
  raise SystemExit("not interrupted")
except KeyboardInterrupt:
  state = core.content_state(x)
assert state == "launched", state
timer.join()
assert torch.equal(x.cpu(), right)
assert kept.tolist() == [2, 3, 4, 5]
kept.add_(1)
assert (a @ start).sum().item() > 0 and kept.tolist() == [3, 4, 5, 6]
"""


@pytest.mark.parametrize("wait", ["torch.tpu.synchronize()", "x.cpu()"])
def test_ctrl_c_ends_a_wait(wait):
  child(CODE.replace("WAIT", wait))


COMPILE = """
import os, signal, threading, torch
signal.signal(signal.SIGINT, signal.default_int_handler)
import torch_tpu._C as core
a = torch.rand(200, device="tpu")
kept = torch.arange(4.0, device="tpu")
torch.tpu.synchronize()

def work():
  # One program with many loops, which compiles for some seconds.
  kept.add_(1)
  return sum((a[:n].exp().sum() for n in range(1, LOOPS)), kept.sum())

torch.tpu.reset_stats()
x = work()
timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT))
timer.start()
try:
  WAIT
  raise SystemExit("not interrupted")
except KeyboardInterrupt:
  compiled = torch.tpu.compile_stats()["compiles"]
  state = core.content_state(x)
timer.join()
assert state == "recorded", state
# What was being compiled is used by who needs it next, and by the same window later.
right = 10.0 + sum(a.cpu()[:n].exp().sum() for n in range(1, LOOPS))
torch.testing.assert_close(x.cpu(), right)
assert kept.tolist() == [1, 2, 3, 4]
stats = torch.tpu.compile_stats()
assert compiled < stats["compiles"] == stats["requests"], (compiled, stats)
torch.testing.assert_close(work().cpu(), right + 4)
assert torch.tpu.compile_stats()["requests"] == stats["requests"], stats
assert (a * 3).sum().item() > 0
"""


@pytest.mark.parametrize("wait", ["torch.tpu.synchronize()", "x.cpu()"])
def test_ctrl_c_ends_a_wait_for_the_compiler(wait):
  """It took effect when the compiler was done. Now that goes on for who asks next."""
  env = {"TORCH_TPU_TIERS": "compiled", "TORCH_TPU_CACHE": "0"}
  child(COMPILE.replace("WAIT", wait).replace("LOOPS", "41"), env=env)
