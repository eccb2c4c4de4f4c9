#!/usr/bin/env bash
# Trains with a process for each GPU, started by torchrun (docs/guide/machines.md). On one machine
# `r1 run --nproc N` does the same without Python.
#
#   scripts/cluster/torchrun.sh SCRIPT [KEY=VALUE …]                     all GPUs of this machine
#   NPROC=4 scripts/cluster/torchrun.sh SCRIPT [KEY=VALUE …]             four of them
#   NNODES=2 MASTER_ADDR=node-1 scripts/cluster/torchrun.sh SCRIPT [KEY=VALUE …]    on each of two
#
# With several machines the same command is given on each, in a directory that all of them have.
# torchrun chooses the machine of rank 0, which is the only process that prints.
set -euo pipefail

fail() { echo "error: $1" >&2; echo "  hint: $2" >&2; exit 1; }
if [ $# -eq 0 ]; then
  echo "usage: scripts/cluster/torchrun.sh SCRIPT [KEY=VALUE …]" >&2
  exit 2
fi
torchrun=$(command -v torchrun || true)
# setup/cuda.sh installs it, too, but not on PATH.
[ -n "$torchrun" ] || torchrun=${R1_CUDA_TORCH:-}/../../../../bin/torchrun
[ -x "$torchrun" ] ||
  fail "torchrun is not found" "activate an environment with torch 2.11, or set R1_CUDA_TORCH (setup/cuda.sh prints the line)"
if [ -z "${NPROC:-}" ]; then
  NPROC=$(nvidia-smi -L 2> /dev/null | grep -c '^GPU ' || true)
  [ "$NPROC" -gt 0 ] || fail "nvidia-smi shows no GPU" "NPROC=N sets the number of processes"
fi
# torchrun's default is one thread for each process.
threads=$(($(nproc) / NPROC))
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-$((threads > 0 ? threads : 1))}

if [ "${NNODES:-1}" -eq 1 ]; then
  place=(--standalone --local-addr 127.0.0.1)
else
  [ -n "${MASTER_ADDR:-}" ] || fail "NNODES is $NNODES and there is no MASTER_ADDR" "set it to the name of one of the machines, the same on each"
  place=(--nnodes "$NNODES" --rdzv-id "${RUN_ID:-r1}" --rdzv-backend c10d --rdzv-endpoint "$MASTER_ADDR:${MASTER_PORT:-29400}")
fi
exec "$torchrun" "${place[@]}" --nproc-per-node "$NPROC" --no-python r1 run "$@"
