"""What the engine does, as a trace for Perfetto or chrome://tracing, without PyTorch's profiler.

    with torch_tpu.profiler.profile() as trace:
      step()
    trace.export_chrome_trace("trace.json")

torch.profiler with ProfilerActivity.PrivateUse1 shows the same spans beside PyTorch's own.
"""

import json
import os

from torch_tpu import _C


class profile:
  """Collects between enter and exit; work that was launched in between is waited for. `events` are
  dicts: kind (flush, compile, load, launch, host_step, to_host, to_device, wait), name, thread,
  begin_ns and end_ns (since 1970), and size: bytes of a transfer, a program's text or file,
  operations of a launch or a flush. One at a time, also beside torch.profiler."""

  def __init__(self):
    self.events = []

  def __enter__(self):
    _C.synchronize()
    _C.events_start()
    return self

  def __exit__(self, *exception):
    _C.synchronize()
    names = ("kind", "name", "thread", "begin_ns", "end_ns", "size")
    self.events = [dict(zip(names, event)) for event in _C.events_stop()]

  def export_chrome_trace(self, path):
    """Writes the trace as JSON. A row per thread that did something."""
    process = os.getpid()
    spans = [
      {
        "ph": "X",
        "cat": event["kind"],
        "name": f"{event['kind']}: {event['name']}",
        "pid": process,
        "tid": event["thread"],
        "ts": event["begin_ns"] / 1e3,
        "dur": (event["end_ns"] - event["begin_ns"]) / 1e3,
        "args": {"size": event["size"]},
      }
      for event in self.events
    ]
    with open(path, "w") as file:
      json.dump({"traceEvents": spans, "displayTimeUnit": "ns"}, file)
