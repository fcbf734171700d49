"""Ahead of time: what a model needs and costs on a TPU, on a machine without one (docs/aot.md)."""

import torch

from ._record import Lowered, hollow, lower
from ._report import DoesNotFit, Report

__all__ = ["DoesNotFit", "Lowered", "Report", "compile", "hollow", "lower"]


def compile(module, args=None, kwargs=None, *, target, **options):
  """What ``module(*args, **kwargs)`` needs and costs on a target such as "v6e:1x1": a Report.

  `module` is a torch.nn.Module, a torch.export.ExportedProgram (whose example inputs are the
  default), a Lowered, or any callable. Weights and arguments may be anywhere, also on "meta": only
  their shapes count, and no memory is taken for them. A module is called without gradients; for a
  training step give a callable (see `lower`). `optimized` keeps the compiled programs
  (HloModuleProtoWithConfig), `seconds` bounds the processor time of one program's compile.

  DoesNotFit when one program alone needs more memory than the chip has; RuntimeError when the
  compiler refuses it, or when libtpu is not installed."""
  if isinstance(module, Lowered):
    return module.compile(target, **options)
  if isinstance(module, torch.export.ExportedProgram):
    example_args, example_kwargs = module.example_inputs or ((), {})
    args = example_args if args is None else args
    kwargs = example_kwargs if kwargs is None else kwargs
    module = _exported(module)
  if isinstance(module, torch.nn.Module):
    with torch.no_grad():
      return lower(module, args or (), kwargs, steady=False).compile(target, **options)
  return lower(module, args or (), kwargs).compile(target, **options)


def _exported(program):
  """A module of the exported program, whose calls name no other device than ours."""
  module = program.module()
  graph = module.graph
  for node in list(graph.nodes):
    if node.target is torch.ops.aten._assert_tensor_metadata.default:
      graph.erase_node(node)
      continue
    moved = [
      torch.utils._pytree.tree_map_only(torch.device, lambda _: torch.device("tpu"), part)
      for part in (node.args, node.kwargs)
    ]
    node.args, node.kwargs = moved
  module.recompile()
  return module
