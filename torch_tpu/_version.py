"""Version of the package and the PyTorch minor version that the shim is built for."""

__version__ = "0.1.0"

# The shim uses PyTorch's C++ classes, which change between minor versions.
TORCH_MINOR = "2.13"
