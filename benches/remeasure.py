#!/usr/bin/env python3
"""Measures the figures of a page again and says which have moved.

    python3 benches/remeasure.py docs/recipes/gsm8k.md [--seeds 0] [--runs runs/remeasured]
    python3 benches/remeasure.py docs/recipes/*.md --list

The pages of docs/recipes have a table of seeds between `<!-- measured: NAME -->` and
`<!-- end of measured -->`, made by benches/recipes.py. For each wanted seed the recipe is trained
and evaluated with the same commands, into a folder of its own. Each figure is printed with its old
interval of 95 % and the new value; it has moved if the new value is outside of the old interval and
the two intervals do not overlap. The instruction set of the page and of this machine are printed:
bits depend on it (docs/cpu-kernels.md). The page is not changed. Exit code 1: a figure has moved.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import recipes

ROOT = Path(__file__).resolve().parent.parent
# The columns of a table with figures, in the order of the models of `recipes.result`.
STAGES = ["untrained", "after the cold start", "after training"]
FIGURE = re.compile(r"(\d\.\d+) \((\d\.\d+)–(\d\.\d+)\)")


def blocks(text):
    """The measured blocks of a page: name, line about the machine, and seed -> stage -> (value, low, high).

    >>> page = '''<!-- measured: x -->
    ... Success on 8 held-out tasks. Measured on one
    ... thread of x86_64, 2026-11-25.
    ...
    ... | seed | untrained | after the cold start | after training | steps |
    ... |---|---|---|---|---|
    ... | 0 | 0.10 (0.00–0.20) | – | 0.75 (0.60–0.90) | 40 |
    ... <!-- end of measured -->'''
    >>> blocks(page)
    [('x', 'Measured on one thread of x86_64, 2026-11-25.', {0: {'untrained': (0.1, 0.0, 0.2), 'after training': (0.75, 0.6, 0.9)}})]
    >>> blocks(page.replace("0.75 (", "0.75 ["))
    Traceback (most recent call last):
    ValueError: x, seed 0: `0.75 [0.60–0.90)` is not a figure with its interval
    >>> blocks(page.replace("<!-- end of measured -->", ""))
    Traceback (most recent call last):
    ValueError: x: there is no `<!-- end of measured -->`
    """
    found = []
    for name, rest in re.findall(r"<!-- measured: (\w+) -->\n(.*?)(?=<!-- measured: |\Z)", text, re.DOTALL):
        body, end, _ = rest.partition("<!-- end of measured -->")
        if not end:
            raise ValueError(f"{name}: there is no `<!-- end of measured -->`")
        about = " ".join(body.partition("\n|")[0].split())
        rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in body.splitlines() if line.startswith("|")]
        header, seeds = rows[0] if rows else [], {}
        if "seed" not in header:
            raise ValueError(f"{name}: there is no table with a column `seed`")
        for row in rows[2:]:
            cells = dict(zip(header, row))
            seed = int(cells["seed"])
            seeds[seed] = {}
            for stage in STAGES:
                cell = cells.get(stage, "–")
                match = FIGURE.fullmatch(cell)
                if match:
                    seeds[seed][stage] = tuple(map(float, match.groups()))
                elif cell != "–":
                    raise ValueError(f"{name}, seed {seed}: `{cell}` is not a figure with its interval")
        machine = about[about.find("Measured on") :] if "Measured on" in about else ""
        found.append((name, machine, seeds))
    return found


def verdict(old, new):
    """Whether a figure holds: (value, low, high) of the page and of now.

    >>> verdict((0.67, 0.61, 0.72), (0.67, 0.61, 0.72))
    'equal'
    >>> verdict((0.67, 0.61, 0.72), (0.64, 0.58, 0.70))
    'within the interval'
    >>> verdict((0.67, 0.61, 0.72), (0.58, 0.52, 0.64))
    'outside of the interval; the intervals overlap'
    >>> verdict((0.67, 0.61, 0.72), (0.40, 0.34, 0.46))
    'moved'
    """
    if [round(value, 2) for value in old] == [round(value, 2) for value in new]:
        return "equal"
    if old[1] <= new[0] <= old[2]:
        return "within the interval"
    if new[2] >= old[1] and new[1] <= old[2]:
        return "outside of the interval; the intervals overlap"
    return "moved"


def shown(figure):
    return "{:.2f} ({:.2f}–{:.2f})".format(*figure)


def measured(options, name, seeds, seed):
    """The figures of a seed now, by stage, and the processor and instruction set of the run."""
    folder, reports = recipes.result(options, name, seeds, seed)
    stages = STAGES if len(reports) == 3 else [STAGES[0], STAGES[2]]
    figures = [report["metrics"]["mean@1"] for report in reports]
    config = json.loads((folder / "config.json").read_text())
    return (
        {stage: (figure["value"], figure["low"], figure["high"]) for stage, figure in zip(stages, figures)},
        f"{config.get('cpu', 'an unknown processor')}, {config.get('kernels', 'unknown')}",
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--r1", type=Path, default=ROOT / "target/release/r1")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs/remeasured")
    parser.add_argument("--seeds", help="seeds of the table to measure, such as 0,2; default: all")
    parser.add_argument("--list", action="store_true", help="print the figures of the pages and end")
    arguments = parser.parse_args()
    moved = 0
    for page in arguments.pages:
        text = page.read_text()
        for name, machine, table in blocks(text):
            print(f"{page}: {name}. {machine}", flush=True)
            wanted = sorted(table) if arguments.seeds is None else [int(seed) for seed in arguments.seeds.split(",")]
            missing = [seed for seed in wanted if seed not in table]
            if missing:
                sys.exit(f"{page}: the table of {name} has no seed {missing[0]}; it has {', '.join(map(str, sorted(table)))}")
            if arguments.list:
                for seed in wanted:
                    print(f"  seed {seed}: " + ", ".join(f"{stage} {shown(figure)}" for stage, figure in table[seed].items()))
                continue
            options = SimpleNamespace(
                r1=arguments.r1.resolve(), runs=arguments.runs.resolve(), report_only=False,
                one_cold_start="The seeds have the cold start of the first" in " ".join(text.split()),
            )
            options.runs.mkdir(parents=True, exist_ok=True)
            # The cold start of the first seed may be that of all.
            first = min(table)
            if options.one_cold_start and first not in wanted:
                recipes.result(options, name, [first], first)
            for seed in wanted:
                now, where = measured(options, name, sorted(table), seed)
                print(f"  seed {seed}, now on {where}:")
                for stage, old in table[seed].items():
                    said = verdict(old, now[stage]) if stage in now else "moved: not measured now"
                    moved += said.startswith("moved")
                    print(f"    {stage}: page {shown(old)}, now {shown(now[stage]) if stage in now else '–'}: {said}", flush=True)
    if not arguments.list:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
        print(f"{moved} figures have moved, at commit {commit.stdout.strip() or 'unknown'}")
    return 1 if moved else 0


if __name__ == "__main__":
    sys.exit(main())
