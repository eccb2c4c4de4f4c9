"""Overhead of scripts: environment steps compared with gymnasium, waits, reloads, limits (`just bench-scripts`).

All on one core. Sides take turns; the smallest time of each is compared, because other load on the machine only adds time.
"""

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from compare import RESULTS, ROOT, Side, machine


EPISODES = 10_000


def times(samples):
    seconds = sorted(sample["seconds"] for sample in samples)
    return {"min": seconds[0], "median": seconds[len(seconds) // 2], "max": seconds[-1]}


def rate(sample, result):
    return sample["steps"] / result["min"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", required=True, help="the r1 binary")
    parser.add_argument("--bench", required=True, help="the binary of benches/scripts.rs")
    parser.add_argument("--repetitions", type=int, default=7)
    args = parser.parse_args()
    begin = time.perf_counter()
    # One core for both sides.
    core = sorted(os.sched_getaffinity(0))[-1]
    os.sched_setaffinity(0, {core})
    names = {
        name: []
        for name in ("frozen_lake", "gymnasium", "gymnasium_bare", "rollout", "waiting", "reload", "loop", "loop_free")
    }
    with tempfile.TemporaryDirectory() as dir:
        r1 = Side([args.bench, dir], 1)
        peer = Side([sys.executable, str(ROOT / "benches/scripts_peer.py")], 1)
        for turn in range(args.repetitions + 1):
            for name, samples in names.items():
                print(f"measuring {name}", file=sys.stderr)
                sample = (peer if name.startswith("gymnasium") else r1).measure(name)
                if turn > 0:  # the first measurement is a warm-up
                    samples.append(sample)
        r1.close()
        peer.close()
    results = {name: times(samples) for name, samples in names.items()}
    ours, theirs, bare, whole = (
        rate(names[name][0], results[name]) for name in ("frozen_lake", "gymnasium", "gymnasium_bare", "rollout")
    )
    won, their_won = (names[name][0]["won"] / EPISODES for name in ("frozen_lake", "gymnasium"))
    if not 0.5 < won / their_won < 2:
        sys.exit(f"error: r1 wins {won:.2%} of the games and gymnasium {their_won:.2%}: they do not play the same one")
    limits = results["loop"]["min"] / results["loop_free"]["min"]
    about = {
        "date": datetime.date.today().isoformat(), "machine": machine(), "cores": os.cpu_count(),
        "repetitions": args.repetitions, "load": os.getloadavg()[0], "seconds": round(time.perf_counter() - begin),
        "r1": subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True).stdout.strip(),
        "gymnasium": version("gymnasium"), "python": sys.version.split()[0],
    }

    def span(name, scale=1e3, unit="ms"):
        result = results[name]
        return f"{result['min'] * scale:.0f} {unit} ({result['median'] * scale:.0f}, {result['max'] * scale:.0f})"

    lines = [
        "| measured | r1 | peer | ratio | target |", "|---|---|---|---|---|",
        f"| FrozenLake, 10,000 trajectories: env steps with state, seeds and records | {ours:,.0f} steps/s, {span('frozen_lake')} "
        f"| gymnasium: {theirs:,.0f} steps/s, {span('gymnasium')} | **{ours / theirs:.2f}x** | 1x |",
        f"| the same, gymnasium without its wrappers | | {bare:,.0f} steps/s, {span('gymnasium_bare')} | **{ours / bare:.2f}x** | |",
        f"| the same through a worker thread, prompts and replies as tokens | {whole:,.0f} steps/s, {span('rollout')} | | {whole / theirs:.2f}x | |",
        f"| 1,000 trajectories that wait 100 ms for a tool, one worker | {span('waiting')} | | | 300 ms |",
        f"| from saving a script to the end of a trajectory on it | {span('reload')} | | | 300 ms |",
        f"| a loop in Lua under limits | {span('loop')} | without: {span('loop_free')} | {limits:.2f}x the time | 2x |",
    ]
    head = (f"{about['date']}, {about['machine']}, one of {about['cores']} cores, r1 {about['r1']}, gymnasium {about['gymnasium']} on Python "
            f"{about['python']}. Smallest of {args.repetitions} (median, largest), sides taking turns, load {about['load']:.1f}.")
    text = f"{head}\n\n" + "\n".join(lines) + "\n"
    print(text)
    name = f"{about['date']}-{re.sub('[^a-z0-9]+', '-', about['machine'].lower()).strip('-')}-scripts"
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.md").write_text(f"# Scripts\n\n{text}")
    (RESULTS / f"{name}.json").write_text(json.dumps({"about": about, "results": results}, indent=1) + "\n")
    print(f"written to benches/results/{name}.md and .json")


if __name__ == "__main__":
    main()
