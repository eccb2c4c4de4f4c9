"""Timed parts of gpu-check: decode steps, updates, and the same with transformers and vLLM where they are installed."""

import json
import os
import subprocess
import sys
import time

# Dense bf16 operations per second and memory bandwidth in bytes per second, from the data sheets.
LIMITS = {"H100": (989e12, 3.35e12), "H200": (989e12, 4.8e12), "A100": (312e12, 2.0e12), "L40S": (362e12, 0.864e12),
          "L4": (121e12, 0.3e12)}
CONTEXT = 512
# Mean difference of log-probabilities in bf16: twice that of bf16 from f32 with the 1.5B shape,
# which the part `networks` measures.
SCORED = 0.04


def limits(check):
    names = sorted((name for name in LIMITS if name in check.gpu), key=len)
    return LIMITS[names[-1]] if names else (None, None)


def programs(check, name):
    """The path of a benchmark program; None, with a row, if it is not packed."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    if os.path.exists(path):
        return path
    check.row("speed", name, "", "not run: this program is not packed", None)
    return None


def talk(check, command, questions, limit, env=None):
    lines = "".join(json.dumps(question) + "\n" for question in questions)
    return [json.loads(line) for line in check.run(command, limit, stdin=lines, env=env).splitlines()[1:]]


def batches(check):
    """Batches of 1, 8 and 64: against scored log-probabilities, without graphs, and with the sampler of the host."""
    decode = None if check.small else programs(check, "decode")
    if decode is None:
        return
    import parts

    def one(folder):
        questions = [{"check": batch, "prompt": 60, "new": 64} for batch in (1, 8, 64)]
        command = [decode, str(folder), "bf16", *(["cuda"] if check.device == "cuda" else [])]
        eager = [*command, "eager"] if check.device == "cuda" else command
        ways = {"graphs": (command, None), "eager": (eager, None), "host": (command, {"R1_SAMPLER": "host"}),
                "waiting": (command, {"R1_SAMPLER": "tensors"})}
        found = {}

        def ask(name):
            way, env = ways[name]
            try:
                found[name] = talk(check, way, questions, 90, env=env)
            except parts.Failed as error:
                check.row("batches", f"{folder.name}: {name}", "", str(error), False)

        check.each(ask, ways)
        answers = (found.get(name, [None] * 3) for name in ways)
        for batch, own, plain, other, each in zip((1, 8, 64), *answers):
            if own is None:
                continue
            title = f"{folder.name}, {batch} sequences"
            check.row("batches", f"{title}: largest batch", str(batch), str(own["max_batch"]), own["max_batch"] == batch)
            check.row("batches", f"{title}: against scored, mean difference", "at most 0.04", f"{own['mean']:.1e}",
                      own["mean"] <= 0.04)
            if check.device == "cuda":
                share = own["graph_share"] or 0.0
                check.row("batches", f"{title}: steps from CUDA graphs", "at least 90%", f"{share:.0%}", share >= 0.9)
                if plain:
                    check.row("batches", f"{title}: ids as without graphs", "", f"{same(own, plain):.0%}", None)
            for answer, way in ((each, "with steps one at a time"), (other, "with the sampler of the host")):
                if answer:
                    share = same(own, answer)
                    check.row("batches", f"{title}: ids as {way}", "more than 50%", f"{share:.0%}", share > 0.5)

    check.each(one, [check.nano, parts.model(check, "qwen2.5-1.5b")])


def kernels(check):
    """r1's CUDA kernels: each against libtorch's operations in f64, and the tokens of decode steps with and without."""
    decode = None if check.device == "cpu" else programs(check, "decode")
    if decode is None:
        return
    import parts

    command = [decode, str(check.nano), "bf16", "cuda"]
    answer = talk(check, command, [{"kernels": not check.small}], 180)[0]
    check.row("kernels", "r1-nano uses all of them", "", answer["failure"] or "all", answer["failure"] is None)
    for name in dict.fromkeys(found["kernel"] for found in answer["checks"]):
        for kind in ("bf16", "f32"):
            own = [found for found in answer["checks"] if found["kernel"] == name and found["case"].startswith(kind)]
            if not own:
                continue
            # A NaN is null.
            worst = max(own, key=lambda found: float("inf") if found["difference"] is None else found["difference"])
            wrong = [found["case"] for found in own if not found["agrees"]]
            said = f"{worst['difference']} ({worst['case']}), {len(own)} shapes"
            check.row("kernels", f"{name}, {kind}: largest relative difference from f64", f"at most {worst['limit']:g}",
                      said + "".join(f"; wrong: {case}" for case in wrong), not wrong)
    folder = check.nano if check.small else parts.model(check, "qwen2.5-1.5b")
    questions = [{"check": 8, "prompt": 60, "new": 64}]
    own, plain = (talk(check, [decode, str(folder), "bf16", "cuda"], questions, 90, env=env)[0]
                  for env in ({}, {"R1_CUDA_KERNELS": "off"}))
    for title, found in (("with kernels", own), ("without kernels", plain)):
        check.row("kernels", f"{folder.name}, {title}: against scored, mean difference", f"at most {SCORED}",
                  f"{found['mean']:.1e}", found["mean"] <= SCORED)
    check.row("kernels", f"{folder.name}: ids as without kernels", "", f"{same(own, plain):.0%}", None)


def same(a, b):
    pairs = [(x, y) for one, other in zip(a["ids"], b["ids"]) for x, y in zip(one, other)]
    return sum(x == y for x, y in pairs) / max(1, len(pairs))


def sizes(folder):
    """Parameters of a model of Qwen2's shape, and bytes of its keys and values per token in bf16."""
    config = json.load(open(os.path.join(folder, "config.json")))
    size = os.path.getsize(os.path.join(folder, "model.safetensors")) / 2
    width = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return size, 2 * 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * width


def shapes(check):
    return [] if check.small or check.device == "cpu" else ["qwen2.5-0.5b", "qwen2.5-1.5b", "qwen2.5-7b"]


def host(check):
    """Time of the host for a decode step, with launches that do nothing."""
    program = None if check.small else programs(check, "decode")
    if program is None:
        return
    questions = [{"host": batch, "new": 200} for batch in (1, 8, 64) * 3]
    command = [program, str(check.nano), "bf16", *(["cuda"] if check.device == "cuda" else [])]
    answers = talk(check, command, questions, 90)
    for batch in (1, 8, 64):
        best = min(a["microseconds"] for a, q in zip(answers, questions) if q["host"] == batch)
        check.row("host", f"a decode step of {batch} sequences, without the device", "at most 300 us", f"{best:.0f} us",
                  best <= 300)


def decode(check):
    """Time of a decode step at batches of 1, 8 and 64, as a share of the memory bandwidth."""
    chosen = shapes(check)
    program = programs(check, "decode") if chosen else None
    for kind in chosen if program else []:
        import parts

        folder = parts.model(check, kind)
        parameters, cache = sizes(folder)
        times = {}
        # The first pair of each batch records the graphs.
        questions = [{"batch": batch, "prompt": CONTEXT, "new": new} for batch in (1, 8, 64) for new in (1, 65) * 3]
        answers = talk(check, [program, str(folder), "bf16", "cuda"], questions, 90)
        for question, answer in zip(questions, answers):
            key = question["batch"], question["new"]
            times[key] = min(answer["seconds"], times.get(key, answer["seconds"]))
        for batch in (1, 8, 64):
            step = (times[batch, 65] - times[batch, 1]) / 64
            moved = 2 * parameters + batch * cache * (CONTEXT + 32)
            bandwidth = limits(check)[1]
            share = f"{moved / step / bandwidth:.0%} of the bandwidth" if bandwidth else ""
            aim = {1: 0.6, 8: 0.6, 64: 0.8}[batch]
            measured = f"{step * 1e3:.2f} ms per step, {batch / step:,.0f} tokens/s, {moved / 2**30:.1f} GiB per step"
            check.times = getattr(check, "times", {}) | {(kind, batch): step}
            check.row("decode", f"{kind}, bf16, {batch} sequences of {CONTEXT} tokens", f"aim: {aim:.0%}", measured, None, share)
        if kind == "qwen2.5-1.5b":
            without(check, [program, str(folder), "bf16", "cuda"], kind)


def without(check, command, kind):
    """The same steps without each of r1's kernels, and without all."""
    names = ["norm", "rope", "gated", "attention"]
    ways = {"none": "off", "all but attention": ",".join([*names[:3], "logprobs"])}
    for title, wish in ways.items():
        questions = [{"batch": batch, "prompt": CONTEXT, "new": new} for batch in (1, 64) for new in (1, 65) * 2]
        times = {}
        for question, answer in zip(questions, talk(check, command, questions, 60, env={"R1_CUDA_KERNELS": wish})):
            key = question["batch"], question["new"]
            times[key] = min(answer["seconds"], times.get(key, answer["seconds"]))
        for batch in (1, 64):
            step = (times[batch, 65] - times[batch, 1]) / 64
            share = f"{step / check.times[kind, batch]:.2f} of the time with all"
            check.row("decode", f"{kind}, bf16, {batch} sequences, kernels: {title}", "", f"{step * 1e3:.2f} ms per step", None, share)


def update(check):
    """Time, share of the peak rate and memory of an update."""
    chosen = shapes(check)[:2]
    program = programs(check, "update") if chosen else None
    for kind in chosen if program else []:
        import parts

        folder = parts.model(check, kind)
        for tokens in (4096, 32768):
            question = {"dir": str(folder), "device": "cuda", "trajectories": [[512, 512]] * (tokens // 1024),
                        "tokens_per_batch": 16384, "repetitions": 4}
            answer = json.loads(check.run([program, json.dumps(question)], 90))
            rate = answer["tokens"] / min(answer["seconds"])
            peak = limits(check)[0]
            # 6 operations per parameter and token: forward and backward, without attention scores.
            share = f"{6 * answer['parameters'] * rate / peak:.0%} MFU" if peak else ""
            measured = f"{min(answer['seconds']) * 1e3:.0f} ms, {rate:,.0f} tokens/s, {answer['peak'] / 2**30:.1f} GiB"
            check.row("update-speed", f"{kind}, bf16, {answer['tokens']:,} tokens", "aim: 50% MFU", measured, None, share)


def step(check):
    """Whole steps of GRPO, after the first one, which records graphs; the run is ended before its checkpoint."""
    if not shapes(check):
        return
    import parts

    kind, steps, runs = "qwen2.5-1.5b", 5, check.work / "steps"
    command = [check.r1, "run", "step.lua", f"policy.model={parts.model(check, kind)}", "policy.device=cuda", "--name", "a",
               "--runs-dir", str(runs)]
    with open(check.out / f"{check.name}.log", "a") as log, \
            subprocess.Popen(command, stdout=log, stderr=log, cwd=os.path.dirname(os.path.abspath(__file__)), env=check.env) as run:
        end = time.monotonic() + min(60, check.left())
        lines = []
        while run.poll() is None and time.monotonic() < end and len(lines) < steps:
            time.sleep(0.1)
            path = runs / "a/metrics.jsonl"
            lines = path.read_text().splitlines() if path.exists() else []
        run.kill()
    if len(lines) < steps:
        raise parts.Failed(f"{len(lines)} of {steps} steps in a minute")
    lines = [json.loads(line) for line in lines]
    for place, line in enumerate(lines, 1):
        times = ", ".join(f"{name} {line['time/' + name]:.2f} s" for name in ("sampling", "training", "step"))
        check.row("step", f"{kind}, 64 trajectories of 256 tokens, step {place}", "", times, None,
                  f"{line['throughput/tokens_per_s']:,.0f} tokens/s, peak of {line['memory/device_peak'] / 1024:.0f} GiB")


TRANSFORMERS = """
import sys, time, torch, transformers
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16).to("cuda").eval()
for batch in (1, 8, 64):
    ids = torch.randint(3, 1000, (batch, int(sys.argv[2])), device="cuda")
    times = {}
    for new in (1, 65) * 3:
        torch.cuda.synchronize(); begin = time.perf_counter()
        with torch.no_grad():
            model.generate(ids, attention_mask=torch.ones_like(ids), min_new_tokens=new, max_new_tokens=new,
                           do_sample=False, pad_token_id=0)
        torch.cuda.synchronize(); seconds = time.perf_counter() - begin
        times[new] = min(seconds, times.get(new, seconds))
    print(batch, (times[65] - times[1]) / 64, transformers.__version__)
"""
VLLM = """
import sys, time, vllm
engine = vllm.LLM(sys.argv[1], skip_tokenizer_init=True, dtype="bfloat16", max_model_len=2048, gpu_memory_utilization=0.6)
for batch in (1, 8, 64):
    prompts = [{"prompt_token_ids": [3 + (7 * i + j) % 900 for j in range(int(sys.argv[2]))]} for i in range(batch)]
    times = {}
    for new in (1, 65) * 3:
        options = vllm.SamplingParams(temperature=0, min_tokens=new, max_tokens=new, ignore_eos=True, detokenize=False)
        begin = time.perf_counter(); engine.generate(prompts, options, use_tqdm=False); seconds = time.perf_counter() - begin
        times[new] = min(seconds, times.get(new, seconds))
    print(batch, (times[65] - times[1]) / 64, vllm.__version__)
"""


def peers(check):
    """The same decode steps with the peers that this machine has."""
    kind = "qwen2.5-1.5b"
    if kind not in shapes(check):
        return
    import parts

    for name, source in (("transformers", TRANSFORMERS), ("vllm", VLLM)):
        if subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True).returncode:
            check.row("peers", name, "", "not installed on this machine", None)
            continue
        try:
            text = check.run([sys.executable, "-c", source, str(parts.model(check, kind)), str(CONTEXT)], 150)
        except parts.Failed as error:
            check.row("peers", name, "", str(error), None)
            continue
        lines = [line.split() for line in text.splitlines() if len(line.split()) == 3 and line.split()[0].isdigit()]
        for batch, step, version in lines:
            batch, step = int(batch), float(step)
            own = getattr(check, "times", {}).get((kind, batch))
            ratio = f"r1 takes {own / step:.2f} of its time" if own else ""
            measured = f"{step * 1e3:.2f} ms per step, {batch / step:,.0f} tokens/s"
            check.row("peers", f"{name} {version}: {kind}, bf16, {batch} sequences", "", measured, None, ratio)
