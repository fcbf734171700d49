"""searchsorted and bucketize: values and boundaries of different dtypes meet in PyTorch's result
type, and NaN is found where the CPU finds it."""

import math

import pytest
import torch

from support import DEVICE, MODES, eager_mode, has_modes

nan, inf = math.nan, math.inf
WIDE = 2**32 + 1
VALUES = {
  "float": torch.tensor([-1.5, 0.5, 1.0, 2.5, 3.0, 9.5, nan, inf, -inf]),
  "double": torch.tensor([0.1, 1.0000000001, 2.5, 3.0], dtype=torch.float64),
  "half": torch.tensor([0.5, 2.5, 3.0], dtype=torch.float16),
  "int": torch.tensor([-1, 0, 2, 3, 9], dtype=torch.int32),
  "wide int": torch.tensor([1, 2, WIDE, -WIDE], dtype=torch.int64),
  "byte": torch.tensor([0, 2, 255], dtype=torch.uint8),
  "0-dim float": torch.tensor(2.5),
  "0-dim wide int": torch.tensor(WIDE),
  "number": 2.5,
  "whole number": 3,
  "wide number": WIDE,
}
BOUNDARIES = {
  "int": torch.tensor([1, 2, 2, 3, 4], dtype=torch.int32),
  "long": torch.tensor([1, 2, 3, 2**40]),
  "float": torch.tensor([0.5, 1.0, 2.5, 2.5, 3.5]),
  "double": torch.tensor([0.1, 1.0, 2.5], dtype=torch.float64),
  "half": torch.tensor([0.5, 2.5], dtype=torch.float16),
  "long sequence": torch.arange(100, dtype=torch.int32),
  "long float sequence": torch.arange(100.0) / 10,
}


def move(value):
  return value.to(DEVICE) if isinstance(value, torch.Tensor) else value


def compare(calls):
  """Each call gives a result for `put`, which moves an argument; a list runs in one window."""
  expected = [call(lambda x: x) for call in calls]
  for mode in MODES if has_modes() else ("plain",):
    with eager_mode(mode):
      mine = [call(move) for call in calls]
      for k, (a, b) in enumerate(zip(mine, expected)):
        assert a.dtype == b.dtype and torch.equal(a.cpu(), b), f"{mode} {k}: {a.cpu()}, not {b}"


@pytest.mark.parametrize("boundaries", list(BOUNDARIES))
def test_dtypes_meet(boundaries):
  edges = BOUNDARIES[boundaries]
  calls = []
  for value in VALUES.values():
    for right in (False, True):
      calls.append(lambda put, v=value, r=right: torch.bucketize(put(v), put(edges), right=r))
      calls.append(lambda put, v=value, r=right: torch.searchsorted(put(edges), put(v), right=r))
  compare(calls)


def test_sorter_takes_no_part_in_the_dtype():
  edges, order = torch.tensor([3, 1, 2], dtype=torch.int32), torch.tensor([1, 2, 0])
  values = torch.tensor([0.5, 1.5, 2.5, 3.5])
  compare([lambda put: torch.searchsorted(put(edges), put(values), sorter=put(order))])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_nan_at_the_end(dtype):
  """A bisection goes to the right of a NaN that it meets: the place depends on both lengths."""
  values = torch.tensor([-inf, 0.0, 0.5, 1.0, 3.0, 6.5, inf, nan], dtype=dtype)
  calls = []
  for length in (1, 2, 3, 4, 5, 8, 13, 64, 65, 70):
    for nans in (0, 1, 2, length // 2, length):
      edges = torch.arange(length, dtype=dtype)
      edges[length - min(nans, length) :] = nan
      calls += [
        lambda put, e=edges, r=right: torch.searchsorted(put(e), put(values), right=r)
        for right in (False, True)
      ]
  compare(calls)


def test_wrong_arguments_are_refused_as_on_the_cpu():
  edges, wrong = torch.tensor([1, 2, 3]), torch.empty(2, dtype=torch.float32)
  values = torch.tensor([1.5, 2.5])
  for put in (lambda x: x, move):
    with pytest.raises(RuntimeError, match="1 dimension"):
      torch.bucketize(put(values), put(edges).expand(2, 3))
    with pytest.raises(RuntimeError, match="dtype"):
      torch.searchsorted(put(edges), put(values), out=put(wrong))
