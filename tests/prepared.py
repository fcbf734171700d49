"""A process that has imported torch and forks for each child that a test wants, which saves the
seconds of that import. The fork ends as any Python does, with everything that runs at exit.

support.child() starts some of these and talks to them: a request is a line of JSON, the answers are
lines with the child's process id and, at its end, its exit code.
"""

import json
import os
import runpy
import sys

import torch  # imports torch_tpu as well, which starts nothing: no thread, no device
import torch._dynamo  # the first optimizer imports it


def serve():
  """Forks for each request. Returns the request, in the fork; exits when nobody asks any more."""
  for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
      return json.loads(line)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
  sys.exit()


def redirect(number, path, flags):
  file = os.open(path, flags)
  os.dup2(file, number)
  os.close(file)


def run(request):
  """Runs the request's program as `python FILE ...` or `python -c CODE ...` would."""
  redirect(0, os.devnull, os.O_RDONLY)
  redirect(1, request["stdout"], os.O_WRONLY)
  redirect(2, request["stderr"], os.O_WRONLY)
  os.environ.clear()
  os.environ.update(request["env"])
  # What torch reads from there while it is imported.
  torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
  program, sys.argv = request["program"], request["argv"]
  sys.path[0] = os.path.dirname(sys.argv[0]) if program is None else ""
  if program is None:
    runpy.run_path(sys.argv[0], run_name="__main__")
  else:
    main = sys.modules["__main__"].__dict__
    for name in [name for name in main if not name.startswith("__")]:
      del main[name]
    exec(compile(program, "<string>", "exec"), main)


if __name__ == "__main__":
  run(serve())
