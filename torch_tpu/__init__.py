"""TorchTPU in C: PyTorch's device "tpu".

Installing the package is enough: ``import torch`` loads it through the ``torch.backends`` entry
point. ``import torch_tpu`` does the same by hand, also when TORCH_DEVICE_BACKEND_AUTOLOAD=0.
"""

# Before torch: `import torch` calls the entry point while this module is still loading.
from torch_tpu._autoload import autoload, register
from torch_tpu._version import __version__

import torch as _torch  # loads us through the entry point, unless autoload is off

# While torch itself is being imported the entry point does this, in a way that cannot break torch.
if not getattr(_torch.__spec__, "_initializing", False):
  register()

__all__ = ["__version__", "autoload"]
