"""Accelerate: the device is found, fp16 has its scaler, memory and random state are known.

Upstream has a chain of `elif is_<device>_available()` in each of these places, without "tpu".
"""

import os

import torch

from torch_tpu.integrations import replace, replace_method


def _is_tpu():
  from accelerate.state import PartialState

  device = PartialState().device if PartialState._shared_state else None
  return device is not None and device.type == "tpu"


def _state(module):
  """src/accelerate/state.py, PartialState: default_device, where no accelerator is known to it, and
  _prepare_backend, which has no kind of group for such a device: each of several processes would
  take itself for the only one, and train alone."""
  found = module.PartialState.default_device.fget

  def default_device(self):
    device = found(self)
    return device if device.type != "cpu" else torch.device("tpu", torch.tpu.current_device())

  module.PartialState.default_device = property(default_device, doc=found.__doc__)

  def make(prepare_backend):
    def prepare_backend_or_refuse(self, cpu=False, *args, **kwargs):
      chosen = prepare_backend(self, cpu, *args, **kwargs)
      alone = chosen[1] == module.DistributedType.NO and "LOCAL_RANK" in os.environ
      device = self.device or (torch.device("cpu") if cpu else self.default_device)
      if alone and device.type == "tpu" and int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise RuntimeError(
          "Accelerate (and so Transformers' Trainer) trains on 'tpu' in one process only. For "
          "several, use torch.distributed: init_process_group() and DistributedDataParallel; or "
          "several processes on the CPU: cpu=True."
        )
      return chosen

    return prepare_backend_or_refuse

  replace_method(module.PartialState, "_prepare_backend", make)


def _accelerator(module):
  """src/accelerate/accelerator.py, Accelerator.__init__: the devices that fp16 is allowed on are a
  constant of its code."""
  code = module.Accelerator.__init__.__code__
  lists = [
    constant
    for constant in code.co_consts
    if isinstance(constant, tuple) and {"cuda", "xpu", "mps"} <= set(constant)
  ]
  if len(lists) != 1:
    raise RuntimeError(f"{len(lists)} lists of devices in Accelerator.__init__, not one")
  constants = tuple((*lists[0], "tpu") if each is lists[0] else each for each in code.co_consts)
  module.Accelerator.__init__.__code__ = code.replace(co_consts=constants)


def _modeling(module):
  """src/accelerate/utils/modeling.py: get_grad_scaler and get_max_memory."""

  def make_scaler(get_grad_scaler):
    def get_grad_scaler_of_tpu(distributed_type=None, **kwargs):
      if not _is_tpu() or distributed_type == module.DistributedType.FSDP:
        return get_grad_scaler(distributed_type, **kwargs)
      return torch.amp.GradScaler("tpu", **kwargs)

    return get_grad_scaler_of_tpu

  def make_max_memory(get_max_memory):
    def get_max_memory_with_tpu(max_memory=None):
      if max_memory is None:
        others = get_max_memory()
        if any(isinstance(device, int) for device in others):
          return others
        indices = range(torch.tpu.device_count())
        return {index: torch.tpu.mem_get_info(index)[0] for index in indices} | others
      # Numbers are devices of whatever the accelerator is; upstream would say they do not exist.
      ours = sorted(device for device in max_memory if isinstance(device, int))
      if torch.cuda.is_available() or any(i not in range(torch.tpu.device_count()) for i in ours):
        return get_max_memory(max_memory)
      for device, size in max_memory.items():  # in the caller's dict, as upstream: it looks there
        if isinstance(size, str):
          max_memory[device] = module.convert_file_size_to_int(size)
      others = {device: size for device, size in max_memory.items() if device not in ours}
      return {device: max_memory[device] for device in ours} | get_max_memory(others)

    return get_max_memory_with_tpu

  replace(module, "get_grad_scaler", make_scaler)
  replace(module, "get_max_memory", make_max_memory)


def _memory(module):
  """src/accelerate/utils/memory.py, clear_device_cache."""

  def make(clear_device_cache):
    def clear_device_cache_of_tpu(garbage_collection=False):
      clear_device_cache(garbage_collection)
      torch.tpu.empty_cache()

    return clear_device_cache_of_tpu

  replace(module, "clear_device_cache", make)


_RNG = "torch_tpu_manual_seed"


def _checkpointing(module):
  """src/accelerate/checkpointing.py: the random state of the device goes into the same file."""

  def states_file(folder, process_index):
    return module.Path(folder) / f"{module.RNG_STATE_NAME}_{process_index}.pkl"

  def make_save(save_accelerator_state):
    def save_with_tpu(
      output_dir, model_states, optimizers, schedulers, dataloaders, process_index, *args, **kwargs
    ):
      result = save_accelerator_state(
        output_dir,
        model_states,
        optimizers,
        schedulers,
        dataloaders,
        process_index,
        *args,
        **kwargs,
      )
      file = states_file(output_dir, process_index)
      states = module.load(file)
      states[_RNG] = torch.tpu.get_rng_state_all()
      torch.save(states, file)
      return result

    return save_with_tpu

  def make_load(load_accelerator_state):
    def load_with_tpu(
      input_dir, models, optimizers, schedulers, dataloaders, process_index, *args, **kwargs
    ):
      result = load_accelerator_state(
        input_dir, models, optimizers, schedulers, dataloaders, process_index, *args, **kwargs
      )
      file = states_file(input_dir, process_index)
      states = module.load(file) if file.exists() else {}
      if _RNG in states:  # not in those that were saved on another device
        torch.tpu.set_rng_state_all(states[_RNG])
      return result

    return load_with_tpu

  replace(module, "save_accelerator_state", make_save)
  replace(module, "load_accelerator_state", make_load)


PATCHES = {
  "accelerate.accelerator": _accelerator,
  "accelerate.checkpointing": _checkpointing,
  "accelerate.state": _state,
  "accelerate.utils.memory": _memory,
  "accelerate.utils.modeling": _modeling,
}
