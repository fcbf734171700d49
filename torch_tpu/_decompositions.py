"""Finds the Python decomposition of an operation without a row in the op table.

Called by the extension (shim/decompose.cpp) once per overload, at its first call. PyTorch's table
of decompositions is imported here and not before. Operations of other libraries have a place in it
through torch._decomp.register_decomposition.
"""

import torch

# Operations whose decomposition must not run here: name -> the reason. They run on the host.
REFUSED = {
  "aten::as_strided_copy": "it addresses the storage, not the tensor",
  "aten::as_strided_scatter": "it addresses the storage, not the tensor",
  "aten::multilabel_margin_loss_forward": "PyTorch's decomposition counts padded labels (2.13)",
}

# Tags of operations whose course depends on more than their signature.
_REFUSED_TAGS = {
  torch.Tag.nondeterministic_seeded: "it draws random numbers",
  torch.Tag.data_dependent_output: "its result depends on data on the host",
  torch.Tag.dynamic_output_shape: "its output size depends on data",
}


def _scaled_mm(
  self, mat2, scale_a, scale_b, bias=None, scale_result=None, out_dtype=None, use_fast_accum=False
):
  """Of float8 matrices, with one scale each or one per row of `self` and column of `mat2`."""
  rows, columns = self.shape[0], mat2.shape[1]
  fits = scale_a.numel() == 1 or scale_a.shape == (rows, 1)
  if not fits or not (scale_b.numel() == 1 or scale_b.shape == (1, columns)):
    raise NotImplementedError(
      f"_scaled_mm on 'tpu' takes one scale per matrix, or one per row and column, not scales of "
      f"{tuple(scale_a.shape)} and {tuple(scale_b.shape)} for a result of ({rows}, {columns})."
    )
  scale_a, scale_b = (x if x.dim() == 2 else x.reshape(1, 1) for x in (scale_a, scale_b))
  product = torch.mm(self.float(), mat2.float()) * (scale_a * scale_b)
  if bias is not None:
    product = product + bias
  if scale_result is not None:
    product = product * scale_result
  return product.to(out_dtype or self.dtype)


def _ours():
  """Decompositions of operations that PyTorch has none for."""
  from torch_tpu.distributed import sync_batch_norm

  aten = torch.ops.aten
  table = {aten._scaled_mm.default: _scaled_mm}
  for name, function in sync_batch_norm.FUNCTIONS.items():
    table[getattr(aten, name).default] = function
  return table


def find(name, overload):
  """For an overload such as ("aten::lerp", "Scalar_out"): (function, name, overload) where the last
  two are the functional form that the function computes. A str, the reason, if there is none."""
  namespace, _, base = name.partition("::")
  operations = getattr(torch.ops, namespace)
  op = getattr(getattr(operations, base), overload or "default")
  functional = _functional_form(op, operations, base)
  if functional is None:
    return "it writes to its arguments and has no functional form"
  problem = _problem(functional)
  if problem:
    return problem
  from torch._decomp import decomposition_table

  function = decomposition_table.get(functional) or _ours().get(functional)
  if function is None:
    return "it has no decomposition"
  schema = functional._schema
  return function, schema.name, schema.overload_name


def _is_written(argument):
  return argument.alias_info is not None and argument.alias_info.is_write


def _functional_form(op, operations, base):
  """The overload that returns what `op` writes to its first argument or to out=, or None."""
  arguments = [a for a in op._schema.arguments if not a.is_out]
  outs = len(op._schema.arguments) - len(arguments)
  written = [a for a in arguments if _is_written(a)]
  if not outs and not written:
    return op
  if written:
    if outs or len(written) > 1 or not _is_written(arguments[0]) or not base.endswith("_"):
      return None
    base = base[:-1]
  packet = getattr(operations, base, None)
  for overload in packet.overloads() if packet is not None else ():
    candidate = getattr(packet, overload)
    schema = candidate._schema
    if len(schema.returns) != len(op._schema.returns):
      continue
    if any(a.is_out or _is_written(a) for a in schema.arguments):
      continue
    if [(a.name, str(a.type)) for a in schema.arguments] == [
      (a.name, str(a.type)) for a in arguments
    ]:
      return candidate
  return None


def _problem(op):
  """Why the functional overload cannot be computed from records, or None."""
  schema = op._schema
  if schema.name in REFUSED:
    return REFUSED[schema.name]
  for tag, reason in _REFUSED_TAGS.items():
    if tag in op.tags:
      return reason
  if any(a.alias_info is not None for a in schema.arguments):
    return "its result is a view of an argument"
  if any(str(r.type) != "Tensor" for r in schema.returns):
    return "it returns something else than tensors"
  return None
