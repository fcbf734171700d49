"""PEFT: adapters are trained, saved, loaded to the device and merged."""

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.utils import infer_device

TIER = "interpreted"


@pytest.fixture
def trained(llama):
  config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
  model = get_peft_model(llama("tpu"), config)
  words = torch.arange(8, device="tpu")[None]
  optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 1e-2)
  for _ in range(3):
    model(words, labels=words).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
  return model, words


def test_the_device_is_inferred():
  assert infer_device() == "tpu"


@pytest.mark.parametrize("device", [None, "tpu", "cpu"])
def test_adapters_are_loaded(device, trained, llama, tmp_path):
  model, words = trained
  model.save_pretrained(tmp_path)
  named = {} if device is None else {"torch_device": device}
  loaded = PeftModel.from_pretrained(llama("tpu"), str(tmp_path), **named)
  assert {parameter.device.type for parameter in loaded.parameters()} == {"tpu"}
  assert torch.equal(loaded(words).logits, model(words).logits)


def test_adapters_are_merged(trained):
  model, words = trained
  before = model(words).logits
  torch.testing.assert_close(model.merge_and_unload()(words).logits, before, rtol=1e-4, atol=1e-5)
