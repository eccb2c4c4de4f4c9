#!/usr/bin/env bash
# Creates a virtual environment with the CUDA build of torch 2.11.0, which r1 loads at run time for
# `policy.device=cuda`, and prints the line that selects it.
#
#   setup/cuda.sh [DIR]                DIR is .venv-cuda in the cache of r1 by default
#   setup/cuda.sh --no-driver [DIR]    on a machine without a driver, as in the build of an image
#   eval "$(setup/cuda.sh)"            creates it if missing, and selects it in this shell
#
# torch 2.11.0 of PyPI for Linux is the build for CUDA 13.0 (torch/version.py: 2.11.0+cu130). Its
# dependencies are the CUDA libraries: a CUDA toolkit is not needed, only the NVIDIA driver.
set -euo pipefail

version=2.11.0
# The first driver series of CUDA 13, and the first GPU architecture that CUDA 13 has.
driver_min=580
capability_min=7.5
# MB of disk space for the packages and their downloads.
space=8000
# PyTorch's index of the builds for CUDA 13.0.
index=https://download.pytorch.org/whl/cu130
say() { echo "cuda: $*" >&2; }
fail() { echo "error: $1" >&2; echo "  hint: $2" >&2; exit 1; }

driver=yes dir=
for argument in "$@"; do
  case "$argument" in
    --no-driver) driver=no ;;
    -*) fail "unknown option $argument" "usage: setup/cuda.sh [--no-driver] [DIR]" ;;
    *) [ -z "$dir" ] || fail "two directories: $dir and $argument" "usage: setup/cuda.sh [--no-driver] [DIR]"
      dir=$argument ;;
  esac
done
if [ -z "$dir" ]; then
  # r1 ignores a relative XDG_CACHE_HOME.
  case "${XDG_CACHE_HOME:-}" in
    /*) dir=$XDG_CACHE_HOME/r1/.venv-cuda ;;
    *) dir=${HOME:?HOME is not set}/.cache/r1/.venv-cuda ;;
  esac
fi
case "$dir" in /*) ;; *) dir=$PWD/$dir ;; esac

case "$(uname -s)-$(uname -m)" in
  Linux-x86_64 | Linux-aarch64) ;;
  *) fail "there is no CUDA build of torch $version for $(uname -s) $(uname -m)" "use policy.device=cpu here" ;;
esac

needs="torch $version for CUDA 13.0 needs an NVIDIA driver of version $driver_min or newer"
if [ "$driver" = yes ]; then
  without="to prepare the environment without a driver: setup/cuda.sh --no-driver"
  command -v nvidia-smi > /dev/null ||
    fail "nvidia-smi is not found: $needs" "install the driver of your distribution or of nvidia.com; $without"
  found=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>&1) ||
    fail "nvidia-smi fails: ${found%%$'\n'*}" "$needs, with its kernel module loaded; reboot after an update of the driver; $without"
  found=${found%%$'\n'*}
  [[ $found =~ ^[0-9]+\. ]] ||
    fail "nvidia-smi reports no driver version: ${found:-no output}" "$needs, and a GPU; $without"
  [ "${found%%.*}" -ge "$driver_min" ] ||
    fail "the NVIDIA driver is $found: $needs" "update the driver, then reboot; $without"
  # An old nvidia-smi does not have this field. One of several GPUs that CUDA 13 supports is enough.
  if capabilities=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null); then
    newest=$(sort -V <<< "$capabilities" | tail -n 1)
    [[ ! $newest =~ ^[0-9]+\.[0-9]+$ ]] || [ "$(printf '%s\n' "$newest" "$capability_min" | sort -V | head -n 1)" = "$capability_min" ] ||
      fail "the GPU has compute capability $newest, and CUDA 13 needs $capability_min or newer" "use policy.device=cpu, or another machine"
  fi
  say "NVIDIA driver $found"
fi

torch_of() { find "$dir"/lib -maxdepth 3 -path '*/python3*/site-packages/torch' 2> /dev/null | head -n 1; }

if [ ! -e "$dir/.complete" ]; then
  python=$(command -v python3 || true)
  [ -n "$python" ] || fail "python3 is missing" "install it (Debian, Ubuntu: apt-get install python3 python3-venv)"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "torch $version needs Python 3.10 or newer, and $python is $("$python" -c 'import platform; print(platform.python_version())')" \
      "put a newer python3 first on PATH"
  "$python" -c 'import ensurepip, venv' 2> /dev/null ||
    fail "$python can't create virtual environments" "install the package (Debian, Ubuntu: apt-get install python3-venv)"
  [ ! -e "$dir" ] || [ -e "$dir/pyvenv.cfg" ] || [ -z "$(ls -A "$dir")" ] ||
    fail "$dir has other files" "name a directory that does not exist"
  mkdir -p "$dir" 2> /dev/null || fail "$dir can't be created" "name a directory that you can write: setup/cuda.sh DIR"
  free_mb=$(df -Pm "$dir" | awk 'NR==2 {print $4}')
  [ "$free_mb" -ge "$space" ] ||
    fail "$dir has ${free_mb} MB free, and torch with the CUDA libraries takes $space" "free some space, or name another directory: setup/cuda.sh DIR"
  "$python" -m venv --clear "$dir" >&2 ||
    fail "$python can't create the virtual environment $dir" "see its message above"
  progress=off; [ -t 2 ] && progress=on
  say "installing torch $version and the CUDA libraries from the package index (several GB, once) into $dir"
  "$dir/bin/python3" -m pip install --quiet --disable-pip-version-check --progress-bar "$progress" \
    --only-binary=:all: "torch==$version" >&2 ||
    fail "pip could not install torch $version" "check the network, the disk space (also of TMPDIR) and the index of pip (pip config list); PIP_INDEX_URL=$index is the index of PyTorch"
  torch=$(torch_of)
  [ -n "$torch" ] && [ -e "$torch/lib/libtorch_cuda.so" ] ||
    fail "the torch that pip installed has no CUDA libraries" "the index of pip has another build; try PIP_INDEX_URL=$index setup/cuda.sh"
  touch "$dir/.complete"
fi

torch=$(torch_of)
[ -n "$torch" ] && [ -e "$torch/lib/libtorch_cuda.so" ] ||
  fail "$dir has no CUDA build of torch, although it was installed" "remove the directory and run this again"
if [ "$driver" = yes ]; then
  "$dir/bin/python3" - >&2 <<'PYTHON' || fail "torch finds no usable GPU" "see the message above; check nvidia-smi and CUDA_VISIBLE_DEVICES"
import sys
import torch

if not torch.cuda.is_available():
    torch.cuda.init()
    sys.exit("torch.cuda.is_available() is False")
for number in range(torch.cuda.device_count()):
    print(f"cuda: GPU {number}: {torch.cuda.get_device_name(number)}")
PYTHON
fi
say "ready in $dir; this line selects it (add it to the file that your shell reads at start):"
printf 'export R1_CUDA_TORCH=%q\n' "$torch"
