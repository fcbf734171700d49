"""Counts lines per folder and finds files that are too long.

python tools/count_lines.py          # table
python tools/count_lines.py --check  # fails when a file (tables aside) is too long
"""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIMIT = 1000
KINDS = {".c", ".h", ".cpp", ".py", ".def", ".cmake", ".sh", ".md"}
SKIP = {".git", ".venv", "build", "out", "dist", "__pycache__", ".pytest_cache"}
TABLES = {".def", ".md"}


def source_files():
  for path in sorted(ROOT.rglob("*")):
    relative = path.relative_to(ROOT)
    if path.suffix in KINDS and path.is_file() and not SKIP.intersection(relative.parts):
      yield relative


def main():
  lines = {path: len((ROOT / path).read_bytes().splitlines()) for path in source_files()}
  too_long = [p for p, n in lines.items() if n > LIMIT and p.suffix not in TABLES]
  for path in too_long:
    print(f"{path}: {lines[path]} lines, the limit is {LIMIT}: split it", file=sys.stderr)
  if "--check" not in sys.argv[1:]:
    folders = {}
    for path, count in lines.items():
      key = "/".join(path.parts[:-1][:2]) or "."
      files, total = folders.get(key, (0, 0))
      folders[key] = (files + 1, total + count)
    print(f"{'folder':<24}{'files':>7}{'lines':>9}")
    for folder, (files, total) in sorted(folders.items()):
      print(f"{folder:<24}{files:>7}{total:>9,}")
    print(f"{'all':<24}{len(lines):>7}{sum(lines.values()):>9,}")
  return 1 if too_long else 0


if __name__ == "__main__":
  sys.exit(main())
