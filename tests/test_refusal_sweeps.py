"""What the CPU refuses is refused here, and what CUDA or the CPU takes is taken: sweeps over
PyTorch's own samples and error inputs, by exception class. Cases by hand: test_refusals.py."""

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from op_table import read
from support import DEVICE, TEST_ALL, has_modes, synchronize

TIER = "interpreted"  # about calls, not about programs
pytestmark = [
  pytest.mark.skipif(not has_modes(), reason="compares the device with the CPU"),
  pytest.mark.filterwarnings("ignore"),
]

SAMPLES = 1000 if TEST_ALL else 2  # of each entry


def full_name(op):
  return op.name + ("." + op.variant_test_name if op.variant_test_name else "")


ROWS = {}
for _row in read():
  for _name in _row.opinfo:
    ROWS.setdefault(_name, []).append(_row)


def rows_of(op):
  return ROWS.get(full_name(op)) or ROWS.get(op.name) or []


class Mirror:
  """Copies tensors to the device such that what shared a storage, or was one tensor, still does."""

  def __init__(self):
    self.storages, self.tensors, self.kept = {}, {}, []

  def __call__(self, value):
    if isinstance(value, torch.Tensor):
      return self.tensor(value.detach())
    if isinstance(value, torch.device):
      return DEVICE
    if type(value) in (list, tuple):
      return type(value)(self(item) for item in value)
    if isinstance(value, dict):
      return {key: self(item) for key, item in value.items()}
    return value

  def tensor(self, tensor):
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
      return tensor.to(DEVICE)
    storage = tensor.untyped_storage()
    size, stride, offset = tensor.size(), tensor.stride(), tensor.storage_offset()
    place = (storage.data_ptr(), storage.nbytes())
    key = (place, tensor.dtype, size, stride, offset)
    self.kept.append(tensor)  # its address stays its own
    if key not in self.tensors:
      if place not in self.storages:
        self.storages[place] = torch.empty(0, dtype=torch.uint8).set_(storage).to(DEVICE)
      elements = storage.nbytes() // tensor.element_size()
      flat = self.storages[place][: elements * tensor.element_size()].view(tensor.dtype)
      self.tensors[key] = flat.as_strided(size, stride, offset)
    return self.tensors[key]


def outcome(call):
  """(result, None) or (None, the exception)."""
  try:
    return call(), None
  except Exception as error:  # whatever class it is: that is what is compared
    return None, error


def first_line(error):
  return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:100]}"


def difference(op, what, on_cpu, on_device):
  """A line for the report if only one raises, or both but other classes; else None."""
  if type(on_cpu) is type(on_device):
    return None
  cpu = "nothing" if on_cpu is None else first_line(on_cpu)
  tpu = "nothing" if on_device is None else first_line(on_device)
  return f"{full_name(op)} {what}: the CPU raises {cpu}, the device {tpu}"


# Errors that depend on values which nobody looks at before the program runs.
LATE = ("is out of bounds for dimension", "multinomial distribution", "probability tensor contains")
# Entries with another error than the CPU's.
OTHER_ERRORS = {
  "narrow_copy": "IndexError for a dimension that is out of range, the CPU has an internal assert",
}


def test_error_inputs_are_refused_as_on_the_cpu():
  found, compared = [], 0
  for op in op_db:
    if op.error_inputs_func is None or op.name in OTHER_ERRORS:
      continue
    for k, error_input in enumerate(op.error_inputs("cpu")):
      sample = error_input.sample_input
      try:
        mirror = Mirror()
        given = mirror(given_by(sample))
      except (NotImplementedError, RuntimeError):
        continue  # a meta tensor, or more dimensions than the device has
      _, expected = outcome(lambda s=sample, op=op: op(s.input, *s.args, **s.kwargs))
      _, error = outcome(lambda g=given, op=op: op(g[0], *g[1], **g[2]))
      compared += 1
      if any(text in str(expected) for text in LATE):
        outcome(synchronize)  # where the device says so
      else:
        found.append(difference(op, f"error input {k}", expected, error))
  assert compared > 600
  assert not any(found), "\n".join(filter(None, found))


# The operation behind nn.functional.batch_norm, which treats empty inputs itself; and lists of
# indices, which are refused when the program is compiled.
OTHER_EMPTY = ("native_batch_norm", "__getitem__", "index_put")


def without_elements(tensor):
  """Each dimension made empty, and all of them."""
  for dim in range(tensor.dim()):
    yield tensor.narrow(dim, 0, 0).clone()
  if tensor.dim() > 1:
    yield tensor.new_empty([0] * tensor.dim())


def test_empty_inputs_are_refused_as_on_the_cpu():
  found, compared = [], 0
  for op in op_db:
    if not rows_of(op) or torch.float32 not in op.dtypes or op.name in OTHER_EMPTY:
      continue
    kept = []  # so that the results are computed, all in one program
    for sample in list(op.sample_inputs("cpu", torch.float32))[:SAMPLES]:
      if not isinstance(sample.input, torch.Tensor):
        continue
      args, kwargs = Mirror()((sample.args, sample.kwargs))
      for empty in without_elements(sample.input.detach()):
        mirrored = empty.to(DEVICE)
        _, expected = outcome(lambda: op(empty, *sample.args, **sample.kwargs))  # noqa: B023
        result, error = outcome(lambda: op(mirrored, *args, **kwargs))  # noqa: B023
        compared += 1
        kept.append(result)
        found.append(difference(op, f"of {tuple(empty.shape)}", expected, error))
    _, error = outcome(synchronize)
    if error is not None:
      found.append(f"{full_name(op)}, when it runs: {first_line(error)}")
  assert compared > 1000
  assert not any(found), "\n".join(filter(None, found))


# out= of another dtype than the result.
OTHER_OUTS = {
  "cumsum": "the CPU adds in out's dtype, whatever the input's is",
  "cumprod": "the CPU multiplies in out's dtype, whatever the input's is",
  "normal": "the CPU refuses by NotImplementedError, the device by RuntimeError",
  "bernoulli": "the CPU writes 0 and 1 in any dtype",
  "nansum": "the CPU refuses by NotImplementedError, the device by RuntimeError",
  "mode": "PyTorch's check of out= names the devices it knows",
  "native_batch_norm": "the device has no out= of its own for it",
}


def test_outs_of_another_dtype_are_refused_as_on_the_cpu():
  found, compared = [], 0
  for op in op_db:
    if not op.supports_out or not rows_of(op) or torch.float32 not in op.dtypes:
      continue
    if op.name in OTHER_OUTS:
      continue
    sample = next(iter(op.sample_inputs("cpu", torch.float32)))
    result, error = outcome(lambda s=sample, op=op: op(s.input, *s.args, **s.kwargs))
    results = [result] if isinstance(result, torch.Tensor) else result
    if error is not None or not all(isinstance(t, torch.Tensor) for t in results):
      continue
    given = Mirror()(given_by(sample))
    for k, dtype in [(k, t) for k in range(len(results)) for t in (torch.float64, torch.int64)]:
      outs = tuple(
        torch.empty_like(t, dtype=dtype if i == k else t.dtype) for i, t in enumerate(results)
      )

      def call(inputs, args, kwargs, outs, op=op):
        return op(inputs, *args, **kwargs, out=outs if len(outs) > 1 else outs[0])

      mirrored = tuple(t.to(DEVICE) for t in outs)
      _, expected = outcome(lambda: call(sample.input, sample.args, sample.kwargs, outs))  # noqa: B023
      for _ in range(2):  # also when the signature is known
        _, error = outcome(lambda: call(*given, mirrored))  # noqa: B023
        found.append(difference(op, f"out= {k} of {dtype}", expected, error))
      compared += 1
  assert compared > 200
  assert not any(found), "\n".join(filter(None, found))


# Their CPU kernels read what is not checked and may be overwritten: they crash.
UNSAFE = ("searchsorted", "embedding_bag", "grid_sample", "max_unpool")
# The CPU refuses on some ways that it has; here nothing is overwritten while it is read.
SAFE_HERE = ("addbmm", "addmm", "addmv", "baddbmm", "nn.functional.linear", "isin")


def overlapping(result, tensor, shift):
  """(Memory with the result's shape, a copy of the tensor that begins `shift` elements later.)"""
  count = max(result.numel() * result.element_size() // tensor.element_size() + 1, tensor.numel())
  memory = torch.zeros((count + shift + 1) * tensor.element_size() // 8 + 9, dtype=torch.float64)
  written = memory.view(result.dtype)[: result.numel()].view(result.shape)
  read = memory.view(tensor.dtype)[shift : shift + tensor.numel()].view(tensor.shape)
  read.copy_(tensor)
  return written, read


def forms(op, sample):
  """("out=" or "in place", a tensor like the one that is written)."""
  if op.supports_out:
    result, error = outcome(lambda: op(sample.input, *sample.args, **sample.kwargs))
    if error is None and isinstance(result, torch.Tensor):
      yield "out=", result
  if op.inplace_variant is not None:
    yield "in place", sample.input


def tensors_of(sample):
  """Places of tensors: (None for the input, an index, or a keyword), tensor."""
  yield None, sample.input
  yield from ((k, v) for k, v in enumerate(sample.args))
  yield from sample.kwargs.items()


def given_by(sample):
  return sample.input, sample.args, sample.kwargs


def with_tensor(given, place, tensor):
  inputs, args, kwargs = given[0], list(given[1]), dict(given[2])
  if place is None:
    return tensor, args, kwargs
  (args if isinstance(place, int) else kwargs)[place] = tensor
  return inputs, args, kwargs


def overlap_calls(op):
  """(text, function that runs the form of the op on such memory on the device given)."""
  for sample in list(op.sample_inputs("cpu", torch.float32))[:SAMPLES]:
    if not isinstance(sample.input, torch.Tensor):
      continue
    for form, result in forms(op, sample):
      for place, tensor in tensors_of(sample):
        usable = isinstance(tensor, torch.Tensor) and tensor.numel() > 1 and result.numel() > 1
        if not usable or (form == "in place" and place is None):
          continue
        # The same memory as another dtype is no case of its own.
        for shift in (0, 1) if tensor.dtype == result.dtype else (1,):
          written, read = overlapping(result.detach(), tensor.detach(), shift)
          if form == "in place":
            written.copy_(sample.input.detach()) if shift == 0 else None
          inputs, args, kwargs = with_tensor(given_by(sample), place, read)
          text = f"{form}, argument {place}, {shift} elements later"
          yield text, form, (written, inputs, args, kwargs)


def run_overlap(op, form, given):
  written, inputs, args, kwargs = given
  if form == "out=":
    return op(inputs, *args, **kwargs, out=written)
  return op.inplace_variant(written, *args, **kwargs)


def test_shared_memory_is_refused_as_on_the_cpu():
  shared = "refer to a single memory location"
  found, refused = [], 0
  for op in op_db:
    name = full_name(op)
    if torch.float32 not in op.dtypes or any(text in name for text in UNSAFE):
      continue
    if not rows_of(op) or op.name in SAFE_HERE:
      continue
    for text, form, given in overlap_calls(op):
      mirrored = Mirror()(given)
      _, expected = outcome(lambda: run_overlap(op, form, given))  # noqa: B023
      _, error = outcome(lambda: run_overlap(op, form, mirrored))  # noqa: B023
      refused += shared in str(expected)
      if (shared in str(expected)) != (shared in str(error)):
        found.append(difference(op, text, expected, error))
  assert refused > 200
  assert not any(found), "\n".join(filter(None, found))


# Python code in front of the operation, or CUDA's kernel, wants all tensors on one device.
ONE_DEVICE = {
  "masked_scatter": "CUDA refuses it",
  "nn.functional.prelu": "the weight is expanded first",
  "nn.functional.binary_cross_entropy": "the weight is expanded first",
  "nn.functional.smooth_l1_loss": "the target is expanded first",
  "nn.functional.mse_loss": "the target is expanded first",
  "nn.functional.huber_loss": "the target is expanded first",
}


def as_numbers(op):
  """(Place of a tensor argument, the sample with it replaced by a 0-dim tensor.)"""
  for dtype in (torch.float32, torch.int64, torch.bool):
    if dtype not in op.dtypes:
      continue
    for sample in list(op.sample_inputs("cpu", dtype))[:SAMPLES]:
      for place, tensor in tensors_of(sample):
        if place is None or not isinstance(tensor, torch.Tensor) or tensor.numel() == 0:
          continue
        number = tensor.detach().reshape(-1)[0].clone()
        yield f"{dtype}, argument {place}", place, number, sample


def taken(op):
  """(text, the call's result or error on the device, the CPU's result), where the CPU has one."""
  for text, place, number, sample in as_numbers(op):
    for call in [op] if op.inplace_variant is None else [op, op.inplace_variant]:
      inputs, args, kwargs = with_tensor(given_by(sample), place, number)
      expected, refusal = outcome(lambda: call(inputs.detach().clone(), *args, **kwargs))  # noqa: B023
      if refusal is None:
        inputs, args, kwargs = with_tensor(Mirror()(given_by(sample)), place, number)
        result, error = outcome(lambda: call(inputs, *args, **kwargs))  # noqa: B023
        yield text, result if error is None else error, expected


def test_numbers_on_the_cpu_are_taken():
  """A 0-dim CPU tensor next to tpu tensors is a number wherever the CPU takes a 0-dim tensor."""
  found, compared = [], 0
  for op in op_db:
    families = {row.family for row in rows_of(op)}
    if not families & {"POINTWISE", "INDEX"} or op.name in ONE_DEVICE:
      continue
    for text, result, expected in list(taken(op)):  # all recorded first: one program
      compared += 1
      if isinstance(result, Exception):
        found.append(f"{full_name(op)} {text}: {first_line(result)}")
        continue
      try:
        torch.testing.assert_close(result, expected, check_device=False, equal_nan=True)
      except (AssertionError, TypeError) as wrong:
        found.append(f"{full_name(op)} {text}: {first_line(wrong)}")
  assert compared > 200
  assert not found, "\n".join(found)


# Dtypes that CUDA has kernels for and the CPU has not, and we neither.
NOT_HERE = {
  "_upsample_bilinear2d_aa": "runs on the host",
  "nn.functional.multilabel_margin_loss": "runs on the host",
  "nn.functional.rrelu": "runs on the host",
  "torch.ops.aten._flash_attention_forward": "CUDA's own operation",
  "torch.ops.aten._efficient_attention_forward": "CUDA's own operation",
}


def test_dtypes_of_cuda_are_taken():
  found, compared = [], 0
  for op in op_db:
    beyond = set(op.dtypesIf["cuda"]) - set(op.dtypes) - {torch.complex32}
    if full_name(op) in NOT_HERE or op.name.startswith("fft."):  # PyTorch asks for CUDA by name
      continue
    for dtype in sorted(beyond, key=str):
      for sample in list(op.sample_inputs("cpu", dtype))[:SAMPLES]:
        inputs, args, kwargs = Mirror()(given_by(sample))
        _, error = outcome(lambda: op(inputs, *args, **kwargs))  # noqa: B023
        compared += 1
        if error is not None:
          found.append(f"{full_name(op)} {dtype}: {first_line(error)}")
  assert compared > 30
  assert not found, "\n".join(found)
