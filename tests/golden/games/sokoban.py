"""Writes sokoban.jsonl: random steps of gym-sokoban's SokobanEnv on random small rooms.

    python3 -m pip install numpy gym==0.26.2 imageio pillow requests tqdm
    python3 -m pip install --no-deps gym-sokoban==0.0.6
    python3 tests/golden/games/sokoban.py

A row has the level, and for each step the action, the reward, whether all boxes are on targets,
whether the player and a box moved, and the room as text. Rewards and movements are those of
SokobanEnv; rendering is left out.
"""

import json
import pathlib
import random

import numpy
from gym_sokoban.envs.sokoban_env import SokobanEnv

CODES = {"#": (0, 0), " ": (1, 1), ".": (2, 2), "*": (2, 3), "$": (1, 4), "@": (1, 5), "+": (2, 5)}
CHARS = {codes: char for char, codes in CODES.items()}


class Room(SokobanEnv):
    """A room from text, without images."""

    def __init__(self, level):
        self.level = level
        rows = level.split("\n")
        boxes = level.count("$") + level.count("*")
        super().__init__(dim_room=(len(rows), len(rows[0])), max_steps=10**6, num_boxes=boxes)

    def reset(self, second_player=False, render_mode="rgb_array"):
        codes = [[CODES[char] for char in row] for row in self.level.split("\n")]
        self.room_fixed = numpy.array([[fixed for fixed, _ in row] for row in codes])
        self.room_state = numpy.array([[state for _, state in row] for row in codes])
        self.player_position = numpy.argwhere(self.room_state == 5)[0]
        self.num_env_steps, self.reward_last, self.boxes_on_target = 0, 0, 0

    def render(self, mode="human", close=None, scale=1):
        return None

    def text(self):
        return "\n".join(
            "".join(CHARS[int(fixed), int(state)] for fixed, state in zip(*rows)) for rows in zip(self.room_fixed, self.room_state)
        )


def level(chance, boxes):
    cells = [[" " if 0 < r < 5 and 0 < c < 6 else "#" for c in range(7)] for r in range(6)]
    free = [(r, c) for r in range(1, 5) for c in range(1, 6)]
    chance.shuffle(free)
    for char in "##" + "$" * boxes + "." * boxes + "@":
        r, c = free.pop()
        cells[r][c] = char
    if chance.random() < 0.3:  # A box that is on a target from the start.
        r, c = next((r, c) for r in range(6) for c in range(7) if cells[r][c] == "$")
        rt, ct = next((r, c) for r in range(6) for c in range(7) if cells[r][c] == ".")
        cells[r][c], cells[rt][ct] = " ", "*"
        if boxes == 1:
            return None
    return "\n".join("".join(row) for row in cells)


def play(text, actions):
    room, steps = Room(text), []
    for action in actions:
        _, reward, _, info = room.step(action)
        done = bool(room._check_if_all_boxes_on_target())
        steps.append([action, round(float(reward), 6), done, bool(info["action.moved_player"]), bool(info["action.moved_box"]), room.text()])
        if done:
            break
    return {"level": text, "steps": steps}


chance = random.Random(5)
rows = [
    play("#####\n#@$.#\n#####", [8, 3, 4]),
    play("######\n#@$ .#\n######", [4, 4]),
    play("######\n#@*$.#\n#    #\n######", [2, 4, 0, 4, 1, 4, 3, 4]),
    play("#######\n#+$   #\n# $.  #\n#######", [4, 4, 3, 2, 3, 3, 2, 4, 1, 4]),
    play("#######\n#@* $.#\n#######", [0, 4, 4, 4]),
    play("######\n# .@ #\n# $  #\n#  * #\n######", [3, 7, 2, 6, 4, 1]),
]
while len(rows) < 24:
    text = level(chance, chance.choice([1, 2, 3]))
    if text is not None:
        rows.append(play(text, [chance.choice([0, 1, 2, 3, 4, 1, 2, 3, 4, 5, 6, 7, 8]) for _ in range(40)]))
(pathlib.Path(__file__).parent / "sokoban.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
print(sum(row["steps"][-1][2] for row in rows), "solved of", len(rows), sum("*" in row["level"] for row in rows), "with a box on a target")
