"""Programs among the artifacts of torch.compiler.save_cache_artifacts and load_cache_artifacts.

PyTorch's caches record what they keep when they keep it. Our programs are compiled when a window
needs them, perhaps in the background: they are looked up when artifacts are saved. A program's key
names the machine, the plugin and the options; where another one is needed it is compiled as ever.
"""

import os
import tempfile
from pathlib import Path

from torch_tpu import _C
from torch_tpu._after_import import after_import

_SUFFIX_LENGTH = len("ab/") + 32 + len(".bin")  # below the cache's folder


def install():
  after_import("torch.compiler._cache", _add_programs)


def _add_programs(module):
  @module.CacheArtifactFactory.register
  class TpuProgramArtifact(module.CacheArtifact):
    """A file of the compile cache on disk; the key is its path there."""

    def populate_cache(self):
      _write(self.key, self.content)

    @staticmethod
    def type():
      return "tpu_program"

  manager = module.CacheArtifactManager
  serialize = manager.serialize

  def serialize_with_programs(cls):
    _C.await_builds()
    for path in map(Path, _C.program_files()):
      if path.exists():
        key = str(path)[-_SUFFIX_LENGTH:]
        cls.record_artifact(TpuProgramArtifact.type(), key, path.read_bytes())
    return serialize()

  manager.serialize = classmethod(serialize_with_programs)


def _write(key, content):
  """Files are for their owner alone, or they are not run; whether this is the program that its name
  says is checked when it is read."""
  folder, name = key.split("/")
  if _C.program_folder() is None or len(key) != _SUFFIX_LENGTH or not name.endswith(".bin"):
    return
  place = Path(_C.program_folder(), folder)
  for each in (place.parent, place):
    each.mkdir(mode=0o700, parents=True, exist_ok=True)
  number, path = tempfile.mkstemp(dir=place)
  with open(number, "wb") as file:
    file.write(content)
  os.replace(path, place / name)
