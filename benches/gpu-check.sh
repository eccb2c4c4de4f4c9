#!/usr/bin/env bash
# Builds r1, packs what a CUDA machine with torch 2.11 needs (it needs no Rust), and checks and times it there.
#
#   benches/gpu-check.sh           build and pack; run the checks if this machine has a GPU, else say that they were skipped
#   target/gpu-check/run.sh OUT    on the other machine, in the unpacked folder: checks, then speed, written to OUT
set -euo pipefail
cd "$(dirname "$0")/.."

LIBTORCH=$(setup/libtorch.sh) && export LIBTORCH
cargo build --quiet --release --bin r1
bench=$(cargo build --quiet --release --bench decode --message-format=json |
  python3 -c 'import json, sys; print([m["executable"] for m in map(json.loads, sys.stdin) if m.get("executable") and m["target"]["kind"] == ["bench"]][0])')

pack=target/gpu-check
rm -rf "$pack" && mkdir -p "$pack"
cp "${CARGO_TARGET_DIR:-target}/release/r1" "$pack/r1"
cp "$bench" "$pack/decode"
strip "$pack/r1" "$pack/decode"
cp benches/gpu_check.lua "$pack/"
cp -r models/r1-nano "$pack/r1-nano"
git describe --always --dirty > "$pack/commit"

cat > "$pack/run.sh" <<'RUN'
#!/usr/bin/env bash
# Checks and times r1 on this machine's GPU with the torch 2.11 of its python3; writes OUT/DATE-GPU.md.
set -euo pipefail
cd "$(dirname "$0")"
out=${1:?usage: run.sh OUT [MODEL ...]}; shift
command -v nvidia-smi > /dev/null && gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1) ||
  { echo "gpu-check: skipped, this machine has no NVIDIA GPU (nvidia-smi does not answer)"; exit 0; }
torch=$(python3 -c 'import os, torch; assert torch.__version__.startswith("2.11."), torch.__version__; print(os.path.dirname(torch.__file__))') ||
  { echo "error: gpu-check needs a python3 with a CUDA build of torch 2.11" >&2; exit 1; }
export R1_CUDA_TORCH=$torch LD_LIBRARY_PATH="$torch/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
mkdir -p "$out"
name="$(date +%F)-$(echo "$gpu" | tr 'A-Z' 'a-z' | tr -cs 'a-z0-9' '-' | sed 's/^-*//; s/-*$//')"
{
  echo "# r1 on a GPU"
  echo
  echo "$(date +%F), $gpu, torch $(python3 -c 'import torch; print(torch.__version__)'), r1 $(cat commit)."
  echo
} > "$out/$name.md"
status=0
./r1 lua gpu_check.lua r1-nano "$@" | tee -a "$out/$name.md" || status=1
{
  echo
  echo "| model | type | batch | a step | tokens/s |"
  echo "|---|---|---|---|---|"
} >> "$out/$name.md"
for model in r1-nano "$@"; do
  for kind in f32 bf16; do
    python3 - "$model" "$kind" >> "$out/$name.md" <<'PY' || status=1
import json, subprocess, sys
model, kind = sys.argv[1:]
side = subprocess.Popen(["./decode", model, kind, "cuda"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
def ask(question):
    print(json.dumps(question), file=side.stdin, flush=True)
    line = side.stdout.readline()
    if not line:
        sys.exit(f"error: decode stopped with {side.wait()}")
    return json.loads(line)
side.stdout.readline()
for batch in (1, 8, 32):
    times = {}
    for new in (1, 65) * 4:
        seconds = ask({"batch": batch, "prompt": 32, "new": new})["seconds"]
        times[new] = min(seconds, times.get(new, seconds))
    step = (times[65] - times[1]) / 64
    print(f"| {model} | {kind} | {batch} | {step * 1e3:.2f} ms | {batch / step:,.0f} |")
PY
  done
done
cat "$out/$name.md"
exit $status
RUN
chmod +x "$pack/run.sh"
tar -C target -cJf target/gpu-check.tar.xz gpu-check
echo "packed target/gpu-check.tar.xz ($(du -h target/gpu-check.tar.xz | cut -f1)): unpack it on a CUDA machine with torch 2.11 and run gpu-check/run.sh OUT"
exec "$pack/run.sh" benches/results "$@"
