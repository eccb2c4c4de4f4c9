"""Writes frozen_lake.jsonl: transition tables of gymnasium's FrozenLake.

    python3 -m pip install gymnasium==1.4.0
    python3 tests/golden/games/frozen_lake.py
"""

import json
import pathlib

import gymnasium
from gymnasium.envs.toy_text.frozen_lake import MAPS, generate_random_map

maps = {"4x4": MAPS["4x4"], "8x8": MAPS["8x8"], "random 5x5": generate_random_map(size=5, p=0.7, seed=3)}
dynamics = {"fixed": {"is_slippery": False}, "slippery": {"is_slippery": True}, "0.8": {"is_slippery": True, "success_rate": 0.8}}
lines = [json.dumps({"gymnasium": gymnasium.__version__})]
for name, desc in maps.items():
    for kind, options in dynamics.items():
        env = gymnasium.make("FrozenLake-v1", desc=desc, **options).unwrapped
        outcomes = [
            [[[float(p), int(to), float(reward), bool(done)] for p, to, reward, done in env.P[state][action]] for action in range(4)]
            for state in range(env.observation_space.n)
        ]
        lines.append(json.dumps({
            "id": f"{name}, {kind}", "map": list(desc), "slippery": options["is_slippery"],
            "success_rate": options.get("success_rate", 1 / 3), "outcomes": outcomes,
        }))
(pathlib.Path(__file__).parent / "frozen_lake.jsonl").write_text("\n".join(lines) + "\n")
