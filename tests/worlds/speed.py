"""Steps per second of FrozenLake through r1 and in gymnasium alone: target/worlds/bin/python3 speed.py R1.

Each number is the median of five runs, which alternate.
"""

import json
import statistics
import subprocess
import sys
import time

import gymnasium

OPTIONS = {"render_mode": "ansi", "is_slippery": False}
ROUNDS, STEPS = 5, 20_000


def alone():
    """A loop over one environment that does what the server does for a step."""
    env = gymnasium.make("FrozenLake-v1", **OPTIONS)
    env.reset(seed=0)
    start = time.perf_counter()
    for _ in range(STEPS):
        _, _, terminated, truncated, _ = env.step(0)
        env.render()
        if terminated or truncated:
            env.reset(seed=0)
    return STEPS / (time.perf_counter() - start)


def vector(count):
    envs = gymnasium.make_vec("FrozenLake-v1", num_envs=count, vectorization_mode="sync", is_slippery=False)
    envs.reset(seed=0)
    actions = [0] * count
    start = time.perf_counter()
    for _ in range(STEPS // count):
        envs.step(actions)
    return STEPS // count * count / (time.perf_counter() - start)


class Server:
    """The server of lua/env_gym.py over its pipes, without r1."""

    def __init__(self, count):
        source = open("lua/env_gym.py").read()
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([sys.executable, "-c", source], stdin=pipe, stdout=pipe)
        self.ask([(0, {"op": "open", "env": "FrozenLake-v1", "kwargs": OPTIONS})])
        self.all = range(1, count + 1)
        self.ask([(session, {"op": "reset", "seed": 0}) for session in self.all])

    def ask(self, messages):
        lines = [json.dumps({"id": 1, "session": session, "message": message}) for session, message in messages]
        self.process.stdin.write("".join(line + "\n" for line in lines).encode())
        self.process.stdin.flush()
        return [json.loads(self.process.stdout.readline())["answer"] for _ in messages]

    def rate(self):
        start = time.perf_counter()
        for _ in range(STEPS // len(self.all)):
            self.ask([(session, {"op": "step", "text": "0"}) for session in self.all])
        rate = STEPS / (time.perf_counter() - start)
        self.process.stdin.close()
        self.process.wait()
        return rate


def r1(script, count):
    command = [sys.argv[1], "lua", "tests/worlds/speed.lua", script, str(count), str(STEPS // 4 // count)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


CASES = {
    "gymnasium, 1 environment": alone,
    "gymnasium, 64 in a SyncVectorEnv, not rendered": lambda: vector(64),
    "the server over pipes, 1 environment": lambda: Server(1).rate(),
    "the server over pipes, 64 environments": lambda: Server(64).rate(),
    "r1, 1 trajectory": lambda: r1("lake", 1),
    "r1, 64 trajectories": lambda: r1("lake", 64),
    "r1 with an environment in Lua, 1 trajectory": lambda: r1("lua_lake", 1),
    "r1 with an environment in Lua, 64 trajectories": lambda: r1("lua_lake", 64),
}

if __name__ == "__main__":
    rates = {name: [] for name in CASES}
    for _ in range(ROUNDS):
        for name, run in CASES.items():
            rates[name].append(run())
    for name, own in rates.items():
        print("%-48s %9.0f steps/s (%.0f to %.0f)" % (name, statistics.median(own), min(own), max(own)))
