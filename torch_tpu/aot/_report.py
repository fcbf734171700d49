"""What compiled programs need and cost: torch_tpu.aot.compile's answer."""

import re

from torch_tpu import _discovery

from . import chips
from ._compiler import Child

SECONDS = 600  # of a processor, for one program


class DoesNotFit(MemoryError):
  """A program needs more memory than the chip has; `needed` and `limit` are bytes, if known."""

  def __init__(self, text, needed=None, limit=None):
    super().__init__(text)
    self.needed = needed
    self.limit = limit


class Program:
  """One compiled program and how often it is launched.

  Bytes as libtpu counts them (in whole tiles): code, arguments, outputs, aliased, temporaries,
  peak. Of one launch: flops, traffic (bytes to and from HBM), transcendentals, matrix_flops (flops
  of the matrix unit in bfloat16 passes), seconds (the roofline), bound ("compute" or "HBM").
  `compile_seconds` of a processor."""

  def __init__(self, text, launches, facts, chip):
    self.text = text
    self.launches = len(launches)
    self.optimized = facts.get("optimized")
    self.compile_seconds = facts["seconds"]
    for name in ("code", "arguments", "outputs", "aliased", "temporaries", "peak"):
      setattr(self, name, facts[name])
    self.traffic = max(facts["traffic"], 0.0)
    self.transcendentals = max(facts["transcendentals"], 0.0)
    products, passes = matrix_flops(text)
    self.flops = max(facts["flops"], products)
    self.matrix_flops = passes
    compute, memory = passes / chip.flops, self.traffic / chip.bandwidth
    self.bound = "compute" if compute > memory else "HBM"
    self.seconds = max(compute, memory)

  @property
  def operations(self):
    """{StableHLO operation: how often it stands in the text}, the most frequent first."""
    names = re.findall(r'"(?:stablehlo|chlo)\.(\w+)"', self.text)
    return dict(sorted(((n, names.count(n)) for n in set(names)), key=lambda item: -item[1]))


_TYPE = r"tensor<((?:\d+x)*)([\w.<>]+)>"
_DOT = re.compile(
  r'"stablehlo\.dot_general".*?lhs_contracting_dimensions = \[([\d, ]*)\].*?precision (\w+)>'
  rf".*: \({_TYPE}, {_TYPE}\) -> {_TYPE}"
)
_CONV = re.compile(
  r'"stablehlo\.convolution".*?conv<\[.*?\]x\[(.*?)\]->(.*?)window_strides.*?'
  rf": \({_TYPE}, {_TYPE}\) -> {_TYPE}"
)


def _sizes(text):
  return [int(size) for size in text.split("x")[:-1]]


def _numel(sizes):
  count = 1
  for size in sizes:
    count *= size
  return count


def _passes(dtype, precision):
  return chips.PASSES[precision] if dtype in ("f32", "complex<f32>") else 1


def matrix_flops(text):
  """(flops of matrix products and convolutions, the same times the passes in bfloat16)."""
  flops = passes = 0.0
  for line in text.splitlines():
    if (found := _DOT.search(line)) is not None:
      contracted = [int(d) for d in found[1].split(",") if d.strip()]
      left = _sizes(found[3])
      work = 2.0 * _numel(_sizes(found[7])) * _numel(left[d] for d in contracted)
      flops += work
      passes += work * _passes(found[4], found[2])
    elif (found := _CONV.search(line)) is not None:
      kernel = _sizes(found[5])
      places = [name.strip() for name in found[1].split(",")]
      work = 2.0 * _numel(_sizes(found[7])) * _numel(kernel) / max(1, kernel[places.index("o")])
      level = re.search(r"precision (\w+)>", line)
      flops += work
      passes += work * _passes(found[4], level[1] if level else "DEFAULT")
  return flops, passes


class Report:
  """What a call needs and costs on a target; print it, or read:

  `fits`; bytes of HBM: `limit` (the chip's), `arguments` (there before the first launch),
  `outputs` (there after the last), `temporaries` (the largest of a program), `code` (of all
  programs), `peak` (the most at one time); `flops`, `traffic` and `seconds` of all launches, where
  the latter is what the chip cannot be faster than (see docs/aot.md); `programs`; `launches`."""

  def __init__(self, lowered, target, programs):
    self.target = target
    self.chip = chips.CHIPS[chips.split_target(target)[0]]
    self.programs = programs
    self.launches = len(lowered.launches)
    self.limit = int(self.chip.hbm)
    self.code = sum(p.code for p in programs)
    self.temporaries = max((p.temporaries for p in programs), default=0)
    self.arguments, self.outputs, self.peak = _walk(lowered, {p.text: p for p in programs})
    self.peak += self.code
    self.fits = self.peak <= self.limit
    for name in ("flops", "matrix_flops", "traffic", "seconds"):
      setattr(self, name, sum(getattr(p, name) * p.launches for p in programs))
    self.compile_seconds = sum(p.compile_seconds for p in programs)

  @property
  def utilisation(self):
    """Share of the chip's peak if the roofline were reached."""
    return self.matrix_flops / (self.seconds * self.chip.flops) if self.seconds else 0.0

  def require_fit(self):
    """DoesNotFit unless it fits; gives itself."""
    if not self.fits:
      raise DoesNotFit(
        f"{self.target}: {_gib(self.peak)} at the peak, the chip has {_gib(self.limit)}",
        self.peak,
        self.limit,
      )
    return self

  def __str__(self):
    rows = [
      ("memory at the peak", f"{_gib(self.peak)} of {_gib(self.limit)}"),
      ("  arguments", _gib(self.arguments)),
      ("  outputs", _gib(self.outputs)),
      ("  temporaries of one program", _gib(self.temporaries)),
      ("  code", _gib(self.code)),
      ("flops", f"{self.flops:.4g}"),
      ("HBM traffic", _gib(self.traffic)),
      ("roofline", f"{self.seconds * 1e3:.4g} ms, {self.utilisation:.0%} of the peak"),
      ("programs", f"{len(self.programs)}, launched {self.launches} times"),
      ("compiled in", f"{self.compile_seconds:.1f} CPU s"),
    ]
    lines = [f"{self.target}: {'fits' if self.fits else 'DOES NOT FIT'}"]
    lines += [f"  {name:<30} {value}" for name, value in rows]
    lines.append(f"  {'share':>6} {'launches':>9} {'ms each':>9} {'bound':>8}  operations")
    for p in sorted(self.programs, key=lambda p: -p.seconds * p.launches)[:8]:
      share = p.seconds * p.launches / self.seconds if self.seconds else 0.0
      names = ", ".join(f"{count} {name}" for name, count in list(p.operations.items())[:4])
      lines.append(f"  {share:>6.1%} {p.launches:>9} {p.seconds * 1e3:>9.3g} {p.bound:>8}  {names}")
    return "\n".join(lines)


def _gib(count):
  return f"{count / chips.GIB:.3f} GiB" if count >= chips.GIB / 100 else f"{count / 2**20:.3f} MiB"


def _walk(lowered, programs):
  """(arguments, outputs, most at one time) in bytes, going through the launches: what a launch was
  given it writes its outputs into, as far as the compiler aliased them, and frees."""
  sizes, last = {}, {}
  for i, launch in enumerate(lowered.launches):
    for value in launch.inputs:
      last[value.key] = i
    for value in [*launch.inputs, *launch.outputs]:
      sizes[value.key] = value.bytes
  made = {value.key for launch in lowered.launches for value in launch.outputs}
  arguments = sum(size for key, size in sizes.items() if key not in made)
  now = peak = arguments
  dropped = set()
  for i, launch in enumerate(lowered.launches):
    program = programs[launch.text]
    now += sum(value.bytes for value in launch.outputs)
    peak = max(peak, now + program.temporaries - program.aliased)
    # Donated, and, of what was made on the way, used for the last time.
    ended = [value for value in launch.inputs if value.given and last[value.key] == i]
    gone = {value.key: value.bytes for value in ended}
    now -= sum(gone.values())
    dropped.update(gone)
  outputs = sum(sizes[key] for key in made - dropped)
  return arguments, outputs, peak


def price(lowered, target, *, optimized=False, seconds=SECONDS):
  """Compiles what `lowered` says for a target such as "v5e:1x1", and gives a Report."""
  if lowered.platform != "tpu":
    raise ValueError(f"recorded for {lowered.platform!r}, and {target!r} is a TPU")
  name, shape = chips.split_target(target)
  plugin = _discovery.locate("tpu")
  if not plugin:
    raise RuntimeError("libtpu compiles for TPUs, on any Linux machine: pip install libtpu==0.0.52")
  programs = []
  with Child(seconds) as child:
    for text, launches in lowered.programs.items():
      facts = child.compile(plugin, f"{name}:{shape}", text, optimized)
      if "error" in facts:
        _refuse(facts["error"], target)
      programs.append(Program(text, launches, facts, chips.CHIPS[name]))
  return Report(lowered, f"{name}:{shape}", programs)


def _refuse(error, target):
  if "CompileTimeHbmOom" in error or "RESOURCE_EXHAUSTED" in error:
    found = re.search(r"Used ([\d.]+)([KMG]) of ([\d.]+)([KMG])", error)
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    needed = int(float(found[1]) * unit[found[2]]) if found else None
    limit = int(float(found[3]) * unit[found[4]]) if found else None
    raise DoesNotFit(f"{target}: one program alone does not fit: {error}", needed, limit)
  raise RuntimeError(f"{target}: {error}")
