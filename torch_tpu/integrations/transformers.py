"""Transformers: a pipeline runs on the device, as it does on "cuda". TrainingArguments knows "tpu",
and takes it from Accelerate (see accelerate.py here).

Upstream: src/transformers/pipelines/base.py, Pipeline.__init__: the number of a device is made one
by a chain of `elif is_torch_<device>_available()` that ends in "cpu".
"""

import torch

from torch_tpu.integrations import replace_method


def _pipelines_base(module):
  def make(init):
    def init_on_tpu(self, model, *args, device=None, **kwargs):
      mapped = getattr(model, "hf_device_map", None)
      number = 0 if device is None and mapped is None else device
      if torch.cuda.is_available() or type(number) is not int or number < 0:
        init(self, model, *args, device=device, **kwargs)
        first = next(iter(mapped.values())) if mapped and device is None else None
        if type(first) is int and self.device.type == "cpu":
          self.device = torch.device("tpu", first)
      else:
        init(self, model, *args, device=torch.device("tpu", number), **kwargs)

    return init_on_tpu

  replace_method(module.Pipeline, "__init__", make)


PATCHES = {"transformers.pipelines.base": _pipelines_base}
