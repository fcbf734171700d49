"""Accelerate finds the device, its memory and its random state."""

import socket

import pytest
import torch
from accelerate import Accelerator, cpu_offload, init_empty_weights, load_checkpoint_and_dispatch
from accelerate.state import AcceleratorState
from accelerate.utils import get_max_memory, infer_auto_device_map, release_memory, set_seed

TIER = "interpreted"


@pytest.fixture(autouse=True)
def fresh_state():
  AcceleratorState._reset_state(True)
  yield
  AcceleratorState._reset_state(True)


def train(accelerator, steps=2):
  torch.manual_seed(0)
  model = torch.nn.Linear(4, 4)
  optimizer = torch.optim.SGD(model.parameters(), 0.1)
  loader = torch.utils.data.DataLoader(torch.randn(4 * steps, 4), batch_size=4)
  model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
  for batch in loader:
    with accelerator.accumulate(model), accelerator.autocast():
      out = model(batch)
    accelerator.backward(out.float().square().mean())
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
  return model, accelerator.gather_for_metrics(out)


@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
def test_accelerator_trains_on_the_device(precision):
  expected, _ = train(Accelerator(cpu=True))
  AcceleratorState._reset_state(True)
  accelerator = Accelerator(mixed_precision=precision)
  model, out = train(accelerator)
  assert accelerator.device == torch.device("tpu:0") and out.is_tpu and model.weight.is_tpu
  assert (accelerator.scaler is not None) == (precision == "fp16")
  torch.testing.assert_close(model.weight.cpu(), expected.weight, rtol=2e-2, atol=2e-2)


def test_cpu_is_honoured():
  accelerator = Accelerator(cpu=True)
  model, _ = train(accelerator)
  assert accelerator.device.type == model.weight.device.type == "cpu"


def test_states_are_saved_with_the_devices_random_numbers(tmp_path):
  accelerator = Accelerator(mixed_precision="fp16")
  model, _ = train(accelerator)
  accelerator.save_state(str(tmp_path))
  drawn, weight = torch.rand(5, device="tpu"), model.weight.detach().clone()
  model.weight.data.zero_()
  accelerator.load_state(str(tmp_path))
  assert torch.equal(torch.rand(5, device="tpu"), drawn) and torch.equal(model.weight, weight)


def test_seeds_reach_the_device():
  Accelerator()
  set_seed(7)
  drawn = torch.rand(5, device="tpu")
  set_seed(7)
  assert torch.equal(torch.rand(5, device="tpu"), drawn)


def test_memory_of_the_device(llama, caplog):
  free = get_max_memory()
  assert list(free) == [0, "cpu"] and 0 < free[0] <= torch.tpu.mem_get_info()[1]
  given = {"cpu": "2GB", 0: "1GB"}
  assert list(get_max_memory(given).items()) == [(0, 10**9), ("cpu", 2 * 10**9)]
  assert not caplog.records  # that device 0 does not exist
  places = infer_auto_device_map(llama(), max_memory={0: 60_000, "cpu": "1GB"})
  assert set(places.values()) == {0, "cpu"}
  with pytest.raises(ValueError, match="not recognized"):
    get_max_memory({"gpu": "1GB"})
  release_memory(torch.ones(4, device="tpu"))


def test_dispatch_and_offload(llama, tmp_path):
  model, words = llama().eval(), torch.arange(8)[None]
  model.save_pretrained(tmp_path)
  with torch.no_grad():
    expected = model(words).logits
    for device_map in ("auto", {"": "tpu"}, {"": 0}):
      with init_empty_weights():
        empty = type(model)(model.config)
      loaded = load_checkpoint_and_dispatch(empty.eval(), str(tmp_path), device_map=device_map)
      out = loaded(words.to("tpu")).logits
      assert out.is_tpu
      torch.testing.assert_close(out.cpu(), expected, rtol=1e-4, atol=1e-5)
    cpu_offload(model, torch.device("tpu"))
    torch.testing.assert_close(model(words).logits.cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("world", [1, 2])
def test_several_processes_do_not_each_train_alone(world, monkeypatch):
  with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    place = dict(MASTER_ADDR="127.0.0.1", MASTER_PORT=free.getsockname()[1])
  for name, value in dict(RANK=0, LOCAL_RANK=0, WORLD_SIZE=world, **place).items():
    monkeypatch.setenv(name, str(value))
  if world > 1:
    with pytest.raises(RuntimeError, match="in one process only"):
      Accelerator()
  else:
    assert Accelerator().device.type == "tpu"
    torch.distributed.destroy_process_group()
