"""PEFT: adapters are loaded to the device, as they are to "cuda".

Upstream: src/peft/utils/other.py, infer_device, a chain of known devices that ends in "cpu".
"""

from torch_tpu.integrations import replace


def _other(module):
  def make(infer_device):
    def infer_device_or_tpu():
      device = infer_device()
      return "tpu" if device == "cpu" else device

    return infer_device_or_tpu

  replace(module, "infer_device", make)


PATCHES = {"peft.utils.other": _other}
