"""Writes countdown.jsonl: tasks with and without a solution, by Python's fractions.

    python3 tests/golden/games/countdown.py

All values that expressions over subsets of the numbers can have are computed by splitting sets in
two, which is not the recursion of lua/games/countdown.lua. Expressions are graded with Python's
eval over Fractions.
"""

import json
import pathlib
import random
import re
from fractions import Fraction
from functools import lru_cache


def values(numbers):
    """The values of all expressions that use each number exactly once."""

    @lru_cache(None)
    def of(mask):
        here = [k for k in range(len(numbers)) if mask >> k & 1]
        if len(here) == 1:
            return frozenset([Fraction(numbers[here[0]])])
        found, part = set(), (mask - 1) & mask
        while part:
            for a in of(part):
                for b in of(mask ^ part):
                    found |= {a + b, a - b, a * b}
                    if b != 0:
                        found.add(a / b)
            part = (part - 1) & mask
        return frozenset(found)

    return of((1 << len(numbers)) - 1)


def grade(text, numbers, target):
    """[parsed, numbers, solved] by Python's own parser."""
    if not re.fullmatch(r"[\d+\-*/()\s]+", text) or "//" in text or "**" in text or re.search(r"\d\s*\(|\)\s*\d", text):
        return [False, False, False]
    try:
        value = eval(re.sub(r"(\d+)", r"Fraction(\1)", text))
    except (SyntaxError, ZeroDivisionError, TypeError):
        return [False, False, False]
    fits = sorted(map(int, re.findall(r"\d+", text))) == sorted(numbers)
    return [True, fits, fits and value == target]


chance = random.Random(11)
rows = []
for size, count in ((2, 10), (3, 30), (4, 20)):
    for _ in range(count):
        numbers = [chance.randint(1, 12) for _ in range(size)]
        target = chance.randint(1, 60)
        rows.append({"numbers": numbers, "target": target, "solvable": target in values(tuple(numbers))})
graded = []
for text in [
    "3 + 5 * 2", "(3 + 5) * 2", "3 - -5 * 2", "(3+5)/(2)", "2*(5+3)", "3+5", "3+5+2+2", "((3+5)*2", "3+5)*2", "", "3 5 2", "3 / (5 - 5) + 2",
    "-(3 - 5) * 2", "3+*5", "16", "3 + 5 * 2 = 13", "5/2*3", "(5/2)*3 + 17/2", "3.0 + 5 + 2", "abc", "+3+5*2", "3 - (5 - 2)", "2*3-5", "3/5/2",
]:
    for target in (13, 16, 7.5):
        graded.append({"text": text, "numbers": [3, 5, 2], "target": target, "grade": grade(text, [3, 5, 2], Fraction(target))})
folder = pathlib.Path(__file__).parent
(folder / "countdown.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows + graded))
print(sum(row["solvable"] for row in rows), "solvable of", len(rows))
