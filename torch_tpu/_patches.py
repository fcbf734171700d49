"""Changes to PyTorch itself, each for a gap that no hook covers. This is the complete list, but for
those to torch.distributed, which distributed/backend.py makes.

1. DLPack export. PyTorch would hand out the data pointer of a "tpu" tensor, which is an address
   that nothing can read. Exporting raises BufferError instead, unless a CPU copy is asked for.
2. Shared memory. PyTorch takes ``share_memory_()`` to be done for every device but the CPU, as it
   is on CUDA. A "tpu" tensor cannot be shared between processes, so it raises RuntimeError: the
   other process would not see what this one writes.
3. GradScaler. It scales a loss until its gradients overflow, by design. In ``scale``, in the
   backward of its result and in ``unscale_`` TORCH_TPU_CHECK_NONFINITE=1 is silent.
4. torch.compile. The object that calls Inductor sends graphs with tpu tensors to our backend; see
   _compile/routing.py.
5. flex_attention. Its list of devices is fixed in the source; see _compile/flex.py.
6. Meta functions of pointwise ops. They import Dynamo when they are called first, to hide from it:
   over a second and 800 modules for the shape of `x + 1`. While nobody has imported it, they run as
   they are.
7. Fake convolutions. A fake result's strides are those of the library that PyTorch would call, and
   it knows none for us; ours are those of CUDA: channels_last where the input or the weight is.
8. Samplers. Under set_default_device they mix a generator of the host with a tensor on the device;
   see _data.py.
9. torch.compiler.save_cache_artifacts. It asks nobody for what is compiled later than a graph: our
   programs; see _compile/artifacts.py.

Libraries on top of PyTorch: see integrations/.
"""

import functools
import sys
import types

from torch_tpu import _data
from torch_tpu._compile import artifacts, flex, routing

_CPU = 1  # DLPack's device type of host memory


def apply(torch):
  """Applies all patches; called once."""
  for name in ("_to_dlpack", "_to_dlpack_versioned"):
    setattr(torch._C, name, _refusing_device_addresses(getattr(torch._C, name)))
  torch.to_dlpack = torch.utils.dlpack.to_dlpack = torch._C._to_dlpack
  scaler = torch.amp.GradScaler
  scaler.scale = _expecting_overflow(torch, scaler.scale)
  scaler.unscale_ = _expecting_overflow(torch, scaler.unscale_)
  torch.UntypedStorage.share_memory_ = _refusing_to_share(torch.UntypedStorage.share_memory_)
  _leave_dynamo_alone(torch)
  routing.install(torch)
  flex.install()
  artifacts.install()
  _lay_out_fake_convolutions(torch)
  _data.install(torch)


def _refusing_device_addresses(export):
  @functools.wraps(export)
  def to_dlpack(tensor, *args, **kwargs):
    device = kwargs.get("dl_device")
    if tensor.device.type == "tpu" and (device is None or int(device[0]) != _CPU):
      raise BufferError(
        "A 'tpu' tensor cannot be exported through DLPack: its memory has no address that other "
        "libraries can use. Export a copy: tensor.cpu()."
      )
    return export(tensor, *args, **kwargs)

  return to_dlpack


def _expecting_overflow(torch, method):
  from torch_tpu import _C

  engine = torch.autograd.Variable._execution_engine

  def until_backward_ends(grad):
    _C.expect_nonfinite(True)
    engine.queue_callback(lambda: _C.expect_nonfinite(False) and None)

  @functools.wraps(method)
  def expecting(scaler, *args, **kwargs):
    looks = _C.expect_nonfinite(True)
    try:
      result = method(scaler, *args, **kwargs)
    finally:
      _C.expect_nonfinite(False)
    if looks:
      for scaled in result if isinstance(result, (list, tuple)) else [result]:
        if isinstance(scaled, torch.Tensor) and scaled.requires_grad:
          scaled.register_hook(until_backward_ends)
    return result

  return expecting


def _refusing_to_share(share_memory_):
  @functools.wraps(share_memory_)
  def share_memory_on_cpu_(storage, *args, **kwargs):
    if storage.device.type == "tpu":
      raise RuntimeError(
        "share_memory_: memory of the 'tpu' device cannot be shared between processes. Share a "
        "CPU tensor, or send the tensor through a queue: that sends a copy."
      )
    return share_memory_(storage, *args, **kwargs)

  return share_memory_on_cpu_


def _leave_dynamo_alone(torch):
  """Where torch._compile._disable_dynamo looks for the disabled function, puts one that is not
  disabled until Dynamo exists."""
  from torch._decomp import decomposition_table, meta_table

  hiding = torch._disable_dynamo(lambda: None).__code__
  functions, seen = [*meta_table.values(), *decomposition_table.values()], set()
  while functions:
    function = functions.pop()
    if not isinstance(function, types.FunctionType) or function in seen:
      continue
    seen.add(function)
    # A decorated function stands in a cell of what its decorator made.
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    functions += held
    if function.__code__ is hiding:
      hidden = held[hiding.co_freevars.index("fn")]
      if not hasattr(hidden, "__dynamo_disable"):
        hidden.__dynamo_disable = _until_dynamo(hidden)


def _until_dynamo(function):
  def call(*args, **kwargs):
    disable = getattr(sys.modules.get("torch._dynamo"), "disable", None)
    if disable is None:
      return function(*args, **kwargs)
    function.__dynamo_disable = disable(function, wrapping=False)
    return function.__dynamo_disable(*args, **kwargs)

  return call


def _lay_out_fake_convolutions(torch):
  from torch._subclasses import fake_impls

  aten, table = torch.ops.aten, fake_impls.op_implementations_dict
  for op in (
    aten.convolution.default,
    aten._convolution.default,
    aten._convolution.deprecated,
    aten.convolution_backward.default,
  ):
    table[op] = _channels_last_where_inputs_are(torch, table[op])


def _channels_last_where_inputs_are(torch, fake):
  @functools.wraps(fake)
  def convolution(mode, op, *args, **kwargs):
    result = fake(mode, op, *args, **kwargs)
    names = [argument.name for argument in op._schema.arguments]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    images = given["input"], given["weight"]
    if images[0].device.type != "tpu":
      return result
    flat = images[1].dim() == 3  # computed as images of height 1, of which the input is row-major
    with mode:
      formats = map(_format_of, [images[1].unsqueeze(2)] if flat else images)
      wanted = next((form for form in formats if form is not torch.contiguous_format), None)

      def laid_out(tensor):
        if tensor is None or tensor.dim() != images[1].dim() or wanted is None:
          return tensor
        image = tensor.unsqueeze(2) if flat else tensor
        image = torch.empty_like(image, memory_format=wanted)  # it has no content
        return image.squeeze(2) if flat else image

      return tuple(map(laid_out, result)) if isinstance(result, tuple) else laid_out(result)

  return convolution


def _format_of(tensor):
  from torch._prims_common import suggest_memory_format

  return suggest_memory_format(tensor)
