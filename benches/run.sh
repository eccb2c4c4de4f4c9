#!/usr/bin/env bash
# Compares r1 with transformers and TRL, and prints ratios. Peers are installed once, in the cache
# (about 6 GB: the torch wheel includes CUDA libraries).
#
#   benches/run.sh [--repetitions N] [--threads N] [--only NAME] [--model DIR]
#   benches/run.sh decode [--repetitions N] [--threads N] [--kind f32|bf16] [--model DIR]
#       a model of Qwen2.5-0.5B's shape, with transformers and llama.cpp (built once, 10-20 minutes)
#   benches/run.sh real --model DIR [--steps N] [--only grpo_sum|grpo_spread|sft]
#       GRPO and SFT of a real model, with TRL: time of a step by parts, memory, rewards
#   benches/run.sh update [--repetitions N] [--threads N]
#       updates of that model, with transformers: time, memory, rows merged over steps
#   benches/run.sh images [--images N] [--repetitions N] [--only preprocessing|prefill|grpo]
#       preprocessing, prefill and a GRPO step with images, with transformers and TRL
#   benches/run.sh scripts [--repetitions N]
#       environment steps with gymnasium, waits, reloads, limits
#   benches/run.sh scale [--steps N]
#       two processes on two cores, with torch's DistributedDataParallel
#   R1_PEERS_VENV=/dir     use this virtual environment instead, and install nothing
set -euo pipefail
cd "$(dirname "$0")/.."

script=compare
target=r1
case "${1:-}" in decode | update | scripts | images) script=$1 target=$1; shift ;; real | scale) script=$1; shift ;; esac

fail() { echo "error: $1" >&2; echo "  hint: $2" >&2; exit 1; }

venv="${R1_PEERS_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/r1/peers}"
if [ -z "${R1_PEERS_VENV:-}" ] && [ ! -e "$venv/.complete" ]; then
  python=$(command -v python3) || fail "python3 is missing; the peers are Python packages" "install it (Debian: apt-get install python3 python3-venv)"
  echo "bench: installing the peers into $venv (once, about 3 GB to fetch)" >&2
  mkdir -p "$venv"
  free_mb=$(df -Pm "$venv" | awk 'NR==2 {print $4}')
  [ "$free_mb" -ge 8000 ] || fail "$venv has ${free_mb} MB free and the peers take 6000" "free some space, or point R1_PEERS_VENV at an environment that has them"
  "$python" -m venv --clear "$venv" || fail "python3 can't make a virtual environment" "install its venv module (Debian: apt-get install python3-venv)"
  "$venv/bin/pip" install --quiet --disable-pip-version-check torch==2.11.0 'transformers==5.24.*' trl==1.16.0 ||
    fail "pip could not install the peers" "check the network and run this again"
  touch "$venv/.complete"
fi
"$venv/bin/python" -c 'import torch, transformers, trl' || fail "$venv lacks a peer" "remove it and run this again"

if [ "$script" = decode ] && [ -z "${R1_PEERS_VENV:-}" ] && [ ! -e "$venv/.llama" ]; then
  echo "bench: building llama-cpp-python (once, 10 to 20 minutes)" >&2
  "$venv/bin/pip" install --quiet --disable-pip-version-check llama-cpp-python==0.3.32 gguf==0.19.0 && touch "$venv/.llama" ||
    echo "bench: llama-cpp-python can't be built here; it is left out" >&2
fi

if [ "$script" = scripts ] && ! "$venv/bin/python" -c 'import gymnasium' 2> /dev/null; then
  [ -z "${R1_PEERS_VENV:-}" ] || fail "$venv lacks gymnasium" "install it there, or leave R1_PEERS_VENV out"
  "$venv/bin/pip" install --quiet --disable-pip-version-check gymnasium==1.4.0 ||
    fail "pip could not install gymnasium" "check the network and run this again"
fi

if [ "$script" = images ] && ! "$venv/bin/python" -c 'import torchvision, PIL' 2> /dev/null; then
  [ -z "${R1_PEERS_VENV:-}" ] || fail "$venv lacks torchvision or pillow" "install them there, or leave R1_PEERS_VENV out"
  "$venv/bin/pip" install --quiet --disable-pip-version-check torchvision==0.26.0 'pillow<13' ||
    fail "pip could not install torchvision" "check the network and run this again"
fi

LIBTORCH=$(setup/libtorch.sh) && export LIBTORCH
cargo build --quiet --release --bin r1
bench=$(cargo build --quiet --release --bench "$target" --message-format=json |
  "$venv/bin/python" -c 'import json, sys; print([m["executable"] for m in map(json.loads, sys.stdin) if m.get("executable") and m["target"]["kind"] == ["bench"]][0])')
exec "$venv/bin/python" "benches/$script.py" --binary "$(realpath "${CARGO_TARGET_DIR:-target}/release/r1")" --bench "$bench" "$@"
