"""torchao: float8 with dynamic activations is not kept for the capabilities of NVIDIA's devices.

Upstream: torchao/float8/inference.py, _check_hardware_support: it is told the granularity, and not
the device; torchao/quantization/quant_api.py calls it where the weight is known.
"""

import contextvars

from torch_tpu.integrations import replace

_weight_is_on_tpu = contextvars.ContextVar("_weight_is_on_tpu", default=False)


def _quant_api(module):
  def make_check(check):
    def check_hardware_support(granularities):
      kinds = {type(each).__name__ for each in granularities}
      if not (_weight_is_on_tpu.get() and len(kinds) == 1 and kinds <= {"PerTensor", "PerRow"}):
        check(granularities)

    return check_hardware_support

  def make_quantize(quantize):
    def quantize_weight(weight, config):
      token = _weight_is_on_tpu.set(weight.device.type == "tpu")
      try:
        return quantize(weight, config)
      finally:
        _weight_is_on_tpu.reset(token)

    return quantize_weight

  replace(module, "_check_hardware_support", make_check)
  replace(module, "_float8_dynamic_activation_float8_weight_quantize_tensor", make_quantize)


PATCHES = {"torchao.quantization.quant_api": _quant_api}
