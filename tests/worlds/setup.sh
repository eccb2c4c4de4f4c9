#!/usr/bin/env bash
# gymnasium and openenv-core from PyPI for `just test-worlds`, in target/worlds.
set -euo pipefail
cd "$(dirname "$0")/../.."
to=target/worlds
[ -x "$to/bin/python3" ] || python3 -m venv "$to"
"$to/bin/python3" -m pip install --quiet --disable-pip-version-check gymnasium==1.4.0 openenv-core==0.3.0
