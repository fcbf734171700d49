"""What is known of the chips that programs are priced for: the only place with such figures.

Published peaks per device (what PJRT calls one: a chip, of v7x one of the two on a chip). `hbm` is
what libtpu lets one program use where it has been seen to say so, else the published size.
"""

from typing import NamedTuple

GIB = 1 << 30


class Chip(NamedTuple):
  """One device."""

  name: str  # as libtpu's targets begin
  flops: float  # per second, of bfloat16 products with float32 sums
  bandwidth: float  # bytes per second to and from HBM
  hbm: float  # bytes
  links: float  # bytes per second between chips, all links together


CHIPS = {
  chip.name: chip
  for chip in (
    Chip("v4", 275e12, 1228e9, 32 * GIB, 300e9),
    Chip("v5e", 197e12, 819e9, 15.75 * GIB, 200e9),
    Chip("v5p", 459e12, 2765e9, 95 * GIB, 600e9),
    Chip("v6e", 918e12, 1640e9, 31.25 * GIB, 448e9),
    Chip("tpu7x", 1153.5e12, 3690e9, 96 * GIB, 600e9),
  )
}
ALIASES = {"v7x": "tpu7x"}
# How often a TPU multiplies float32 in bfloat16, by StableHLO's precision.
PASSES = {"DEFAULT": 1, "HIGH": 3, "HIGHEST": 6}


def split_target(target):
  """("v5e", "1x1") of "v5e:1x1", with libtpu's name of the chip. ValueError for other words."""
  name, _, shape = target.partition(":")
  name = ALIASES.get(name, name)
  if name not in CHIPS or not shape or not shape.replace("x", "").isdigit():
    known = ", ".join(sorted({*CHIPS, *ALIASES}))
    raise ValueError(
      f"no target is called {target!r}: a chip and a topology, such as v5e:1x1; chips are {known}"
    )
  return name, shape
