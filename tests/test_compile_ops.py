"""Every op_db entry in float32 under torch.compile(backend="tpu", fullgraph=True), forward and
backward, against the CPU: every 24th; all in make test-all."""

import os
from unittest import mock

import pytest
import torch
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db

import test_ops
from support import DEVICE, TEST_ALL, has_modes, tensors_in
from unsupported_ops import UNSUPPORTED, UNSUPPORTED_BREADTH, UNSUPPORTED_COMPILED

TIER = "interpreted"  # about graphs, not about programs
pytestmark = [
  pytest.mark.skipif(not has_modes(), reason="asks for the backend"),
  pytest.mark.filterwarnings("ignore"),
]
STRIDE = max(int(os.environ.get("TORCH_TPU_BREADTH", "1" if TEST_ALL else "24")), 1)


class CompiledOp:
  """An op_db entry whose calls with tpu tensors are compiled as a whole."""

  def __init__(self, op):
    self.op = op

  def __getattr__(self, name):
    return getattr(self.op, name)

  def __call__(self, *args, **kwargs):
    if not any(t.device.type == DEVICE.type for t in tensors_in((args, kwargs))):
      return self.op(*args, **kwargs)
    call = self.op.op
    compiled = torch.compile(lambda a, k: call(*a, **k), backend="tpu", fullgraph=True)
    with mock.patch.object(common_methods_invocations, "wrapper_set_seed", _seeded_outside):
      compiled(args, kwargs)
      return compiled(args, kwargs)  # a replay of what the first call captured


def _seeded_outside(op, *args, **kwargs):
  """op_db seeds in a context that Dynamo cannot trace; check_op seeds as well."""
  return op(*args, **kwargs)


def entries():
  chosen = [
    op for op in op_db if "jiterator" not in op.name and torch.float32 in op.supported_dtypes("cpu")
  ]
  return [pytest.param(op, id=test_ops.full_name(op)) for op in chosen[::STRIDE]]


@pytest.mark.parametrize("op", entries())
def test_compiled(op):
  torch.compiler.reset()
  eager = {**UNSUPPORTED, **UNSUPPORTED_BREADTH}
  name = test_ops.full_name(op)
  if (name, "*") in eager or (name, "float32") in eager:
    pytest.skip("not supported in eager either")

  def check():
    if test_ops.check_op(CompiledOp(op), torch.float32, 2, grad=True) == 0:
      pytest.skip("no samples")

  test_ops.run_listed(UNSUPPORTED_COMPILED, name, torch.float32, check)


def test_list_names_real_entries():
  names = {test_ops.full_name(op) for op in op_db}
  for name, _ in UNSUPPORTED_COMPILED:
    assert name in names, f"unsupported_ops.py: op_db has no entry {name}"
