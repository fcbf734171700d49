"""The Python package: finding a plugin, loading beside others, and staying out of PyTorch's way."""

import ast
import re
import textwrap
from importlib import metadata
from pathlib import Path

import pytest

from support import ROOT, child, is_tpu_like
from torch_tpu import _C, _discovery


def fake_distribution(folder, entry_point, version="9.9"):
  """A distribution named torch_tpu that claims the device through `entry_point`."""
  info = folder / f"torch_tpu-{version}.dist-info"
  info.mkdir(parents=True)
  (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: torch_tpu\nVersion: {version}\n")
  (info / "entry_points.txt").write_text(f"[torch.backends]\ntorch_tpu = {entry_point}\n")
  return folder


def test_refuses_to_start_beside_the_published_package(tmp_path):
  other = fake_distribution(tmp_path / "site", "torch_tpu._loader:load")
  code = f"import sys; sys.path.append({str(other)!r}); import torch"
  done = child(code, check=False, fresh=True)
  assert done.returncode != 0
  assert "Two packages named torch_tpu" in done.stderr and "pip uninstall" in done.stderr
  assert str(other) in done.stderr


def test_refuses_to_share_pytorchs_slot_for_outside_devices():
  code = """
    import torch
    torch.utils.rename_privateuse1_backend("other")
    import torch_tpu
  """
  done = child(textwrap.dedent(code), check=False, env={"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
  assert done.returncode != 0
  assert "already registered the device 'other'" in done.stderr


def test_other_pytorch_version_turns_the_device_off_but_not_pytorch():
  code = """
    import importlib.util, sys
    folder = importlib.util.find_spec("torch_tpu").submodule_search_locations[0]
    spec = importlib.util.spec_from_file_location("torch_tpu._version", folder + "/_version.py")
    version = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(version)
    version.TORCH_MINOR = "2.99"
    sys.modules["torch_tpu._version"] = version
    import torch, torch_tpu
    assert not hasattr(torch, "tpu")
    print((torch.ones(2) + 1).tolist())
    torch_tpu.register()
  """
  done = child(textwrap.dedent(code), check=False, fresh=True)
  assert done.stdout.strip() == "[2.0, 2.0]"
  assert "RuntimeWarning: torch_tpu: device 'tpu' is off" in done.stderr
  assert "ImportError: This torch_tpu is built for PyTorch 2.99" in done.stderr


def test_import_is_light():
  code = """
    import sys, torch
    heavy = {"jax", "torch._dynamo", "torch._inductor", "matplotlib"} & set(sys.modules)
    assert not heavy, heavy
    assert not torch.tpu.is_initialized()
    assert "pjrt_c_api" not in open("/proc/self/maps").read()
  """
  child(textwrap.dedent(code), fresh=True)


def test_first_steps_import_no_dynamo():
  """PyTorch's meta functions would, at the first sum of two tensors: a second of a user's time."""
  code = """
    import sys, torch
    x = torch.arange(6.0, device="tpu").view(2, 3)
    y = (x + 1).exp().pow(2).clamp(1) > x.mean()
    y = torch.where(y, x.softmax(-1).lerp(x, 0.5), 1 - x / 3)
    print(torch.nn.functional.linear(torch.relu(y), x).argmax(), torch.layer_norm(y, (3,)))
    assert "torch._dynamo" not in sys.modules
    import torch._dynamo
    print(x.view(3, 2) * 2 + torch.arange(2.0, device="tpu"))
  """
  child(textwrap.dedent(code), fresh=True)


NO_PLUGIN = """
  import importlib.util
  real = importlib.util.find_spec
  importlib.util.find_spec = lambda name, *rest: (
      None if name.split(".")[0] in ("lammps_jax_pjrt_cpu", "xla_plugins") else real(name, *rest))
  import torch
"""


@pytest.mark.skipif(is_tpu_like(), reason="the environment names a plugin there")
def test_without_a_plugin_the_first_use_says_what_to_install():
  code = (
    NO_PLUGIN
    + """
  assert torch.tpu.device_count() == 0 and not torch.tpu.is_available()
  torch.manual_seed(0)
  torch.ones(2, device="tpu")
  """
  )
  done = child(textwrap.dedent(code), check=False, fresh=True)
  assert done.returncode != 0
  assert "pip install --no-deps lammps-jax-pjrt-cpu==0.11.2" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("before", ["  import torch\n", NO_PLUGIN], ids=["plugin", "no plugin"])
def test_cpu_compile_is_left_alone(before):
  code = (
    before
    + """
  f = torch.compile(lambda x: torch.relu(x) * 2 + 1, backend="eager")
  assert torch.equal(f(torch.tensor([-1.0, 2.0])), torch.tensor([1.0, 5.0]))
  assert not torch.tpu.is_initialized()
  """
  )
  child(textwrap.dedent(code), fresh=True)


def test_submodules_are_loaded_once():
  code = """
    import torch
    import torch.tpu.memory
    import torch_tpu.tpu.memory
    assert torch.tpu.memory is torch_tpu.tpu.memory
    from torch_tpu._internal import execution_mode as em
    em.eager_mode = em.EagerMode.DEFER_NEVER
    assert torch.tpu.eager_mode is torch.tpu.EagerMode.DEFER_NEVER
    assert torch.backends.tpu.is_available()
  """
  child(textwrap.dedent(code), fresh=True)


def pci_device(root, name, vendor, device):
  folder = root / name
  folder.mkdir(parents=True)
  (folder / "vendor").write_text(vendor + "\n")
  (folder / "device").write_text(device + "\n")


def test_tpu_hardware_is_found_by_its_pci_ids(tmp_path):
  pci_device(tmp_path, "0000:00:01.0", "0x8086", "0x0063")
  pci_device(tmp_path, "0000:00:02.0", "0x1ae0", "0x0042")  # a Google network card
  assert not _discovery.count_tpu_hardware(tmp_path)
  for name in ("0x0027", "0x006f"):  # v3, v6e
    pci_device(tmp_path / name, "0000:00:03.0", "0x1ae0", name)
    assert _discovery.count_tpu_hardware(tmp_path / name) == 1


def test_discovery_order(monkeypatch):
  for name in ("TORCH_TPU_PJRT_PLUGIN", "TORCH_TPU_PLATFORM"):
    monkeypatch.delenv(name, raising=False)
  monkeypatch.setattr(_discovery, "count_tpu_hardware", lambda: 1)
  monkeypatch.setattr(_discovery, "locate", lambda platform: f"/site/{platform}.so")
  assert _discovery.find_plugin() == ("/site/tpu.so", "tpu")
  monkeypatch.setenv("TORCH_TPU_PLATFORM", "cpu")
  assert _discovery.find_plugin().platform == "cpu"
  monkeypatch.setenv("TORCH_TPU_PJRT_PLUGIN", "/elsewhere/plugin.so")
  assert _discovery.find_plugin() == ("/elsewhere/plugin.so", "cpu")


def test_wrong_platform_names_the_variable():
  code = "import torch; torch.ones(1, device='tpu')"
  done = child(code, check=False, env={"TORCH_TPU_PLATFORM": "gpu"})
  assert done.returncode != 0
  last = done.stderr.splitlines()[-1]
  assert "TORCH_TPU_PLATFORM" in last and "gpu" in last


def test_switches_set_after_the_import_hold():
  """Notebooks set them so: the import reads none."""
  unset = dict.fromkeys(name for name, _, _ in _C.env_table())
  code = f"""
import os, torch
from torch_tpu import _C
os.environ.update(dict.fromkeys({list(unset)}, "1"))
print([name for name, _, source in _C.env_table() if source != "environment"])
"""
  late = child(code, env=unset, fresh=True).stdout.strip()
  assert late == "[]"


def test_entry_point_is_the_one_in_pyproject():
  from torch_tpu._autoload import ENTRY_POINT

  assert f'torch_tpu = "{ENTRY_POINT}"' in (Path(ROOT) / "pyproject.toml").read_text()


def test_core_and_package_have_the_version_that_version_py_says():
  from torch_tpu import _C, __version__

  assert _C.__version__ == __version__ == metadata.version("torch_tpu")


def plain(text):
  return " ".join(text.split())


def test_the_stub_and_the_extension_say_the_same():
  tree = ast.parse((ROOT / "torch_tpu" / "_C.pyi").read_text())
  stubs = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
  assert sorted(stub.name for stub in stubs) == sorted(n for n in dir(_C) if n[0] != "_")
  for stub in stubs:
    doc = getattr(_C, stub.name).__doc__
    assert doc.startswith(f"{stub.name}(") and plain(doc).endswith(plain(ast.get_docstring(stub)))
    if not (stub.args.args or stub.args.posonlyargs):
      with pytest.raises(TypeError):
        getattr(_C, stub.name)(None)


def test_every_binding_is_used():
  files = [*(ROOT / "torch_tpu").rglob("*.py"), *(ROOT / "tests").glob("*.py")]
  code = "".join(path.read_text() for path in files)
  unused = [n for n in dir(_C) if n[0] != "_" and not re.search(rf"(_C|extension)\.{n}\b", code)]
  assert not unused


def code_blocks(page, language):
  return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), flags=re.S)


def test_snippets_in_the_docs_are_the_real_code():
  code = "".join(
    path.read_text() for kind in ("*.c", "*.def") for path in (ROOT / "core").rglob(kind)
  )
  snippets = code_blocks("docs/add_an_op.md", "c")
  assert len(snippets) >= 3
  for snippet in snippets:
    assert snippet in code, snippet
