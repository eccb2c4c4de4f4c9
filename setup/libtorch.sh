#!/usr/bin/env bash
# Installs a CPU-only libtorch 2.11.0 for the build and prints its path.
#
# The PyPI wheel is available on every machine with pip. It is built for CUDA, so the CUDA libraries
# are removed and `libtorch.so`, which needs them, is replaced by an empty shared object that needs
# only `libtorch_cpu.so`. A CUDA torch found at run time is loaded next to it
# (crates/model/src/native/cuda/mod.rs), so the same binary supports both.
#
#   setup/libtorch.sh          fetch if missing, print the directory
#   LIBTORCH=/dir              use this libtorch (2.11), without a download
set -euo pipefail

version=2.11.0
say() { echo "libtorch: $*" >&2; }
fail() { echo "error: $1" >&2; echo "  hint: $2" >&2; exit 1; }

if [ -n "${LIBTORCH:-}" ]; then
  [ -e "$LIBTORCH/lib/libtorch_cpu.so" ] || [ -e "$LIBTORCH/lib/libtorch_cpu.dylib" ] ||
    fail "LIBTORCH=$LIBTORCH has no lib/libtorch_cpu" "point it at the directory that holds lib/ and include/ of libtorch $version, or unset it"
  echo "$LIBTORCH"
  exit 0
fi

root="${R1_LIBTORCH_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/r1}/libtorch-$version"
# Headers for CUDA graphs. Without them r1 is built without CUDA graphs, which is slower on a GPU.
headers() {
  [ "$(uname -s)" = Linux ] && [ ! -d "$1/nvidia/cu13/include/crt" ] || return 0
  "${python:-python3}" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: --target "$1/.crt" \
    nvidia-cuda-crt==13.0.88 > /dev/null 2>&1 && mkdir -p "$1/nvidia/cu13/include" &&
    cp -r "$1/.crt/nvidia/cu13/include/crt" "$1/nvidia/cu13/include/" ||
    say "pip could not fetch nvidia-cuda-crt: this build has no CUDA graphs; run setup again to retry"
  rm -rf "$1/.crt"
}
if [ -e "$root/.complete" ]; then
  headers "$root"
  echo "$root/torch"
  exit 0
fi

python=$(command -v python3 || command -v python || true)
[ -n "$python" ] || fail "python3 is missing; pip fetches libtorch" "install it (Debian: apt-get install python3 python3-pip), or set LIBTORCH to a libtorch $version you have"
"$python" -m pip --version >/dev/null 2>&1 ||
  fail "pip is missing for $python" "install it (Debian: apt-get install python3-pip), or set LIBTORCH to a libtorch $version you have"
cc=$(command -v "${CC:-cc}" || command -v gcc || command -v clang || true)
[ -n "$cc" ] || fail "no C compiler found" "install one (Debian: apt-get install g++; macOS: xcode-select --install)"
mkdir -p "$root"
free_mb=$(df -Pm "$root" | awk 'NR==2 {print $4}')
[ "$free_mb" -ge 3000 ] || fail "$root has ${free_mb} MB free and unpacking libtorch takes 3000" "free some space, or set R1_LIBTORCH_DIR to a directory with more space"

system=$(uname -s) machine=$(uname -m)
packages=(torch==$version)
case "$system-$machine" in
  Linux-x86_64)
    platforms=(manylinux_2_28_x86_64 manylinux_2_25_x86_64 manylinux_2_17_x86_64 manylinux2014_x86_64)
    packages+=(nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85) ;;
  Linux-aarch64)
    platforms=(manylinux_2_28_aarch64 manylinux_2_17_aarch64 manylinux2014_aarch64)
    packages+=(nvidia-cuda-runtime==13.0.96 nvidia-cuda-cupti==13.0.85) ;;
  Darwin-arm64) platforms=(macosx_14_0_arm64 macosx_11_0_arm64) ;;
  *) fail "no libtorch wheel is known for $system $machine" "set LIBTORCH to a libtorch $version built for it" ;;
esac

part="$root.part.$$"
trap 'rm -rf "$part"' EXIT
progress=off; [ -t 2 ] && progress=on
say "fetching torch $version from the package index (about 550 MB, once) into $root"
flags=(--no-deps --only-binary=:all: --python-version 3.12 --implementation cp)
for platform in "${platforms[@]}"; do flags+=(--platform "$platform"); done
"$python" -m pip install --quiet --disable-pip-version-check --no-warn-script-location \
  --progress-bar "$progress" --target "$part" "${flags[@]}" "${packages[@]}" >&2 ||
  fail "pip could not fetch torch $version" "check the network and the index pip uses (pip config list), then run this again; or set LIBTORCH"

lib="$part/torch/lib"
if [ "$system" = Linux ]; then
  # Unused libraries, 1.5 GB.
  rm -f "$lib"/libtorch_cuda*.so "$lib"/libtorch_nvshmem.so "$lib"/libc10_cuda.so "$lib"/libtorch_python.so "$lib"/libcaffe2_nvrtc.so
  rm -f "$lib/libtorch.so"
  "$cc" -shared -o "$lib/libtorch.so" -Wl,--no-as-needed -L"$lib" -ltorch_cpu -lc10 -Wl,-rpath,'$ORIGIN' ||
    fail "the C compiler could not link $lib/libtorch.so" "see its message above"
  # libtorch_cpu.so finds these through an rpath into site-packages; copy them next to it.
  find "$part/nvidia" -name 'libcudart.so*' -o -name 'libcupti.so*' | while read -r file; do cp -n "$file" "$lib/"; done
fi
# Python sources are not used: keep lib/, include/ and the licence files.
find "$part/torch" -mindepth 1 -maxdepth 1 ! -name lib ! -name include ! -name share ! -name version.py -exec rm -rf {} +
find "$part" -mindepth 1 -maxdepth 1 ! -name torch ! -name nvidia ! -name '*.dist-info' -exec rm -rf {} +
headers "$part"
rm -rf "$root"
mv "$part" "$root"
touch "$root/.complete"
say "ready in $root"
echo "$root/torch"
