"""Lightning's Trainer and Fabric, under both names of the distribution."""

import importlib

import pytest
import torch

TIER = "interpreted"
NAMES = {
  "lightning": ("lightning.pytorch", "lightning.fabric"),
  "pytorch_lightning": ("pytorch_lightning", "lightning_fabric"),
}


@pytest.fixture(params=NAMES)
def halves(request):
  return [importlib.import_module(name) for name in NAMES[request.param]]


def fit(pytorch, **arguments):
  class Model(pytorch.LightningModule):
    def __init__(self):
      super().__init__()
      self.layer = torch.nn.Linear(4, 2)

    def training_step(self, batch, index):
      self.seen = batch.device.type, self.layer(batch).dtype
      return self.layer(batch).float().square().mean()

    def validation_step(self, batch, index):
      self.log("loss", self.layer(batch).float().square().mean())

    def configure_optimizers(self):
      return torch.optim.SGD(self.parameters(), 0.1)

  torch.manual_seed(0)
  model = Model()
  quiet = dict.fromkeys(
    ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
  )
  trainer = pytorch.Trainer(max_epochs=2, **quiet, **arguments)
  loader = torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=4)
  trainer.fit(model, loader, loader)
  return model.seen, float(trainer.callback_metrics["loss"])


@pytest.mark.parametrize(
  "arguments",
  [
    {},
    dict(accelerator="tpu"),
    dict(accelerator="tpu", devices=1),
    dict(accelerator="tpu", devices=[0]),
    dict(accelerator="auto", devices="auto"),
    dict(accelerator="tpu", devices=-1),
  ],
  ids=str,
)
def test_trainer(halves, arguments):
  _, expected = fit(halves[0], accelerator="cpu")
  (device, _), loss = fit(halves[0], **arguments)
  assert device == "tpu" and loss == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
  "precision, dtype",
  [("16-mixed", torch.float16), ("bf16-mixed", torch.bfloat16), ("bf16-true", torch.bfloat16)],
)
def test_precisions(halves, precision, dtype, recwarn):
  _, expected = fit(halves[0], accelerator="cpu")
  seen, loss = fit(halves[0], precision=precision)
  assert seen == ("tpu", dtype) and loss == pytest.approx(expected, rel=2e-2)
  assert not [each for each in recwarn if "CUDA" in str(each.message)]


@pytest.mark.parametrize("devices", [2, [1], "7"])
def test_devices_that_do_not_exist(halves, devices):
  with pytest.raises(ValueError, match="this process has 1 'tpu' device"):
    fit(halves[0], accelerator="tpu", devices=devices)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
@pytest.mark.parametrize("accelerator", ["auto", "tpu", "cpu"])
def test_fabric(halves, accelerator, precision):
  if (accelerator, precision) == ("cpu", "16-mixed"):
    pytest.skip("refused upstream")
  fabric = halves[1].Fabric(accelerator=accelerator, precision=precision)
  model = torch.nn.Linear(4, 2)
  model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), 0.1))
  wanted = "cpu" if accelerator == "cpu" else "tpu"
  assert fabric.device.type == wanted
  before = model.weight.detach().clone()
  fabric.backward(model(fabric.to_device(torch.randn(3, 4))).float().mean())
  optimizer.step()
  assert model.weight.device.type == wanted and not torch.equal(before, model.weight)
