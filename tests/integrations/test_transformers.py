"""Transformers with no device named: Trainer, pipelines, device maps, generation, experts."""

import pytest
import torch
from transformers import (
  AutoModelForCausalLM,
  MixtralConfig,
  MixtralForCausalLM,
  PreTrainedTokenizerFast,
  Qwen3MoeConfig,
  Qwen3MoeForCausalLM,
  Trainer,
  TrainingArguments,
  pipeline,
)

TIER = "interpreted"

VARIANTS = {
  "plain": {},
  "bf16": dict(bf16=True),
  "fp16": dict(fp16=True),
  "checkpointing": dict(gradient_checkpointing=True),
  "accumulation": dict(gradient_accumulation_steps=2, per_device_train_batch_size=2),
  "workers": dict(dataloader_num_workers=2, dataloader_pin_memory=True),
  "bf16 evaluation": dict(bf16_full_eval=True),
  "fused": dict(optim="adamw_torch_fused"),
  "adafactor": dict(optim="adafactor"),
}
TOLERANCE = {"bf16": 2e-3, "fp16": 2e-3, "bf16 evaluation": 2e-3}


def make_data():
  generator = torch.Generator().manual_seed(1)
  rows = [torch.randint(0, 64, (16,), generator=generator) for _ in range(32)]
  return [{"input_ids": row, "labels": row} for row in rows]


def make_trainer(model, folder, **arguments):
  arguments = dict(max_steps=4, per_device_train_batch_size=4, save_strategy="no") | arguments
  quiet = dict(report_to=[], disable_tqdm=True, logging_steps=1)
  data = make_data()
  return Trainer(
    model,
    TrainingArguments(str(folder), **quiet, **arguments),
    train_dataset=data,
    eval_dataset=data[:8],
  )


def losses(trainer):
  history = trainer.state.log_history
  return [entry[key] for entry in history for key in ("loss", "grad_norm") if key in entry]


@pytest.mark.parametrize("variant", VARIANTS)
def test_trainer(variant, llama, tmp_path):
  results = []
  for cpu in (True, False):
    arguments = dict(VARIANTS[variant])
    if cpu:
      arguments = {k: v for k, v in arguments.items() if k not in ("fp16", "bf16")}
    trainer = make_trainer(llama(), tmp_path, use_cpu=cpu, **arguments)
    trainer.train()
    evaluated = trainer.evaluate()["eval_loss"]
    wanted = "cpu" if cpu else "tpu"
    assert trainer.args.device.type == trainer.accelerator.device.type == wanted
    assert next(trainer.model.parameters()).device.type == wanted
    results.append(losses(trainer) + [evaluated])
    if variant == "fp16" and not cpu:
      assert trainer.accelerator.scaler.get_scale() > 1
  assert results[1] == pytest.approx(results[0], rel=TOLERANCE.get(variant, 2e-4))


def test_trainer_resumes_to_the_same_bits(llama, tmp_path):
  save = dict(save_strategy="steps", save_steps=2)
  whole = make_trainer(llama(), tmp_path, **save)
  whole.train()
  resumed = make_trainer(llama(), tmp_path, **save)
  resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
  assert resumed.state.global_step == 4
  for mine, theirs in zip(whole.model.parameters(), resumed.model.parameters()):
    assert torch.equal(mine, theirs)


def test_trainer_compiles(llama, tmp_path):
  results = []
  for compiled in (False, True):
    trainer = make_trainer(llama(), tmp_path, torch_compile=compiled)
    trainer.train()
    results.append(losses(trainer))
  assert results[1] == pytest.approx(results[0], rel=2e-4)


@pytest.fixture
def tokenizer():
  from tokenizers import Tokenizer, models, pre_tokenizers

  words = {f"w{i}": i for i in range(60)} | {"<pad>": 60, "<unk>": 61, "</s>": 62}
  made = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
  made.pre_tokenizer = pre_tokenizers.Whitespace()
  special = dict(pad_token="<pad>", unk_token="<unk>", eos_token="</s>")
  return PreTrainedTokenizerFast(tokenizer_object=made, **special)


def generate(pipe):
  answer = pipe("w1 w2 w3", max_new_tokens=5, do_sample=False)
  return answer[0]["generated_text"]


@pytest.mark.parametrize(
  "device", [None, 0, "tpu", "tpu:0", torch.device("tpu"), -1, "cpu"], ids=str
)
def test_pipelines_choose_the_device(device, llama, tokenizer):
  named = {} if device is None else {"device": device}
  pipe = pipeline("text-generation", model=llama(), tokenizer=tokenizer, **named)
  wanted = "cpu" if device in (-1, "cpu") else "tpu"
  assert pipe.device.type == pipe.model.device.type == wanted
  on_cpu = pipeline("text-generation", model=llama(), tokenizer=tokenizer, device="cpu")
  assert generate(pipe) == generate(on_cpu)


def test_a_pipeline_of_a_folder_with_a_device_map(llama, tokenizer, tmp_path):
  llama().save_pretrained(tmp_path)
  tokenizer.save_pretrained(tmp_path)
  for arguments in ({}, {"device_map": "auto"}):
    pipe = pipeline("text-generation", model=str(tmp_path), **arguments)
    assert pipe.device.type == pipe.model.device.type == "tpu"
    assert generate(pipe)


MAPS = {
  "auto": {},
  "balanced": {},
  "sequential": {},
  "tpu": {},
  "tpu:0": {},
  "some to the host": dict(device_map="auto", max_memory={0: 60_000, "cpu": "1GB"}),
  "some to the disk": dict(device_map="auto", max_memory={0: 60_000, "cpu": 10_000}),
}


@pytest.mark.parametrize("name", MAPS)
def test_device_maps(name, llama, tmp_path):
  model = llama().eval()
  model.save_pretrained(tmp_path)
  words = torch.arange(8)[None]
  arguments = {"device_map": name} | MAPS[name]
  if name == "some to the disk":
    arguments["offload_folder"] = str(tmp_path / "offload")
  loaded = AutoModelForCausalLM.from_pretrained(tmp_path, **arguments)
  places = set(getattr(loaded, "hf_device_map", {"": 0}).values())
  assert places == {"some to the host": {0, "cpu"}, "some to the disk": {0, "disk"}}.get(
    name, places - {"cpu", "disk"}
  )
  with torch.no_grad():
    out = loaded(words.to("tpu")).logits
    torch.testing.assert_close(out.cpu(), model(words).logits, rtol=1e-4, atol=1e-5)
  assert out.is_tpu


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("implementation", ["default", "eager", "grouped_mm", "batched_mm"])
@pytest.mark.parametrize("family", ["mixtral", "qwen3"])
def test_experts(family, implementation, dtype):
  kind, configuration = {
    "mixtral": (MixtralForCausalLM, MixtralConfig),
    "qwen3": (Qwen3MoeForCausalLM, Qwen3MoeConfig),
  }[family]
  sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=48, moe_intermediate_size=32)
  heads = dict(num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2, head_dim=16)
  experts = dict(num_experts=4, num_local_experts=4, num_experts_per_tok=2)
  config = configuration(**sizes, **heads, **experts, output_router_logits=True)
  if implementation != "default":
    config._experts_implementation = implementation
  torch.manual_seed(0)
  model, words = kind(config).to(dtype), torch.arange(24).view(2, 12)
  results = []
  for device in ("cpu", "tpu"):
    model.to(device).zero_grad()
    loss = model(words.to(device), labels=words.to(device)).loss
    loss.backward()
    grads = [p.grad.cpu().clone() for p in model.parameters()]  # `to` moves them in place
    results.append([loss.detach().cpu(), *grads])
  tolerance = 1e-4 if dtype is torch.float32 else 2e-2
  torch.testing.assert_close(results[1], results[0], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("cache", [None, "static"])
def test_generation(cache, llama):
  words = torch.arange(6)[None]
  arguments = dict(max_new_tokens=8, do_sample=False, pad_token_id=0)
  if cache:
    arguments["cache_implementation"] = cache
  expected = llama().generate(words, max_new_tokens=8, do_sample=False, pad_token_id=0)
  assert torch.equal(llama("tpu").generate(words.to("tpu"), **arguments).cpu(), expected)
