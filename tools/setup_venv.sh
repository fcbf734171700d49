#!/bin/sh
# Makes the virtual environment and installs pinned packages.
# Usage: setup_venv.sh VENV run|test|tpu|docs [PYTHON]   (`run` first; the others add what tests need, libtpu, mkdocs)
#        setup_venv.sh VENV ecosystem BASE            (on top of the packages of the environment BASE)
set -eu

TORCH=2.13.0
CPU_PLUGIN=lammps-jax-pjrt-cpu==0.11.2
TEST_PLUGINS="xla-cpu-pjrt==0.0.1 pypjrt==0.1.1"

venv=$1
stage=$2
python=${3:-python3}
here=$(cd "$(dirname "$0")/.." && pwd)

fail() {
  echo "make: $1" >&2
  exit 1
}

check_machine() {
  command -v "$python" >/dev/null || fail "no $python. Run: sudo apt-get install python3 python3-venv python3-dev"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$python" --version) is too old: 3.11 or newer is needed (make PYTHON=/path/to/python3)."
  for compiler in gcc g++; do
    command -v $compiler >/dev/null || fail "no $compiler. Run: sudo apt-get install gcc g++"
  done
  "$python" -c 'import os, sysconfig, sys
sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))' ||
    fail "Python's C headers are missing. Run: sudo apt-get install python3-dev"
  "$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "Python's venv module is missing. Run: sudo apt-get install python3-venv"
}

# pip in short lines: what it downloads and installs, and all it said if it fails.
pip_install() {
  {
    PYTHONUNBUFFERED=1 "$venv/bin/python" -m pip install --progress-bar off \
      --disable-pip-version-check "$@" 2>&1 || echo "make: pip failed"
  } | awk '
    { said = said $0 "\n" }
    /^ *(Downloading|Using cached) / && !/\.metadata/ {
      sub(/^ *Downloading /, "downloads "); sub(/^ *Using cached /, "has "); sub(/[^ ]*\//, "")
      sub(/-[^ ]*\.whl/, ""); print "  " $0; fflush()
    }
    /^Installing/ { sub(/^Installing collected packages:/, "installs"); print "  " $0; fflush() }
    /^make: pip failed/ { failed = 1 }
    END { if (failed) { printf "%s", said > "/dev/stderr"; exit 1 } }'
}

# The plain name may mean a CUDA build of several GB: take the CPU build from wherever pip is
# configured to look, else from PyTorch's own index.
install_torch() {
  pip_install "torch==$TORCH+cpu" 2>/dev/null ||
    pip_install "torch==$TORCH+cpu" --extra-index-url https://download.pytorch.org/whl/cpu
}

case $stage in
  run)
    check_machine
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    echo "Installing PyTorch $TORCH (CPU), the PJRT plugin and build tools into $venv ..."
    install_torch
    pip_install --no-deps "$CPU_PLUGIN"
    pip_install -r "$here/requirements/build.txt" -r "$here/requirements/run.txt"
    ;;
  test)
    echo "Installing test packages into $venv ..."
    # shellcheck disable=SC2086
    pip_install --no-deps $TEST_PLUGINS
    pip_install -r "$here/requirements/test.txt"
    ;;
  tpu)
    echo "Installing libtpu into $venv ..."
    pip_install --no-deps -r "$here/requirements/tpu.txt"
    ;;
  docs)
    echo "Installing mkdocs into $venv ..."
    pip_install -r "$here/requirements/docs.txt"
    ;;
  ecosystem)
    echo "Installing libraries on top of PyTorch into $venv ..."
    [ -x "$venv/bin/python" ] || "$3/bin/python" -m venv "$venv"
    site='import sysconfig; print(sysconfig.get_paths()["purelib"])'
    "$3/bin/python" -c "$site" >"$("$venv/bin/python" -c "$site")/base.pth"
    pip_install -r "$here/requirements/ecosystem.txt" "torch==$TORCH"
    ;;
  sweep)
    # torchvision, which timm wants, is the CPU build where there is one; it must not bring a torch.
    pip_install -r "$here/requirements/sweep.txt"
    pip_install --no-deps timm==1.0.31 diffusers==0.42.1
    pip_install --no-deps "torchvision==0.28.0+cpu" 2>/dev/null || pip_install --no-deps torchvision==0.28.0
    ;;
  *)
    fail "setup_venv.sh: unknown stage '$stage'"
    ;;
esac
