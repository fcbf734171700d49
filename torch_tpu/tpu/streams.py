"""Streams and events. The runtime orders all work itself, so streams add no concurrency: they exist
so that code written for them runs, and give the same results."""

import torch

from ._device import _index, _used


class Stream(torch.Stream):
  """A stream of the device, as torch.cuda.Stream."""

  def __new__(cls, device=None, priority=0, **kwargs):
    if "stream_id" in kwargs:
      return super().__new__(cls, priority=priority, **kwargs)
    return super().__new__(cls, torch.device("tpu", _used(device)), priority=priority)

  def __repr__(self):
    return f"torch.tpu.Stream(device={self.device}, stream_id={self.stream_id})"


class _EventType(type):
  def __instancecheck__(cls, value):
    return isinstance(value, torch.Event) and value.device.type == "tpu"


class Event(metaclass=_EventType):
  """A point in the device's work that can be waited for, as torch.cuda.Event.

  Makes a plain torch.Event, because PyTorch refuses subclasses in elapsed_time.
  """

  def __new__(cls, enable_timing=False, blocking=False, interprocess=False, external=False):
    return torch.Event(
      "tpu", enable_timing=enable_timing, blocking=blocking, interprocess=interprocess
    )


def _wrap(stream):
  return Stream(
    stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
  )


def current_stream(device=None):
  """The current stream of the device."""
  return _wrap(torch._C._accelerator_getStream(_index(device)))


def default_stream(device=None):
  """The stream that work goes to unless another one is set."""
  index = _index(device)
  kind = torch._C._accelerator_getStream(index).device_type
  return Stream(stream_id=0, device_index=index, device_type=kind)


def set_stream(stream):
  """Makes `stream` current; None changes nothing."""
  if stream is not None:
    torch._C._accelerator_setStream(stream)


class StreamContext:
  """Context manager that makes a stream current and puts the previous one back."""

  def __init__(self, stream):
    self.stream = stream
    self._previous = None

  def __enter__(self):
    if self.stream is not None:
      self._previous = current_stream(self.stream.device)
      set_stream(self.stream)
    return self

  def __exit__(self, *exc):
    set_stream(self._previous)
    return False


def stream(stream):
  """``with torch.tpu.stream(s):`` makes `s` current; None changes nothing."""
  return StreamContext(stream)
