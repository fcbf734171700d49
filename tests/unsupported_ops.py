"""What test_ops.py knows not to work yet: (op_db name, dtype or "*") -> reason.

Strict: an entry that passes fails the run, so that this list only ever shrinks. The op_db name
carries its variant after a dot when it has one, as test_ops prints it."""

UNSUPPORTED = {
  ("complex", "float16"): "its result is ComplexHalf, which the device has no dtype for",
}

# Entries of op_db without a row in the op table, tested in float32 through the fallback.
UNSUPPORTED_BREADTH = {
  ("sparse.mm.reduce", "*"): "the device has no sparse tensors",
}
