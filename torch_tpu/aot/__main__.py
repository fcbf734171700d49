"""python -m torch_tpu.aot MODEL.pt2 --target v5e:1x1: prints what an exported program needs and
costs there. Exit code 0 when it fits, 1 when it does not, 2 for what could not be compiled."""

import argparse
import sys

import torch

from . import DoesNotFit, chips, compile


def main(words=None):
  parser = argparse.ArgumentParser(prog="python -m torch_tpu.aot", description=__doc__)
  parser.add_argument("model", help="a file of torch.export.save")
  parser.add_argument("--target", required=True, help="a chip and a topology, such as v5e:1x1")
  parser.add_argument("--hlo", metavar="PREFIX", help="writes PREFIX.N.pb, the optimised programs")
  options = parser.parse_args(words)
  try:
    chips.split_target(options.target)
    program = torch.export.load(options.model)
    report = compile(program, target=options.target, optimized=bool(options.hlo))
  except DoesNotFit as error:
    print(f"{options.target}: DOES NOT FIT\n{error}")
    return 1
  except (RuntimeError, ValueError, OSError, NotImplementedError) as error:
    print(f"torch_tpu.aot: {error}", file=sys.stderr)
    return 2
  print(report)
  for i, made in enumerate(report.programs if options.hlo else ()):
    with open(f"{options.hlo}.{i}.pb", "wb") as file:
      file.write(made.optimized)
  return 0 if report.fits else 1


if __name__ == "__main__":
  sys.exit(main())
