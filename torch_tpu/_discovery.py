"""Decides which PJRT plugin the device will use, without loading or importing anything heavy."""

import glob
import importlib.util
import os
from typing import NamedTuple

# Package and file inside it, in order of preference. The packages are found, not imported.
_PLUGINS = {
  "cpu": (
    ("lammps_jax_pjrt_cpu", "pjrt_c_api_cpu_plugin.so"),
    ("xla_plugins.xla_cpu_pjrt", "xla_cpu_pjrt.so"),
  ),
  "tpu": (("libtpu", "libtpu.so"),),
  "cuda": (
    ("jax_plugins.xla_cuda13", "xla_cuda_plugin.so"),
    ("jax_plugins.xla_cuda12", "xla_cuda_plugin.so"),
  ),
}

_GOOGLE_PCI_VENDOR = "0x1ae0"
# v2 and v3, v4, v5p, v5e, v6e, 7x.
_TPU_PCI_DEVICES = ("0x0027", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076")


class Plugin(NamedTuple):
  """A plugin's path ("" when none was found) and platform: "cpu", "tpu" or "cuda"."""

  path: str
  platform: str


def find_plugin():
  """Applies the order: TORCH_TPU_PJRT_PLUGIN, then TPU hardware with libtpu, then the CPU plugin.

  TORCH_TPU_PLATFORM pins the platform. Never raises: the first use of the device says what is
  missing or wrong.
  """
  path = os.environ.get("TORCH_TPU_PJRT_PLUGIN", "")
  platform = os.environ.get("TORCH_TPU_PLATFORM", "").lower()
  if path:
    return Plugin(path, platform or _platform_of(path))
  if platform not in _PLUGINS:
    platform = "tpu" if count_tpu_hardware() and locate("tpu") else "cpu"
  return Plugin(locate(platform), platform)


def count_tpu_hardware(root="/sys/bus/pci/devices"):
  """How many TPU chips are on the PCI bus. Reads sysfs only."""
  count = 0
  for vendor_file in glob.glob(f"{root}/*/vendor"):
    if _read(vendor_file) == _GOOGLE_PCI_VENDOR:
      chip = _read(os.path.join(os.path.dirname(vendor_file), "device"))
      count += chip in _TPU_PCI_DEVICES
  return count


def locate(platform):
  """Path of the platform's first plugin that exists, or ""."""
  for package, file in _PLUGINS[platform]:
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
