"""How libraries are patched when they are imported, tried on one made here; safetensors and
PyTorch's samplers, which every environment has. Other libraries: tests/integrations."""

import importlib
import sys
import textwrap
import types
import warnings

import pytest
import torch

from support import child, has_modes
from torch_tpu import _after_import, integrations

pytestmark = pytest.mark.skipif(not has_modes(), reason="libraries are patched for the device only")


@pytest.fixture
def library(tmp_path, monkeypatch):
  """Makes a package, version 1.5 of a distribution, with an integration that knows 1.2 to 1.9 and
  doubles `fakelib.parts.size`; gives a function that imports it."""
  package = tmp_path / "fakelib"
  package.mkdir()
  (package / "__init__.py").write_text("from fakelib.parts import size\n")
  (package / "parts.py").write_text("def size():\n  return 1\n")
  info = tmp_path / "fakelib-1.5.dist-info"
  info.mkdir()
  (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fakelib\nVersion: 1.5.0.dev0\n")
  monkeypatch.syspath_prepend(str(tmp_path))
  monkeypatch.setitem(
    integrations.LIBRARIES, "fakelib", integrations.Library("1.2", "1.9", ("fakelib.parts",))
  )
  file = types.ModuleType("torch_tpu.integrations.fakelib")

  def double(module):
    integrations.replace(module, "size", lambda size: lambda: 2 * size())

  file.PATCHES = {"fakelib.parts": double}
  monkeypatch.setitem(sys.modules, file.__name__, file)
  monkeypatch.setattr(integrations, "_outcomes", {})
  integrations._turned_off.cache_clear()
  monkeypatch.setattr(_after_import, "_waiting", {})
  yield file
  for name in ("fakelib", "fakelib.parts"):
    sys.modules.pop(name, None)


def install_and_import(**versions):
  if versions:
    integrations.LIBRARIES["fakelib"] = integrations.LIBRARIES["fakelib"]._replace(**versions)
  integrations.install()
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    fakelib = importlib.import_module("fakelib")
  return fakelib.size(), [str(each.message) for each in caught]


def test_a_library_is_patched_when_it_is_imported(library):
  assert integrations.status()["fakelib"] == "waiting"
  assert install_and_import() == (2, [])
  assert integrations.status()["fakelib"] == "patched"


def test_a_library_imported_before_is_patched_where_its_names_went(library):
  fakelib = importlib.import_module("fakelib")
  user = types.ModuleType("user")
  user.size = fakelib.size
  sys.modules["user"] = user
  try:
    integrations.install()
    assert (fakelib.size(), fakelib.parts.size(), user.size()) == (2, 2, 2)
  finally:
    del sys.modules["user"]


def test_a_module_that_is_running_is_patched_when_it_ends(library, tmp_path):
  """As when a library is what imports torch."""
  (tmp_path / "fakelib" / "parts.py").write_text(
    "from torch_tpu import integrations\nintegrations.install()\ndef size():\n  return 1\n"
  )
  assert importlib.import_module("fakelib").size() == 2


@pytest.mark.parametrize("bounds", [{"first": "1.6"}, {"end": "1.5"}, {"first": "1.5.1"}], ids=str)
def test_versions_that_were_not_tested_are_left_alone_with_one_warning(library, bounds):
  library.PATCHES["fakelib"] = library.PATCHES["fakelib.parts"]
  modules = ("fakelib", "fakelib.parts")
  size, said = install_and_import(modules=modules, **bounds)
  assert size == 1 and len(said) == 1
  assert "integration of fakelib is off" in said[0] and "this is 1.5.0.dev0" in said[0]
  assert integrations.status()["fakelib"].startswith("version 1.5.0.dev0 is not in")


@pytest.mark.parametrize("bounds", [{"first": "1.5"}, {"end": "2"}, {"end": "1.5.1"}], ids=str)
def test_bounds_of_versions(library, bounds):
  assert install_and_import(**bounds) == (2, [])


def test_a_library_that_changed_stays_usable(library):
  def fails(module):
    module.no_such_name  # noqa: B018

  library.PATCHES["fakelib.parts"] = fails
  size, said = install_and_import()
  assert size == 1 and len(said) == 1 and "no_such_name" in said[0]


@pytest.fixture
def switch(library):
  from torch_tpu import _C

  yield lambda value: _C.env_override("TORCH_TPU_INTEGRATIONS", value)
  _C.env_override("TORCH_TPU_INTEGRATIONS", None)


@pytest.mark.parametrize(
  "value, size",
  [("0", 1), ("off", 1), ("fakelib", 1), ("peft, FakeLib", 1), ("1", 2), ("peft", 2), ("", 2)],
)
def test_the_switch(switch, value, size):
  switch(value)
  assert install_and_import() == (size, [])
  assert integrations.status()["fakelib"].startswith("turned off") == (size == 1)


def test_the_switch_names_libraries_that_exist(switch):
  switch("peft,fakelibs")
  size, said = install_and_import()
  assert size == 2 and len(said) == 1
  assert "no integration of fakelibs; there are accelerate" in said[0]


def test_nothing_changes_without_a_device(library, monkeypatch):
  monkeypatch.setattr("torch_tpu._C.device_count", lambda: 0)
  assert install_and_import(first="9") == (1, [])
  assert integrations.status()["fakelib"] == "waiting"


def test_table_and_files_name_the_same_modules():
  for name, library in integrations.LIBRARIES.items():
    file = importlib.import_module(f"torch_tpu.integrations.{name}")
    assert tuple(sorted(file.PATCHES)) == library.modules
    assert file.__doc__ and all(module.split(".")[0] for module in library.modules)


def test_import_torch_reads_no_variable():
  """They are read when they are first needed, so that a script may set them after its imports."""
  code = """
    import os, torch, safetensors.torch
    os.environ["TORCH_TPU_MEMORY_LIMIT"] = "64M"
    os.environ["TPU_LIKE_HBM_BYTES"] = str(64 << 20)
    assert torch.tpu.mem_get_info()[1] == 64 << 20
  """
  child(textwrap.dedent(code), fresh=True)


def test_import_torch_loads_no_integration():
  code = """
    import sys, torch
    loaded = [name for name in sys.modules if name.startswith("torch_tpu.integrations.")]
    assert not loaded and "safetensors" not in sys.modules, loaded
  """
  child(textwrap.dedent(code), fresh=True)


@pytest.mark.parametrize("first", ["torch", "safetensors", "safetensors.torch"])
def test_safetensors_reads_to_the_device(tmp_path, first):
  code = f"""
    import {first}, sys
    from safetensors import safe_open
    import torch, safetensors.torch as st
    path = {str(tmp_path / "x.safetensors")!r}
    held = {{"a": torch.randn(3, 4), "b": torch.arange(5)}}
    st.save_file(held, path)
    for device in ("tpu", "tpu:0", torch.device("tpu"), 0, "cpu"):
      read = st.load_file(path, device=device)
      for name, tensor in held.items():
        assert read[name].device.type == ("cpu" if device == "cpu" else "tpu"), device
        assert torch.equal(read[name].cpu(), tensor)
    with safe_open(path, framework="pt", device="tpu") as file:
      assert set(file.keys()) == set(held)
      part = file.get_slice("a")
      assert part.get_shape() == [3, 4] and part[:2].is_tpu and part[:, 1].shape == (3,)
      assert torch.equal(part[:2].cpu(), held["a"][:2])
      assert file.get_tensor("b").is_tpu and file.get_tensors()["a"].is_tpu
    for model in (torch.nn.Linear(4, 3), torch.nn.Linear(4, 3, device="tpu")):
      st.save_model(model, path)
      for twin in (torch.nn.Linear(4, 3), torch.nn.Linear(4, 3, device="tpu")):
        st.load_model(twin, path, device="tpu")
        assert torch.equal(twin.weight.cpu(), model.weight.cpu())
  """
  child(textwrap.dedent(code), fresh=first != "torch")


def test_safetensors_is_left_alone_when_it_is_turned_off(tmp_path):
  code = f"""
    import torch, safetensors.torch as st
    st.save_file({{"a": torch.ones(2)}}, {str(tmp_path / "x.safetensors")!r})
    try:
      st.load_file({str(tmp_path / "x.safetensors")!r}, device="tpu")
    except Exception as error:
      print(error)
  """
  done = child(textwrap.dedent(code), env={"TORCH_TPU_INTEGRATIONS": "safetensors"}, fresh=True)
  assert "tpu is invalid" in done.stdout


@pytest.fixture
def default_device():
  torch.set_default_device("tpu")
  yield
  torch.set_default_device(None)


@pytest.mark.parametrize("replacement", [False, True])
def test_samplers_draw_under_a_default_device_as_they_do_without(default_device, replacement):
  def draw():
    torch.manual_seed(5)
    return list(torch.utils.data.RandomSampler(range(100), replacement=replacement))

  mine = draw()
  torch.set_default_device(None)
  assert mine == draw()


def test_shuffled_loaders_under_a_default_device(default_device):
  data = torch.utils.data.TensorDataset(torch.arange(50.0))
  seen = []
  for (batch,) in torch.utils.data.DataLoader(data, batch_size=20, shuffle=True):
    assert batch.is_tpu and torch.zeros(1).is_tpu  # the loop's body keeps its default
    seen += batch.tolist()
  assert torch.zeros(1).is_tpu
  assert seen != sorted(seen) == list(range(50))


def test_a_generator_of_the_device_shuffles_on_the_device(default_device):
  data = torch.utils.data.TensorDataset(torch.arange(6.0))
  loader = torch.utils.data.DataLoader(data, shuffle=True, generator=torch.Generator("tpu"))
  assert sorted(float(value) for (value,) in loader) == [0, 1, 2, 3, 4, 5]


def test_random_split_under_a_default_device(default_device):
  torch.manual_seed(3)
  mine = torch.utils.data.random_split(range(10), [6, 4])
  torch.set_default_device(None)
  torch.manual_seed(3)
  expected = torch.utils.data.random_split(range(10), [6, 4])
  assert [part.indices for part in mine] == [part.indices for part in expected]
