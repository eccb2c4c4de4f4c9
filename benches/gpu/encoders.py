"""Encoders of search indexes in gpu-check: vectors against the CPU in f32, and passages per second."""

import array
import json
import math
import random
import shutil
import tempfile
import time
from pathlib import Path

import speed

WORDS = "river stream mountain valley bridge city king queen year century north south novel song film team".split()


def corpus(check, passages, words):
    """A file of passages with up to so many words."""
    path = check.work / f"passages-{passages}-{words}.jsonl"
    if not path.exists():
        draw = random.Random(0)
        texts = (" ".join(draw.choices(WORDS, k=draw.randint(1, words))) for _ in range(passages))
        path.write_text("".join(json.dumps({"id": number, "text": text}) + "\n" for number, text in enumerate(texts)))
    return path


def build(check, model, passages, options, limit):
    """Vectors of an index, and the seconds of its build."""
    out = Path(tempfile.mkdtemp(prefix="encoded-", dir=check.work)) / "index"
    command = [check.r1, "--quiet", "index", "build", str(passages), "--out", str(out), "--encoder", str(model)]
    began = time.monotonic()
    check.run([*command, *options], limit)
    seconds = time.monotonic() - began
    numbers = array.array("f")
    numbers.frombytes((out / "dense/vectors.f32").read_bytes())
    width = json.loads((out / "manifest.json").read_text())["parts"]["dense"]["dimension"]
    shutil.rmtree(out.parent)
    return [numbers[start : start + width] for start in range(0, len(numbers), width)], seconds


def encoders(check):
    """Cosines of vectors in f32 and bf16 to those of the CPU in f32, for an encoder and for a decoder."""
    import parts

    passages = corpus(check, *((12, 60) if check.small else (600, 200)))
    models = {kind: parts.model(check, kind) for kind in ("bert", "gqa")}

    def one(case):
        kind, pooling = case
        model, way = models[kind], ["--pooling", pooling]
        expected, _ = build(check, model, passages, ["--device", "cpu", "--dtype", "f32", *way], 120)
        for dtype, lowest in (("f32", 0.99999), ("bf16", 0.995)):
            title = f"{kind}, {pooling}, {dtype}: lowest cosine to the CPU's vectors"
            try:
                actual, _ = build(check, model, passages, ["--device", check.device, "--dtype", dtype, *way], 120)
            except parts.Failed as error:
                check.row("encoders", title, f"at least {lowest}", str(error), False)
                continue
            cosine = min(sum(map(float.__mul__, one, other)) for one, other in zip(actual, expected))
            ok = len(actual) == len(expected) and cosine >= lowest and math.isfinite(cosine)
            check.row("encoders", title, f"at least {lowest}", f"{cosine:.6f}", ok)

    check.each(one, [(kind, pooling) for kind in models for pooling in ("mean", "cls", "last")])


def flops(config, tokens):
    """Operations of the matrix products of a passage."""
    hidden, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    if config["model_type"] == "bert":
        return layers * (2 * tokens * (4 * hidden**2 + 2 * hidden * inner) + 4 * tokens**2 * hidden)
    queries, keys = (config[f"num_{name}_heads"] * config["head_dim"] for name in ("attention", "key_value"))
    # A causal mask halves the products of attention.
    return layers * (2 * tokens * (2 * hidden * (queries + keys) + 3 * hidden * inner) + 2 * tokens**2 * queries)


def encoder_speed(check):
    """Passages per second of `r1 index build`, BM25 included, and the share of the peak rate; the time of a start is left out."""
    import parts

    if check.device == "cpu":
        return
    peak, _ = speed.limits(check)
    for kind, many in (("bge-base", 40_000), ("qwen3-embedding-0.6b", 20_000)):
        model = parts.model(check, kind)
        config = json.loads((model / "config.json").read_text())
        for tokens in (128, 512):
            count = many * 128 // tokens
            # Longer passages, which are cut to so many tokens.
            (model / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": tokens}))
            times = []
            for passages in (count // 4, count):
                path = check.work / f"long-{passages}-{tokens}.jsonl"
                text = " ".join(WORDS * (tokens // len(WORDS) + 1))
                path.write_text("".join(json.dumps({"id": n, "text": text}) + "\n" for n in range(passages)))
                times.append(build(check, model, path, ["--device", "cuda"], 120)[1])
            if times[1] < 1.5 * times[0]:
                # The start of the program is most of the time.
                said = f"no figure: {count // 4} passages took {times[0]:.1f} s, {count} took {times[1]:.1f} s"
                check.row("encoder-speed", f"{kind}, {tokens} tokens", "", said, None)
                continue
            rate = (count - count // 4) / (times[1] - times[0])
            used = rate * flops(config, tokens)
            share = f"{used / peak:.0%} of {peak / 1e12:.0f} TFLOP/s" if peak else ""
            hours = 5e6 / rate / 3600
            check.row("encoder-speed", f"{kind}, {tokens} tokens", "", f"{rate:.0f} passages/s, {hours:.2f} hours for 5 million",
                      None, share)
