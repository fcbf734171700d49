"""Decides which PJRT plugin the device will use, without loading or importing anything heavy."""

import glob
import importlib.util
import os
from typing import NamedTuple

CPU_PLUGIN_COMMAND = "pip install --no-deps lammps-jax-pjrt-cpu==0.11.2"

# Package and file inside it, in order of preference. The packages are found, not imported.
_CPU_PLUGINS = (
  ("lammps_jax_pjrt_cpu", "pjrt_c_api_cpu_plugin.so"),
  ("xla_plugins.xla_cpu_pjrt", "xla_cpu_pjrt.so"),
)
_TPU_PLUGINS = (("libtpu", "libtpu.so"),)
_CUDA_PLUGINS = (
  ("jax_plugins.xla_cuda13", "xla_cuda_plugin.so"),
  ("jax_plugins.xla_cuda12", "xla_cuda_plugin.so"),
)

_GOOGLE_PCI_VENDOR = "0x1ae0"
_TPU_PCI_DEVICES = ("0x005e", "0x0062", "0x0063", "0x006f", "0x0076")


class Plugin(NamedTuple):
  """A plugin's path and platform ("cpu", "tpu", "cuda"). When none was found, the path is empty
  and `problem` is the text for the user, raised at the first use of the device."""

  path: str
  platform: str
  problem: str = ""


def find_plugin():
  """Applies the order: TORCH_TPU_PJRT_PLUGIN, then TPU hardware with libtpu, then the CPU plugin.

  TORCH_TPU_PLATFORM pins the platform. Never raises: what is wrong is in the result.
  """
  path = os.environ.get("TORCH_TPU_PJRT_PLUGIN", "")
  platform = os.environ.get("TORCH_TPU_PLATFORM", "").lower()
  if platform not in ("", "cpu", "tpu", "cuda"):
    return Plugin("", "cpu", f"TORCH_TPU_PLATFORM is '{platform}': use tpu, cpu or cuda.")
  if path:
    return Plugin(path, platform or _platform_of(path))
  if not platform:
    platform = "tpu" if has_tpu_hardware() and _locate(_TPU_PLUGINS) else "cpu"
  if platform == "tpu":
    return _found(
      _TPU_PLUGINS,
      "tpu",
      "No TPU plugin: the package libtpu is not installed. Run: pip install libtpu",
    )
  if platform == "cuda":
    return _found(
      _CUDA_PLUGINS,
      "cuda",
      "No CUDA plugin is installed. Run: pip install --no-deps jax-cuda13-plugin jax-cuda13-pjrt",
    )
  return _found(
    _CPU_PLUGINS,
    "cpu",
    "No PJRT plugin was found, so the device 'tpu' has nothing "
    f"to run on. For the CPU plugin run: {CPU_PLUGIN_COMMAND} (or set "
    "TORCH_TPU_PJRT_PLUGIN to the path of a plugin).",
  )


def has_tpu_hardware(root="/sys/bus/pci/devices"):
  """True when a TPU chip is on the PCI bus. Reads sysfs only."""
  for vendor_file in glob.glob(f"{root}/*/vendor"):
    if _read(vendor_file) == _GOOGLE_PCI_VENDOR:
      if _read(os.path.join(os.path.dirname(vendor_file), "device")) in _TPU_PCI_DEVICES:
        return True
  return False


def _found(candidates, platform, problem):
  path = _locate(candidates)
  return Plugin(path, platform) if path else Plugin("", platform, problem)


def _locate(candidates):
  """Path of the first candidate that exists, or ""."""
  for package, file in candidates:
    try:
      spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):  # a missing parent package
      continue
    for folder in (spec.submodule_search_locations or ()) if spec else ():
      path = os.path.join(folder, file)
      if os.path.isfile(path):
        return path
  return ""


def _platform_of(path):
  """Guesses a plugin's platform from its file name."""
  name = os.path.basename(path).lower()
  if name.startswith("libtpu"):
    return "tpu"
  return "cuda" if "cuda" in name or "gpu" in name else "cpu"


def _read(path):
  try:
    with open(path) as file:
      return file.read().strip()
  except OSError:
    return ""
