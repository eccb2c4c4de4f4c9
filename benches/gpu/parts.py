"""The parts of gpu-check: each adds rows to a `check.Check`."""

import json
import math
import sys
import threading
from pathlib import Path

import encoders
import speed
import weights


class Failed(Exception):
    """A program that did not give a result."""


def small_models(check):
    """Folders of the small models, by what they differ in."""
    kinds = ("gqa",) if check.small else ("gqa", "mha", "window", "moe")
    return {kind: model(check, kind) for kind in kinds}


def model(check, kind):
    """The folder of a generated model."""
    folder = check.work / kind
    with check.lock:
        lock = check.models.setdefault(kind, threading.Lock())
    with lock:
        if not folder.exists():
            check.run([sys.executable, "shapes.py", str(folder), kind, str(check.nano)], 120)
    return folder


def machine(check):
    """Versions, and both ways to find the CUDA torch."""
    ways = {"R1_CUDA_TORCH": {}}
    if check.device == "cuda":
        # r1's own libtorch: the part without CUDA.
        torch = Path(check.env["R1_CUDA_TORCH"])
        own = check.work / "cpu-libtorch"
        own.mkdir()
        for pattern in ("libtorch_cpu.so", "libc10.so", "libgomp*"):
            for file in (torch / "lib").glob(pattern):
                (own / file.name).symlink_to(file)
        libraries = ":".join(map(str, [own, *torch.parent.glob("nvidia/*/lib")]))
        ways = {"R1_CUDA_TORCH": {"LD_LIBRARY_PATH": libraries}, "LD_LIBRARY_PATH": {"R1_CUDA_TORCH": ""}}
    for way, env in ways.items():
        about = json.loads(check.run([check.r1, "--json", "version"], 120, env=env))
        found = f"libtorch {about['libtorch']}, device {about['device']}, CUDA graphs: {about['cuda_graphs']}"
        ok = check.device == "cpu" or ("cuda" in str(about["device"]).lower() and about["cuda_graphs"] == "available")
        check.row("machine", f"r1 version with {way}", "the GPU is found, with CUDA graphs" * (check.device == "cuda"), found, ok)


def networks(check):
    """Log-probabilities and tokens against the CPU in f32."""
    models = {"r1-nano": check.nano, **small_models(check)}
    if not check.small:
        models["qwen2.5-1.5b"] = model(check, "qwen2.5-1.5b")

    def one(name):
        try:
            text = check.run([check.r1, "lua", "networks.lua", check.device, str(models[name])], 120)
        except Failed as error:
            check.row("networks", name, "", str(error), False)
            return
        for line in text.splitlines():
            row = json.loads(line)
            # Rounding in bf16 changes the experts of some tokens, and with them their
            # log-probabilities.
            limit = row["limit"] * (3 if name == "moe" and "bf16" in row["check"] else 1)
            ok = row["measured"] <= limit
            check.row("networks", f"{name}: {row['check']}", f"at most {limit:g}", f"{row['measured']:.2e}", ok)

    check.each(one, models)


def ahead(check):
    """Steps queued before the tokens of the step before are read, against steps one at a time."""
    models = {"r1-nano": check.nano, **small_models(check)}
    dtypes = ("f32",) if check.device == "cpu" else ("f32", "bf16")

    def one(case):
        name, dtype = case
        replies = {}
        for way in ("ahead", "tensors"):
            # On the CPU: the code paths of a GPU, with plain operations.
            env = {"R1_SAMPLER": way, "R1_GPU_PATHS": "1" if check.device == "cpu" else ""}
            command = [check.r1, "lua", "ahead.lua", check.device, dtype, str(models[name])]
            try:
                replies[way] = json.loads(check.run(command, 90, env=env))
            except Failed as error:
                check.row("ahead", f"{name}, {dtype}, {way}", "", str(error), False)
        if len(replies) < 2:
            return
        same = sum(a == b for a, b in zip(replies["ahead"], replies["tensors"]))
        # In bf16 the sizes of batches, which the two ways reach at other times, round differently.
        least = 24 if dtype == "f32" else 12
        check.row("ahead", f"{name}, {dtype}: replies as with steps one at a time", f"at least {least} of 24",
                  f"{same} of {len(replies['ahead'])}", same >= least)

    check.each(one, [(name, dtype) for name in models for dtype in dtypes])


# Settings of each kind of update; the models of `small_models` run the first.
UPDATES = {
    "GRPO": ("policy", {}),
    "GRPO, several micro-batches": ("policy", {"trainer.tokens_per_batch": 512}),
    "GRPO, gradient checkpointing": ("policy", {"trainer.gradient_checkpointing": True}),
    "PPO": ("policy", {"trainer.algorithm": "ppo"}),
    "LoRA": ("policy", {"policy.lora.rank": 4}),
    "SFT": ("sft", {}),
}


def updates(check):
    """Three updates with the same trajectories: on the CPU in f32, on the device in f32 and in bf16."""
    models = small_models(check)
    names = ("GRPO", "LoRA") if check.small else UPDATES
    cases = [(name, "gqa", *UPDATES[name]) for name in names]
    cases += [("GRPO", kind, "policy", {}) for kind in models if kind != "gqa"]

    def one(numbered):
        number, (name, model_kind, kind, settings) = numbered
        title = f"{name}, {model_kind}"
        folder = check.work / f"updates{number}"
        try:
            update(check, title, models[model_kind], folder, kind, settings)
        except (Failed, ValueError) as error:
            check.row("updates", title, "", str(error), False)

    check.each(one, enumerate(cases))


def update(check, title, model_dir, folder, kind, settings):
    def run(stage, name, device, dtype, *more):
        own = {"policy.model": str(model_dir), "policy.device": device, "policy.dtype": dtype, **settings}
        command = [check.r1, "lua", "updates.lua", stage, str(folder / name), json.dumps(own), *more]
        return [json.loads(line) for line in check.run(command, 90).splitlines()]

    ids = json.dumps(run("sample", "sampled", "cpu", "f32")[0]["ids"])
    sides = {}
    for name, device, dtype in (("cpu", "cpu", "f32"), ("f32", check.device, "f32"), ("bf16", check.device, "bf16")):
        sides[name] = run("update", name, device, dtype, kind, str(folder / "sampled"), ids)
    loss = "sft/loss" if kind == "sft" else "policy/loss"
    norm = "policy/grad_norm"
    # In f32 the first loss and gradient agree to rounding; AdamW divides by the size of a gradient,
    # so that small gradients with another sign change weights as much as large ones.
    limits = {"f32": (1e-4, 1e-3, 0.999), "bf16": (0.02, 0.05, 0.9)}
    for name, (loss_limit, norm_limit, cosine_limit) in limits.items():
        first, expected = sides[name][0], sides["cpu"][0]
        apart = abs(first[loss] - expected[loss])
        check.row("updates", f"{title}, {name}: first loss against the CPU", f"at most {loss_limit:g}", f"{apart:.1e}",
                  apart <= loss_limit)
        apart = abs(first[norm] - expected[norm]) / expected[norm]
        check.row("updates", f"{title}, {name}: first gradient norm, relative difference", f"at most {norm_limit:g}",
                  f"{apart:.1e}", apart <= norm_limit)
        cosine, distance = weights.compare(*(folder / run / "export" for run in ("sampled", "cpu", name)))
        check.row("updates", f"{title}, {name}: change of the weights by three updates, cosine", f"at least {cosine_limit:g}",
                  f"{cosine:.5f}, relative distance {distance:.1e}", cosine >= cosine_limit and math.isfinite(distance))


def run(check):
    """A run as a user starts it, with the mismatch of sampler and learner."""
    settings = [f"policy.device={check.device}", "trainer.steps=2"]
    cases = {"task.lua, r1-nano": ["task.lua", "policy.model=r1-nano", "--profile", *settings],
             "task.lua, r1-nano, merged adapter": ["task.lua", "policy.model=r1-nano", "policy.lora.rank=4",
                                                   "policy.merged_sampling=on", *settings]}
    if not check.small and (check.nano.parent / "scripts/retool.lua").exists():
        cases["the demo, scripts/retool.lua"] = [str(check.nano.parent / "scripts/retool.lua"), settings[0], "trainer.steps=20"]

    def one(numbered):
        number, (title, arguments) = numbered
        runs = check.work / f"runs{number}"
        try:
            check.run([check.r1, "run", *arguments, "--name", "a", "--runs-dir", str(runs)], 120)
        except Failed as error:
            check.row("run", title, "the run ends", str(error), False)
            return
        lines = [json.loads(line) for line in (runs / "a/metrics.jsonl").read_text().splitlines()]
        for name, limit in (("mismatch/kl", 5e-3), ("mismatch/max_abs", 2.0)):
            # Before the first update of a step both have the same weights.
            value = max(abs(line[name]) for line in lines if line.get(name) is not None)
            check.row("run", f"{title}: {name}", f"at most {limit:g}", f"{value:.1e}", value <= limit)
        if title.startswith("the demo"):
            steps = [line for line in lines if "reward/mean" in line]
            first, last = steps[0]["reward/mean"], steps[-1]["reward/mean"]
            seconds = sum(line["time/step"] for line in steps[1:]) / len(steps[1:])
            check.row("run", f"{title}: reward of step {len(steps)}", f"more than {first:.2f}, that of step 1",
                      f"{last:.2f}, {seconds:.2f} s per step beside the other checks", last > first)
        if "--profile" in arguments:
            profile(check, title, runs / "a/profile")
        if check.device == "cuda":
            share = lines[-1].get("rollout/graph_share") or 0.0
            check.row("run", f"{title}: steps from CUDA graphs", "at least 90%", f"{share:.0%}", share >= 0.9)

    check.each(one, enumerate(cases.items()))


def profile(check, title, folder):
    """Traces and the table of operations of a run."""
    try:
        traces = [json.loads((folder / name).read_text())["traceEvents"] for name in ("decode.json", "update.json")]
        table = (folder / "operations.md").read_text()
        (check.out / "operations.md").write_text(table)
    except (OSError, ValueError, KeyError) as error:
        check.row("run", f"{title}: profile", "traces and a table", f"{type(error).__name__}: {error}", False)
        return
    ok = all(traces) and table.count("| all |") >= (4 if check.device == "cuda" else 2)
    counts = " and ".join(str(len(trace)) for trace in traces)
    check.row("run", f"{title}: profile", "traces and a table", f"{counts} events; operations.md", ok)


PARTS = {
    "machine": machine,
    "kernels": speed.kernels,
    "networks": networks,
    "ahead": ahead,
    "updates": updates,
    "encoders": encoders.encoders,
    "run": run,
    "batches": speed.batches,
    "host": speed.host,
    "decode": speed.decode,
    "update-speed": speed.update,
    "step": speed.step,
    "peers": speed.peers,
    "encoder-speed": encoders.encoder_speed,
}

# These have the machine to themselves.
TIMED = ("host", "decode", "update-speed", "step", "peers", "encoder-speed")


def prepare(check, chosen):
    """Writes the models of the timed parts, while the checks run."""
    if check.device == "cpu" or check.small:
        return
    kinds = [kind for part, needs in MODELS.items() if part in chosen for kind in needs]
    check.each(lambda kind: model(check, kind), dict.fromkeys(kinds))


MODELS = {
    "decode": ("qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-7b"),
    "update-speed": ("qwen2.5-0.5b", "qwen2.5-1.5b"),
    "encoder-speed": ("bge-base", "qwen3-embedding-0.6b"),
}
