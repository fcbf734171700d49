"""What libraries on top of PyTorch need to find the device by themselves, as they find "cuda".

Each library has a file here with what is changed in it: a function per module of the library,
called when that module has been imported. Nothing of this is loaded before, nothing changes where
the process has no "tpu" device, and what concerns other devices stays as the library does it. A
version that was not tested is left alone, with one warning. TORCH_TPU_INTEGRATIONS=0 turns all off,
a list of libraries turns those off.
"""

import functools
import importlib
import importlib.metadata
import sys
import warnings
from typing import NamedTuple

from torch_tpu._after_import import after_import


class Library(NamedTuple):
  """One integration: the versions it was tested with, from `first` up to but without `end`, and the
  modules that it changes. The file of its name here has PATCHES, a dict of the same modules."""

  first: str
  end: str
  modules: tuple


LIBRARIES = {
  "accelerate": Library(
    "1.14",
    "1.16",
    (
      "accelerate.accelerator",
      "accelerate.checkpointing",
      "accelerate.state",
      "accelerate.utils.memory",
      "accelerate.utils.modeling",
    ),
  ),
  "lightning": Library(
    "2.6",
    "2.7",
    (
      "lightning.fabric.accelerators",
      "lightning.fabric.connector",
      "lightning.pytorch.accelerators",
      "lightning.pytorch.trainer.connectors.accelerator_connector",
    ),
  ),
  "peft": Library("0.19", "0.22", ("peft.utils.other",)),
  "pytorch_lightning": Library(
    "2.6",
    "2.7",
    (
      "lightning_fabric.accelerators",
      "lightning_fabric.connector",
      "pytorch_lightning.accelerators",
      "pytorch_lightning.trainer.connectors.accelerator_connector",
    ),
  ),
  "safetensors": Library("0.8", "0.9", ("safetensors",)),
  "torchao": Library("0.18", "0.19", ("torchao.quantization.quant_api",)),
  "transformers": Library("5.18", "5.24", ("transformers.pipelines.base",)),
}

PATCHED = "patched"
_outcomes = {}  # library -> "patched", or why not


def install():
  """Waits for the libraries; called once. Reads no variable: that is for when one is needed."""
  for name, library in LIBRARIES.items():
    for module in library.modules:
      after_import(module, functools.partial(_patch, name))


def _patch(name, module):
  """Changes one module of a library that has just been imported. Never raises: a library that has
  changed stays as it is, with a warning."""
  from torch_tpu import _C

  if _C.device_count() == 0:
    return
  if name not in _outcomes:
    _outcomes[name] = _begin(name, _C.env_value("TORCH_TPU_INTEGRATIONS"))
  if _outcomes[name] != PATCHED:
    return
  file = importlib.import_module(f"torch_tpu.integrations.{name}")
  try:
    file.PATCHES[module.__name__](module)
  except Exception as error:  # whatever a changed library makes of our patch, its user goes on
    _outcomes[name] = f"{module.__name__} is not as expected: {type(error).__name__}: {error}"
    _warn(name, f"{module.__name__} is not what torch_tpu knows ({error}), and stays as it is")


def _begin(name, switch):
  """What becomes of a library when the first of its modules has been imported."""
  if name in _turned_off(switch or "1"):
    return "turned off by TORCH_TPU_INTEGRATIONS"
  library = LIBRARIES[name]
  try:
    version = importlib.metadata.version(name)
  except importlib.metadata.PackageNotFoundError:
    version = "unknown"
  if _numbers(library.first) <= _numbers(version) < _numbers(library.end):
    return PATCHED
  _warn(
    name, f"it was tested with {name} {library.first} up to {library.end}, and this is {version}"
  )
  return f"version {version} is not in [{library.first}, {library.end})"


@functools.lru_cache  # so that an unknown name is told once
def _turned_off(switch):
  """Names of libraries that the variable's value turns off."""
  words = {word.strip().lower().replace("-", "_") for word in switch.split(",")}
  if words & {"0", "false", "off", "no"}:
    return set(LIBRARIES)
  unknown = words - set(LIBRARIES) - {"1", "true", "on", "yes", ""}
  if unknown:
    warnings.warn(
      f"TORCH_TPU_INTEGRATIONS: there is no integration of {', '.join(sorted(unknown))}; there are "
      f"{', '.join(LIBRARIES)}.",
      RuntimeWarning,
      stacklevel=2,
    )
  return words


def _numbers(version):
  """The leading numbers of a version: (1, 15, 0) of "1.15.0.dev0"."""
  numbers = []
  for part in version.split("+")[0].split("."):
    if not part.isdigit():
      break
    numbers.append(int(part))
  return tuple(numbers)


def _warn(name, reason):
  warnings.warn(
    f"torch_tpu's integration of {name} is off: {reason}. Devices may have to be named by hand. "
    f"TORCH_TPU_INTEGRATIONS={name} says that this is as wanted.",
    RuntimeWarning,
    stacklevel=2,
  )


def status():
  """What became of each library's integration so far: name -> "patched", "waiting" (not imported
  yet) or the reason why the library is left alone."""
  return {name: _outcomes.get(name, "waiting") for name in LIBRARIES}


def replace(module, name, make):
  """Puts ``make(original)`` in the place of the module's function or class `name`, also where other
  modules of the process have imported it by name already. AttributeError if there is none."""
  original = getattr(module, name)
  changed = make(original)
  for each in list(sys.modules.values()):
    if getattr(each, "__dict__", {}).get(name) is original:
      setattr(each, name, changed)
  setattr(module, name, changed)


def replace_method(cls, name, make):
  """The same for a method of a class, which has one place only."""
  original = getattr(cls, name)
  changed = make(original)
  functools.update_wrapper(getattr(changed, "__func__", changed), original)
  setattr(cls, name, changed)
