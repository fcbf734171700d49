"""The tests here need what requirements/ecosystem.txt pins: `make test-ecosystem`."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # nothing here is downloaded

import pytest
import torch

TIER = "interpreted"  # what a user's first steps are


def make_llama(device="cpu", **config):
  """A language model of two small layers; the same numbers each time."""
  from transformers import LlamaConfig, LlamaForCausalLM

  sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2)
  heads = dict(num_attention_heads=2, num_key_value_heads=2)
  torch.manual_seed(0)
  return LlamaForCausalLM(LlamaConfig(**sizes, **heads, **config)).to(device)


@pytest.fixture
def llama():
  return make_llama


@pytest.fixture(autouse=True)
def host_work():
  """Nothing here may run on copies of tensors on the host."""
  torch.tpu.reset_stats()
  yield
  assert torch.tpu.fallback_stats() == {}
