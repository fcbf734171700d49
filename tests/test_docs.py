"""What the documentation says can be done: its Python runs, its links, names and commands exist."""

import re

import pytest
import torch

from support import ROOT, child
from torch_tpu import _discovery

PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.M | re.S)
LINK = re.compile(r"\]\(([^)#\s]+)(#[^)\s]*)?\)")


def blocks(page, language):
  return [text for name, text in BLOCK.findall(page.read_text()) if name == language]


@pytest.mark.parametrize("name", [name for name in NAMES if blocks(ROOT / name, "python")])
def test_the_python_of_a_page_runs(name, tmp_path):
  """All blocks of a page in one process and one namespace, as a user would type them."""
  page = "\n\n".join(blocks(ROOT / name, "python"))
  if "torch_tpu import aot" in page and not _discovery.locate("tpu"):
    pytest.skip("libtpu is not installed: pip install -r requirements/tpu.txt")
  child(f"import os\nos.chdir({str(tmp_path)!r})\n{page}", env={"TORCH_TPU_TIERS": None})


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_to_files(name):
  page = ROOT / name
  targets = [target for target, _ in LINK.findall(page.read_text()) if "://" not in target]
  assert not [target for target in targets if not (page.parent / target).exists()]


def test_every_make_target_exists():
  makefile = (ROOT / "Makefile").read_text()
  known = set(re.findall(r"^([\w-]+):", makefile, re.M))
  said = {
    (name, target)
    for name in NAMES
    for text in [
      *blocks(ROOT / name, "sh"),
      *re.findall(r"`(make [^`]*)`", (ROOT / name).read_text()),
    ]
    for target in re.findall(r"^make ([a-z-]+)|&& make ([a-z-]+)", text, re.M)
    for target in target
    if target
  }
  assert not {(name, target) for name, target in said if target not in known}


def test_every_switch_is_in_the_table():
  from torch_tpu import _C

  known = {row[0] for row in _C.env_table()}
  said = {
    (name, switch)
    for name in NAMES
    if not name.startswith("docs/decisions")  # they tell of what was, too
    for switch in re.findall(r"`(TORCH_TPU_[A-Z_]+)", (ROOT / name).read_text())
  }
  assert said and not {(name, switch) for name, switch in said if switch not in known}


def test_every_name_of_the_device_module_exists():
  said = {
    (name, path)
    for name in NAMES
    if not name.startswith("docs/decisions")
    for path in re.findall(r"torch\.tpu((?:\.\w+)+)", (ROOT / name).read_text())
  }
  missing = []
  for name, path in sorted(said):
    found = torch.tpu
    for part in path.strip(".").split("."):
      found = getattr(found, part, None)
    if found is None:
      missing.append((name, "torch.tpu" + path))
  assert said and not missing


def test_every_page_is_on_the_site():
  listed = set(re.findall(r"- ([\w.]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M))
  assert listed == {page.name for page in ROOT.glob("docs/*.md")}
