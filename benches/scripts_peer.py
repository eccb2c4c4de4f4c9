"""The peer of `scripts.py`: gymnasium's FrozenLake-v1, with and without its wrappers, by name on stdin."""

import json
import sys
import time

import gymnasium

EPISODES = 10_000

MOST = 100

made = gymnasium.make("FrozenLake-v1", is_slippery=True)
ENVS = {"gymnasium": made, "gymnasium_bare": made.unwrapped}


def frozen_lake(env):
    steps, won = 0, 0.0
    begin = time.perf_counter()
    for seed in range(EPISODES):
        env.reset(seed=seed)
        dice, left, over = seed, MOST, False
        while not over:
            dice = (dice * 1103515245 + 12345) & 0x7FFFFFFF
            _, reward, terminated, truncated, _ = env.step((dice >> 16) & 3)
            steps += 1
            won += reward
            left -= 1
            over = terminated or truncated or left == 0
    return {"seconds": time.perf_counter() - begin, "steps": steps, "won": won}


print(json.dumps({"ready": True}), flush=True)
for line in sys.stdin:
    print(json.dumps(frozen_lake(ENVS[line.strip()])), flush=True)
