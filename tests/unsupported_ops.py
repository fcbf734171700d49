"""What test_ops.py knows not to work yet: (op_db name, dtype or "*") -> reason.

Strict: an entry that passes fails the run, so that this list only ever shrinks. The op_db name
carries its variant after a dot when it has one, as test_ops prints it."""

UNSUPPORTED = {
  ("complex", "float16"): "its result is ComplexHalf, which the device has no dtype for",
  ("nn.functional.interpolate.bicubic", "uint8"): "the CPU's weights have a fixed point for uint8: "
  "up to 2 of 255 away",
  ("nn.functional.max_unpool2d.grad", "bfloat16"): "PyTorch's meta kernel says contiguous where "
  "the CPU kernel keeps channels_last strides; the values are right",
}

# Entries of op_db without a row in the op table, tested in float32 through the fallback.
UNSUPPORTED_BREADTH = {
  ("sparse.mm.reduce", "*"): "the device has no sparse tensors",
  ("sparse.sampled_addmm", "*"): "the device has no sparse tensors",
  ("to_sparse", "*"): "the device has no sparse tensors",
  ("chalf", "*"): "ComplexHalf, which the device has no dtype for",
  ("linalg.lstsq.grad_oriented", "*"): "results of the host come back with row-major strides",
  ("to", "*"): "the samples move the tensor to the CPU",
  ("tensor_split", "*"): "PyTorch wants the tensor of split points on the CPU",
  ("linalg.lstsq", "*"): "results of the host come back with row-major strides",
}

# Entries that fail under torch.compile(fullgraph=True), in float32, and not in eager. On the CPU
# backends eager and aot_eager compile four of them: geqrf, histogram, histogramdd and narrow.
_READS_DATA = "Dynamo breaks the graph where Python asks for data"
_NO_FAKE = "PyTorch has no fake kernel for it"
UNSUPPORTED_COMPILED = {
  ("allclose", "*"): _READS_DATA,
  ("corrcoef", "*"): _READS_DATA,
  ("cov", "*"): _READS_DATA,
  ("equal", "*"): _READS_DATA,
  ("nn.functional.gaussian_nll_loss", "*"): _READS_DATA,
  ("narrow", "*"): "its start is a tensor: PyTorch loses a symbol of the result's offset",
  ("geqrf", "*"): _NO_FAKE,
  ("histogram", "*"): _NO_FAKE,
  ("histogramdd", "*"): _NO_FAKE,
  ("nn.functional.ctc_loss", "*"): "its lengths are tensors, which Dynamo does not look into",
  ("resize_", "*"): "Dynamo does not trace resize_",
  ("resize_as_", "*"): "Dynamo does not trace resize_",
}
