"""Trajectories: time and size of writing, and `r1 traj` and `r1 view` over a million steps (`just bench-store`).

benches/store.rs makes a run of 500 files below target/ (2 GB, removed at the end). Every command is
a new process, with the files in memory; DuckDB answers the same question as `where`. A measurement
is repeated if other processes used more than a tenth of the machine meanwhile.
"""

import argparse
import datetime
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

from compare import RESULTS, ROOT, machine

CONDITION = "reward < 0 and steps > 3"
# The same in SQL. Trajectories are counted, and their ids are not read.
PEER = """
SELECT count(*) FILTER (reward < 0 AND steps > 3), count(*), sum(steps) FROM (
    SELECT any_value(total_reward) AS reward, count(step) AS steps
    FROM read_parquet('{run}/trajectories/*.parquet', filename = true) GROUP BY filename, trajectory)
"""
# Share of the machine for other processes; more disturbs a measurement.
OTHERS = 0.1
waiting = {"left": 0.0}
disturbed = []


def busy():
    """Seconds that all cores have worked so far."""
    user, nice, system, _, _, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def undisturbed(name, work):
    """A sample of `work`, with its `seconds` and `cpu` seconds: the first one that other processes did not disturb.

    It waits for that as long as all measurements may wait together, and then takes what it gets.
    """
    while True:
        began = time.perf_counter()
        while waiting["left"] > time.perf_counter() - began:
            before = busy()
            time.sleep(0.5)
            if busy() - before < OTHERS * 0.5 * os.cpu_count():
                break
        before, start = busy(), time.perf_counter()
        sample = work()
        end = time.perf_counter()
        # Clock ticks have 10 ms.
        others = max(0, busy() - before - sample["cpu"] - 0.04) / ((end - start) * os.cpu_count())
        if others <= OTHERS:
            waiting["left"] -= start - began
            return sample
        waiting["left"] -= end - began
        if waiting["left"] <= 0:
            disturbed.append({"measured": name, "others": round(others, 2), "seconds": sample["seconds"], "cpu": sample["cpu"]})
            return sample


def command(name, *arguments):
    """A process from its start to its end: seconds and largest memory in MB."""

    def work():
        began = time.perf_counter()
        process = subprocess.Popen([str(argument) for argument in arguments], stdout=subprocess.PIPE, text=True)
        output = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"error: {name} ended with exit status {process.returncode}")
        return {"seconds": seconds, "cpu": usage.ru_utime + usage.ru_stime, "mb": usage.ru_maxrss / 1024, "output": output}

    return undisturbed(name, work)


def commands(args, run, turns):
    """Samples of the commands over the run. The first turn is a warm-up."""
    r1 = [args.binary, "traj"]
    each = {
        "version": [args.binary, "--version"],
        "ls": [*r1, "ls", run],
        "show": [*r1, "show", run, f"{args.files // 2}-20-3"],
        "where": [*r1, "where", run, CONDITION, "--json"],
        "duckdb": [sys.executable, Path(__file__), "--peer", run],
        "stats": [*r1, "stats", run],
    }
    samples = {name: [] for name in each}
    for turn in range(turns + 1):
        for name, arguments in each.items():
            print(f"measuring {name}", file=sys.stderr)
            sample = command(name, *arguments)
            output = sample.pop("output")
            if name == "where":
                summary = json.loads(output.strip().split("\n")[-1])
                selected = summary["matching"], summary["total"]
            elif name == "duckdb":
                answer = json.loads(output)
                # Without the start of Python.
                sample["query"] = answer["seconds"]
                if tuple(answer["counts"][:2]) != selected:
                    sys.exit(f"error: DuckDB selects {answer['counts']}, r1 {selected}")
                steps = answer["counts"][2]
            if turn > 0:
                samples[name].append(sample)
    return samples, {"trajectories": selected[1], "steps": steps, "matching": selected[0]}


def peer(run):
    """DuckDB's side of `where`."""
    import duckdb

    duckdb.execute(f"SET threads = {os.cpu_count()}")
    began = time.perf_counter()
    [counts] = duckdb.sql(PEER.format(run=run)).fetchall()
    print(json.dumps({"seconds": time.perf_counter() - began, "counts": [int(count) for count in counts]}))


class View:
    """`r1 view` of a folder of runs."""

    def __init__(self, binary, folder):
        self.began = time.perf_counter()
        arguments = [binary, "view", "--runs-dir", folder, "--port", "0", "--json"]
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)
        self.url = json.loads(self.process.stdout.readline())["url"]

    def get(self, path, **parameters):
        with urllib.request.urlopen(f"{self.url}{path}?{urllib.parse.urlencode(parameters)}") as reply:
            return reply.read()

    def table(self, name="trajectories", **parameters):
        page = {"run": "million", "split": "train", "sort": "-step", "offset": 0, "limit": 200} | parameters
        return json.loads(self.get(f"api/{name}", **page))

    def status(self, field):
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(rf"{field}:\s*(\d+)", text)[1])

    def close(self):
        self.process.terminate()
        self.process.wait()


def view(args, folder, turns):
    """Seconds from the start of `r1 view` to its pages, then of what a person does."""
    actions = {
        "sort": lambda it: it.table(sort="-reward"),
        "filter": lambda it: it.table(where=CONDITION),
        "both": lambda it: it.table(where=CONDITION, sort="-tokens"),
        "scroll": lambda it: it.table(where=CONDITION, sort="-tokens", offset=1000),
        "groups": lambda it: it.table("groups"),
        "open": lambda it: it.get("api/trajectory", run="million", id=f"{args.files // 2}-20-3"),
    }
    samples = {name: [] for name in ("runs", "table", *actions)}
    for turn in range(turns):
        print("measuring r1 view", file=sys.stderr)
        one = {}

        def work():
            before = os.times()
            server = View(args.binary, folder)
            try:
                for path in ("", "app.js", "app.css", "api/runs"):
                    server.get(path)
                server.get("api/metrics", run="million")
                one["runs"] = time.perf_counter() - server.began
                rows = server.table()
                one["table"] = time.perf_counter() - server.began
                one["table_mb"] = server.status("VmHWM") / 1024
                assert len(rows["rows"]) == 200, rows
                for name, act in actions.items():
                    began = time.perf_counter()
                    act(server)
                    one[name] = time.perf_counter() - began
                one["mb"] = server.status("VmHWM") / 1024
            finally:
                server.close()
            after = os.times()
            # With the server, which has ended.
            return {"seconds": one["table"], "cpu": sum(after[:4]) - sum(before[:4])}

        undisturbed("r1 view", work)
        for name in samples:
            mb = one["table_mb" if name in ("runs", "table") else "mb"]
            samples[name].append({"seconds": one[name], "mb": mb})
    return samples


def writing(args, dir, turns):
    """Files of a step of the demo, and of 512 trajectories of 8 steps of 4,096 tokens."""
    print("measuring writing", file=sys.stderr)
    demo = [args.binary, "run", ROOT / "scripts/retool.lua", "--runs-dir", dir, "--name", "demo", "--quiet", "trainer.steps=6", "eval.before=false", "eval.limit=8"]
    command("the demo", *demo)
    steps = [json.loads(line) for line in (dir / "demo/metrics.jsonl").read_text().splitlines()]
    # The first steps load pages of memory.
    step = statistics.median(line["time/step"] for line in steps[2:] if "time/step" in line)
    last = sorted((dir / "demo/trajectories").glob("*.parquet"))[-1]
    again = command("writing a step", args.bench, "again", last, dir, 10 * turns)["output"].splitlines()
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        alone = command("writing to memory", args.bench, "again", last, memory, 10 * turns)["output"].splitlines()
    long = command("writing long trajectories", args.bench, "long", dir, turns + 1)["output"].splitlines()
    # The first files are warm-ups.
    return {
        "demo": {"step": step, "samples": [json.loads(line) for line in again[turns:]]},
        "memory": {"step": step, "samples": [json.loads(line) for line in alone[turns:]]},
        "long": {"samples": [json.loads(line) for line in long[1:]]},
    }


def span(samples, digits=2):
    seconds = sorted(sample["seconds"] for sample in samples)
    return f"{statistics.median(seconds):.{digits}f}, {seconds[0]:.{digits}f} to {seconds[-1]:.{digits}f}"


def bench_binary():
    """Builds benches/store.rs."""
    build = ["cargo", "build", "--quiet", "--release", "--bench", "store", "--message-format=json"]
    messages = subprocess.run(build, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    built = [one for one in map(json.loads, messages) if one.get("executable") and one["target"]["kind"] == ["bench"]]
    return built[-1]["executable"]


def tables(results, counts):
    names = {
        "demo": "a step of the demo, r1-nano", "memory": "the same, to memory (`/dev/shm`)", "long": "512 trajectories of 8 steps of 4,096 tokens",
    }
    lines = ["| trajectories | sampled tokens | steps | ms | MB/s | bytes per token | share of a step |", "|---|---|---|---|---|---|---|"]
    for name, result in results["write"].items():
        one, seconds = result["samples"][0], statistics.median(sample["seconds"] for sample in result["samples"])
        share = f"{100 * seconds / result['step']:.2f} % of {result['step']:.2f} s" if "step" in result else "–"
        lines.append(f"| {names[name]} | {one['tokens']:,} | {one['steps']:,} | {1e3 * seconds:,.1f} | {one['bytes'] / seconds / 1e6:.1f} "
                     f"| {one['bytes'] / one['tokens']:.1f} | {share} |")
    lines += ["", "| over a million steps | seconds | MB | goal |", "|---|---|---|---|"]
    query = statistics.median(sample["query"] for sample in results["read"]["duckdb"])
    rows = [("version", "the start of the program", ""), ("ls", "`r1 traj ls`", "1 s"), ("show", "`r1 traj show ID`", "0.2 s"), ("where", f"`r1 traj where '{CONDITION}'`", "3 s"),
            ("duckdb", f"the same count with DuckDB in Python (the query alone: {query:.2f})", ""), ("stats", "`r1 traj stats`", "3 s"),
            ("runs", "`r1 view`, from its start to the page of runs", ""), ("table", "to the first table of trajectories", "2 s"),
            ("sort", "then: sorted by reward", "2 s"), ("filter", f"filtered by `{CONDITION}`", "2 s"), ("both", "that, sorted by tokens", "2 s"),
            ("scroll", "1,000 rows further", "2 s"), ("groups", "the table of groups", "2 s"), ("open", "a trajectory", "2 s")]
    for name, title, goal in rows:
        samples = results["read"][name]
        lines.append(f"| {title} | {span(samples)} | {max(sample['mb'] for sample in samples):,.0f} | {goal} |")
    median = {name: statistics.median(sample["seconds"] for sample in results["read"][name]) for name in ("version", "where", "duckdb")}
    lines += ["", f"{counts['steps']:,} steps, {counts['trajectories']:,} trajectories, {counts['bytes'] / 1e9:.1f} GB. DuckDB takes "
              f"{median['duckdb'] / median['where']:.2f} times as long as `where`; without the starts of both programs "
              f"{query / (median['where'] - median['version']):.2f} times."]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", help="the r1 binary")
    parser.add_argument("--bench", type=Path, help="the binary of benches/store.rs; built without it")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--files", type=int, default=500, help="training steps of the run; only 500 writes results")
    parser.add_argument("--wait", type=float, default=600, help="seconds to wait for other processes, in all")
    parser.add_argument("--keep", action="store_true", help="keep the run, and use it if it is there")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        return peer(args.peer)
    args.bench = args.bench or bench_binary()
    begin, waiting["left"] = time.perf_counter(), args.wait
    folder = ROOT / "target/bench-store" / str(args.files)
    run = folder / "million"
    try:
        if not (run / "metrics.jsonl").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            print("making the run", file=sys.stderr)
            subprocess.run([args.bench, "generate", folder, str(args.files)], check=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as dir:
            written = writing(args, Path(dir), args.repetitions)
        read, counts = commands(args, run, args.repetitions)
        counts["bytes"] = sum(path.stat().st_size for path in run.glob("trajectories/*.parquet"))
        results = {"write": written, "read": read | view(args, folder, args.repetitions)}
    finally:
        if not args.keep:
            shutil.rmtree(folder, ignore_errors=True)
    about = {
        "date": datetime.date.today().isoformat(), "machine": machine(), "cores": os.cpu_count(), "repetitions": args.repetitions,
        "r1": subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True).stdout.strip(),
        "load": os.getloadavg()[0], "nice": os.nice(0), "seconds": round(time.perf_counter() - begin), "disturbed": disturbed, **counts,
    }
    text = tables(results, counts)
    # The standard output goes to the page.
    print(text, file=sys.stdout if args.files == 500 else sys.stderr)
    if disturbed:
        print(f"disturbed by other processes: {json.dumps(disturbed)}", file=sys.stderr)
    if args.files == 500:
        head = (f"{about['date']}, {about['machine']}, {about['cores']} cores, r1 {about['r1']}. Seconds are medians of {args.repetitions} and their "
                f"range; MB the largest memory of the process. {len(disturbed)} samples were disturbed by other processes; "
                f"load {about['load']:.1f}, priority {about['nice']}.")
        name = f"{about['date']}-{re.sub('[^a-z0-9]+', '-', about['machine'].lower()).strip('-')}-store"
        (RESULTS / f"{name}.md").write_text(f"# The store\n\n{head}\n\n{text}\n")
        (RESULTS / f"{name}.json").write_text(json.dumps({"about": about, "results": results}, indent=1) + "\n")
        print(f"written to benches/results/{name}.md and .json", file=sys.stderr)


if __name__ == "__main__":
    main()
