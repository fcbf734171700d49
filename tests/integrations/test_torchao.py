"""torchao's kinds of quantization that need no kernels of NVIDIA's."""

import pytest
import torch
from torchao import quantization
from torchao.quantization import granularity

TIER = "interpreted"

KINDS = {
  "int8 weights": (quantization.Int8WeightOnlyConfig, {}),
  "int8": (quantization.Int8DynamicActivationInt8WeightConfig, {}),
  "intx weights": (quantization.IntxWeightOnlyConfig, {}),
  "float8 weights": (quantization.Float8WeightOnlyConfig, {}),
  "float8 per tensor": (
    quantization.Float8DynamicActivationFloat8WeightConfig,
    {"granularity": granularity.PerTensor()},
  ),
  "float8 per row": (
    quantization.Float8DynamicActivationFloat8WeightConfig,
    {"granularity": granularity.PerRow()},
  ),
}


def make_model():
  torch.manual_seed(0)
  layers = torch.nn.Linear(128, 256), torch.nn.ReLU(), torch.nn.Linear(256, 128)
  return torch.nn.Sequential(*layers).bfloat16()


@pytest.mark.parametrize("kind", KINDS)
def test_quantized_models(kind):
  configuration, arguments = KINDS[kind]
  model, x = make_model(), torch.randn(8, 128).bfloat16()
  expected = model(x)
  model.to("tpu")
  quantization.quantize_(model, configuration(**arguments))
  error = (model(x.to("tpu")).cpu() - expected).abs().max() / expected.abs().max()
  assert 0 < error < 0.1


def test_the_cpu_is_refused_as_before():
  with pytest.raises(AssertionError, match="compute capability"):
    quantization.quantize_(make_model(), quantization.Float8DynamicActivationFloat8WeightConfig())
