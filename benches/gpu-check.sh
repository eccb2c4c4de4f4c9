#!/usr/bin/env bash
# Builds r1 and packs it for a CUDA machine with torch 2.11 (without Rust), with checks and timings.
#
#   benches/gpu-check.sh [ARGUMENTS]     build and pack; run the checks if this machine has a GPU
#   target/gpu-check/check.py OUT        on the GPU machine, in the unpacked folder (see --help)
set -euo pipefail
cd "$(dirname "$0")/.."

LIBTORCH=$(setup/libtorch.sh) && export LIBTORCH
cargo build --quiet --release --bin r1
bench() {
  cargo build --quiet --release --bench "$1" --message-format=json |
    python3 -c 'import json, sys; print([m["executable"] for m in map(json.loads, sys.stdin) if m.get("executable") and m["target"]["kind"] == ["bench"]][0])'
}

pack=target/gpu-check
rm -rf "$pack" && mkdir -p "$pack"
cp "${CARGO_TARGET_DIR:-target}/release/r1" "$pack/r1"
for part in decode update; do cp "$(bench $part)" "$pack/$part"; done
strip "$pack/r1" "$pack/decode" "$pack/update"
cp benches/gpu/*.py benches/gpu/*.lua "$pack/"
cp -r models/r1-nano "$pack/r1-nano"
cp -r scripts "$pack/scripts"
git describe --always --dirty > "$pack/commit"
tar -C target -cJf target/gpu-check.tar.xz gpu-check
echo "packed target/gpu-check.tar.xz ($(du -h target/gpu-check.tar.xz | cut -f1)): unpack it on a CUDA machine with torch 2.11 and run gpu-check/check.py OUT"
exec python3 "$pack/check.py" benches/results "$@"
