#!/usr/bin/env bash
# Runs the tests of worlds_test.lua against a server of openenv-core: run.sh R1
set -euo pipefail
cd "$(dirname "$0")/../.."
port=18765
target/worlds/bin/python3 tests/worlds/openenv_server.py "$port" &
server=$!
trap 'kill "$server"' EXIT
for _ in $(seq 300); do
    if (exec 3<> "/dev/tcp/127.0.0.1/$port") 2> /dev/null; then break; fi
    sleep 0.1
done
"$1" test tests/worlds/worlds_test.lua
PATH="$PWD/target/worlds/bin:$PATH" "$1" check scripts/gym.lua
PATH="$PWD/target/worlds/bin:$PATH" "$1" test tests/worlds/gym_test.lua
