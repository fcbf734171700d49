"""flex_attention on "tpu": its list of devices is fixed in PyTorch's source.

Its eager form is plain operations, which a graph records like any others, so that all it takes is
to be let through. The module is imported by those who use it, and patched then.
"""

from torch_tpu._after_import import after_import


def install():
  after_import("torch.nn.attention.flex_attention", _accept_tpu)


def _accept_tpu(module):
  refuse_others = module._validate_device

  def validate_device(query, key, value):
    if query.device.type != "tpu":
      refuse_others(query, key, value)

  module._validate_device = validate_device
