#!/usr/bin/env bash
# Runs exchange.py with transformers and PEFT, which are installed once, into the cache (about 6 GB:
# the torch wheel brings its CUDA libraries). R1_PEERS_VENV=/dir uses this virtual environment
# instead, and installs nothing.
set -euo pipefail
cd "$(dirname "$0")"

venv="${R1_PEERS_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/r1/parity}"
if [ -z "${R1_PEERS_VENV:-}" ] && [ ! -e "$venv/.complete" ]; then
  echo "parity: installing transformers and PEFT into $venv (once, about 3 GB to fetch)" >&2
  python3 -m venv --clear "$venv"
  "$venv/bin/pip" install --quiet --disable-pip-version-check torch==2.11.0 transformers==5.17.0 peft==0.21.2
  touch "$venv/.complete"
fi
exec "$venv/bin/python" exchange.py
