"""Automatic mixed precision: what torch.amp.autocast("tpu") asks the device module."""

import torch


def get_amp_supported_dtype():
  """Dtypes that ``torch.autocast("tpu", dtype=...)`` accepts; the first is the default."""
  return [torch.bfloat16, torch.float16]


def is_bf16_supported(including_emulation=True):
  """True: bfloat16 is a native dtype of the device."""
  return True


class autocast(torch.amp.autocast):
  """``torch.autocast("tpu")`` under the form of torch.cuda.amp.autocast."""

  def __init__(self, enabled=True, dtype=torch.bfloat16, cache_enabled=True):
    super().__init__("tpu", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)


class GradScaler(torch.amp.GradScaler):
  """``torch.amp.GradScaler("tpu")`` under the form of torch.cuda.amp.GradScaler."""

  def __init__(
    self,
    init_scale=65536.0,
    growth_factor=2.0,
    backoff_factor=0.5,
    growth_interval=2000,
    enabled=True,
  ):
    super().__init__("tpu", init_scale, growth_factor, backoff_factor, growth_interval, enabled)


def custom_fwd(fwd=None, *, cast_inputs=None):
  """torch.amp.custom_fwd for this device: a decorator of an autograd.Function's forward."""
  return torch.amp.custom_fwd(fwd, device_type="tpu", cast_inputs=cast_inputs)


def custom_bwd(bwd):
  """torch.amp.custom_bwd for this device: a decorator of an autograd.Function's backward."""
  return torch.amp.custom_bwd(bwd, device_type="tpu")
