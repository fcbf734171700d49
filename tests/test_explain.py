"""torch.tpu.explain: what a call recorded, ran, compiled and moved, and for which lines."""

import pytest
import torch

from support import has_modes

TIER = "interpreted"
pytestmark = pytest.mark.skipif(not has_modes(), reason="asks for the device's counters")


def test_an_eager_call_and_the_lines_that_wait():
  def step(x):
    y = torch.relu(x * 2) + 1
    first = y.sum().item()  # the first wait
    return first + float(y.max())  # the second

  explained = torch.tpu.explain(step, torch.ones(8, device="tpu"))
  assert explained.result == 27
  data, text = explained.data, str(explained)
  assert data["operations"] == 5 and data["graphs"] == [] and data["on_host"] == {}
  waits = [t for t in data["transfers"] if t["direction"] == "to_host"]
  assert [t["bytes"] for t in waits] == [4, 4]
  line = step.__code__.co_firstlineno
  assert [t["line"].split(" in ")[0] for t in waits] == [
    f"{__file__}:{line + 2}",
    f"{__file__}:{line + 3}",
  ]
  assert len(data["windows"]) == 2 and all(w["run"] == "interpreted" for w in data["windows"])
  assert "5 operations" in text and "waits), 4 bytes" in text and "op by op" in text


def test_what_moves_to_the_device_and_runs_on_the_host():
  explained = torch.tpu.explain(lambda x: torch.linalg.eigvals(x.to("tpu")).shape, torch.eye(4))
  assert explained.result == (4,)
  sent = [t for t in explained.data["transfers"] if t["direction"] == "to_device"]
  assert sent[0]["bytes"] == 64 and __file__ in sent[0]["line"]
  assert any("linalg_eig" in name for name in explained.data["on_host"])
  assert "on the host: aten::" in str(explained)


def test_graphs_that_are_replayed_and_graphs_that_are_not():
  torch.compiler.reset()
  x = torch.ones(8, device="tpu")
  whole = torch.compile(lambda x: torch.relu(x) + 1)
  reading = torch.compile(lambda x: x.nonzero() * 2, fullgraph=True)
  first = torch.tpu.explain(whole, x).data
  assert [(g["kind"], g["operations"], g["obstacle"]) for g in first["graphs"]] == [
    ("inference", 2, None)
  ]
  again = torch.tpu.explain(whole, x).data
  assert again["operations"] == 2 and again["graphs"][0]["templates"] == 1
  torch.tpu.explain(reading, x)
  explained = torch.tpu.explain(reading, x)
  assert explained.data["graphs"][0]["obstacle"] == "it reads a tensor's content on the host"
  assert "call by call: it reads a tensor's content" in str(explained)


def test_graph_breaks():
  def broken(x):
    x = x + 1
    print(end="")
    return x * 2

  torch.compiler.reset()
  data = torch.tpu.explain(torch.compile(broken), torch.ones(3, device="tpu")).data
  assert len(data["graphs"]) == 2 and "print" in " ".join(data["graph_breaks"])


def test_an_exception_ends_the_watch():
  def fails(x):
    raise KeyError(x.shape)

  with pytest.raises(KeyError):
    torch.tpu.explain(fails, torch.ones(3, device="tpu"))
  seen = torch.tpu.explain(lambda: None).data
  assert seen["operations"] == 0 and seen["transfers"] == []
