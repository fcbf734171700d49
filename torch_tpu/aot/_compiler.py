"""libtpu in a child process: it compiles for TPUs that are not there, within a limit of CPU
seconds, and may end or hang without harm to this process.
"""

import json
import os
import select
import subprocess
import sys
import tempfile
from pathlib import Path

DIED = "the compiler died"
MOST_MEMORY = 3 << 30  # of a child, which is then replaced


def serve():
  """In the child: a line names plugin, target and a file, and where the optimised program goes; the
  answer is a line of JSON."""
  import resource
  import time

  from torch_tpu import _C

  print("ready", flush=True)
  for line in sys.stdin:
    plugin, target, path, optimized = json.loads(line)
    begun = time.process_time()
    try:
      answer = _C.compile_for(plugin, "tpu", target, Path(path).read_text(), bool(optimized))
    except (RuntimeError, NotImplementedError) as error:
      answer = {"error": str(error)}
    if "optimized" in answer:
      Path(optimized).write_bytes(answer.pop("optimized"))
    answer["seconds"] = round(time.process_time() - begun, 3)
    answer["last"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > MOST_MEMORY
    print(json.dumps(answer), flush=True)
    if answer["last"]:
      return


class Child:
  """A process that compiles, started when needed and replaced when it ends or takes more than
  `seconds` of a processor for one program. To be used in a with statement."""

  def __init__(self, seconds):
    self.seconds = seconds
    self.process = None

  def __enter__(self):
    return self

  def __exit__(self, *exc):
    self.stop()

  def _start(self):
    env = os.environ | {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    root = str(Path(__file__).resolve().parent.parent.parent)
    env["PYTHONPATH"] = os.pathsep.join([root, env.get("PYTHONPATH", "")])
    self.process = subprocess.Popen(
      [sys.executable, "-c", "from torch_tpu.aot._compiler import serve; serve()"],
      stdin=subprocess.PIPE,
      stdout=subprocess.PIPE,
      stderr=subprocess.DEVNULL,
      env=env,
    )
    if self._read() != "ready":
      raise RuntimeError("torch_tpu.aot: the process that compiles did not start")

  def _cpu_seconds(self):
    fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

  def _read(self):
    """A line, or None when there is none in time; the machine may be busy with other things."""
    begun = self._cpu_seconds()
    while not select.select([self.process.stdout], [], [], 0.5)[0]:
      if self._cpu_seconds() > begun + self.seconds:
        return None
    return self.process.stdout.readline().decode().strip()

  def stop(self):
    if self.process is not None:
      self.process.kill()
      self.process.wait()
      self.process = None

  def compile(self, plugin, target, text, optimized=False):
    """What _C.compile_for says of the program, with the CPU `seconds` it took; or its `error`."""
    if self.process is None or self.process.poll() is not None:
      self._start()
    with tempfile.TemporaryDirectory() as folder:
      path, made = Path(folder) / "program.mlir", Path(folder) / "optimized.pb"
      path.write_text(text)
      request = [plugin, target, str(path), str(made) if optimized else ""]
      self.process.stdin.write((json.dumps(request) + "\n").encode())
      self.process.stdin.flush()
      line = self._read()
      answer = json.loads(line) if line else {}
      if answer.pop("last", True):
        self.stop()
      if made.exists():
        answer["optimized"] = made.read_bytes()
    return answer or {"error": DIED if line == "" else f"took more than {self.seconds} CPU s"}
