"""Operations whose form depends on the platform give PyTorch's numbers in each form. Which form a
fact (tpu_platform_t) chooses is tests/core/test_lower_platform.c."""

import pytest

import torch_tpu._C as _C
from support import ROOT, child_json, has_modes

pytestmark = pytest.mark.skipif(not has_modes(), reason="this device runs no programs")


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
def test_forms_agree_with_the_cpu(platform):
  plugin, _ = _C.plugin()
  found = child_json(
    ROOT / "tests" / "scripts" / "platform_forms.py",
    env={"TORCH_TPU_PLATFORM": platform, "TORCH_TPU_PJRT_PLUGIN": plugin},
  )
  assert found["cases"] > 15
  assert found["wrong"] == {}
