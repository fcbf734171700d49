"""torch.tpu.explain: what one call did, as text and as a dict."""

import collections
import sys
import threading

from torch_tpu import _C

from .sync_debug import unwatch, user_frame, watch


class Explanation:
  """What torch.tpu.explain saw: print it, or read `data`. `result` is what the call gave."""

  def __init__(self, data, result):
    self.data = data
    self.result = result

  def __str__(self):
    return "\n".join(_lines(self.data))

  __repr__ = __str__


def explain(fn, *args, **kwargs):
  """Calls ``fn(*args, **kwargs)`` once and says what that took: windows of operations and how they
  were run, programs compiled and why, graphs of torch.compile and why some run call by call, graph
  breaks, operations on the host, transfers with the line that asked for each.

  What was recorded before is launched first, and what the call recorded is run and waited for."""
  _C.synchronize()
  transfers, before = [], _snapshot()
  me = threading.get_ident()

  def observe(direction, size):
    if threading.get_ident() == me:
      transfers.append((direction, size, _user_line()))

  watch(observe)
  try:
    result = fn(*args, **kwargs)
  finally:
    unwatch(observe)
  _C.synchronize()
  after = _snapshot()
  return Explanation(_describe(before, after, transfers), result)


def _snapshot():
  # Neither module is there before something is compiled.
  graph = sys.modules.get("torch_tpu._compile.graph")
  utils = sys.modules.get("torch._dynamo.utils")
  breaks = utils.counters["graph_break"] if utils is not None else {}
  return {
    "engine": _C.engine_stats(),
    "compile": _C.compile_stats(),
    "windows": _window_counts(),
    "reasons": _C.reasons(),
    "on_host": _C.fallback_stats(),
    "decomposed": {k: sum(v.values()) for k, v in _C.decomposition_stats().items()},
    "graph_breaks": dict(breaks),
    "graphs": graph.describe_all() if graph is not None else {},
  }


def _window_counts():
  counts = collections.Counter()
  for window in _C.window_stats():
    for tier in ("interpreted", "compiled"):
      counts[window["first"], window["last"], window["records"], tier] += window[tier]
  return counts


def _grown(after, before):
  return {k: v - before.get(k, 0) for k, v in after.items() if v - before.get(k, 0) > 0}


def _describe(before, after, transfers):
  engine = _grown(after["engine"], before["engine"])
  compiler = _grown(after["compile"], before["compile"])
  used = {
    key: graph
    for key, graph in after["graphs"].items()
    if graph["calls"] > before["graphs"].get(key, {"calls": 0})["calls"]
  }
  return {
    "operations": engine.get("records", 0),
    "windows": [
      {"first": first, "last": last, "operations": records, "run": tier, "times": times}
      for (first, last, records, tier), times in _grown(after["windows"], before["windows"]).items()
    ],
    "launches": engine.get("launches", 0),
    "compiles": compiler.get("compiles", 0),
    "compile_seconds": compiler.get("compile_seconds", 0.0),
    "reasons": _C.reasons(before["reasons"][0])[1],
    "loaded_from_disk": compiler.get("disk_hits", 0),
    "graphs": [
      {key: graph[key] for key in ("kind", "operations", "templates", "obstacle")}
      for graph in used.values()
    ],
    "graph_breaks": sorted(_grown(after["graph_breaks"], before["graph_breaks"])),
    "on_host": _grown(after["on_host"], before["on_host"]),
    "decomposed": _grown(after["decomposed"], before["decomposed"]),
    "transfers": [
      {"direction": direction, "bytes": size, "line": line} for direction, size, line in transfers
    ],
  }


def _user_line():
  """That frame as "file:line in function"."""
  frame = user_frame()
  return f"{frame.filename}:{frame.lineno} in {frame.name}" if frame else None


def _lines(data):
  yield (
    f"{data['operations']} operations, {data['launches']} launches, {data['compiles']} compiles "
    f"({data['compile_seconds']:.2f} s), {data['loaded_from_disk']} programs loaded from disk"
  )
  for window in data["windows"]:
    how = "op by op, since it is new" if window["run"] == "interpreted" else "as programs"
    yield (
      f"  window of {window['operations']} ({window['first']} ... {window['last']}): "
      f"{how}, {window['times']} x"
    )
  for reason in data["reasons"]:
    yield f"  programs made for {reason}"
  for graph in data["graphs"]:
    how = f"call by call: {graph['obstacle']}" if graph["obstacle"] else "replayed as a whole"
    yield f"  {graph['kind']} graph of {graph['operations']} calls: {how}"
  for reason in data["graph_breaks"]:
    yield f"  graph break: {' '.join(reason.split())[:200]}"
  for name, times in data["on_host"].items():
    yield f"  on the host: {name}, {times} x"
  for name, times in data["decomposed"].items():
    yield f"  decomposed: {name}, {times} x"
  for transfer in data["transfers"]:
    arrow = "device -> host (waits)" if transfer["direction"] == "to_host" else "host -> device"
    yield f"  {arrow}, {transfer['bytes']:,} bytes: {transfer['line'] or 'outside Python'}"
