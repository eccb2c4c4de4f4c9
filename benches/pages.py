#!/usr/bin/env python3
"""Blocks of measured figures in the pages of docs: their form, checks, and writing them.

    python3 benches/pages.py check docs                    # what benches/remeasure.py could not use
    COMMAND | python3 benches/pages.py write docs/x.md COMMAND       # the tables that it prints, with today's machine

A block is everything between two comments:

    <!-- measured: NAME; OPTION: VALUE; ... -->
    | table |
    Measured on CPU, instruction set SET, commit HASH, DATE: `COMMAND`.
    <!-- end of measured -->

COMMAND prints the table again. Of figures that are older than this form, HASH is the commit that
added them; `not recorded` may stand for SET and HASH, and `command not recorded` for COMMAND. Options (benches/remeasure.py applies them):

    tolerance: 3x, steps exact    how far a figure may move: `exact` (default), `any`, `20%`, `3x`,
                                  `±0.1`; after the start of a column's name, for that column.
                                  Columns of seconds and minutes are not compared without one
    needs: module numpy           what the machine needs: `module NAME` (Python), `file PATH`, `variable NAME`
                                  (of the environment), `reference data`
    minutes: 15                   on one core; blocks above the limit of --minutes are skipped
    by hand: REASON               there is no command that prints the table; never run
    test                          the command is a test that fails if a figure moves; it prints none

A table between `<!-- copied: NAME -->` and `<!-- end of copied -->` repeats figures of other pages.
"""

import datetime
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Set by benches/remeasure.py, to the folder of its runs: scripts then print what they measured and
# leave pages and pictures as they are.
REMEASURED = os.environ.get("R1_REMEASURED")
OPTIONS = {"tolerance", "needs", "minutes", "by hand", "test"}
BEGIN = re.compile(r"<!-- (?:measured|copied): *([^;>]*?) *((?:;[^>]*)?)-->\n")
END = re.compile("<!-- end of (?:measured|copied) -->")
SOURCE = re.compile(
    r"Measured on (?P<cpu>[^`]+?), instruction set (?P<set>not recorded|[\w-]+), "
    r"commit (?P<commit>not recorded|[0-9a-f]{7,40}), (?P<date>\d{4}-\d\d-\d\d): (?:`(?P<command>[^`]+)`|command not recorded)\."
)
# A table with its line breaks.
LINES = re.compile(r"^\|.*\n(?:\|.*\n)*", re.MULTILINE)
NUMBER = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?(?:e[-+]?\d+)?")
# Tables of figures that were not measured with r1: page and header, from its start.
OTHERS = {
    ("docs/guide/data.md", "name | rows (first split)"): "sizes that the publishers state",
    ("docs/guide/recipes/speedrun.md", "| Agent-R1 | here"): "settings",
    ("docs/guide/recipes/paperscout.md", "| PaperScout | here"): "settings",
}


def binary():
    """r1, as the tables are measured with it."""
    return Path(os.environ.get("R1_BINARY", ROOT / "target/release/r1"))


def runs(name):
    """The folder of the runs of a script."""
    return Path(REMEASURED) / name if REMEASURED else ROOT / "runs" / name


class Block:
    """A measured block: name, options, body, source (groups of SOURCE, or None) and tables."""

    def __init__(self, name, options, body):
        self.name, self.body, self.options = name, body, {}
        for option in filter(None, (part.strip() for part in options.split(";"))):
            key, _, value = option.partition(":")
            if key.strip() not in OPTIONS:
                raise ValueError(f"{name}: there is no option `{key.strip()}`; they are {', '.join(sorted(OPTIONS))}")
            self.options[key.strip()] = value.strip()
        self.tables = [rows for _, rows in tables(body)]
        prose = " ".join(line for line in body.splitlines() if not line.startswith("|"))
        self.source = SOURCE.search(" ".join(prose.split()))

    def about(self):
        """The sentence about the measurement."""
        return self.source.group(0) if self.source else "not said"


def blocks(text):
    """The measured blocks of a page.

    >>> page = '''<!-- measured: x; tolerance: 3x, steps exact; needs: module numpy -->
    ... | a | b |
    ... |---|---|
    ... | one | 2 |
    ...
    ... Measured on one thread of AMD EPYC (family 26), instruction set avx2, commit 0123abcd,
    ... 2026-11-25: `python3 benches/x.py --only
    ... one`.
    ... <!-- end of measured -->'''
    >>> [block] = blocks(page)
    >>> block.name, block.options, block.tables
    ('x', {'tolerance': '3x, steps exact', 'needs': 'module numpy'}, [[['a', 'b'], ['one', '2']]])
    >>> block.source["cpu"], block.source["set"], block.source["command"]
    ('one thread of AMD EPYC (family 26)', 'avx2', 'python3 benches/x.py --only one')
    >>> blocks(page.replace("needs", "need"))
    Traceback (most recent call last):
    ValueError: x: there is no option `need`; they are by hand, minutes, needs, test, tolerance
    >>> blocks(page.replace("<!-- end of measured -->", ""))
    Traceback (most recent call last):
    ValueError: x: there is no `<!-- end of measured -->`
    """
    found = []
    for match, body in parts(text):
        if match[0].startswith("<!-- measured"):
            found.append(Block(match[1], match[2], body))
    return found


def parts(text):
    """The marked parts of a page: the match of BEGIN, and the text up to its end."""
    for match in BEGIN.finditer(text):
        kind = match[0][5:].partition(":")[0]
        body, end, _ = text[match.end() :].partition(f"<!-- end of {kind} -->")
        if not end or BEGIN.search(body):
            raise ValueError(f"{match[1]}: there is no `<!-- end of {kind} -->`")
        yield match, body


def wrong_copies(name, text):
    """Rows `| [NAME](…NAME.md) |` of copied parts that differ from the means of the block of that page."""
    for _, body in ((match, body) for match, body in parts(text) if match[0].startswith("<!-- copied")):
        for line in body.splitlines():
            link = re.match(r"\| \[\w+\]\(([\w/]+\.md)\) ", line)
            page = (ROOT / name).parent / link[1] if link else None
            for block in blocks(page.read_text()) if page and page.exists() else []:
                columns = [[float(cell.split(" ")[0]) for cell in column[1:] if cell != "–"] for column in list(zip(*block.tables[0]))[1:4]]
                means = [sum(column) / len(column) if column else None for column in columns]
                copy = re.search(r"(–|\d\.\d\d)( \| |, )(–|\d\.\d\d)\2(–|\d\.\d\d)", line)
                copied = [None if cell == "–" else float(cell) for cell in copy.group(1, 3, 4)] if copy else []
                # The means of rounded figures may differ in the last digit.
                if len(copied) != 3 or any((a is None) != (b is None) or a is not None and abs(a - b) > 0.011 for a, b in zip(means, copied)):
                    yield f"{name}: the row of {block.name} differs from its page"


def tables(text):
    """The tables outside of code: number of the first line, and rows of cells, the header first.

    >>> tables("x\\n| a | b \\\\| c |\\n|---|---|\\n| 1 | |\\n\\n```\\n| no |\\n```")
    [(2, [['a', 'b \\\\| c'], ['1', '']])]
    """
    found, code, last = [], False, None
    for number, line in enumerate(text.splitlines(), 1):
        code ^= line.lstrip().startswith("```")
        if code or not line.lstrip().startswith("|"):
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]
        if last != number - 1:
            found.append((number, []))
        last = number
        if not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
            found[-1][1].append(cells)
    return [(number, rows) for number, rows in found if rows]


def of_figures(rows):
    """Whether a table has figures: a third of its cells, the first column left out, starts with a
    number, and no column is a meaning or a default.

    >>> of_figures([["a", "b"], ["x", "1.5 s"], ["y", "text"]])
    True
    >>> of_figures([["option", "default"], ["x", "1"]])
    False
    """
    if {"meaning", "default"} & set(rows[0]):
        return False
    cells = [cell for row in rows[1:] for cell in row[1:] if cell not in ("", "–")]
    return bool(cells) and 3 * sum(bool(re.match(r"[*~<≥+-]*\d", cell)) for cell in cells) >= len(cells)


def problems(name, text):
    """What is wrong with the figures of a page, a line each.

    >>> problems("docs/x.md", "| a | b |\\n|---|---|\\n| one | 2 |\\n")
    ['docs/x.md:1: a table of figures outside of a measured block: a | b']
    >>> problems("docs/x.md", "<!-- measured: x -->\\n| a | b |\\n|---|---|\\n| one | 2 |\\n<!-- end of measured -->\\n")
    ['docs/x.md: x has no sentence `Measured on CPU, instruction set SET, commit HASH, DATE: `COMMAND`.`']
    """
    try:
        measured = blocks(text)
    except ValueError as error:
        return [f"{name}: {error}"]
    wrong, seen = [], set()
    for block in measured:
        if not block.source:
            wrong.append(f"{name}: {block.name} has no sentence `Measured on CPU, instruction set SET, commit HASH, DATE: `COMMAND`.`")
        if not block.tables:
            wrong.append(f"{name}: {block.name} has no table")
        if block.name in seen:
            wrong.append(f"{name}: two blocks have the name {block.name}")
        seen.add(block.name)
    wrong += wrong_copies(name, text)
    blank = lambda match: "\n" * match[0].count("\n")
    rest = re.sub(BEGIN.pattern + "(?s:.*?)" + END.pattern, blank, text)
    for line, rows in tables(rest):
        header = " | ".join(rows[0]).strip()
        if of_figures(rows) and not any(name == page and header.startswith(start) for page, start in OTHERS):
            wrong.append(f"{name}:{line}: a table of figures outside of a measured block: {header}")
    return wrong


def commit():
    """The commit that is checked out."""
    done = subprocess.run(["git", "rev-parse", "--short=8", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "not recorded"


def machine(threads="one thread of "):
    """The middle of the sentence about a measurement with this r1, on this machine, today."""
    done = subprocess.run([binary(), "version", "--json"], capture_output=True, text=True, check=True)
    return about(json.loads(done.stdout), threads)


def about(config, threads="one thread of "):
    """The same, of a run: `config` is its config.json."""
    return (f"Measured on {threads}{config.get('cpu', 'not recorded')}, instruction set {config.get('kernels', 'not recorded')}, "
            f"commit {commit()}, {datetime.date.today()}")


def lines(sentence):
    """A sentence as lines of a page. A command is not cut within its words."""
    return textwrap.wrap(sentence, 100, break_long_words=False, break_on_hyphens=False)


def write(file, text):
    """Writes a page or picture; not while benches/remeasure.py runs the script."""
    if not REMEASURED:
        file.write_text(text)


def replace(page, name, lines):
    """Writes the part `name` of a page, and prints it. Its options are kept."""
    text = page.read_text()
    for match, body in parts(text):
        if match[1] == name:
            write(page, text[: match.end()] + "\n".join(lines) + "\n" + text[match.end() + len(body) :])
            print("\n".join(lines))
            return
    sys.exit(f"{page} has no part `<!-- measured: {name} -->`")


def written(text, printed, command, sentence):
    """A page with the tables that `command` printed now in its blocks, each in place of the one with the same header.

    >>> page = "<!-- measured: x -->\\n| a | b |\\n|---|---|\\n| one | 2 |\\n\\nMeasured on a, instruction set b, commit 0123456, 2026-01-01: `c`.\\n<!-- end of measured -->\\n"
    >>> print(written(page, "| a | b |\\n|---|---|\\n| one | 3 |\\n", "c", "Measured on d, instruction set e, commit 0123457, 2026-01-02"), end="")
    <!-- measured: x -->
    | a | b |
    |---|---|
    | one | 3 |
    <BLANKLINE>
    Measured on d, instruction set e, commit 0123457, 2026-01-02: `c`.
    <!-- end of measured -->
    """
    new = {match[0].split("\n")[0]: match[0] for match in LINES.finditer(printed)}
    wrapped = re.compile(SOURCE.pattern.replace(" ", r"\s+"))
    for match, body in parts(text):
        source = Block(match[1], match[2], body).source
        if source and source["command"] == command:
            made = LINES.sub(lambda table: new.get(table[0].split("\n")[0], table[0]), body)
            made = wrapped.sub(lambda _: "\n".join(lines(f"{sentence}: `{command}`.")), made)
            text = text.replace(match[0] + body, match[0] + made)
    return text


def main():
    if sys.argv[1:2] == ["check"] and len(sys.argv) > 2:
        pages = [page for path in map(Path, sys.argv[2:]) for page in (sorted(path.rglob("*.md")) if path.is_dir() else [path])]
        names = [(page, str(page.resolve().relative_to(ROOT))) for page in pages]
        # Decisions and the log are dated, and stay as they were written.
        wrong = [line for page, name in names if not name.startswith(("docs/lab/decisions/", "docs/lab/LOG.md"))
                 for line in problems(name, page.read_text())]
        print("\n".join(wrong), end="\n" if wrong else "")
        return 1 if wrong else 0
    if sys.argv[1:2] == ["write"] and len(sys.argv) == 4:
        page, printed = Path(sys.argv[2]), sys.stdin.read()
        print(printed, end="")
        write(page, written(page.read_text(), printed, sys.argv[3], machine("")))
        return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
