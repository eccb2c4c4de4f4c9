#!/usr/bin/env python3
"""Checks and times r1 on a GPU, and writes a table: check.py OUT [--device cpu] [--small] [--seconds N] [--only PART,…].

Runs in the folder that `just gpu-check` packs, or in benches/gpu with R1 naming the program. Needs a python3 with a CUDA
build of torch 2.11 for the device `cuda`; nothing but the standard library for `--device cpu`, which runs the checks that
need no GPU on small models. Every part has a time limit and runs in separate processes. The checks run at the same time,
the timed parts one after the other when the checks have ended. Results are written as they come: OUT/NAME.jsonl has one
object per row, OUT/NAME.md the table, OUT/NAME.log the messages of the programs. The exit status is 1 if a row failed.
"""

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import parts

HERE = Path(__file__).resolve().parent


class Check:
    """Settings of a run, programs, and the rows so far."""

    def __init__(self, options, work):
        self.options, self.work = options, Path(work)
        self.device, self.small = options.device, options.small
        self.began, self.rows = time.monotonic(), []
        self.lock, self.models = threading.RLock(), {}
        self.places = threading.BoundedSemaphore(options.jobs)
        self.r1 = os.environ.get("R1") or str(HERE / "r1")
        self.nano = next(path for path in (HERE / "r1-nano", HERE.parent.parent / "models/r1-nano") if path.exists())
        self.env = dict(os.environ)
        self.gpu = self.device_name()
        self.name = f"{datetime.date.today()}-" + re.sub("[^a-z0-9]+", "-", self.gpu.lower()).strip("-")
        self.out = Path(options.out)
        self.out.mkdir(parents=True, exist_ok=True)

    def device_name(self):
        if self.device == "cpu":
            return "CPU"
        try:
            query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
            name = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
        except (OSError, subprocess.CalledProcessError, IndexError):
            print("gpu-check: skipped, this machine has no NVIDIA GPU (nvidia-smi reports none)")
            sys.exit(0)
        try:
            import torch

            assert torch.__version__.startswith("2.11."), f"torch is {torch.__version__}"
            self.env["R1_CUDA_TORCH"] = os.path.dirname(torch.__file__)
            self.env["LD_LIBRARY_PATH"] = self.env["R1_CUDA_TORCH"] + "/lib"
        except (ImportError, AssertionError) as error:
            sys.exit(f"error: gpu-check needs a python3 with a CUDA build of torch 2.11: {error}")
        return name

    def left(self):
        return self.options.seconds - (time.monotonic() - self.began)

    def row(self, part, check, limit, measured, ok, share=""):
        """Adds a row. `ok` is None for a measurement without a limit."""
        verdict = "" if ok is None else "ok" if ok else "FAILED"
        row = {"part": part, "check": check, "limit": limit, "measured": measured, "share": share, "verdict": verdict}
        with self.lock:
            self.rows.append(row)
            with open(self.out / f"{self.name}.jsonl", "a") as file:
                file.write(json.dumps(row) + "\n")
            self.write()
            print(f"{part}: {check}: {measured}{f', {share}' if share else ''} (limit: {limit or '-'}) {verdict}", flush=True)

    def write(self):
        version = (HERE / "commit").read_text().strip() if (HERE / "commit").exists() else "this build"
        lines = ["# r1 on a GPU" if self.device == "cuda" else "# gpu-check on a CPU", ""]
        lines += [f"{datetime.date.today()}, {self.gpu}, r1 {version}.", ""]
        lines += ["| part | check | limit | measured | share of the limit of the hardware | |", "|---|---|---|---|---|---|"]
        for row in sorted(self.rows, key=lambda row: list(parts.PARTS).index(row["part"])):
            lines.append("| " + " | ".join(str(value).replace("|", "/") for value in row.values()) + " |")
        (self.out / f"{self.name}.md").write_text("\n".join(lines) + "\n")

    def run(self, command, limit, stdin=None, env=None):
        """The standard output of a program; raises `parts.Failed` with the end of its messages."""
        with self.places:
            limit = max(1.0, min(limit, self.left()))
            begin = time.monotonic()
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=limit, cwd=HERE, input=stdin,
                                      env=self.env | (env or {}))
            except subprocess.TimeoutExpired as error:
                self.log(command, env, f"no result after {limit:.0f} s", error.stderr or b"")
                raise parts.Failed(f"no result after {limit:.0f} s") from None
            except OSError as error:
                raise parts.Failed(f"{command[0]} does not start: {error}") from None
        self.log(command, env, f"exit code {done.returncode} after {time.monotonic() - begin:.1f} s", done.stderr)
        if done.returncode:
            raise parts.Failed(f"exit code {done.returncode}: " + " ".join(done.stderr.split())[-400:])
        return done.stdout


    def log(self, command, env, ended, messages):
        if isinstance(messages, bytes):
            messages = messages.decode(errors="replace")
        own = " ".join(f"{name}={value}" for name, value in (env or {}).items())
        with self.lock, open(self.out / f"{self.name}.log", "a") as file:
            file.write(f"{own} {' '.join(str(word)[:300] for word in command)}\n  {ended}\n{messages[-6000:]}\n")

    def each(self, function, items):
        """Calls a function with each item, at the same time if several programs may run."""
        with ThreadPoolExecutor(max_workers=self.options.jobs) as pool:
            for done in [pool.submit(function, item) for item in items]:
                done.result()

    def part(self, name):
        if self.left() < 5:
            self.row(name, "all", f"within {self.options.seconds:.0f} s", "not run: no time is left", False)
            return
        begin = time.monotonic()
        try:
            parts.PARTS[name](self)
        except Exception as error:  # a part that fails does not end the others
            self.row(name, "the part", "", f"{type(error).__name__}: {error}", False)
        print(f"{name}: {time.monotonic() - begin:.0f} s", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--small", action="store_true", help="the small models only, and few of them")
    parser.add_argument("--seconds", type=float, default=570, help="limit of all parts together")
    parser.add_argument("--only", default="", help="parts, separated by commas: " + ", ".join(parts.PARTS))
    parser.add_argument("--jobs", type=int, help="programs at the same time in the checks (default: 16 on a GPU, 1 on the CPU)")
    options = parser.parse_args()
    options.jobs = options.jobs or (16 if options.device == "cuda" else 1)
    chosen = options.only.split(",") if options.only else list(parts.PARTS)
    unknown = [name for name in chosen if name not in parts.PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]}: {', '.join(parts.PARTS)}")
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as work:
        check = Check(options, work)
        (check.out / f"{check.name}.jsonl").unlink(missing_ok=True)
        (check.out / f"{check.name}.log").unlink(missing_ok=True)
        together = [name for name in chosen if name not in parts.TIMED]
        usual = dict(check.env)
        if options.jobs > 1:
            check.env.setdefault("OMP_NUM_THREADS", "4")
        check.each(lambda name: check.part(name) if name else parts.prepare(check, chosen), [*together, None])
        check.env = usual
        for name in chosen:
            if name not in together:
                check.part(name)
        failed = sum(row["verdict"] == "FAILED" for row in check.rows)
        print(f"{len(check.rows)} rows, {failed} failed: {check.out / check.name}.md")
        sys.exit(1 if failed or not check.rows else 0)


if __name__ == "__main__":
    main()
