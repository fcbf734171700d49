"""What profilers see of the engine, and what the log and torch.tpu.explain say of compiles."""

import json
import logging

import pytest
import torch
from torch.profiler import ProfilerActivity, profile, record_function

import torch_tpu.profiler
from support import has_modes

pytestmark = pytest.mark.skipif(not has_modes(), reason="asks for the engine")


def work(size):
  x = torch.ones(size, 3).to("tpu")
  return ((x * 2 + 1).sin() @ x.T).sum().item()


def test_torch_profiler_shows_the_engine(tmp_path):
  torch.tpu.clear_cache()
  with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.PrivateUse1]) as seen:
    with record_function("outer"), record_function("inner"):
      work(5)
  path = tmp_path / "trace.json"
  seen.export_chrome_trace(str(path))
  events = [e for e in json.loads(path.read_text())["traceEvents"] if e.get("ph") == "X"]
  kinds = {e["name"].split(":")[0] for e in events}
  assert {"flush", "launch", "to_device", "to_host"} <= kinds
  assert kinds & {"compile", "load"}
  assert any(e["name"].startswith("aten::mul") for e in events)  # PyTorch's own row
  outer, inner = (next(e for e in events if e["name"] == name) for name in ("outer", "inner"))
  launch = next(e for e in events if e["name"].startswith("launch:"))
  for part, whole in ((inner, outer), (launch, outer)):
    assert whole["ts"] <= part["ts"] and part["ts"] + part["dur"] <= whole["ts"] + whole["dur"] + 1


def test_the_engines_own_trace(tmp_path):
  with torch_tpu.profiler.profile() as trace:
    work(6)
  by_kind = {}
  for event in trace.events:
    assert event["begin_ns"] <= event["end_ns"]
    by_kind.setdefault(event["kind"], []).append(event)
  assert sum(event["size"] for event in by_kind["to_device"]) == 6 * 3 * 4
  assert sum(event["size"] for event in by_kind["to_host"]) == 4
  assert len(by_kind["flush"]) >= 1 and len(by_kind["launch"]) >= 1
  trace.export_chrome_trace(tmp_path / "own.json")
  assert len(json.loads((tmp_path / "own.json").read_text())["traceEvents"]) == len(trace.events)
  with torch_tpu.profiler.profile() as empty:
    pass
  assert not [e for e in empty.events if e["kind"] != "wait"]


def reasons_of(function, *args):
  return torch.tpu.explain(function, *args).data["reasons"]


def test_explain_names_the_fact_that_was_new():
  def f(x):
    return x.cosh().erfc()

  x = torch.ones(4, 3, device="tpu")
  torch.tpu.clear_cache()
  assert reasons_of(f, x)[0].startswith("2 operations (cosh ... erfc), structure:")
  assert reasons_of(f, x) == []
  assert "shape: input 0 is f32[5,3], was f32[4,3]" in reasons_of(f, x.new_ones(5, 3))[0]
  half = torch.ones(5, 3, device="tpu", dtype=torch.float64)
  assert "dtype: input 0 is f64[5,3], was f32[5,3]" in reasons_of(f, half)[0]

  def by(n):
    return lambda: x.mul(n).erfc()

  reasons_of(by(3))
  assert "number: operand 1 of operation 0 (mul) is 4, was 3" in reasons_of(by(4))[0]
  assert reasons_of(by(5)) == []


def test_the_log_has_a_line_per_compile(caplog):
  x = torch.ones(7, 3, device="tpu")
  torch.tpu.synchronize()
  with caplog.at_level(logging.INFO, "torch_tpu"):
    x.atan().erfc().cosh().sum().item()
    for _ in range(1000):  # lines are written between two steps of Python's main thread
      pass
  assert any("compile: 4 operations (atan ... sum), " in line for line in caplog.messages)
