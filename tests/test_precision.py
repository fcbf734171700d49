"""What float32 products are asked to keep, per program. It matters to platforms that round, so a
child looks at the programs that the TPU-like plugin gets; here the switches and their refusals."""

import textwrap

import pytest
import torch

from support import child_json, is_tpu_like, tpu_like_env

PROGRAMS = """
  import json, os, re, sys
  import torch
  import torch.nn.functional as F
  from pathlib import Path

  folder = Path(os.environ["TORCH_TPU_DUMP_DIR"])
  x, image = torch.ones(4, 4, device="tpu"), torch.ones(1, 2, 5, 5, device="tpu")
  kernel = torch.ones(3, 2, 3, 3, device="tpu")
  heads = torch.ones(1, 2, 4, 8, device="tpu")
  seen = set(folder.glob("*.mlir"))

  def asked(call):
    torch.tpu.synchronize()
    kept = call()
    torch.tpu.synchronize()
    del kept
    new = set(folder.glob("*.mlir")) - seen
    seen.update(new)
    text = "".join(path.read_text() for path in new)
    found = set()
    for kind, words in (("dot", "dot_general"), ("conv", "stablehlo.convolution")):
      config = words + r'".*precision_config = \\[#stablehlo<precision (\\w+)>'
      for level in re.findall(config, text):
        found.add(f"{kind} {level}")
    return sorted(found)

  def backward():
    a, b = image.clone().requires_grad_(), kernel.clone().requires_grad_()
    F.conv2d(a, b).sum().backward()
    return a.grad, b.grad

  compiled = torch.compile(lambda x: x @ x + 7)
  CALLS = {
    "mm": lambda: x @ x,
    "linear": lambda: F.linear(x, x, x[0]),
    "conv": lambda: F.conv2d(image, kernel),
    "attention": lambda: F.scaled_dot_product_attention(heads, heads, heads),
    "backward": backward,
    "compiled": lambda: compiled(x),
    "bfloat16": lambda: x.bfloat16() @ x.bfloat16(),
  }

  def all_of(switch):
    switch()
    return {name: asked(call) for name, call in CALLS.items()}

  def set_tpu(value):
    torch.backends.tpu.fp32_precision = value

  def backends():
    torch.set_float32_matmul_precision("highest")
    torch.backends.mkldnn.conv.fp32_precision = "bf16"

  found = {"none": all_of(lambda: None)}
  found["high"] = all_of(lambda: torch.set_float32_matmul_precision("high"))
  found["again"] = all_of(lambda: torch.set_float32_matmul_precision("high"))
  found["medium"] = all_of(lambda: torch.set_float32_matmul_precision("medium"))
  found["backends"] = all_of(backends)
  found["tpu"] = all_of(lambda: set_tpu("tf32"))
  with torch.tpu.precision("default"):
    found["context"] = asked(lambda: torch.mm(x, x) - 1)
    found["context"] += asked(lambda: F.conv2d(image, kernel) - 1)
  found["after"] = asked(lambda: torch.mm(x, x) - 2)
  set_tpu("none")
  torch.backends.mkldnn.conv.fp32_precision = "none"
  torch.backends.cuda.matmul.fp32_precision = "tf32"
  found["cuda"] = asked(lambda: torch.mm(x, x) - 3) + asked(lambda: F.conv2d(image, kernel) - 3)
  torch.backends.cuda.matmul.fp32_precision = "none"
  torch.backends.fp32_precision = "bf16"
  found["generic"] = asked(lambda: F.conv2d(image, kernel) - 4)
  print(json.dumps(found))
"""


def levels(dot, conv):
  dot, conv = [f"dot {dot}"], [f"conv {conv}"]
  return {
    "mm": dot,
    "linear": dot,
    "conv": conv,
    "attention": dot,
    "backward": conv,
    "compiled": dot,
    "bfloat16": ["dot HIGHEST"],
  }


def test_each_program_has_the_precision_of_its_time(tmp_path):
  env = tpu_like_env() | {
    "TORCH_TPU_DUMP_DIR": tmp_path,
    "TORCH_TPU_CACHE": "0",
    "TORCH_TPU_TIERS": "compiled",
  }
  found = child_json(textwrap.dedent(PROGRAMS), env=env)
  again = found.pop("again")
  assert not any(again.values()), "what is known is not compiled again"
  expected = {"none": levels("HIGHEST", "HIGHEST"), "high": levels("HIGH", "HIGHEST")}
  expected["medium"] = levels("DEFAULT", "HIGHEST")
  expected["backends"] = levels("HIGHEST", "DEFAULT")
  expected["tpu"] = levels("HIGH", "HIGH")
  for name, rows in expected.items():
    for call, want in rows.items():
      got = found[name][call]
      # A program that an earlier switch has made is not made again.
      assert got == want or (got == [] and name != "none"), (name, call, got, want)
  assert (
    found["high"]["mm"] == found["high"]["attention"] == found["high"]["compiled"] == ["dot HIGH"]
  )
  assert found["medium"]["linear"] == ["dot DEFAULT"]
  assert found["backends"]["conv"] == found["backends"]["backward"] == ["conv DEFAULT"]
  assert found["tpu"]["conv"] == ["conv HIGH"]
  assert found["context"] == ["dot DEFAULT", "conv DEFAULT"] and found["after"] == ["dot HIGH"]
  assert found["cuda"] == ["dot HIGH", "conv HIGHEST"] and found["generic"] == ["conv DEFAULT"]


@pytest.fixture
def own():
  yield torch.backends.tpu
  torch.backends.tpu.fp32_precision = "none"


def test_switches_read_back(own):
  assert own.fp32_precision == own.matmul.fp32_precision == own.conv.fp32_precision == "none"
  own.fp32_precision = "tf32"
  assert own.matmul.fp32_precision == own.conv.fp32_precision == "tf32"
  own.conv.fp32_precision = "ieee"
  assert own.matmul.fp32_precision == "tf32" and own.fp32_precision == "none"
  with torch.tpu.precision(torch.tpu.Precision.DEFAULT):
    assert own.fp32_precision == "bf16"
    with torch.tpu.precision("highest"):
      assert own.fp32_precision == "ieee"
    assert own.fp32_precision == "bf16"
  assert own.matmul.fp32_precision == "tf32" and own.conv.fp32_precision == "ieee"


def test_other_words_are_refused(own):
  for wrong in ("fast", "", None, 1):
    with pytest.raises(ValueError, match="ieee, tf32, bf16, none"):
      own.fp32_precision = wrong
  with pytest.raises(ValueError, match="HIGHEST, HIGH, DEFAULT"):
    torch.tpu.precision("fast")
  with pytest.raises(TypeError, match="int"):
    torch.tpu.precision(1)
  assert own.fp32_precision == "none"


@pytest.mark.skipif(is_tpu_like(), reason="asks about a platform that does not round")
def test_where_nothing_rounds_windows_stay_the_same(own):
  x = torch.ones(3, 3, device="tpu")
  torch.tpu.synchronize()
  assert (x @ x).cpu()[0, 0] == 3
  before = len(torch.tpu.window_stats())
  own.fp32_precision = "bf16"
  assert (x @ x).cpu()[0, 0] == 3
  assert len(torch.tpu.window_stats()) == before, "the window is another one"
