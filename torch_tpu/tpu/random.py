"""Random numbers: the default generator of the device."""

import torch

from torch_tpu import _C

from ._device import _index, device_count


def _generator(device):
  return _C.default_generator(_index(device))


def get_rng_state(device="tpu"):
  """State of the device's generator as a CPU byte tensor: 16 bytes, seed and offset."""
  return _generator(device).get_state()


def set_rng_state(new_state, device="tpu"):
  """Sets a state that get_rng_state returned."""
  _generator(device).set_state(new_state)


def get_rng_state_all():
  """The states of all devices."""
  return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states):
  """Sets the states of all devices."""
  for index, state in enumerate(new_states):
    set_rng_state(state, index)


def manual_seed(seed):
  """Seeds the current device's generator."""
  _generator(None).manual_seed(int(seed))


def manual_seed_all(seed):
  """Seeds all devices' generators, if there are any; torch.manual_seed calls this."""
  for index in range(device_count()):
    _generator(index).manual_seed(int(seed))


def seed():
  """Seeds the current device's generator with a random number and returns it."""
  return _generator(None).seed()


def seed_all():
  """Seeds all devices with one random number."""
  manual_seed_all(torch.seed() if device_count() == 0 else seed())


def initial_seed():
  """The seed that the current device's generator was given."""
  return _generator(None).initial_seed()
