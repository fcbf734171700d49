"""torch.compile's backend under the published names. Importing it registers the backend "tpu"."""

from torch._dynamo.backends import registry

from torch_tpu._compile.backend import TpuBackend, backend

__all__ = ["TpuBackend", "backend"]

if "tpu" not in registry._COMPILER_FNS:
  registry.register_backend(backend, name="tpu")
