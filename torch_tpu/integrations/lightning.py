"""Lightning: an accelerator under the name "tpu", which "auto" finds.

Upstream knows TPUs through torch_xla alone: XLAAccelerator is registered as "tpu" and is available
when torch_xla is installed. Where it is, Lightning stays as it is. The same code is published as
`lightning` and as `pytorch_lightning` with `lightning_fabric`.

Upstream places: src/lightning/pytorch/accelerators/__init__.py, src/lightning/fabric/accelerators/
__init__.py (the registries), src/lightning/pytorch/trainer/connectors/accelerator_connector.py and
src/lightning/fabric/connector.py (strategy and precision are chosen by lists of accelerators).
"""

import torch

from torch_tpu.integrations import replace_method


def accelerators(registry):
  """Puts ours into the registry of that name, in the place of the one that needs torch_xla."""

  def patch(module):
    if not module.XLAAccelerator.is_available():
      accelerator = _accelerator_class(module.Accelerator)
      name = accelerator.name()
      getattr(module, registry).register(name, accelerator, accelerator.__name__, override=True)

  return patch


def _accelerator_class(base):
  class TPUAccelerator(base):
    """The device "tpu" of torch_tpu."""

    def setup_device(self, device):
      if device.type != "tpu":
        raise ValueError(f"TPUAccelerator was given the device '{device}'.")
      torch.tpu.set_device(device)

    def teardown(self):
      torch.tpu.empty_cache()

    def get_device_stats(self, device):
      return torch.tpu.memory_stats(device)

    @staticmethod
    def parse_devices(devices):
      """Indices of devices, from a number of them, a list, or either as text; -1 is all."""
      if isinstance(devices, str):
        words = [word for word in devices.split(",") if word.strip()]
        listed = "," in devices
        devices = [int(word) for word in words] if listed else int(words[0])
      count = torch.tpu.device_count()
      if isinstance(devices, int):
        devices = list(range(count if devices == -1 else devices))
      if not devices or any(index not in range(count) for index in devices):
        raise ValueError(f"devices={devices}: this process has {count} 'tpu' device(s).")
      return list(devices)

    @staticmethod
    def get_parallel_devices(devices):
      return [torch.device("tpu", index) for index in devices]

    @staticmethod
    def auto_device_count():
      return torch.tpu.device_count()

    @staticmethod
    def is_available():
      return torch.tpu.is_available()

    @staticmethod
    def name():
      return "tpu"

    get_device = name  # fabric asks for the device type by this name

  return TPUAccelerator


def connector(class_name, precision, instance):
  """`precision` is the attribute with the wanted precision as text, `instance` the one with an
  object for it that the user made."""

  def patch(module):
    cls = getattr(module, class_name)

    def is_ours(self):
      return self._parallel_devices and self._parallel_devices[0].type == "tpu"

    def make_auto(choose):
      def choose_auto_accelerator():
        found = choose()
        return "tpu" if found == "cpu" and torch.tpu.is_available() else found

      return staticmethod(choose_auto_accelerator)

    def make_strategy(choose):
      def choose_strategy(self):
        if not is_ours(self):
          return choose(self)
        if len(self._parallel_devices) > 1 or self._num_nodes_flag > 1:
          return "ddp"
        return module.SingleDeviceStrategy(device=self._parallel_devices[0])

      return choose_strategy

    def make_precision(choose):
      def check_and_init_precision(self):
        wanted = getattr(self, precision)
        plain = type(self.strategy).__name__ in ("SingleDeviceStrategy", "DDPStrategy")
        if not is_ours(self) or getattr(self, instance) or not plain or "-mixed" not in wanted:
          return choose(self)
        return module.MixedPrecision(wanted, "tpu")  # upstream's would be for "cuda"

      return check_and_init_precision

    replace_method(cls, "_choose_auto_accelerator", make_auto)
    replace_method(cls, "_choose_strategy", make_strategy)
    replace_method(cls, "_check_and_init_precision", make_precision)

  return patch


def patches(pytorch, fabric):
  """The patches of a distribution whose two halves are these packages."""
  return {
    f"{pytorch}.accelerators": accelerators("AcceleratorRegistry"),
    f"{pytorch}.trainer.connectors.accelerator_connector": connector(
      "_AcceleratorConnector", "_precision_flag", "_precision_plugin_flag"
    ),
    f"{fabric}.accelerators": accelerators("ACCELERATOR_REGISTRY"),
    f"{fabric}.connector": connector("_Connector", "_precision_input", "_precision_instance"),
  }


PATCHES = patches("lightning.pytorch", "lightning.fabric")
