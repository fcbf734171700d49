"""safetensors: files are read to the device. What reads them is in Rust and knows device names from
a list; on "tpu" it reads to the host, tensor by tensor as they are asked for, and they are copied.

Upstream: bindings/python/src/lib.rs, `Device`. load_file and load_model go through safe_open.
"""

import torch

from torch_tpu.integrations import replace


def _safetensors(module):
  def make(safe_open):
    def safe_open_on_tpu(filename, framework, device=None, **kwargs):
      where = _device(device)
      if where is None:
        rest = () if device is None else (device,)
        return safe_open(filename, framework, *rest, **kwargs)
      return _FileOnTpu(safe_open(filename, framework, "cpu", **kwargs), where)

    safe_open_on_tpu.__doc__ = safe_open.__doc__
    return safe_open_on_tpu

  replace(module, "safe_open", make)


def _device(device):
  """The torch.device that `device` names if it is on "tpu", else None."""
  if isinstance(device, str) and device.split(":")[0] == "tpu":
    return torch.device(device)
  return device if isinstance(device, torch.device) and device.type == "tpu" else None


class _FileOnTpu:
  """An open file whose tensors come to the device; the rest is as the file that it holds."""

  def __init__(self, file, device):
    self._file = file
    self._device = device

  def __getattr__(self, name):
    return getattr(self._file, name)

  def __enter__(self):
    self._file.__enter__()
    return self

  def __exit__(self, *exc):
    return self._file.__exit__(*exc)

  def get_tensor(self, name):
    return self._file.get_tensor(name).to(self._device)

  def get_tensors(self):
    return {name: tensor.to(self._device) for name, tensor in self._file.get_tensors().items()}

  def get_slice(self, name):
    return _SliceOnTpu(self._file.get_slice(name), self._device)


class _SliceOnTpu:
  """What get_slice gives: indexing it reads a part of a tensor."""

  def __init__(self, part, device):
    self._part = part
    self._device = device

  def __getattr__(self, name):
    return getattr(self._part, name)

  def __getitem__(self, index):
    return self._part[index].to(self._device)


PATCHES = {"safetensors": _safetensors}
