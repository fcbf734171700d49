"""The backend class where vLLM's plugin imports it from."""

from torch_tpu._internal.compile import TpuBackend

__all__ = ["TpuBackend"]
