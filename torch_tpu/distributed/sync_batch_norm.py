"""The operations of torch.nn.SyncBatchNorm, which PyTorch has for CUDA only, as compositions.

The extension traces each once per signature and replays it (torch_tpu/_decompositions.py): Python
is not in the way of a training step. Statistics are float32 or wider, as on CUDA; images and counts
are PyTorch's: [batch, channels, ...], and a count of elements per channel for each rank.
"""

import torch


def _wide(dtype):
  return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _other_dims(image):
  return [d for d in range(image.dim()) if d != 1]


def _per_channel(values, image):
  return values.view([1, -1] + [1] * (image.dim() - 2))


def stats(input, eps):
  wide = input.to(_wide(input.dtype))
  var, mean = torch.var_mean(wide, dim=_other_dims(input), correction=0)
  return mean, torch.rsqrt(var + eps)


def gather_stats_with_counts(input, mean, invstd, running_mean, running_var, momentum, eps, counts):
  counts = counts.to(mean.dtype).view(-1, 1)
  total = counts.sum()
  whole = (mean * counts).sum(0) / total
  var = invstd.pow(-2) - eps
  var = ((var + (mean - whole).square()) * counts).sum(0) / total
  if running_mean is not None:
    running_mean.copy_(running_mean * (1 - momentum) + whole * momentum)
  if running_var is not None:
    running_var.copy_(running_var * (1 - momentum) + var * (total / (total - 1)) * momentum)
  return whole, torch.rsqrt(var + eps)


def elemt(input, weight, bias, mean, invstd, eps):
  wide = input.to(mean.dtype)
  out = (wide - _per_channel(mean, input)) * _per_channel(invstd, input)
  if weight is not None:
    out = out * _per_channel(weight.to(mean.dtype), input)
  if bias is not None:
    out = out + _per_channel(bias.to(mean.dtype), input)
  return out.to(input.dtype)


def backward_reduce(grad_out, input, mean, invstd, weight, input_g, weight_g, bias_g):
  grad, dims = grad_out.to(mean.dtype), _other_dims(input)
  sum_dy = grad.sum(dims)
  sum_dy_xmu = (grad * (input.to(mean.dtype) - _per_channel(mean, input))).sum(dims)
  dtype = mean.dtype if weight is None else weight.dtype
  return sum_dy, sum_dy_xmu, (sum_dy_xmu * invstd).to(dtype), sum_dy.to(dtype)


def backward_elemt(grad_out, input, mean, invstd, weight, sum_dy, sum_dy_xmu, count):
  share = 1 / count.sum().to(mean.dtype)
  scale = invstd if weight is None else invstd * weight.to(mean.dtype)
  centred = input.to(mean.dtype) - _per_channel(mean, input)
  slope = _per_channel(invstd.square() * sum_dy_xmu * share, input)
  inner = grad_out.to(mean.dtype) - _per_channel(sum_dy * share, input) - centred * slope
  return (inner * _per_channel(scale, input)).to(input.dtype)


FUNCTIONS = {
  "batch_norm_stats": stats,
  "batch_norm_gather_stats_with_counts": gather_stats_with_counts,
  "batch_norm_elemt": elemt,
  "batch_norm_backward_reduce": backward_reduce,
  "batch_norm_backward_elemt": backward_elemt,
}
