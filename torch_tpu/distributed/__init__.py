"""torch.distributed on the device: the backend "tpu_dist", also called "tpu".

Importing torch registers it, so that ``torch.distributed.init_process_group()`` finds it without a
name. It moves tensors through Gloo; see docs/distributed.md.
"""

from .backend import NAMES, install

__all__ = ["NAMES", "install"]
