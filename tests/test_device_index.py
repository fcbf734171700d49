"""A process has one device, whose index is bound once. Every argument that names a device refuses
one that does not exist; below the count, another index is another name of the same device."""

import io

import pytest
import torch

from support import DEVICE, child_json, has_modes

pytestmark = pytest.mark.skipif(not has_modes(), reason="about the tpu device")
ACCELERATOR = torch.accelerator


def load(x):
  file = io.BytesIO()
  torch.save(x, file)
  file.seek(0)
  return torch.load(file, map_location="tpu:1")


FACTORIES = {
  "zeros": lambda x: torch.zeros(2, device="tpu:7"),
  "empty_strided": lambda x: torch.empty_strided((2,), (1,), device="tpu:1"),
  "tensor": lambda x: torch.tensor([1.0], device="tpu:1"),
  "as_tensor": lambda x: torch.as_tensor(x, device="tpu:1"),
  "arange": lambda x: torch.arange(3, device="tpu:1"),
  "eye": lambda x: torch.eye(3, device="tpu:1"),
  "rand": lambda x: torch.rand(3, device="tpu:1"),
  "randperm": lambda x: torch.randperm(3, device="tpu:1"),
  "zeros_like": lambda x: torch.zeros_like(x, device="tpu:1"),
  "rand_like": lambda x: torch.rand_like(x, device="tpu:1"),
  "full_like of cpu": lambda x: torch.full_like(x.cpu(), 1.0, device="tpu:1"),
  "new_zeros": lambda x: x.new_zeros(2, device="tpu:1"),
  "new_tensor": lambda x: x.new_tensor([1.0], device="tpu:1"),
  "tril_indices": lambda x: torch.tril_indices(3, 3, device="tpu:1"),
  "fftfreq": lambda x: torch.fft.fftfreq(4, device="tpu:1"),
  "UntypedStorage": lambda x: torch.UntypedStorage(8, device="tpu:1"),
  "Linear": lambda x: torch.nn.Linear(2, 2, device="tpu:1"),
}
MOVES = {
  "to": lambda x: x.to("tpu:7"),
  "to dtype": lambda x: x.to("tpu:1", torch.float64),
  "to same dtype, copy": lambda x: x.to("tpu:1", copy=True),
  "to int": lambda x: x.to(1),
  "to view": lambda x: x[1:].to("tpu:1"),
  "to complex": lambda x: x.to(torch.complex64).conj().to("tpu:1"),
  "tpu": lambda x: x.tpu(1),
  "cpu.to": lambda x: x.cpu().to("tpu:1"),
  "cpu.tpu": lambda x: x.cpu().tpu(1),
  "module.to": lambda x: torch.nn.Linear(2, 2).to(DEVICE).to("tpu:1"),
  "module.tpu": lambda x: torch.nn.Linear(2, 2).tpu(1),
  "load": load,
}
STATE = {
  "Generator": lambda x: torch.Generator(device="tpu:1"),
  "Generator of a device": lambda x: torch.Generator(torch.device("tpu", 3)),
  "get_rng_state": lambda x: torch.tpu.get_rng_state(1),
  "set_rng_state": lambda x: torch.tpu.set_rng_state(torch.tpu.get_rng_state(), "tpu:1"),
  "Stream": lambda x: torch.Stream(device="tpu:1"),
  "tpu.Stream": lambda x: torch.tpu.Stream(device="tpu:1"),
  "current_stream": lambda x: torch.tpu.current_stream(1),
  "accelerator.current_stream": lambda x: ACCELERATOR.current_stream(1),
  "tpu.device": lambda x: torch.tpu.device(1),
  "set_device": lambda x: torch.tpu.set_device(1),
  "accelerator.set_device_index": lambda x: ACCELERATOR.set_device_index(1),
  "synchronize": lambda x: torch.tpu.synchronize(1),
  "accelerator.synchronize": lambda x: ACCELERATOR.synchronize(1),
  "memory_allocated": lambda x: torch.tpu.memory_allocated("tpu:1"),
  "reset_peak_memory_stats": lambda x: torch.tpu.reset_peak_memory_stats(1),
  "mem_get_info": lambda x: torch.tpu.mem_get_info(1),
  "accelerator.memory_allocated": lambda x: ACCELERATOR.memory_allocated(1),
  "accelerator.reset_peak": lambda x: ACCELERATOR.reset_peak_memory_stats(1),
  "accelerator.reset_accumulated": lambda x: ACCELERATOR.reset_accumulated_memory_stats(1),
  "accelerator.get_memory_info": lambda x: ACCELERATOR.get_memory_info(1),
  "get_device_properties": lambda x: torch.tpu.get_device_properties(1),
}
REFUSAL = "invalid tpu device index|does not exist|device_count"
CASES = {**FACTORIES, **MOVES, **STATE}


@pytest.mark.parametrize("name", list(CASES))
def test_missing_device_is_refused(name):
  x = torch.ones(3, device=DEVICE)
  with pytest.raises((RuntimeError, ValueError), match=REFUSAL):
    CASES[name](x)
  assert torch.accelerator.current_device_index() == x.device.index


def test_index_zero_and_none_are_the_device():
  x = torch.ones(3, device="tpu")
  for device in ("tpu:0", "tpu", 0, torch.device("tpu", 0)):
    assert x.to(device) is x
  assert torch.Generator("tpu").device == torch.Generator("tpu:0").device == torch.device("tpu:0")
  assert torch.zeros(2, device="tpu:0").device == x.device


# What a script of rank 1 does, each as the first use of the device in a process.
FIRST_USES = {
  "set_device": "torch.tpu.set_device(1)",
  "set_device of a device": "torch.tpu.set_device(torch.device('tpu:1'))",
  "accelerator": "torch.accelerator.set_device_index(1)",
  "factory": "torch.zeros(2, device='tpu:1')",
  "to": "torch.zeros(2).to('tpu:1')",
  "to int": "torch.zeros(2).to(1)",
  "generator": "torch.Generator(device='tpu:1')",
  "stream": "torch.tpu.Stream(device=1)",
  "context": "torch.tpu.device(1).__enter__()",
  "launcher": "os.environ['LOCAL_RANK'] = '1'",
}
SCRIPT = """
import io, json, os
import torch
torch.manual_seed(5)
counts = [torch.tpu.device_count()]
for index in range(torch.tpu.device_count()): torch.tpu.memory_allocated(index)  # asks, uses none
FIRST
x = torch.ones(3, device="tpu")
file = io.BytesIO()
torch.save(x, file)
def load(where):
  file.seek(0)
  return torch.load(file, map_location=where)
model = torch.nn.Linear(3, 2).to("tpu:1")
seen = [x, x + 1, x.to("tpu:0"), x.cpu().to(0), torch.zeros(2, device="tpu:0"), load("tpu:1"),
        load("tpu:0"), load("tpu"), model(x), torch.randn(2, device="tpu:1"),
        torch.rand(2, generator=torch.Generator("tpu:1"), device="tpu"), x[None].expand(2, 3)]
torch.tpu.set_rng_state(torch.tpu.get_rng_state(1), 1)
torch.tpu.set_device(0)  # another name
def refused(use):
  try: use()
  except (RuntimeError, ValueError) as error: return "invalid tpu device index" in str(error)
print(json.dumps({
  "devices": sorted({str(t.device) for t in seen}),
  "generator": str(torch.tpu.default_generators[1].device),
  "stream": str(torch.tpu.Stream(device=0).device), "current": torch.tpu.current_device(),
  "accelerator": torch.accelerator.current_device_index(), "count": torch.tpu.device_count(),
  "same": x.to("tpu:1") is x, "sum": (x + torch.ones(3, device="tpu:0")).sum().item(),
  "refused": [refused(lambda: torch.zeros(1, device="tpu:2")), refused(lambda: x.to(7))]}))
"""


@pytest.mark.parametrize("name", list(FIRST_USES))
def test_the_first_use_binds_the_index(name):
  assert child_json(SCRIPT.replace("FIRST", FIRST_USES[name])) == {
    "devices": ["tpu:1"],
    "generator": "tpu:1",
    "stream": "tpu:1",
    "current": 1,
    "accelerator": 1,
    "count": 2,
    "same": True,
    "sum": 6.0,
    "refused": [True, True],
  }


def test_a_launcher_says_the_count_and_the_index():
  code = """
import json, torch
count = [torch.tpu.device_count(), torch.tpu.current_device()]
print(json.dumps([count, str(torch.ones(1, device="tpu").device), torch.tpu.device_count()]))
"""
  assert child_json(code, env={"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4"}) == [
    [4, 2],
    "tpu:2",
    4,
  ]
  assert child_json(code, env={"LOCAL_RANK": "x", "LOCAL_WORLD_SIZE": ""}) == [
    [1, 0],
    "tpu:0",
    1,
  ]
