#!/usr/bin/env bash
# Reads a run with pandas, polars, DuckDB and Hugging Face datasets: run.sh R1
set -euo pipefail
cd "$(dirname "$0")/../.."
r1=$PWD/$1 to=target/readers
[ -x "$to/bin/python3" ] || python3 -m venv "$to"
"$to/bin/python3" -m pip install --quiet --disable-pip-version-check \
    pandas==3.1.1 pyarrow==26.0.1 polars==2.1.0 duckdb==2.0.1 datasets==5.2.0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$r1" run scripts/retool.lua --runs-dir "$work" --name readers -q trainer.steps=2 eval.before=false eval.limit=8
"$r1" lua tests/readers/ids.lua "$work/readers" > "$work/ids.json"
HF_HOME=$work/hf HF_DATASETS_DISABLE_PROGRESS_BARS=1 "$to/bin/python3" tests/readers/read.py "$work/readers" "$work/ids.json"
