"""DTensor's rules for attention on the device: by batch, by heads, or on every rank. PyTorch has
them for its CUDA kernels; ours is another operation. Registered once torch.distributed.tensor is
imported."""

import torch

_OUTPUTS_ALWAYS = [None] * 7  # cum_seq_q and _k, max_q and _k, seed, offset, debug_attn_mask


def install(module):
  """Registers them; `module` is torch.distributed.tensor."""
  from torch.distributed.tensor.experimental import register_sharding

  aten = torch.ops.aten
  register_sharding(aten._scaled_dot_product_fused_attention_overrideable.default)(_forward)
  register_sharding(aten._scaled_dot_product_fused_attention_overrideable_backward.default)(
    _backward
  )


def _placements(bias):
  """A placement of queries, keys, values and results for each, and that of the bias with it."""
  from torch.distributed.tensor import Replicate, Shard

  yield Replicate(), None if bias is None else Replicate()
  for dim in (0, 1):
    if bias is None:
      yield Shard(dim), None
    else:
      yield Shard(dim), Shard(dim) if bias.shape[dim] > 1 else Replicate()


def _forward(query, key, value, attn_bias=None, *args, **kwargs):
  return [
    ([p, p, *_OUTPUTS_ALWAYS], [p, p, p, b, *(None for _ in args)])
    for p, b in _placements(attn_bias)
  ]


def _backward(grad_out, query, key, value, attn_bias, grad_input_mask, out, logsumexp, *rest, **kw):
  from torch.distributed.tensor import Replicate

  # Seed and offset are numbers, the same ones on all ranks.
  numbers = [Replicate() if hasattr(argument, "placements") else None for argument in rest]
  return [
    ([p, p, p, b if grad_input_mask[3] else None], [p, p, p, p, b, None, p, p, *numbers])
    for p, b in _placements(attn_bias)
  ]
