"""Registers the device with PyTorch. Called by `import torch`, so it is cheap and starts nothing:
no plugin is loaded and no device is looked at before its first use.
"""

import importlib
import importlib.metadata
import os
import warnings

from torch_tpu._version import TORCH_MINOR

ENTRY_POINT = "torch_tpu._autoload:autoload"

_registered = False


def autoload():
  """Entry point of the group ``torch.backends``; calling it again does nothing.

  An installation that cannot work (not built, built for another PyTorch) gives a warning and no
  device, so that PyTorch itself stays usable. A second claimant raises RuntimeError.
  """
  try:
    register()
  except ImportError as error:
    warnings.warn(f"torch_tpu: device 'tpu' is off. {error}", RuntimeWarning, stacklevel=2)


def register():
  """Makes the device known to PyTorch. Raises ImportError if the installation cannot work and
  RuntimeError if another package has taken the name or PyTorch's slot for outside devices."""
  global _registered
  if _registered:
    return
  import torch

  _check_torch_version(torch.__version__)
  _check_alone(torch)
  # XLA prints information lines on stderr when it starts; warnings and errors stay.
  os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
  extension = _import_extension()

  from torch_tpu import _discovery, _hooks, _patches, _sharing, distributed, integrations

  torch.utils.rename_privateuse1_backend("tpu")
  from torch_tpu import tpu
  from torch_tpu._backends import install_backends_module

  torch._register_device_module("tpu", tpu)
  tpu._register_submodules("torch.tpu")
  torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
  install_backends_module(torch)
  _patches.apply(torch)
  _hooks.install(torch)
  _sharing.install(torch)
  distributed.install(torch)
  tpu.compile_log.install()
  plugin = _discovery.find_plugin()
  # Without a path the first use of the device says what is missing.
  extension.set_plugin(plugin.path, plugin.platform, _discovery.count_tpu_hardware())
  integrations.install()
  _registered = True


def _check_torch_version(version):
  """Refuses a PyTorch whose C++ interface differs from the one the shim was compiled for."""
  if ".".join(version.split(".")[:2]) != TORCH_MINOR:
    raise ImportError(
      f"This torch_tpu is built for PyTorch {TORCH_MINOR}, but PyTorch {version} is "
      f"installed. Install the matching one: pip install torch=={TORCH_MINOR}.0"
    )


def _check_alone(torch):
  """Refuses to start beside another package that provides the device."""
  for distribution in importlib.metadata.distributions(name="torch_tpu"):
    for entry in distribution.entry_points:
      if entry.group == "torch.backends" and entry.value != ENTRY_POINT:
        raise RuntimeError(
          f"Two packages named torch_tpu are installed: this one and version "
          f"{distribution.version} in {distribution.locate_file('')}, which loads "
          f"'{entry.value}'. Both provide the device 'tpu', and only one can: run "
          f"'pip uninstall torch_tpu' until none is left, then install the one you want."
        )
  taken = torch._C._get_privateuse1_backend_name()
  if taken != "privateuseone" or hasattr(torch, "tpu"):
    name = taken if taken != "privateuseone" else "tpu"
    raise RuntimeError(
      f"Another package has already registered the device '{name}' with PyTorch, which has "
      f"room for one device from outside. Uninstall that package or torch_tpu, or set "
      f"TORCH_DEVICE_BACKEND_AUTOLOAD=0 and import the one you want."
    )


def _import_extension():
  try:
    return importlib.import_module("torch_tpu._C")
  except ImportError as error:
    raise ImportError(
      f"torch_tpu's extension module cannot be loaded ({error}). Build it: 'make build' in a "
      f"source tree, or 'pip install .'"
    ) from error
