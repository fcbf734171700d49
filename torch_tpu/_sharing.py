"""Tensors sent to other processes through torch.multiprocessing (queues, pipes, spawn's arguments).

Device memory belongs to one process, so what travels is a copy: through host memory that both
processes share, and back to the device on the other side. CUDA would send a handle of the same
memory instead; a write there is not seen here, which is why ``share_memory_()`` is refused (see
_patches.py) rather than ignored.
"""

from multiprocessing.reduction import ForkingPickler


def install(torch):
  """Registers the reducers in front of PyTorch's own; called once."""
  from torch.multiprocessing import reductions

  reduce_tensor = _reducer(reductions.reduce_tensor, _reduce_tensor)
  for kind in (torch.Tensor, torch.nn.Parameter):
    ForkingPickler.register(kind, reduce_tensor)
  reduce_storage = _reducer(reductions.reduce_storage, _reduce_storage)
  ForkingPickler.register(torch.UntypedStorage, reduce_storage)


def _reducer(reduce_elsewhere, reduce_ours):
  def reduce(value):
    return (reduce_ours if value.device.type == "tpu" else reduce_elsewhere)(value)

  return reduce


def _reduce_tensor(tensor):
  import torch

  if tensor.requires_grad and not tensor.is_leaf:
    raise RuntimeError(
      "A 'tpu' tensor that is not a leaf and requires grad cannot be sent to another process: "
      "autograd does not cross processes. Send tensor.detach()."
    )
  torch.utils.hooks.warn_if_has_hooks(tensor)
  is_parameter = isinstance(tensor, torch.nn.Parameter)
  return _rebuild_tensor, (tensor.detach().cpu(), tensor.device, tensor.requires_grad, is_parameter)


def _rebuild_tensor(copy, device, requires_grad, is_parameter):
  import torch

  tensor = copy.to(device)
  if is_parameter:
    return torch.nn.Parameter(tensor, requires_grad)
  return tensor.requires_grad_(requires_grad)


def _reduce_storage(storage):
  return _rebuild_storage, (storage.cpu(), storage.device)


def _rebuild_storage(copy, device):
  return copy.to(device=device)
