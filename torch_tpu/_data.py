"""Samplers while torch.set_default_device("tpu") holds: they draw on the host, with a generator of
the host, and would make the tensor for it on the device. "cuda" has the same error.

Upstream: torch/utils/data/sampler.py, RandomSampler.__iter__; torch/utils/data/dataset.py,
random_split.
"""

import functools
import sys

from torch_tpu._after_import import after_import


def install(torch):
  """Patches both when torch.utils.data is imported, or now."""
  after_import("torch.utils.data", functools.partial(_draw_on_the_host, torch))


def _draw_on_the_host(torch, data):
  draw, split = data.RandomSampler.__iter__, data.random_split

  def is_on_host(generator):
    wanted = generator is None or generator.device.type == "cpu"
    return wanted and torch.get_default_device().type == "tpu"

  @functools.wraps(draw)
  def draw_on_host(self):
    if not is_on_host(self.generator):
      yield from draw(self)
      return
    indices = draw(self)
    while True:
      with torch.device("cpu"):  # not around the yield, after which others run
        index = next(indices, None)
      if index is None:
        return
      yield index

  @functools.wraps(split)
  def split_on_host(dataset, lengths, generator=torch.default_generator):
    if not is_on_host(generator):
      return split(dataset, lengths, generator)
    with torch.device("cpu"):
      return split(dataset, lengths, generator)

  data.RandomSampler.__iter__ = draw_on_host
  data.random_split = sys.modules["torch.utils.data.dataset"].random_split = split_on_host
