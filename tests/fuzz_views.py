"""Random programs of views, in-place writes and copies, run side by side on the CPU and the device.

A program is a list of Python statements over variables v0, v1, ... The generator runs each
candidate on the CPU first; one that PyTorch refuses there is not part of the program. Values are
small integers (also as floats), so that both sides compute exactly and differences are bugs.

Run alone:  python tests/fuzz_views.py --seed 12 --programs 500 [--mode fused] [--device cpu]
"""

import argparse
import random
import sys

import torch

DTYPES = (
  torch.float32,
  torch.float32,
  torch.int64,
  torch.int32,
  torch.uint8,
  torch.int16,
  torch.bool,
  torch.float64,
  torch.bfloat16,
)
SIGNED = (torch.float32, torch.float64, torch.int64, torch.int32, torch.int16, torch.bfloat16)
MAX_ELEMENTS = 240
MAX_VARIABLES = 9


def make(seed, sizes, dtype, device):
  """A tensor of small integers, made on the CPU and copied."""
  generator = torch.Generator().manual_seed(seed)
  low = -4 if dtype in SIGNED else 0
  high = 2 if dtype is torch.bool else 5
  return torch.randint(low, high, sizes, generator=generator).to(dtype).to(device)


def resize_filled(tensor, sizes, number):
  """resize_, then fill_: what resize_ adds is uninitialised on the CPU."""
  return tensor.resize_(sizes).fill_(number)


def set_storage(tensor, other, offset, sizes, strides):
  return tensor.set_(other.untyped_storage(), offset, sizes, strides)


class World:
  """The variables of a program on one device."""

  def __init__(self, device):
    self.device = torch.device(device)
    self.names = {
      "torch": torch,
      "dev": self.device,
      "make": make,
      "resize_filled": resize_filled,
      "set_storage": set_storage,
    }

  def run(self, statement):
    with torch.no_grad():
      exec(statement, self.names)

  def variables(self):
    return {
      key: value
      for key, value in self.names.items()
      if key[0] == "v" and key[1:].isdigit() and isinstance(value, torch.Tensor)
    }


def places(tensor):
  """Byte positions in its storage of a CPU tensor's elements."""
  size = tensor.element_size()
  count = tensor.untyped_storage().nbytes() // size
  index = torch.arange(count).as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
  return (index.reshape(-1) * size).tolist()


def overlaps_itself(tensor):
  where = places(tensor)
  return len(set(where)) != len(where)


def same_storage(a, b):
  return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def may_copy(dst, src):
  """False where the order of element copies would show: partial overlap of one storage."""
  if overlaps_itself(dst):
    return False
  if not same_storage(dst, src):
    return True
  if src.element_size() != dst.element_size():
    return False
  if list(src.shape) == list(dst.shape) and places(src) == places(dst):
    return True
  return not set(places(src)) & set(places(dst))


class Generator:
  """Proposes statements that suit the current CPU variables."""

  def __init__(self, rng, world):
    self.rng = rng
    self.world = world
    self.count = 0

  def fresh(self):
    self.count += 1
    return f"v{self.count - 1}"

  def sizes(self, most=4):
    rank = self.rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4)[: 9 if most >= 4 else 6])
    return tuple(self.rng.choice((1, 2, 2, 3, 4, 5)) for _ in range(rank))

  def pick(self, accept=lambda tensor: True):
    found = [(n, t) for n, t in self.world.variables().items() if accept(t)]
    return self.rng.choice(found) if found else None

  def writable(self):
    return self.pick(lambda t: t.numel() > 0 and not overlaps_itself(t))

  def propose(self):
    variables = self.world.variables()
    if not variables or (len(variables) < 3 and self.rng.random() < 0.3):
      return self.create()
    if len(variables) >= MAX_VARIABLES:
      return f"del {self.rng.choice(sorted(variables))}"
    kinds = (
      (self.view, 45),
      (self.write, 30),
      (self.copy, 9),
      (self.relayout, 7),
      (self.create, 4),
      (self.compute, 5),
    )
    kind = self.rng.choices([k for k, _ in kinds], [w for _, w in kinds])[0]
    return kind()

  def create(self):
    sizes, dtype = self.sizes(), self.rng.choice(DTYPES)
    return f"{self.fresh()} = make({self.rng.randrange(10**4)}, {sizes}, {dtype}, dev)"

  # --- views ---

  def view(self):
    picked = self.pick()
    name, t = picked
    rank = t.dim()
    rng = self.rng
    dim = rng.randrange(rank) if rank else 0
    size = t.shape[dim] if rank else 1
    options = [
      f"unsqueeze({rng.randint(-rank - 1, rank)})",
      "squeeze()",
      "detach()",
      f"as_strided{self.strided(t)}",
      f"expand{self.expanded(t)}",
      f"view({self.reshaped(t)})",
      f"reshape({self.reshaped(t)})",
      self.dtype_view(t),
    ]
    if rank:
      start = rng.randrange(size) if size else 0
      options += [
        f"select({dim}, {start})",
        f"narrow({dim}, {start}, {rng.randint(0, size - start)})",
        f"squeeze({dim})",
        self.sliced(t),
        self.sliced(t),
        "t()" if rank <= 2 else "mT",
        f"unfold({dim}, {rng.randint(1, max(size, 1))}, {rng.randint(1, 3)})",
        f"split({rng.randint(1, max(size, 1))}, {dim})[-1]",
        "flatten()",
      ]
      order = list(range(rank))
      rng.shuffle(order)
      options += [
        f"permute({tuple(order)})",
        f"movedim({dim}, {rng.randrange(rank)})",
        f"transpose({dim}, {rng.randrange(rank)})",
      ] * 2
    if rank >= 2:
      a, b = rng.sample(range(rank), 2)
      options += [f"diagonal({rng.randint(-2, 2)}, {a}, {b})"] * 2
    return f"{self.fresh()} = {name}.{rng.choice(options)}".replace(".[", "[")

  def sliced(self, t):
    parts = []
    for size in t.shape[: self.rng.randint(1, t.dim())]:
      kind = self.rng.random()
      if kind < 0.2:
        parts.append(":")
      elif kind < 0.3:
        parts.append("None")
      elif kind < 0.45 and size:
        parts.append(str(self.rng.randrange(-size, size)))
      else:
        a = self.rng.randint(0, size)
        parts.append(f"{a}:{self.rng.randint(a, size)}:{self.rng.randint(1, 3)}")
    return f"[{', '.join(parts)}]"

  def strided(self, t):
    """Any geometry inside the storage: also overlapping windows and odd strides."""
    room = t.untyped_storage().nbytes() // t.element_size()
    sizes = [self.rng.choice((1, 2, 3, 4)) for _ in range(self.rng.randint(0, 3))]
    strides = [self.rng.choice((0, 1, 1, 2, 3, 4, 6, 12)) for _ in sizes]
    reach = 1 + sum((n - 1) * s for n, s in zip(sizes, strides))
    return f"({sizes}, {strides}, {self.rng.randint(0, max(room - reach, 0))})"

  def expanded(self, t):
    front = tuple(self.rng.choice((1, 2, 3)) for _ in range(self.rng.randint(0, 1)))
    grown = tuple(
      self.rng.choice((2, 3)) if n == 1 and self.rng.random() < 0.7 else n for n in t.shape
    )
    return f"({list(front + grown)})"

  def reshaped(self, t):
    """Sizes with the same number of elements: merges and splits neighbours."""
    sizes = list(t.shape)
    for _ in range(self.rng.randint(1, 2)):
      if len(sizes) >= 2 and self.rng.random() < 0.5:
        k = self.rng.randrange(len(sizes) - 1)
        sizes[k : k + 2] = [sizes[k] * sizes[k + 1]]
      elif sizes:
        k = self.rng.randrange(len(sizes))
        small = [d for d in (2, 3, 1) if sizes[k] % d == 0]
        if small and len(sizes) < 5:
          d = self.rng.choice(small)
          sizes[k : k + 1] = self.rng.choice(([d, sizes[k] // d], [sizes[k] // d, d]))
    return sizes

  def dtype_view(self, t):
    if t.dtype in (torch.bool, torch.bfloat16):
      return "view_as(" + self.rng.choice(sorted(self.world.variables())) + ")"
    return f"view({self.rng.choice((torch.int32, torch.int64, torch.int16, torch.uint8))})"

  # --- writes ---

  def number(self, t):
    if t.dtype is torch.bool:
      return self.rng.choice((True, False))
    return self.rng.choice((0, 1, 2, 3) if t.dtype is torch.uint8 else (-2, -1, 0, 1, 2))

  def foreign(self, t):
    """True when t's storage holds bits of a float dtype and t sees them as integers, or the
    other way round. Arithmetic there makes denormals and NaN payloads, which devices may flush."""
    return any(
      same_storage(t, o)
      and o.dtype != t.dtype
      and (o.dtype.is_floating_point or t.dtype.is_floating_point)
      for o in self.world.variables().values()
    )

  def write(self):
    picked = self.writable()
    if picked is None:
      return self.create()
    name, t = picked
    rng, number = self.rng, self.number(t)
    if self.foreign(t):
      return f"{name}.zero_()"
    options = [f"{name}.fill_({number})", f"{name}.zero_()"] + [self.copy_into(name, t)] * 3
    if t.dtype is not torch.bool:
      options += [
        f"{name}.add_({number})",
        f"{name}.mul_({rng.choice((2, 0, 1))})",
        f"{name}.sub_({number})",
        f"{name}.clamp_(0, 3)",
        self.add_into(name, t),
      ]
      if t.dtype in SIGNED:
        options += [f"{name}.neg_()", f"{name}.abs_()"]
    else:
      options += [f"{name}.logical_not_()"]
    if t.dim():
      options += [
        f"{name}{self.sliced(t)} = {number}",
        self.put_rows(name, t),
        self.put_indexed(name, t),
        self.put_indexed(name, t),
        f"{name}.masked_fill_({name} == {number}, {self.number(t)})",
        f"{name}[{name} != {number}] = {self.number(t)}",
      ]
    return rng.choice([o for o in options if o])

  def copy_into(self, name, t):
    found = self.pick(
      lambda o: (
        o.numel() <= t.numel() and may_copy(t, o) and self.fits(o, t) and not self.foreign(o)
      )
    )
    if found is None:
      return f"{name}.copy_(make({self.rng.randrange(999)}, {tuple(t.shape)}, torch.int32, 'cpu'))"
    return f"{name}.copy_({found[0]})"

  def add_into(self, name, t):
    found = self.pick(
      lambda o: (
        may_copy(t, o)
        and self.fits(o, t)
        and not self.foreign(o)
        and torch.can_cast(torch.result_type(t, o), t.dtype)
      )
    )
    alpha = self.rng.choice(("", ", alpha=2"))
    return found and f"{name}.add_({found[0]}{alpha})"

  @staticmethod
  def fits(src, dst):
    try:
      return torch.broadcast_shapes(src.shape, dst.shape) == dst.shape
    except RuntimeError:
      return False

  def put_rows(self, name, t):
    size = t.shape[0]
    rows = self.rng.sample(
      range(-size, 0) if self.rng.random() < 0.3 else range(size), self.rng.randint(1, size)
    )
    return f"{name}[torch.tensor({rows}, device=dev)] = {self.number(t)}"

  def index(self, size, count=None, negative=False):
    """Different places of a dimension as a tensor's text."""
    count = count or self.rng.randint(1, size)
    low = -size if negative and self.rng.random() < 0.3 else 0
    return f"torch.tensor({self.rng.sample(range(low, low + size), count)}, device=dev)"

  def filler(self, sizes, dtype):
    return f"make({self.rng.randrange(999)}, {tuple(sizes)}, {dtype}, dev)"

  def put_indexed(self, name, t):
    """Writes at index tensors along any dimensions, each place once."""
    rng, rank = self.rng, t.dim()
    dim = rng.randrange(rank)
    count = rng.randint(1, t.shape[dim])
    index, number = self.index(t.shape[dim], count), self.number(t)
    part = list(t.shape)
    part[dim] = count
    along = f"{index}.view({[-1 if i == dim else 1 for i in range(rank)]}).expand({part})"
    flat = self.index(t.numel(), n := rng.randint(1, min(t.numel(), 6)), negative=True)
    options = [
      f"{name}.index_fill_({dim}, {index}, {number})",
      f"{name}.index_copy_({dim}, {index}, {self.filler(part, t.dtype)})",
      f"{name}.scatter_({dim}, {along}, {self.filler(part, t.dtype)})",
      f"{name}.scatter_({dim}, {along}, {number})",
      f"{name}.put_({flat}, {self.filler((n,), t.dtype)})",
    ]
    if t.dtype is not torch.bool:
      options += [
        f"{name}.index_add_({dim}, {index}, {self.filler(part, t.dtype)})",
        f"{name}.scatter_add_({dim}, {along}, {self.filler(part, t.dtype)})",
      ]
    count = rng.randint(1, min(t.shape))
    parts = []
    for size in t.shape:
      parts.append(self.index(size, count, negative=True) if rng.random() < 0.6 else ":")
    if rng.random() < 0.3 and parts.count(":") < rank:  # pairs of indices: two dimensions meet
      found = [i for i, p in enumerate(parts) if p != ":"]
      parts[found[0]] += "[:, None]"
    if parts.count(":") < rank:
      where = f"[{', '.join(parts)}]"
      names = {"torch": torch, "dev": "cpu"}
      sizes = eval(f"torch.empty({tuple(t.shape)}){where}.shape", names)
      where = name + where
      options += [f"{where} = {number}"] + [f"{where} = {self.filler(sizes, t.dtype)}"] * 3
      if t.dtype is not torch.bool:
        options += [f"{where} += {self.filler(sizes, t.dtype)}"]
    return rng.choice(options)

  # --- copies and computed tensors ---

  def copy(self):
    name, t = self.pick()
    options = [
      "clone()",
      "clone(memory_format=torch.contiguous_format)",
      "contiguous()",
      "to(torch.float64)",
      "to('cpu').clone().to(dev)",
    ]
    if t.dim() == 4:
      options += [
        "clone(memory_format=torch.channels_last)",
        "contiguous(memory_format=torch.channels_last)",
      ]
    if self.foreign(t):
      options = options[:3] + options[4:]
    return f"{self.fresh()} = {name}.{self.rng.choice(options)}"

  def relayout(self):
    """Statements that give a variable other metadata or another storage in place."""
    name, t = self.pick()
    rng = self.rng
    dims = [rng.randrange(t.dim()) for _ in range(2)] if t.dim() else []
    options = [f"{name}.unsqueeze_({rng.randint(0, t.dim())})", f"{name}.squeeze_()"]
    if dims:
      options += [f"{name}.transpose_({dims[0]}, {dims[1]})"]
    if t.is_contiguous() and not self.foreign(t):
      smaller = list(t.shape)
      if smaller and smaller[0] > 1:
        smaller[0] -= 1
      options += [
        f"{name}.resize_({smaller})",
        f"{name} = resize_filled({name}, {self.sizes(3)}, {self.number(t)})",
      ]
    other, o = self.pick(lambda x: x.dtype == t.dtype)
    options += [f"{name}.set_({other})"]
    geometry = self.strided(o)[1:-1]
    sizes, strides, offset = eval(f"({geometry})")
    reach = offset + 1 + sum((n - 1) * s for n, s in zip(sizes, strides))
    if reach * o.element_size() <= o.untyped_storage().nbytes():  # else set_ adds random bytes
      options += [f"set_storage({name}, {other}, {offset}, {sizes}, {strides})"]
    options += [f"{name}.as_strided_({geometry})" if name == other else f"{name}.data = {other}"]
    return rng.choice(options)

  def compute(self):
    name, t = self.pick()
    if self.foreign(t):
      return f"{self.fresh()} = {name}.clone()"
    options = [
      f"{name} == {self.number(t)}",
      f"{name}.flip(0)" if t.dim() else f"{name}.clone()",
      f"torch.zeros_like({name})",
      f"torch.cat([{name}.reshape(-1), {name}.reshape(-1)])",
    ]
    if t.dim() and t.numel():
      dim = self.rng.randrange(t.dim())
      index = self.index(t.shape[dim])
      options += [
        f"{name}.index_select({dim}, {index})",
        f"{name}.take({self.index(t.numel(), min(t.numel(), 3), negative=True)})",
        f"{name}[{':, ' * dim}{index}]",
        f"{name}[{index if not dim else self.index(t.shape[0], 1)}, ..., :1]",
        f"{name}.gather({dim}, ({name} == {name}).to(torch.int64))" if t.shape[dim] > 1 else "0",
      ]
    if t.dtype is not torch.bool:
      options += [f"{name} + 1", f"{name} * 2", f"{name} + {name}"]
    made = self.rng.choice(options)
    if min(t.shape, default=2) < 2:
      # Strides of dimensions with at most one element are free: PyTorch's own meta kernels, which
      # the device asks, choose others than its CPU kernels.
      made = f"({made}).clone(memory_format=torch.contiguous_format)"
    return f"{self.fresh()} = {made}"


class Mismatch(AssertionError):
  pass


def meaningful_place(t):
  """Strides and offset as far as they lead to an element: PyTorch's kernels do not agree on strides
  of dimensions with at most one element, nor on those of empty tensors (and so on offsets into
  them)."""
  if t.numel() == 0:
    return None, None
  return tuple(s if n > 1 else None for n, s in zip(t.shape, t.stride())), t.storage_offset()


def compare_geometry(cpu, dev, statement):
  """Sizes, strides, offsets, dtypes, and which variables share a storage."""
  a, b = cpu.variables(), dev.variables()
  if a.keys() != b.keys():
    raise Mismatch(f"variables differ: {sorted(a)} and {sorted(b)}")
  first_cpu, first_dev, pointers = {}, {}, {}
  for name in a:
    x, y = a[name], b[name]
    mine = (x.dtype, tuple(x.shape), *meaningful_place(x))
    theirs = (y.dtype, tuple(y.shape), *meaningful_place(y))
    if mine != theirs:
      raise Mismatch(f"{name}: metadata is {theirs}, should be {mine}")
    if y.device.type != dev.device.type:
      raise Mismatch(f"{name} is on {y.device}")
    sx, sy = x.untyped_storage(), y.untyped_storage()
    if sx.nbytes() != sy.nbytes():
      raise Mismatch(f"{name}: storage of {sy.nbytes()} bytes, should be {sx.nbytes()}")
    if first_cpu.setdefault(sx._cdata, name) != first_dev.setdefault(sy._cdata, name):
      raise Mismatch(
        f"{name}: shares its storage with {first_dev[sy._cdata]}, should be {first_cpu[sx._cdata]}"
      )
    if sy.nbytes():
      if pointers.setdefault(sy.data_ptr(), sy._cdata) != sy._cdata:
        raise Mismatch(f"{name}: its data_ptr belongs to another storage")
      if y.numel() and y.data_ptr() - sy.data_ptr() != x.data_ptr() - sx.data_ptr():
        raise Mismatch(f"{name}: data_ptr is not storage + offset")


def compare_values(cpu, dev):
  for name, x in cpu.variables().items():
    y = dev.variables()[name].cpu()
    if tuple(y.shape) != tuple(x.shape) or y.dtype != x.dtype:
      raise Mismatch(f"{name}.cpu() is {y.dtype} {tuple(y.shape)}, should be {x.dtype} {x.shape}")
    if x.dtype.is_floating_point:
      # Bits that dtype views made may be denormals, which a device may flush to zero.
      same = torch.isclose(
        x.double(),
        y.double(),
        rtol=2e-2 if x.dtype is torch.bfloat16 else 1e-6,
        atol=1e-30,
        equal_nan=True,
      ).all()
    else:
      same = torch.equal(x, y)
    if not same:
      raise Mismatch(f"{name}: value differs\ncpu    {x.tolist()}\ndevice {y.tolist()}")


def run_program(statements, device, checks):
  """Runs a program on both devices. `checks` holds the step numbers after which values are compared
  (metadata always is). Gives None or the failure's text."""
  cpu, dev = World("cpu"), World(device)
  last = "start"
  try:
    for step, statement in enumerate(statements):
      last = statement
      try:
        cpu.run(statement)
      except Exception:
        continue  # shrinking removed what this needed
      try:
        dev.run(statement)
      except Exception as error:
        return f"at `{statement}`: device raised {type(error).__name__}: {str(error)[:600]}"
      compare_geometry(cpu, dev, statement)
      if step in checks:
        compare_values(cpu, dev)
    compare_values(cpu, dev)
  except Mismatch as error:
    return f"at `{last}`: {error}"
  except Exception as error:
    return f"at `{last}`: comparing raised {type(error).__name__}: {str(error)[:600]}"
  return None


def generate(seed, steps):
  rng = random.Random(seed)
  world = World("cpu")
  generator = Generator(rng, world)
  statements = []
  tries = 0
  while len(statements) < steps and tries < 20 * steps:
    tries += 1
    statement = generator.propose()
    before = dict(world.names)
    try:
      world.run(statement)
    except Exception:
      world.names = before
      continue
    if any(t.numel() > MAX_ELEMENTS for t in world.variables().values()):
      big = [n for n, t in world.variables().items() if t.numel() > MAX_ELEMENTS]
      if len(big) == 1 and big[0] not in before:
        world.names = before
        continue
    statements.append(statement)
  return statements


def shrink(statements, device, checks_all):
  """Drops statements while the program still fails; values are then compared after each step."""

  def fails(candidate):
    checks = set(range(len(candidate))) if checks_all else set()
    return run_program(candidate, device, checks) is not None

  current = list(statements)
  if not fails(current):
    return current, False
  chunk = max(len(current) // 2, 1)
  while True:
    position, removed = 0, False
    while position < len(current):
      candidate = current[:position] + current[position + chunk :]
      if candidate and fails(candidate):
        current, removed = candidate, True
      else:
        position += chunk
    if chunk == 1 and not removed:
      return current, True
    chunk = max(chunk // 2, 1)


def check_seed(seed, device, steps=None, value_checks=0.25):
  """Generates and runs one program; raises AssertionError with a reproducer when it fails.

  value_checks: chance per step that values are compared there; few leave long windows."""
  rng = random.Random(seed * 7919 + 1)
  statements = generate(seed, steps or rng.choice((4, 8, 12, 16, 24)))
  checks = {k for k in range(len(statements)) if rng.random() < value_checks}
  text = run_program(statements, device, checks)
  if text is None:
    return len(statements)
  small, again = shrink(statements, device, False)
  if not again:
    small, again = shrink(statements, device, True)
  why = run_program(small, device, set() if not again else set(range(len(small)))) or text
  program = "\n".join(f"  {s}" for s in small)
  note = "" if again else "\n(not reproduced when run again: depends on where values are compared)"
  raise AssertionError(
    f"seed {seed}: {text}\nsmallest program ({len(small)} steps){note}:\n{program}\n=> {why}"
  )


def main():
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--seed", type=int, default=0)
  parser.add_argument("--programs", type=int, default=100)
  parser.add_argument("--steps", type=int)
  parser.add_argument("--device", default="tpu")
  parser.add_argument("--mode", choices=("fused", "strict", "debug"))
  parser.add_argument("--values", type=float, default=0.25, help="chance of a value check per step")
  parser.add_argument("--show", action="store_true", help="print the programs only")
  args = parser.parse_args()
  if args.mode:
    import support

    torch.tpu.eager_mode = support.mode_value(args.mode)
  failed = steps = 0
  for seed in range(args.seed, args.seed + args.programs):
    if args.show:
      print(f"# seed {seed}", *generate(seed, args.steps or 12), sep="\n")
      continue
    try:
      steps += check_seed(seed, args.device, args.steps, args.values)
    except AssertionError as error:
      failed += 1
      print(error, "\n", flush=True)
  print(f"{args.programs} programs, {steps} steps, {failed} failed")
  return 1 if failed else 0


if __name__ == "__main__":
  sys.exit(main())
