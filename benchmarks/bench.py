"""`make bench`: one table of speeds, ours beside PyTorch's CPU kernels in the same process.

    python benchmarks/bench.py [--quick] [--only TEXT] [--out FILE]
    python benchmarks/bench.py --setup-jax     installs JAX into .venv-jax for the peer columns

Each side has one thread. A and B alternate and medians are shown, because the machine is usually
shared: ratios hold better than times. Nothing here is asserted by a test.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
JAX_PYTHON = Path(os.environ.get("BENCH_JAX_PYTHON", ROOT / ".venv-jax" / "bin" / "python"))
JAX_VERSION = "0.10.2"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TORCH_TPU_CPU_THREADS": "1"}
# Most lines are about what repeats; first contact is measured in processes of its own.
REPEATED = ONE_THREAD | {"TORCH_TPU_TIERS": "compiled"}


def run_with_one_thread():
  """Thread counts are read when libraries load: start again with them in the environment."""
  if any(os.environ.get(key) != value for key, value in REPEATED.items()):
    os.environ.update(REPEATED)
    os.execv(sys.executable, [sys.executable, *sys.argv])


@dataclass
class Row:
  line: str
  ours: str
  cpu: str
  ratio: str
  must: str
  met: bool | None
  peer: str = ""


def clock(work, now=time.perf_counter):
  start = now()
  work()
  return now() - start


def alternate(repeats, *works, now=time.perf_counter):
  """Median seconds of each function; they take turns, so that load on the machine hits all."""
  times = [[] for _ in works]
  for _ in range(repeats):
    for spent, work in zip(times, works):
      spent.append(clock(work, now))
  return [statistics.median(spent) for spent in times]


class JaxPeer:
  """The JAX process, or None when JAX is not installed."""

  def __init__(self):
    self.process = None
    if JAX_PYTHON.exists():
      env = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "NPROC": "1",
        "PJRT_NPROC": "1",
        "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false",
      }
      self.process = subprocess.Popen(
        [JAX_PYTHON, Path(__file__).with_name("peer_jax.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=env,
      )

  def seconds(self, name, steps):
    if self.process is None:
      return None
    print(name, steps, file=self.process.stdin, flush=True)
    answer = self.process.stdout.readline()
    return float(answer) if answer else None

  def close(self):
    if self.process is not None:
      self.process.stdin.close()
      self.process.wait()


def small_adds(torch, mode, must_us, beat_cpu, quick, bar=None):
  import workloads

  count = 1000
  ours = workloads.dependent_adds("tpu", count)
  cpu = workloads.dependent_adds("cpu", count)
  with torch.tpu.set_eager_mode(mode):
    for _ in range(5):
      ours(), cpu()
    # What is short of a scheduler's slice is timed right on an idle machine only.
    now = time.perf_counter if bar is None else time.process_time
    mine, theirs = alternate(7 if quick else 31, ours, cpu, now=now)
  mine, theirs = mine / count * 1e6, theirs / count * 1e6
  met = mine <= must_us and (not beat_cpu or mine <= theirs)
  if bar is not None:
    return Row(
      "the same, interpreted, CPU time",
      f"{mine:.2f} us",
      f"{theirs:.2f} us",
      f"{mine / theirs:.2f}",
      f"<= {bar}",
      mine <= bar * theirs,
    )
  return Row(
    f"1,000 dependent `x = x + y` on 4 floats, {mode}, per op",
    f"{mine:.2f} us",
    f"{theirs:.2f} us",
    f"{theirs / mine:.2f}x",
    f"<= {must_us} us" + (" and <= CPU" if beat_cpu else ""),
    met,
  )


def big_elementwise(torch, quick):
  import workloads

  ours, cpu = workloads.elementwise("tpu"), workloads.elementwise("cpu")
  for _ in range(3):
    ours(), cpu()
  mine, theirs = alternate(5 if quick else 15, ours, cpu)
  return Row(
    "20 elementwise ops on 1M floats, fused",
    f"{mine * 1e3:.2f} ms",
    f"{theirs * 1e3:.2f} ms",
    f"{theirs / mine:.2f}x",
    ">= 2x",
    theirs >= 2 * mine,
  )


def view_writes(torch, quick):
  """Two rows through each kind of view, of a small buffer and of a large one."""
  import workloads

  rows = []
  for name in workloads.VIEW_WRITES:
    sides = [workloads.view_writes(name, size, "tpu") for size in (4, 256)]
    sides.append(workloads.view_writes(name, 256, "cpu"))
    works = [lambda write=write: (write(), torch.tpu.synchronize()) for _, write in sides]
    for work in works * 5:
      work()
    small, large, theirs = alternate(21 if quick else 101, *works)
    rows.append(
      Row(
        f"2 rows through a view of 256 MiB, {name.replace('_', ' ')} (4 MiB: {small * 1e6:.0f} us)",
        f"{large * 1e6:.0f} us",
        f"{theirs * 1e6:.0f} us",
        f"{theirs / large:.2f}x",
        "<= 1.5x of 4 MiB",
        large <= 1.5 * small,
      )
    )
  return rows


def training(name, make, steps, warmup, repeats, jax, must, must_jax=None):
  """Steps per second of a training loop against CPU eager and, when installed, JAX jit."""
  ours, cpu = make("tpu"), make("cpu")
  ours.run(warmup), cpu.run(max(warmup // 3, 1))
  key = "gpt" if "GPT" in name else "mlp"
  jax.seconds(key, 2)
  times = ([], [], [])
  for _ in range(repeats):
    times[0].append(clock(lambda: ours.run(steps)) / steps)
    times[1].append(clock(lambda: cpu.run(steps)) / steps)
    peer = jax.seconds(key, steps)
    if peer is not None:
      times[2].append(peer / steps)
  mine, theirs = (statistics.median(t) for t in times[:2])
  met = theirs / mine >= must
  text = "JAX: not installed (--setup-jax)"
  if times[2]:
    peer = statistics.median(times[2])
    text = f"JAX jit {1 / peer:.1f}/s = {theirs / peer:.2f}x CPU, ours {peer / mine:.2f}x JAX"
    met = met and (must_jax is None or peer / mine >= must_jax)
  goal = f">= {must}x CPU" + (f" and >= {must_jax}x JAX" if must_jax else "")
  return Row(
    name,
    f"{1 / mine:.1f} steps/s",
    f"{1 / theirs:.1f} steps/s",
    f"{theirs / mine:.2f}x",
    goal,
    met,
    text,
  )


def index_checks(torch, words, batch, quick):
  """A training step with the checks of indices in its programs, over the same step without."""
  import workloads

  import torch_tpu._C as core

  # With the switch as it is when the programs are made, step by step in turns.
  trainers = {
    switch: workloads.next_words("tpu", words, batch=batch, ignored=-100 - int(switch))
    for switch in ("1", "0")
  }

  def run(switch, steps=1):
    core.env_override("TORCH_TPU_CHECK_INDEX", switch)
    trainers[switch].run(steps)

  try:
    for switch in trainers:
      run(switch, 20)
    repeats = (50 if quick else 200) * max(4096 // words, 1)
    mine, without = alternate(repeats, lambda: run("1"), lambda: run("0"))
  finally:
    core.env_override("TORCH_TPU_CHECK_INDEX", None)
  return Row(
    f"embedding and cross entropy, {words:,} words, batch {batch}: checks of indices, over none",
    f"{mine * 1e6:.0f} us",
    "-",
    f"{mine / without:.3f} of {without * 1e6:.0f} us",
    "<= 1.02",
    mine <= 1.02 * without,
  )


def serving(torch, width, batch, requests, quick):
  """Requests per second of four threads with one model, over those of one thread."""
  import workloads

  ours, cpu = workloads.Server("tpu", width, batch), workloads.Server("cpu", width, batch)
  ours.run(1, 8), cpu.run(4, 8)
  before = torch.tpu.compile_stats()["requests"]
  one, four, theirs = alternate(
    9 if quick else 41,
    lambda: ours.run(1, requests),
    lambda: ours.run(4, requests),
    lambda: cpu.run(4, requests),
  )
  compiles = torch.tpu.compile_stats()["requests"] - before
  return Row(
    f"4 threads with one model, 6 layers of {width}, batch {batch}, over one thread",
    f"{requests / four:.0f} requests/s, {compiles} compiles",
    f"{requests / theirs:.0f} requests/s",
    f"{one / four:.2f}x of one thread",
    ">= 1x, 0 compiles",
    one >= four and compiles == 0,
  )


def compiles_after_warmup(torch):
  import workloads

  step = workloads.changing_numbers("tpu")
  for number in range(3):
    step(number)
  before = torch.tpu.compile_stats()
  for number in range(3, 13):
    step(number)
  after = torch.tpu.compile_stats()
  count = sum(after[key] - before[key] for key in ("compiles", "disk_hits"))
  return Row(
    "learning rate, loss scale, step count changing every step",
    f"{count} compiles",
    "-",
    "-",
    "0 after step 3",
    count == 0,
  )


def python(code, *arguments, **env):
  """Runs a child with this environment plus `env`; gives its output."""
  return subprocess.run(
    [sys.executable, "-c", code, *arguments],
    env={**os.environ, **env},
    check=True,
    stdout=subprocess.PIPE,
    text=True,
    cwd=Path(__file__).parent,
  ).stdout


def import_time(quick):
  """`import torch` with our entry point loaded, against the same with autoload switched off."""
  code = "import time; t = time.perf_counter(); import torch; print(time.perf_counter() - t)"
  runs = {"1": [], "0": []}
  python(code)  # warms the file cache
  for _ in range(3 if quick else 9):
    for autoload, seconds in runs.items():
      seconds.append(float(python(code, TORCH_DEVICE_BACKEND_AUTOLOAD=autoload)))
  mine, without = statistics.median(runs["1"]), statistics.median(runs["0"])
  return Row(
    "`import torch` with the package, over without",
    f"{mine:.2f} s",
    f"{without:.2f} s",
    f"+{mine - without:.2f} s",
    "<= 0.2 s more",
    mine - without <= 0.2,
  )


# Runs in a process of its own: the device, the work, how often. Prints CPU seconds of the process,
# which also count what is compiled in the background and not waited for: of the first time, of
# all and of the last, and how many programs were asked for. (PyTorch's own meta kernels in Python
# import the module once per process, for 0.4 s.)
FIRST_CONTACT = """
import sys, time, torch, torch.fx.experimental.symbolic_shapes, workloads
device, name, repeats, *lengths = sys.argv[1:]
torch.set_num_threads(1)
torch.ones(2, device=device).add(1).tolist()
works = [workloads.generator(device, int(n)) for n in lengths] or [workloads.FIRST[name](device)]
works *= int(repeats)
workloads.synchronize(device)
seconds = []
for work in works:
  start = time.process_time()
  work()
  seconds.append(time.process_time() - start)
asked = torch.tpu.compile_stats()["requests"] if device == "tpu" else 0
print(seconds[0], sum(seconds), seconds[-1], asked)
"""


def in_a_fresh_process(device, name, repeats, *lengths, **env):
  arguments = [device, name, str(repeats), *map(str, lengths)]
  return [float(x) for x in python(FIRST_CONTACT, *arguments, **env).split()]


def first_contact(quick, name, what, must, repeats=1, lengths=(), column=0, compiles=None):
  """CPU seconds in fresh processes with empty caches, this device and the CPU in turns."""
  ours, cpu = [], []
  for _ in range(1 if quick else 5):
    with tempfile.TemporaryDirectory() as cache:
      env = {"TORCH_TPU_TIERS": "interpreted", "TORCH_TPU_CACHE_DIR": cache}
      ours.append(in_a_fresh_process("tpu", name, repeats, *lengths, **env))
    cpu.append(in_a_fresh_process("cpu", name, repeats, *lengths))
  mine, theirs = (statistics.median(run[column] for run in runs) for runs in (ours, cpu))
  asked = int(max(run[3] for run in ours))
  met = mine <= must * theirs and (compiles is None or asked <= compiles)
  return Row(
    what,
    f"{mine:.3f} s, {asked} programs",
    f"{theirs:.3f} s",
    f"{mine / theirs:.2f}",
    f"<= {must}" + ("" if compiles is None else f", {compiles} programs"),
    met,
  )


def first_contacts(quick):
  rows = []
  for name in ("gpt", "resnet18", "unet", "llama"):
    rows.append(first_contact(quick, name, f"first training step, {name}, empty caches", 3))
  for name, must in (("resnet18", 3), ("gpt", 1.5)):
    what = f"20 training steps, {name}, empty caches"
    rows.append(first_contact(quick, name, what, must, repeats=20, column=1))
  for name in ("metrics", "gradcheck", "prints"):
    rows.append(first_contact(quick, name, f"{name}, the first time", 3, compiles=0))
  what = "twelve words of a tiny Llama"
  rows.append(first_contact(quick, "-", f"{what}, the first time", 2.5, lengths=[6]))
  rows.append(
    first_contact(quick, "-", f"{what}, another prompt length", 2, lengths=[6, 9], column=2)
  )
  return rows


def interpreted_ops(torch, quick):
  """The cost of an operation on 4 floats in windows that are interpreted."""
  import torch_tpu._C as core

  core.env_override("TORCH_TPU_TIERS", "interpreted")
  core.env_override("TORCH_TPU_INTERPRETATIONS", "1000000")
  try:
    return small_adds(torch, "fused", 1e9, False, quick, bar=3)
  finally:
    core.env_override("TORCH_TPU_TIERS", None)
    core.env_override("TORCH_TPU_INTERPRETATIONS", None)


def op_sweep(quick):
  """Seconds of the op_db sweep of tests/ in float32, this device over the CPU, one sample each."""
  code = (
    "import sys, time, warnings; warnings.simplefilter('ignore')\n"
    "sys.path.insert(0, '../tests')\n"
    "import torch, test_ops\n"
    "torch.set_num_threads(1)\n"
    "start = time.process_time()\n"
    "for row, op, dtype in test_ops.cases():\n"
    "  if dtype is not torch.float32: continue\n"
    "  for sample in list(op.sample_inputs(sys.argv[1], dtype))[:1]:\n"
    "    torch.utils._pytree.tree_map_only(\n"
    "      torch.Tensor, torch.Tensor.cpu, op(sample.input, *sample.args, **sample.kwargs))\n"
    "print(time.process_time() - start)"
  )
  times = {"tpu": [], "cpu": []}
  for _ in range(1 if quick else 3):
    with tempfile.TemporaryDirectory() as cache:
      env = {"TORCH_TPU_TIERS": "interpreted", "TORCH_TPU_CACHE_DIR": cache}
      for device, seconds in times.items():
        seconds.append(float(python(code, device, **env)))
  mine, theirs = statistics.median(times["tpu"]), statistics.median(times["cpu"])
  return Row(
    "op_db, float32, a sample per operation, empty caches",
    f"{mine:.2f} s",
    f"{theirs:.2f} s",
    f"{mine / theirs:.2f}",
    "<= 3",
    mine <= 3 * theirs,
  )


def compiled_first(quick):
  """The GPT's first step when programs are compiled at once, and with a filled cache on disk."""
  times = {"empty caches, compiled at once": [], "compiled, disk cache filled": []}
  cpu = []
  for _ in range(1 if quick else 3):
    cpu.append(in_a_fresh_process("cpu", "gpt", 1)[0])
    with tempfile.TemporaryDirectory() as cache:
      for seconds in times.values():
        env = {"TORCH_TPU_CACHE_DIR": cache}
        seconds.append(in_a_fresh_process("tpu", "gpt", 1, **env)[0])
  theirs = statistics.median(cpu)
  return [
    Row(
      f"first step of the GPT, {way}",
      f"{statistics.median(seconds):.2f} s",
      f"{theirs:.2f} s",
      f"{statistics.median(seconds) / theirs:.2f}",
      "report",
      None,
    )
    for way, seconds in times.items()
  ]


def compiled_calls(quick):
  import workloads

  ours = workloads.compiled_call("tpu", "tpu")
  eager = workloads.compiled_call("tpu", "eager")
  for _ in range(3):
    ours(), eager()
  mine, theirs = (s / 200 * 1e6 for s in alternate(7 if quick else 31, ours, eager))
  return Row(
    'compiled call of 3 operations; beside it backend="eager" on the device',
    f"{mine:.1f} us",
    f"{theirs:.1f} us",
    f"{mine / theirs:.2f}",
    "<= 1.0",
    mine <= theirs,
  )


def compiled_gpt(quick):
  """Inductor needs a C++ compiler, and about a minute at first."""
  import workloads

  ours, inductor = workloads.CompiledGpt("tpu"), workloads.CompiledGpt("cpu")
  rows = []
  for what in ("forward", "step"):
    works = [getattr(side, what) for side in (ours, inductor)]
    for _ in range(3):
      [work() for work in works]
    mine, theirs = alternate(5 if quick else 15, *works)
    rows.append(
      Row(
        f"GPT 6x128 under torch.compile, {what}; beside it Inductor on the CPU",
        f"{mine * 1e3:.0f} ms",
        f"{theirs * 1e3:.0f} ms",
        f"{theirs / mine:.2f}x",
        ">= 1.0x",
        mine <= theirs,
      )
    )
  return rows


def table(rows):
  lines = [
    "| line | TorchTPU | PyTorch CPU eager | ratio | must reach | | peer |",
    "|---|---|---|---|---|---|---|",
  ]
  for row in rows:
    mark = {None: "", True: "yes", False: "**no**"}[row.met]
    lines.append(
      f"| {row.line} | {row.ours} | {row.cpu} | {row.ratio} | {row.must} | {mark} | {row.peer} |"
    )
  return "\n".join(lines)


def setup_jax():
  folder = JAX_PYTHON.parent.parent
  subprocess.run([sys.executable, "-m", "venv", folder], check=True)
  subprocess.run(
    [
      JAX_PYTHON,
      "-m",
      "pip",
      "install",
      "--quiet",
      f"jax=={JAX_VERSION}",
      f"jaxlib=={JAX_VERSION}",
    ],
    check=True,
  )
  print(f"JAX {JAX_VERSION} is in {folder}")


def measure(torch, quick, wanted):
  """Yields the rows; a row that fails says why instead of ending the run."""
  import workloads

  jax = JaxPeer()
  work = [
    ("adds fused", lambda: small_adds(torch, "fused", 1.2, True, quick)),
    ("adds strict", lambda: small_adds(torch, "strict", 6, False, quick)),
    ("elementwise", lambda: big_elementwise(torch, quick)),
    ("views", lambda: view_writes(torch, quick)),
    (
      "mlp",
      lambda: training(
        "MLP 3x256, batch 32, Adam, fused", workloads.mlp, 30, 30, 5 if quick else 15, jax, 1.5
      ),
    ),
    (
      "gpt",
      lambda: training(
        "GPT of `make run`, batch 4, train step, fused",
        workloads.GptTrainer,
        3,
        6,
        3 if quick else 9,
        jax,
        0.7,
        1.8,
      ),
    ),
    ("index checks", lambda: index_checks(torch, 4096, 512, quick)),
    ("index checks, small", lambda: index_checks(torch, 64, 32, quick)),
    ("threads", lambda: serving(torch, 512, 32, 40, quick)),
    ("threads, small", lambda: serving(torch, 64, 4, 400, quick)),
    ("compiled call", lambda: compiled_calls(quick)),
    ("compiled gpt", lambda: compiled_gpt(quick)),
    ("compiles", lambda: compiles_after_warmup(torch)),
    ("import", lambda: import_time(quick)),
    ("interpreted", lambda: interpreted_ops(torch, quick)),
    ("first contact", lambda: first_contacts(quick)),
    ("first step, compiled", lambda: compiled_first(quick)),
    ("sweep", lambda: op_sweep(quick)),
  ]
  try:
    for name, make in work:
      if wanted and wanted not in name:
        continue
      try:
        made = make()
      except Exception as error:
        made = Row(
          name, f"failed: {type(error).__name__}: {str(error)[:150]}", "-", "-", "-", False
        )
      yield from made if isinstance(made, list) else [made]
  finally:
    jax.close()


def main():
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--quick", action="store_true", help="fewer repeats")
  parser.add_argument("--only", default="", help="only lines whose short name contains this")
  parser.add_argument("--out", type=Path, help="also write the table here")
  parser.add_argument("--setup-jax", action="store_true")
  args = parser.parse_args()
  if args.setup_jax:
    return setup_jax()
  run_with_one_thread()
  import torch

  torch.set_num_threads(1)
  torch.tpu.eager_mode = torch.tpu.EagerMode.DEFER_AND_FUSE
  rows = []
  for row in measure(torch, args.quick, args.only):
    rows.append(row)
    print(f"{row.line}: {row.ours}, CPU {row.cpu}, {row.ratio}", file=sys.stderr, flush=True)
  text = (
    f"{torch.tpu.get_device_name()}, torch {torch.__version__}, one thread each\n\n{table(rows)}\n"
  )
  print(text)
  if args.out:
    args.out.write_text(text)


if __name__ == "__main__":
  main()
