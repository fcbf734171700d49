"""Makes a source tree importable in the Python that runs this: a link to torch_tpu/ in
site-packages, and the metadata with the entry points, so that `import torch` finds the device.

Faster than `pip install -e .` and needs no network. `pip uninstall torch_tpu` removes it.
"""

import pathlib
import shutil
import sys
import sysconfig
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent


def main():
  project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
  scope = {}
  exec((ROOT / "torch_tpu" / "_version.py").read_text(), scope)
  site = pathlib.Path(sysconfig.get_paths()["purelib"])
  if sys.prefix == sys.base_prefix:
    sys.exit("link_into_venv.py only changes a virtual environment; this Python is not in one.")

  link = site / "torch_tpu"
  if link.is_symlink() or not link.exists():
    link.unlink(missing_ok=True)
  else:
    sys.exit(f"{link} is an installed package: run {sys.executable} -m pip uninstall torch_tpu")
  link.symlink_to(ROOT / "torch_tpu", target_is_directory=True)

  for old in site.glob("torch_tpu-*.dist-info"):
    shutil.rmtree(old)
  info = site / f"torch_tpu-{scope['__version__']}.dist-info"
  info.mkdir()
  groups = project["entry-points"].items()
  (info / "entry_points.txt").write_text(
    "\n".join(
      f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in entries.items())
      for group, entries in groups
    )
  )
  requirements = "".join(f"Requires-Dist: {each}\n" for each in project["dependencies"])
  (info / "METADATA").write_text(
    f"Metadata-Version: 2.1\nName: torch_tpu\nVersion: {scope['__version__']}\n{requirements}"
  )
  (info / "INSTALLER").write_text("link_into_venv.py\n")
  files = ["torch_tpu"] + [f"{info.name}/{file.name}" for file in info.iterdir()]
  (info / "RECORD").write_text("".join(f"{file},,\n" for file in files + [f"{info.name}/RECORD"]))


if __name__ == "__main__":
  main()
