#!/usr/bin/env python3
"""Measures the figures of a page again and says which have moved.

    python3 benches/remeasure.py docs/guide/recipes/gsm8k.md [--seeds 0] [--block NAME] [--minutes 60]
    python3 benches/remeasure.py docs/*/*.md --list

Runs the command of each measured block of a page (benches/pages.py has their form), reads the same
table from its output, and prints each figure as it is on the page and now, with a verdict:

    equal         the same digits
    within        inside of the interval of 95 % of the page, or of the tolerance of the block
    overlaps      outside of the interval, but the intervals of both overlap
    moved         anything else
    not compared  the block leaves the column out; so are seconds and minutes without a tolerance
    not measured  the command printed no such row
    skipped       this machine cannot measure the block; the reason is printed
    failed        the command ended with an error

Of blocks with many figures only those are printed that are not equal. The pages are not changed.
Runs go to a folder of the commit (--runs), where finished ones are not repeated. Exact figures may
depend on the instruction set (docs/lab/cpu-kernels.md): it is printed for both sides. Exit code 1: a
figure moved or was not measured, or a command failed.
"""

import argparse
import importlib.util
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pages

# Figures of a block that are printed; of more, those that are not equal.
MANY = 40
FIGURE = re.compile(r"(\d\.\d+) \((\d\.\d+)–(\d\.\d+)\)")


def verdict(old, new, tolerance="exact"):
    """Whether a cell holds: its text on the page and now.

    >>> verdict("0.67 (0.61–0.72)", "0.67 (0.61–0.72)")
    'equal'
    >>> verdict("0.67 (0.61–0.72)", "0.64 (0.58–0.70)")
    'within'
    >>> verdict("0.67 (0.61–0.72)", "0.58 (0.52–0.64)")
    'overlaps'
    >>> verdict("0.67 (0.61–0.72)", "0.40 (0.34–0.46)")
    'moved'
    >>> verdict("1,230 queries", "1.5e3 queries"), verdict("1,230 queries", "1.5e3 queries", "2x"), verdict("5 s", "5 ms", "2x")
    ('moved', 'within', 'moved')
    >>> verdict("0.42, 0.39", "0.42, 0.44", "±0.1"), verdict("0.42, 0.39", "0.42, 0.44", "10%")
    ('within', 'moved')
    >>> verdict("12", "–", "any")
    'not compared'
    """
    if old == new:
        return "equal"
    if tolerance == "any":
        return "not compared"
    intervals = [FIGURE.fullmatch(cell) for cell in (old, new)]
    if all(intervals):
        (_, low, high), (value, new_low, new_high) = (tuple(map(float, match.groups())) for match in intervals)
        return "within" if low <= value <= high else "overlaps" if new_high >= low and new_low <= high else "moved"
    if pages.NUMBER.sub("#", old) != pages.NUMBER.sub("#", new):
        return "moved"
    pairs = zip(*([float(number.replace(",", "")) for number in pages.NUMBER.findall(cell)] for cell in (old, new)))
    return "within" if all(near(a, b, tolerance) for a, b in pairs) else "moved"


def near(old, new, tolerance):
    """Whether a number is within a tolerance: `exact`, `20%`, `3x` or `±0.1`.

    >>> [near(10, 11, tolerance) for tolerance in ("exact", "20%", "1.05x", "±1")]
    [False, True, False, True]
    """
    if old == new:
        return True
    if tolerance.endswith("x"):
        return min(old, new) > 0 and max(old, new) / min(old, new) <= float(tolerance[:-1])
    if tolerance.endswith("%"):
        return abs(new - old) <= float(tolerance[:-1]) / 100 * abs(old)
    return tolerance.startswith("±") and abs(new - old) <= float(tolerance[1:]) * (1 + 1e-9)


def tolerance_of(text, column):
    """The tolerance of a column, by the start of its name; or that of all columns.

    >>> [tolerance_of("3x, steps exact", column) for column in ("steps to 0.9", "seconds")], tolerance_of("", "seconds")
    (['exact', '3x'], 'any')
    """
    found = "any" if column.startswith(("seconds", "minutes")) else "exact"
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = part.rpartition(" ")
        if not name:
            found = value
        elif column.startswith(name):
            return value
    return found


def rows_by_name(table, names=None):
    """Rows by their names: the first cell, or the first two (`names`); an empty first cell is as above.

    >>> rows_by_name([["a", "b", "c"], ["x", "y", "1"], ["", "z", "2"]])
    {('x', 'y'): ['x', 'y', '1'], ('x', 'z'): ['', 'z', '2']}
    """
    above, keys = "", []
    for row in table[1:]:
        above = row[0] or above
        keys.append((above, *row[1 : names or names_of(table)]))
    return dict(zip(keys, table[1:]))


def names_of(*tables):
    """2 if rows are named by their first two cells: with a seed, or if first cells occur again; otherwise 1."""
    again = any(len({row[0] for row in table[1:]} - {""}) < len(table) - 1 for table in tables)
    return 2 if again or tables[0][0][1:2] == ["seed"] else 1


def compare(block, printed):
    """Lines (figure, page, now, verdict) for the cells of a block, of the tables that were printed.

    >>> page = "<!-- measured: x; tolerance: s 2x -->\\n| a | n | s |\\n|---|---|---|\\n| one | 2 | 3 |\\n| two | 4 | 5 |\\n<!-- end of measured -->"
    >>> [block] = pages.blocks(page)
    >>> compare(block, "seed 1 …\\n| a | n | s |\\n|---|---|---|\\n| one | 1 | 4 |\\n")
    [('one: n', '2', '1', 'moved'), ('one: s', '3', '4', 'within'), ('two', '4 | 5', '', 'not measured')]
    """
    found = [rows for _, rows in pages.tables(printed)]
    lines = []
    for table in block.tables:
        # A column may have another name now.
        common = lambda rows: len(set(rows[0]) & set(table[0])) if rows[0][0] == table[0][0] else 0
        other = max(found, key=common, default=table[:1])
        if 5 * common(other) < 4 * len(table[0]):
            other = table[:1]
        names = names_of(table, other)
        new = {key: dict(zip(other[0], row)) for key, row in rows_by_name(other, names).items()}
        for key, row in rows_by_name(table, names).items():
            name = f"{table[0][0] if key[0].isdigit() else ''} {', '.join(key)}".strip()
            if key not in new:
                lines.append((name, " | ".join(row[len(key) :]), "", "not measured"))
                continue
            for column, old in list(zip(table[0], row))[len(key) :]:
                tolerance = tolerance_of(block.options.get("tolerance", ""), column)
                now = new[key].get(column, "–")
                lines.append((f"{name}: {column}" if column else name, old, now, verdict(old, now, tolerance)))
    return lines


def missing(options, minutes):
    """Why a block cannot be measured here; None if it can."""
    if "by hand" in options:
        return f"measured by hand: {options['by hand']}"
    if float(options.get("minutes", 0)) > minutes:
        return f"takes {options['minutes']} minutes: --minutes {options['minutes']}"
    for need in filter(None, (need.strip() for need in options.get("needs", "").split(","))):
        kind, _, name = need.partition(" ")
        if kind == "module" and not importlib.util.find_spec(name):
            return f"Python has no module {name}"
        if kind == "file" and not (pages.ROOT / name).exists():
            return f"{name} is missing"
        if kind == "variable" and name not in os.environ:
            return f"the environment variable {name} is not set"
        if need == "reference data" and not Path(os.environ.get("R1_SHARED", pages.ROOT / "../shared/data")).exists():
            return "the reference data is missing: set R1_SHARED"
    return None


def run(command, options):
    """Runs the command of a block: its exit code, and what it printed."""
    if options.seeds is not None and "benches/recipes.py" in command:
        command = f"{re.sub(r' --seeds [0-9,]+', '', command)} --seeds {options.seeds}"
    environment = os.environ | {"R1_REMEASURED": str(options.runs.resolve()), "PATH": f"{pages.binary().parent}:{os.environ['PATH']}"}
    print(f"  $ {command}", flush=True)
    done = subprocess.run(["bash", "-c", command], cwd=pages.ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        print("  " + "\n  ".join((done.stdout + done.stderr).strip().splitlines()[-20:]))
    return done.returncode, done.stdout


def measure(block, options):
    """Lines (figure, page, now, verdict) of a block."""
    reason = missing(block.options, options.minutes) or (None if block.source and block.source["command"] else "the block names no command")
    figures = sum(len(rows) - 1 for rows in block.tables)
    if reason:
        return [(f"{figures} rows", "", reason, "skipped")]
    code, printed = run(block.source["command"], options)
    if code or "test" in block.options:
        bad = "moved" if "test" in block.options else "failed"
        return [(f"{figures} rows", "", f"exit code {code}", bad if code else "equal")]
    lines = compare(block, printed)
    if options.seeds is not None:
        lines = [line for line in lines if line[-1] != "not measured"]
    return lines or [(f"{figures} rows", "", "the command printed no row of the table", "moved")]


def show(lines):
    """Prints lines as columns; of many, those with another verdict than `equal`."""
    if len(lines) > MANY:
        lines = [line for line in lines if line[-1] != "equal"]
    widths = [max(map(len, column)) for column in zip(*lines)]
    for line in lines:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip(), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--r1", type=Path, default=pages.binary())
    parser.add_argument("--runs", type=Path, default=pages.ROOT / "runs/remeasured" / pages.commit())
    parser.add_argument("--block", action="append", help="measure the block of this name only (repeatable)")
    parser.add_argument("--seeds", help="seeds of a recipe to measure, such as 0,2; default: those of the table")
    parser.add_argument("--minutes", type=float, default=60, help="skip blocks that take longer")
    parser.add_argument("--list", action="store_true", help="print the figures of the pages and end")
    options = parser.parse_args()
    wanted = [(page, block) for page in options.pages for block in pages.blocks(page.read_text())
              if not options.block or block.name in options.block]
    absent = set(options.block or []) - {block.name for _, block in wanted}
    if absent or not wanted:
        known = [block.name for page in options.pages for block in pages.blocks(page.read_text())]
        print(f"no measured block {', '.join(sorted(absent))}; the pages have {', '.join(known) or 'none'}", file=sys.stderr)
        return 2
    counts = Counter()
    os.environ["R1_BINARY"] = str(options.r1.resolve())
    for page, block in wanted:
        print(f"{page}: {block.name}. {block.about()}", flush=True)
        if options.list:
            for table in block.tables:
                show([(", ".join(key), *row[len(key) :]) for key, row in rows_by_name(table).items()])
            print("  " + (missing(block.options, options.minutes) or "can be measured here"))
            continue
        lines = measure(block, options)
        counts.update(line[-1] for line in lines)
        show([("figure", "page", "now", "verdict"), *lines])
    if not options.list:
        print(f"{', '.join(f'{counts[verdict]} {verdict}' for verdict in counts)}. {pages.machine('')}.".replace("Measured on", "Now:"))
    return 1 if counts.keys() & {"moved", "not measured", "failed"} else 0


if __name__ == "__main__":
    sys.exit(main())
