"""``python -m torch_tpu``: what is installed, which device there is, and whether it computes. To be
pasted in a bug report. Exit status 1 if something that is needed does not work."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import time

LIBRARIES = (
  "torch numpy transformers accelerate safetensors peft lightning pytorch-lightning diffusers timm "
  "torchvision torchao libtpu lammps-jax-pjrt-cpu xla-cpu-pjrt jax jaxlib torch-xla"
).split()


def main():
  ok = True
  for title, check in SECTIONS.items():
    print(title)
    try:
      lines = list(check())
    except Exception as error:  # the report goes on: what failed is what it is for
      ok = False
      lines = [("FAILED", f"{type(error).__name__}: {error}")]
    for name, value in lines:
      print(f"  {name:<24} {value}")
  print("Everything works." if ok else "Something does not work: see FAILED above.")
  return 0 if ok else 1


def versions():
  import torch

  import torch_tpu

  yield "torch_tpu", f"{torch_tpu.__version__} in {os.path.dirname(torch_tpu.__file__)}"
  yield "Python", f"{platform.python_version()} on {platform.platform()}"
  for name in LIBRARIES:
    try:
      yield name, importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
      continue
  yield "PyTorch's C++ interface", "CXX11" if torch.compiled_with_cxx11_abi() else "before CXX11"


def plugin():
  from torch_tpu import _C, _discovery

  found = _C.plugin()
  chips = _discovery.count_tpu_hardware()
  yield "TPU chips on the bus", chips
  if found is None:
    raise RuntimeError(
      "no PJRT plugin: pip install libtpu for a TPU, --no-deps lammps-jax-pjrt-cpu for the CPU"
    )
  path, kind = found
  yield "plugin", f"{path} ({os.path.getsize(path) >> 20} MiB) for {kind}"


def device():
  import torch

  begun = time.monotonic()
  torch.tpu.init()
  properties = torch.tpu.get_device_properties()
  yield "device", f"{properties.name}, {torch.tpu.device_count()} in this process"
  yield "plugin's version", properties.plugin_version
  yield "memory", f"{properties.total_memory / 2**30:.1f} GiB"
  yield "started in", f"{time.monotonic() - begun:.2f} s"
  yield "eager mode", torch.tpu.get_eager_mode().name


def cache():
  from torch_tpu import _C

  base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
  folder = _C.env_value("TORCH_TPU_CACHE_DIR") or os.path.join(base, "torch_tpu")
  if _C.env_value("TORCH_TPU_CACHE") in ("0", "false", "off", "no"):
    yield "on disk", "off (TORCH_TPU_CACHE)"
  elif not os.path.isdir(folder):
    yield "on disk", f"{folder}, not made yet"
  else:
    sizes = [
      os.path.getsize(os.path.join(where, name))
      for where, _, names in os.walk(folder)
      for name in names
    ]
    yield "on disk", f"{folder}: {len(sizes)} files, {sum(sizes) >> 20} MiB"


def environment():
  from torch_tpu import _C

  for name, value, source in _C.env_table():
    if source != "default":
      yield name, f"{value!r} ({source})"
  for name in sorted(os.environ):
    if name.startswith(("TPU_", "LIBTPU_", "XLA_", "PJRT_", "OMP_NUM")):
      yield name, repr(os.environ[name])


def integrations():
  from torch_tpu import integrations

  for name, outcome in integrations.status().items():
    if outcome != "waiting":
      yield name, outcome
  yield "others", "wait for their import"


def compilers():
  for name in ("gcc", "g++", "cmake", "ninja"):
    path = shutil.which(name)
    if path is None:
      yield name, "not found (only needed to build from source)"
      continue
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
    yield name, (said.stdout.splitlines() or ["?"])[0]


def computes():
  """A product of matrices, by interpretation and by a compiled program, beside the host's."""
  import torch

  from torch_tpu import _C

  a, b = torch.randn(128, 64), torch.randn(64, 32)
  for tier in ("interpreted", "compiled"):
    _C.env_override("TORCH_TPU_TIERS", tier)
    try:
      begun = time.monotonic()
      mine = (a.to("tpu") @ b.to("tpu")).cpu()
      seconds = time.monotonic() - begun
    finally:
      _C.env_override("TORCH_TPU_TIERS", None)
    worst = (mine - a @ b).abs().max().item()
    if not worst < 0.1:  # a TPU multiplies in bfloat16 unless it is told otherwise
      raise RuntimeError(f"a product of matrices is off by {worst} ({tier})")
    yield f"128x64 @ 64x32, {tier}", f"largest error {worst:.1e}, {seconds:.3f} s"


SECTIONS = {
  "Versions": versions,
  "Plugin": plugin,
  "Device": device,
  "Compile cache": cache,
  "Environment": environment,
  "Integrations": integrations,
  "Build tools": compilers,
  "Arithmetic": computes,
}

if __name__ == "__main__":
  sys.exit(main())
