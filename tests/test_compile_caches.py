"""What outlives a process that used torch.compile: entries of AOTAutograd's cache, artifacts with
our programs, serialized callables, exported programs."""

import io

import pytest
import torch
from torch._dynamo.aot_compile_types import BundledAOTAutogradSerializableCallable

from support import child_json, compile_stats, counting, has_modes

pytestmark = pytest.mark.skipif(not has_modes(), reason="asks for the backend")

PROGRAM = """
import json, sys, torch
from torch._dynamo.utils import counters
way, path = sys.argv[1:]
torch.manual_seed(0)
layers = [torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Dropout(0.5), torch.nn.Linear(16, 4)]
model = torch.nn.Sequential(*layers).to("tpu")
if way == "load":
  with open(path, "rb") as file:
    torch.compiler.load_cache_artifacts(file.read())
compiled = torch.compile(model, fullgraph=True)
x = torch.ones(3, 8, device="tpu")
for _ in range(3):
  compiled(x).sum().backward()
model.eval()
with torch.no_grad():
  results = [compiled(x).tolist() for _ in range(3)]
if way == "save":
  artifacts, info = torch.compiler.save_cache_artifacts()
  with open(path, "wb") as file:
    file.write(artifacts)
stats = torch.tpu.compile_stats()
print(json.dumps({
  "results": results, "gradient": model[0].weight.grad.sum().item(),
  "traced": counters["aot_autograd"]["autograd_cache_miss"],
  "taken": counters["aot_autograd"]["autograd_cache_hit"],
  "compiles": stats["compiles"], "loaded": stats["disk_hits"],
}))
"""


def test_artifacts_carry_graphs_and_programs(tmp_path):
  found = []
  for way in ("save", "load"):
    folder = tmp_path / way  # nothing but the artifacts goes from one to the other
    env = {"TORCH_TPU_CACHE_DIR": folder / "ours", "TORCHINDUCTOR_CACHE_DIR": folder / "theirs"}
    env["TORCH_TPU_TIERS"] = "compiled"
    found.append(child_json(PROGRAM, way, tmp_path / "artifacts", env=env))
  first, second = found
  assert first["traced"] == 2 and first["compiles"] > 0
  assert second["traced"] == 0 and second["taken"] == 2
  assert second["compiles"] == 0 and second["loaded"] == first["compiles"]
  for key in ("results", "gradient"):
    assert first[key] == second[key]


def serialized(function, *args):
  """What the backend gave for the graph of this call, as bytes."""
  from torch_tpu._internal.compile import TpuBackend

  made = []

  def backend(graph_module, inputs):
    made.append(TpuBackend()(graph_module, inputs))
    return made[0]

  torch.compile(function, fullgraph=True, backend=backend)(*args)
  callable_ = BundledAOTAutogradSerializableCallable(made[0])
  return BundledAOTAutogradSerializableCallable.serialize_compile_artifacts(callable_)


def test_compiled_callables_are_serialized():
  def step(cache, x):  # Dynamo passes arguments in the order of their first use
    cache.add_(x)
    return torch.relu(x * cache - 1), cache.sum()

  x, cache = torch.arange(4.0, device="tpu"), torch.zeros(4, device="tpu")
  data = serialized(step, cache, x)
  loaded = BundledAOTAutogradSerializableCallable.deserialize_compile_artifacts(data)
  mine, theirs = torch.zeros(4, device="tpu"), torch.zeros(4)
  with counting(compile_stats) as grown:
    for _ in range(3):
      results = loaded(mine, x)
      for found, expected in zip(results, step(theirs, x.cpu())):
        torch.testing.assert_close(found.cpu(), expected)
      torch.testing.assert_close(mine.cpu(), theirs)
  assert grown.get("compiles", 0) <= 2  # it is this process's eager ones' programs, or a sum's


def test_graphs_with_backward_are_serialized():
  weight = torch.randn(4, 4, device="tpu", requires_grad=True)
  x = torch.ones(3, 4, device="tpu")

  def loss(x, w):
    return torch.tanh(x @ w).sum()

  data = serialized(loss, x, weight)
  loaded = BundledAOTAutogradSerializableCallable.deserialize_compile_artifacts(data)
  loaded(x, weight)[0].backward()
  mine, weight.grad = weight.grad, None
  loss(x, weight).backward()
  torch.testing.assert_close(mine, weight.grad)


def test_a_graph_of_another_version_is_not_loaded(monkeypatch):
  from torch_tpu._compile import graph

  data = serialized(lambda x: x * 2 + 1, torch.ones(3, device="tpu"))
  monkeypatch.setattr(graph, "__version__", "0.0.0+another")
  with pytest.raises(Exception, match="another version"):
    BundledAOTAutogradSerializableCallable.deserialize_compile_artifacts(data)


def test_exported_programs_are_saved_and_run():
  class Model(torch.nn.Module):
    def __init__(self):
      super().__init__()
      self.linear = torch.nn.Linear(4, 3)
      self.norm = torch.nn.BatchNorm1d(3)

    def forward(self, x):
      return torch.softmax(self.norm(self.linear(x)), -1)

  model = Model().eval().to("tpu")
  x = torch.randn(5, 4, device="tpu")
  rows = torch.export.Dim("rows", min=2, max=64)
  program = torch.export.export(model, (x,), dynamic_shapes={"x": {0: rows}})
  file = io.BytesIO()
  torch.export.save(program, file)
  file.seek(0)
  loaded = torch.export.load(file).module()
  for call in (loaded, torch.compile(loaded, fullgraph=True)):
    for count in (5, 7):
      x = torch.randn(count, 4, device="tpu")
      torch.testing.assert_close(call(x), model(x))
