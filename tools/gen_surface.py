"""Writes docs/surface.md: torch.cuda, name by name, and what torch.tpu has for it.

Usage: gen_surface.py [--check], with the Python that has torch and the built extension. Each public
name of torch.cuda is either an attribute of torch.tpu, or has its reason here, not both.
"""

import inspect
import sys
from pathlib import Path

import torch
from def_table import main_of

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "surface.md"

LEGACY = "an old name for a dtype; torch.tensor(..., dtype=, device=) is for every device"
RENAMED = "an old name that PyTorch deprecates"
CUDA_ONLY = "a handle of NVIDIA's libraries"
ALLOCATOR = "PyTorch's caching allocator for CUDA; here the core counts the plugin's buffers"
GRAPHS = "CUDA graphs; torch.compile records and replays calls as a whole"
COUNTERS = "a sensor of NVIDIA's management library; PJRT has no such question"

# Why torch.tpu has no such name.
NOT_HERE = {
  **dict.fromkeys(
    [
      f"{kind}{what}"
      for kind in "BFloat16 Bool Byte Char Double Float Half Int Long Short".split()
      for what in ("Storage", "Tensor")
    ]
    + ["ComplexDoubleStorage", "ComplexFloatStorage"],
    LEGACY,
  ),
  **dict.fromkeys(["max_memory_cached", "memory_cached", "reset_max_memory_cached"], RENAMED),
  **dict.fromkeys(["has_half", "has_magma"], RENAMED),
  **dict.fromkeys(
    ["CudaError", "check_error", "cudaStatus", "cudart", "current_blas_handle"]
    + ["current_solver_handle", "get_gencode_flags", "nccl", "sparse", "profiler", "jiterator"]
    + ["gds", "tunable", "GreenContext", "green_contexts"],
    CUDA_ONLY,
  ),
  **dict.fromkeys(
    ["CUDAPluggableAllocator", "MemPool", "use_mem_pool", "change_current_allocator"]
    + ["caching_allocator_alloc", "caching_allocator_delete", "caching_allocator_disabled"]
    + ["caching_allocator_enable", "get_allocator_backend"],
    ALLOCATOR,
  ),
  **dict.fromkeys(
    ["CUDAGraph", "graph", "graph_pool_handle", "graphs", "make_graphed_callables"], GRAPHS
  ),
  **dict.fromkeys(["clock_rate", "power_draw", "temperature", "utilization"], COUNTERS),
  "amp_definitely_not_available": "tells whether a CUDA device is missing",
  "memory_usage": COUNTERS + "; device_memory_used tells bytes",
  "list_gpu_processes": COUNTERS,
  "ExternalStream": "there is no stream outside of PyTorch to wrap",
  "get_stream_from_external": "there is no stream outside of PyTorch to wrap",
  "DeferredCudaCallError": "nothing is deferred to the start of the runtime",
  **dict.fromkeys(
    ["memory_snapshot", "_record_memory_history", "_snapshot", "_dump_snapshot"],
    "not made yet: the core counts buffers, and keeps no list of them with stacks",
  ),
}

# Names of torch.Event, and so there for every device, that raise on this one.
REFUSED = ("from_ipc_handle", "ipc_handle")
NOT_HERE |= dict.fromkeys(REFUSED, "nothing of a device is shared between processes; it raises")

HEAD = """# torch.tpu beside torch.cuda

Every public name of `torch.cuda`, written by `tools/gen_surface.py` and checked by
`tests/test_surface.py`. A script that is ported finds here what works under the same name, and why
the rest has none.

"""


def names():
  """The public names of torch.cuda and of those of its modules that torch.tpu has too."""
  yield "torch.cuda", sorted({*torch.cuda.__all__, "AcceleratorError", "OutOfMemoryError"})
  for module in ("memory", "random", "amp", "nvtx"):
    listed = getattr(getattr(torch.cuda, module), "__all__", ())
    # What the module shares with torch.cuda is listed there.
    used = {"_record_memory_history", "_snapshot", "_dump_snapshot"} if module == "memory" else ()
    yield f"torch.cuda.{module}", sorted({*listed, *used} - set(torch.cuda.__all__))
  for kind in ("Stream", "Event"):
    listed = [name for name in dir(getattr(torch.cuda, kind)) if not name.startswith("_")]
    yield f"torch.cuda.{kind}", listed


def counterpart(path):
  """What torch.tpu has under the path of something of torch.cuda."""
  found = torch.tpu
  for part in path.split(".")[2:]:
    # Our Event makes plain torch.Events.
    found = torch.Event if (found, part) == (torch.tpu, "Event") else getattr(found, part)
  return found


def page():
  text, wrong = HEAD, []
  for group, listed in names():
    home, works, absent = counterpart(group), [], []
    for name in listed:
      here = hasattr(home, name) and name not in REFUSED
      if here == (name in NOT_HERE):
        wrong.append(f"{group}.{name}: {'works, and has a reason not to' if here else 'no entry'}")
      elif here:
        works.append(f"| `{name}` | {describe(home, name)} |\n")
      else:
        absent.append(f"| `{name}` | {NOT_HERE[name]} |\n")
    if works or absent:
      text += f"## {group}\n\n"
    if works:
      text += f"| Works | |\n|---|---|\n{''.join(works)}\n"
    if absent:
      text += f"| Has no counterpart | because |\n|---|---|\n{''.join(absent)}\n"
  if wrong:
    sys.exit("\n".join(wrong))
  return text.rstrip("\n") + "\n"


def describe(home, name):
  """The first sentence of what we say about it; nothing of what is PyTorch's."""
  found = getattr(home, name)
  ours = (getattr(found, "__module__", None) or "").startswith("torch_tpu")
  if not ours or home is torch.Event:
    return ""
  first = (inspect.getdoc(found) or "").split("\n\n")[0]
  return " ".join(first.split()).split(". ")[0].rstrip(".").replace("|", "\\|")


if __name__ == "__main__":
  sys.exit(main_of(__file__, PAGE, page()))
