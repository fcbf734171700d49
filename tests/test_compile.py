"""torch.compile on "tpu": which backend compiles what, and that compiled code does what eager does:
mutation, aliases, random numbers, autocast, checkpoints, models, optimizers."""

import copy
import sys
import textwrap
import warnings

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import models
from support import child, compile_stats, counting, has_modes, is_tpu_like, tensors_in

TIER = "interpreted"  # about graphs; test_compiled_programs_are_reused says what is compiled
pytestmark = [
  pytest.mark.skipif(not has_modes(), reason="asks for the backend"),
  pytest.mark.filterwarnings("ignore:Profiler record function"),
]


def padded(size):
  """What a small vector takes: a TPU's memory has tiles."""
  return max(size, 512) if is_tpu_like() else size


@pytest.fixture(autouse=True)
def fresh():
  torch.compiler.reset()
  yield


def whole(function, **options):
  return torch.compile(function, fullgraph=True, backend="tpu", **options)


def close(mine, expected, tolerance=1e-5):
  mine, expected = tensors_in(mine), tensors_in(expected)
  assert len(mine) == len(expected)
  for a, b in zip(mine, expected):
    assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
    torch.testing.assert_close(
      a.detach().cpu(), b.detach().cpu(), rtol=tolerance, atol=tolerance, equal_nan=True
    )


def on_both(function, *inputs):
  """The function compiled for the device and eager on the CPU, results and inputs afterwards."""
  compiled, there, here = whole(function), [], []
  for _ in range(3):  # traced, captured, replayed
    there = [x.clone().to("tpu") if torch.is_tensor(x) else x for x in inputs]
    here = [x.clone() if torch.is_tensor(x) else x for x in inputs]
    close([compiled(*there), there], [function(*here), here])


# --- which backend ---


def test_the_backend_has_its_names():
  from torch_tpu._internal.compile import TpuBackend
  from torch_tpu._internal.compile._backend import TpuBackend as same

  assert TpuBackend is same and "tpu" in torch._dynamo.list_backends()
  x = torch.ones(3, device="tpu")
  close(torch.compile(lambda x: x + 1, backend=TpuBackend())(x), torch.full((3,), 2.0))


ROUTES = """
  import torch, torch._inductor.compile_fx as fx
  calls = []
  def recorded(graph, inputs, config_patches=None, **kwargs):
    calls.append(config_patches)
    return graph.forward
  fx.compile_fx = recorded
  f = lambda x: torch.relu(x) * 2
  for options in ({}, {"mode": "max-autotune"}, {"options": {"shape_padding": True}},
                  {"backend": "inductor"}):
    torch.compiler.reset()
    torch.compile(f, **options)(torch.ones(3))
    assert len(calls) == 1, (options, calls)
    wanted = {"mode": "max_autotune", "options": "shape_padding"}
    for key in options.keys() & wanted.keys():
      assert calls[0][wanted[key]] is True, calls
    calls.clear()
    torch.compiler.reset()
    assert torch.compile(f, **options)(torch.ones(3, device="tpu")).tolist() == [2.0] * 3
    assert torch.compile(lambda: torch.ones(3, device="tpu"), **options)().device.type == "tpu"
    assert calls == [], (options, calls)
"""


def test_graphs_with_tpu_tensors_are_ours_and_others_inductors():
  child(textwrap.dedent(ROUTES))


def test_every_mode_is_taken_and_options_are_said_to_be_ignored():
  x = torch.ones(3, device="tpu")
  for mode in ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"):
    torch.compiler.reset()
    with warnings.catch_warnings(record=True) as caught:
      warnings.simplefilter("always")
      for k in (1, 2):
        whole(lambda x, k=k: x * k, mode=mode)(x)
    said = [w for w in caught if "does the same as the default" in str(w.message)]
    assert len(said) == (mode != "default")
  with pytest.warns(UserWarning, match="no options; ignored: fast"):
    whole(lambda x: x - 1, options={"fast": True})(x)
  with pytest.raises(Exception, match="mode='fastest' is unknown; use one of default"):
    whole(lambda x: x - 2, mode="fastest")(x)


# --- what is compiled how often ---


def count(function, calls, **options):
  counter = CompileCounterWithBackend("tpu")
  compiled = torch.compile(function, backend=counter, **options)
  for args in calls:
    close(compiled(*args), function(*args))
  return counter.frame_count


def test_changing_numbers_offsets_and_sizes_recompile_within_bounds():
  x, base = torch.ones(3, device="tpu"), torch.arange(10.0, device="tpu")
  assert count(lambda x, s: x * s, [(x, k + 0.5) for k in range(5)]) <= 2
  assert count(lambda x, s: x + s, [(x, k) for k in range(2, 8)]) <= 2
  assert count(lambda x, s: x - s, [(x, torch.tensor(k + 0.5)) for k in range(4)]) == 1
  assert count(lambda x: x / 3, [(base[k : k + 3],) for k in range(5)]) == 1
  sizes = [(torch.ones(n, 2, device="tpu"),) for n in (3, 4, 5, 6)]
  assert count(lambda x: x.sum(0) * x.shape[0], sizes) <= 2
  assert count(lambda x: x.sum(0) / x.shape[0], sizes, dynamic=True) == 1
  assert count(lambda x: x.prod(0), sizes, dynamic=False) == len(sizes)


# --- mutation and aliases ---


def test_inputs_are_mutated():
  def step(x, y, n):
    x.add_(y)
    n += 1
    y[1:].mul_(x[1:])
    return x * y, x.t()

  on_both(step, torch.randn(3, 3), torch.randn(3, 3), torch.tensor(4))


def test_inputs_that_share_a_storage():
  def step(a, b):
    a.add_(1)
    b.mul_(2)
    return a + b, a

  compiled = whole(step)
  results = []
  for function, device in ((step, "cpu"), (compiled, "tpu"), (compiled, "tpu")):
    base = torch.arange(12.0, device=device)
    results.append([function(base[:8], base[4:]), base])
  close(results[1], results[0])
  close(results[2], results[0])


def test_the_same_tensor_twice_and_two_different_ones():
  compiled = whole(lambda a, b: (a * b, a - b))
  x, y = torch.randn(2, 3, device="tpu").unbind()
  for a, b in ((x, x), (x, y), (y, y), (x[1:], x[:2]), (x[:2], x[:2]), (x[1:], x[:2])):
    close(compiled(a, b), (a.cpu() * b.cpu(), a.cpu() - b.cpu()))


def test_outputs_alias_inputs_and_each_other():
  def views(x):
    y = x + 1
    return x.view(-1), x, y, y[1:], y.t(), x[:, 1]

  x = torch.randn(3, 3, device="tpu")
  compiled = whole(views)
  for _ in range(3):
    results = compiled(x)
    close(results, views(x))
    flat, same, y, rest, turned, _ = results
    flat[0] = 7
    assert same is x and x[0, 0].item() == 7
    y.zero_()
    assert rest.sum().item() == 0 and turned.sum().item() == 0


def test_results_outlive_their_inputs_mutations():
  compiled = whole(lambda cache, x: (cache.add_(x), cache * 2)[1])
  cache, before = torch.zeros(3, device="tpu"), []
  for _ in range(4):
    before.append(compiled(cache, torch.ones(3, device="tpu")))
  assert [b[0].item() for b in before] == [2, 4, 6, 8] and cache[0].item() == 4


# --- grad modes, random numbers, autocast ---


def test_no_grad_and_inference_mode():
  weight = torch.randn(3, 3, device="tpu", requires_grad=True)
  compiled = whole(lambda x: (x @ weight).relu())
  x = torch.randn(3, 3, device="tpu")
  expected = (x @ weight).relu()
  for context in (torch.no_grad, torch.inference_mode, torch.enable_grad):
    with context():
      for _ in range(2):
        result = compiled(x)
    assert result.requires_grad == (context is torch.enable_grad)
    assert result.is_inference() == (context is torch.inference_mode)
    close(result, expected)


def test_random_numbers_are_those_of_eager():
  def draw(x):
    return F.dropout(x, 0.5) + torch.rand_like(x), torch.randn(3, device=x.device)

  x, compiled = torch.ones(64, device="tpu"), whole(draw)
  torch.manual_seed(3)
  expected = [draw(x) for _ in range(4)]
  torch.manual_seed(3)
  close([compiled(x) for _ in range(3)] + [draw(x)], expected)
  state = torch.tpu.get_rng_state()
  again = compiled(x)
  torch.tpu.set_rng_state(state)
  close(draw(x), again)
  torch.manual_seed(4)
  assert not torch.equal(compiled(x)[0], expected[0][0])


def test_numbers_of_the_cpus_generator_change_with_every_call():
  compiled = whole(lambda x: x + torch.randperm(100, device="cpu").to("tpu"))
  x = torch.zeros(100, device="tpu")
  draws = {tuple(compiled(x).tolist()) for _ in range(4)}
  assert len(draws) == 4


def test_autocast_inside_and_outside():
  weight = torch.randn(4, 4, device="tpu")
  x = torch.randn(4, 4, device="tpu")

  def inside(x):
    with torch.autocast("tpu", dtype=torch.bfloat16):
      return x @ weight

  close(whole(inside)(x), inside(x))
  product = whole(lambda x: x @ weight)
  with torch.autocast("tpu", dtype=torch.bfloat16):
    assert product(x).dtype == torch.bfloat16
  assert product(x).dtype == torch.float32


def test_checkpoints_recompute_with_the_same_random_numbers():
  layers = [torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Dropout(0.5)) for _ in range(4)]
  layers = torch.nn.ModuleList(layers).to("tpu")

  def loss(x):
    for layer in layers:
      x = checkpoint(layer, x, use_reentrant=False)
    return (x * x).sum()

  gradients = []
  for function in (loss, whole(loss)):
    x = torch.ones(8, 64, device="tpu", requires_grad=True)
    torch.manual_seed(1)
    function(x).backward()
    gradients.append(x.grad)
  close(*gradients, tolerance=1e-4)


def test_checkpoints_save_memory():
  weight = torch.randn(64, 64, device="tpu") / 8

  def block(x):
    for _ in range(6):
      x = torch.tanh(x @ weight)  # products are not recomputed unasked
    return x

  def held(call):
    def loss(x):
      for _ in range(3):
        x = call(block, x)
      return x.sum()

    x = torch.ones(1024, 64, device="tpu", requires_grad=True)
    torch.compiler.reset()
    value = whole(loss)(x)
    torch.tpu.synchronize()
    bytes_held = torch.tpu.memory_allocated()
    value.backward()
    return bytes_held, x.grad

  plain, expected = held(lambda f, x: f(x))
  checkpointed, gradient = held(lambda f, x: checkpoint(f, x, use_reentrant=False))
  close(gradient, expected)
  assert checkpointed < plain / 2


# --- models and optimizers ---


@pytest.mark.parametrize("name", ["gpt", "resnet", "mlp"])
def test_models_train_as_on_the_cpu(name):
  model, batches, loss_of = models.build(name)
  mine = copy.deepcopy(model).to("tpu")
  compiled = torch.compile(mine, fullgraph=True)
  pairs = [(compiled, mine, "tpu"), (model, model, "cpu")]
  optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for _, m, _ in pairs]
  losses = [[], []]
  for step in range(3):
    for (call, _, device), optimizer, found in zip(pairs, optimizers, losses):
      loss = loss_of(call, models.to_device(batches(step), device))
      optimizer.zero_grad()
      loss.backward()
      optimizer.step()
      found.append(loss.detach())
  close(losses[0], losses[1], tolerance=1e-4)
  for kind in ("named_parameters", "named_buffers"):
    for (where, p), (_, q) in zip(getattr(mine, kind)(), getattr(model, kind)(), strict=True):
      torch.testing.assert_close(
        p.cpu(), q, rtol=1e-3, atol=1e-4, msg=lambda m, w=where: f"{w}: {m}"
      )


OPTIMIZERS = {
  "momentum": lambda p, _: torch.optim.SGD(p, lr=0.1, momentum=0.9),
  "adam": lambda p, _: torch.optim.Adam(p, lr=0.01, eps=1e-3),
  "adam_tensor_lr": lambda p, _: torch.optim.Adam(p, lr=torch.tensor(0.01), eps=1e-3),
  "adamw_capturable": lambda p, d: torch.optim.AdamW(p, lr=0.01, eps=1e-3, capturable=d == "tpu"),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_steps_under_compile(name):
  weights = [torch.nn.Parameter(torch.ones(4, device=d)) for d in ("cpu", "tpu")]
  optimizers = [OPTIMIZERS[name]([w], w.device.type) for w in weights]
  steps = [optimizers[0].step, torch.compile(optimizers[1].step)]
  for k in range(4):
    for weight, step in zip(weights, steps):
      weight.grad = torch.arange(4.0, device=weight.device) * (k + 1)
      step()
    close(weights[1], weights[0])


def test_compiled_autograd():
  model, batches, loss_of = models.build("mlp")
  mine = copy.deepcopy(model).to("tpu")
  with torch._dynamo.config.patch(compiled_autograd=True):
    step = torch.compile(lambda batch: loss_of(mine, batch).backward())
    step(models.to_device(batches(0), "tpu"))
  loss_of(model, batches(0)).backward()
  close([p.grad for p in mine.parameters()], [p.grad for p in model.parameters()])


# --- what is replayed, and what is compiled when ---


def test_models_are_replayed_as_whole_graphs():
  model, batches, loss_of = models.build("gpt")
  mine = torch.compile(model.to("tpu"), fullgraph=True)
  for step in range(2):
    explained = torch.tpu.explain(
      lambda step=step: loss_of(mine, models.to_device(batches(step), "tpu")).backward()
    )
  graphs = {g["kind"]: g for g in explained.data["graphs"]}
  assert graphs.keys() == {"forward", "backward"}
  assert all(g["obstacle"] is None and g["templates"] == 1 for g in graphs.values())


def test_the_second_call_runs_one_program():
  compiled = whole(lambda x: (torch.sin(x) * 3 + 1).relu().sum(0))
  x = torch.ones(5, 7, device="tpu")
  ways = [torch.tpu.explain(compiled, x).data["windows"] for _ in range(3)]
  assert [w[0]["run"] for w in ways] == ["interpreted", "compiled", "compiled"]
  assert torch.tpu.explain(compiled, x).data["launches"] == 1


def test_a_call_allocates_nothing_but_its_results():
  compiled = whole(lambda x: (torch.sin(x) * 3 + 1).relu().cos())
  x = torch.ones(1 << 12, device="tpu")
  for _ in range(3):
    result = compiled(x)
  torch.tpu.synchronize()
  torch.tpu.reset_peak_memory_stats()
  held = torch.tpu.memory_allocated()
  other = compiled(x)
  torch.tpu.synchronize()
  assert other.nbytes == result.nbytes
  assert torch.tpu.max_memory_allocated() - held == padded(other.nbytes)


def test_inference_keeps_nothing_of_what_training_keeps():
  """Both record the same operations; training's programs also give what its backward needs."""
  weight = torch.randn(32, 32, device="tpu") / 6
  compiled = whole(lambda x: torch.tanh(torch.tanh(x @ weight) @ weight).sum(1))
  for first_trains in (True, False):
    torch.compiler.reset()
    torch.tpu.clear_cache()
    x = torch.ones(64, 32, device="tpu")
    ways = [x.clone().requires_grad_(), x]
    for x in (ways if first_trains else ways[::-1]) * 3:
      compiled(x)
    torch.tpu.synchronize()
    torch.tpu.reset_peak_memory_stats()
    held = torch.tpu.memory_allocated()
    result = compiled(ways[1])
    torch.tpu.synchronize()
    assert torch.tpu.max_memory_allocated() - held <= padded(result.nbytes)
    assert torch.tpu.window_stats()[0]["sets"] == 2


def test_long_graphs_are_built_during_their_first_call():
  def chain(x):
    for k in range(40):
      x = torch.sin(x) + k
    return x

  compiled = whole(chain)
  x = torch.ones(8, device="tpu")
  with counting(compile_stats) as grown:
    first = compiled(x)
    torch.tpu.wait_for_compiles()
  assert grown["requests"] > 0
  assert torch.tpu.window_stats()[0]["compiled"] == 0
  with counting(compile_stats) as grown:
    close([compiled(x), compiled(x)], [first, first])
  assert grown.get("requests", 0) == 0
  assert torch.tpu.window_stats()[0]["compiled"] == 2


def python_files(call):
  """Files with code in Python that ran during the call."""
  files = set()
  sys.setprofile(lambda frame, event, arg: files.add(frame.f_code.co_filename))
  try:
    call()
  finally:
    sys.setprofile(None)
  return files


def test_a_replay_runs_no_python_of_wrappers():
  compiled = whole(lambda x, cache: (cache.add_(x), torch.relu(x * cache + x))[1])
  x, cache = torch.ones(8, device="tpu"), torch.zeros(8, device="tpu")
  for _ in range(2):
    compiled(x, cache)
  before = cache._version
  files = python_files(lambda: compiled(x, cache))
  assert not [f for f in files if "runtime_wrappers" in f or "torch_tpu" in f or "stream" in f]
  assert cache._version == before + 1
  close(cache, torch.full((8,), 3.0))


def test_what_is_no_replay_goes_through_the_wrappers():
  compiled = whole(lambda x, y: torch.relu(x * y + x))
  x = torch.ones(8, device="tpu")
  for y in (x, torch.ones(8, 1, device="tpu"), torch.ones((), device="tpu"), x):
    close(compiled(x, y), torch.relu(x * y + x))
    with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING):
      close(compiled(x, y), torch.relu(x * y + x))


@pytest.mark.parametrize("stream_in_graph", [False, True])
def test_streams_that_a_graph_asks_for_are_passed(stream_in_graph):
  def f(x):
    if stream_in_graph:
      torch.tpu.current_stream().synchronize()
    return x + 1

  compiled = torch.compile(f, backend="tpu")
  for _ in range(3):
    close(compiled(torch.ones(3, device="tpu")), torch.full((3,), 2.0))


# --- numbers that change ---

NUMBERS = {
  "floats": (lambda x, n: x * n + n * 2, lambda k: (1.5 + k * 0.37,)),
  "ints": (lambda x, n: x * n + n * 3, lambda k: (k,)),
  "tensors": (lambda x, n: x * n + n * 3, lambda k: (torch.tensor(k * 0.7),)),
  "two": (lambda x, n, m: x * n + m * 3 - n, lambda k: (k, k % 5)),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_change_are_arguments_of_a_replay(name):
  function, numbers = NUMBERS[name]
  compiled = whole(function)
  x = torch.arange(4.0)
  mine = x.to("tpu")
  for k in range(20):  # some have records of their own: 0, 1, 2, ...
    close(compiled(mine, *numbers(k)), function(x, *numbers(k)))
  with counting(torch.tpu.engine_stats) as grown:
    explained = torch.tpu.explain(
      lambda: [compiled(mine, *numbers(k)).sum() for k in range(40, 50)]
    ).data
  close(compiled(mine, *numbers(50)), function(x, *numbers(50)))
  assert explained["compiles"] == 0 and grown.get("window_plans", 0) == 0
  (graph,) = explained["graphs"]
  assert graph["obstacle"] is None and graph["templates"] <= 8


def test_numbers_that_are_sizes_are_none_that_a_replay_takes():
  compiled = whole(lambda x, n: (x.roll(n), x[n // 4]), dynamic=True)
  x = torch.arange(30.0)
  for k in list(range(4, 20)) * 2:
    close(compiled(x.to("tpu"), k), (x.roll(k), x[k // 4]))


def test_numbers_that_a_call_refuses_are_refused_by_a_replay():
  compiled = whole(lambda x, n: x + n)
  x = torch.zeros(3, dtype=torch.uint8)
  for k in (10, 11, 12, 13, 200, 14):
    close(compiled(x.to("tpu"), k), x + k)
