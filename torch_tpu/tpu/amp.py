"""Automatic mixed precision: what torch.amp.autocast("tpu") asks the device module."""

import torch


def get_amp_supported_dtype():
  """Dtypes that ``torch.autocast("tpu", dtype=...)`` accepts; the first is the default."""
  return [torch.bfloat16, torch.float16]


def is_bf16_supported(including_emulation=True):
  """True: bfloat16 is a native dtype of the device."""
  return True
