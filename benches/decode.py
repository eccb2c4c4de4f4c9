"""Decode and prefill of a model of a real shape on the CPU, compared with transformers, llama.cpp and the machine's limits.

The model is Qwen2.5-0.5B's shape with random weights, made once in the cache, or with --model a Llama
or Qwen2 model in Hugging Face layout. Every side samples
greedily the same number of tokens after prompts of the same length; a step's time is (17 tokens - 1
token) / 16, so that prefill is not in it. Sides take turns; the smallest time of each is compared,
because other load on the machine only adds time. The limits are measured before and after r1's part
of every repetition, because they vary with the load of the machine: each repetition is compared
with the better of its two; the median is reported, the first repetition is a warm-up.
"""

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import time
import zlib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

from compare import RESULTS, ROOT, Side, machine

BATCHES = (1, 8, 32)
MODEL = None  # the directory of --model
PROMPT, NEW, LONG = 32, 16, 512
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "r1/shapes"
SHAPE = {
    "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
    "num_key_value_heads": 2, "vocab_size": 151936, "max_position_embeddings": 32768, "rope_theta": 1e6,
    "tie_word_embeddings": True, "rms_norm_eps": 1e-6,
}


def make(kind):
    """The directory of the model: --model, or the random one in f32 or bf16."""
    if MODEL:
        return MODEL
    dir = CACHE / f"qwen2.5-0.5b-{kind}"
    if not (dir / "model.safetensors").exists():
        import torch
        from transformers import Qwen2Config, Qwen2ForCausalLM

        torch.manual_seed(0)
        model = Qwen2ForCausalLM(Qwen2Config(**SHAPE)).float()
        (model if kind == "f32" else model.bfloat16()).save_pretrained(dir)
    return dir


def shape():
    return json.loads((MODEL / "config.json").read_text()) if MODEL else SHAPE


def gguf(kind):
    """The same weights in GGUF, written with llama.cpp's package `gguf`."""
    import gguf
    import torch
    from safetensors.torch import load_file

    # The rotary embedding of Llama is permuted in GGUF. Its speed is that of the other order.
    SHAPE, family = shape(), shape().get("model_type", "qwen2")
    # Models of the same shape may share a file.
    name = f"{family}-{zlib.crc32(json.dumps(SHAPE, sort_keys=True).encode()):08x}" if MODEL else "qwen2.5-0.5b"
    path = CACHE / f"{name}-{kind}.gguf"
    if path.exists():
        return path
    CACHE.mkdir(parents=True, exist_ok=True)
    type = gguf.GGMLQuantizationType.F32 if kind == "f32" else gguf.GGMLQuantizationType.BF16
    writer = gguf.GGUFWriter(str(path) + ".part", family)
    writer.add_context_length(SHAPE["max_position_embeddings"])
    writer.add_embedding_length(SHAPE["hidden_size"])
    writer.add_block_count(SHAPE["num_hidden_layers"])
    writer.add_feed_forward_length(SHAPE["intermediate_size"])
    writer.add_head_count(SHAPE["num_attention_heads"])
    writer.add_head_count_kv(SHAPE["num_key_value_heads"])
    writer.add_rope_freq_base(SHAPE["rope_theta"])
    writer.add_layer_norm_rms_eps(SHAPE["rms_norm_eps"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([f"t{id}" for id in range(SHAPE["vocab_size"])])
    writer.add_token_types([gguf.TokenType.NORMAL] * SHAPE["vocab_size"])
    writer.add_token_merges(["t 0"])
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[family.upper()], SHAPE["num_hidden_layers"])
    for name, tensor in load_file(make(kind) / "model.safetensors").items():
        new = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if new is None:
            sys.exit(f"error: llama.cpp has no name for {name}")
        if tensor.ndim == 1 or kind == "f32":
            writer.add_tensor(new, tensor.float().numpy())
        else:
            writer.add_tensor(new, tensor.bfloat16().view(torch.uint16).numpy().view("uint8"), raw_dtype=type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    Path(str(path) + ".part").rename(path)
    return path


def peer(name, kind):
    """Process of a peer: requests as in benches/decode.rs on stdin, seconds on stdout."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # output of libraries goes to stderr
    threads = int(os.environ["OMP_NUM_THREADS"])
    if name == "transformers":
        import torch
        import transformers

        torch.set_num_threads(threads)
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        type = torch.float32 if kind == "f32" else torch.bfloat16
        model = transformers.AutoModelForCausalLM.from_pretrained(make(kind), dtype=type, attn_implementation="sdpa")
        model.generation_config.eos_token_id = model.config.eos_token_id = None

        def generate(batch, prompt, new):
            ids = torch.randint(1000, 30000, (batch, prompt))
            with torch.inference_mode():
                model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=new,
                               min_new_tokens=new, pad_token_id=0)
    else:
        import llama_cpp

        # It logs every tensor.
        quiet = llama_cpp.llama_log_callback(lambda level, text, user_data: None)
        llama_cpp.llama_log_set(quiet, None)
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        model = llama_cpp.llama_model_load_from_file(str(gguf(kind)).encode(), params)
        context = llama_cpp.llama_context_default_params()
        context.n_ctx, context.n_batch, context.n_ubatch, context.n_seq_max = 4096, 2048, 512, max(BATCHES)
        context.n_threads = context.n_threads_batch = threads
        context.kv_unified = True  # the sequences share the cache; else each has a 32nd of it
        context = llama_cpp.llama_init_from_model(model, context)
        batch_of = llama_cpp.llama_batch_init(2048, 0, 1)

        def decode(rows):
            """Rows of (sequence, position, id, whether to return logits)."""
            batch_of.n_tokens = len(rows)
            for place, (sequence, position, id, wanted) in enumerate(rows):
                batch_of.token[place], batch_of.pos[place] = id, position
                batch_of.n_seq_id[place], batch_of.seq_id[place][0] = 1, sequence
                batch_of.logits[place] = wanted
            if llama_cpp.llama_decode(context, batch_of) != 0:
                sys.exit("error: llama.cpp could not decode")

        def generate(batch, prompt, new):
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
            decode([(s, p, 1000 + 7919 * s % 30011 + p, p == prompt - 1) for s in range(batch) for p in range(prompt)])
            for step in range(new - 1):
                decode([(s, prompt + step, 2000 + step, True) for s in range(batch)])

    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        begin = time.perf_counter()
        generate(**json.loads(line))
        print(json.dumps({"seconds": time.perf_counter() - begin}), file=answers)


def measure(args, kind):
    dir = make(kind)
    sides = {"r1": Side([args.bench, str(dir), kind], args.threads)}
    for name in ("transformers", "llama.cpp"):
        if name == "llama.cpp":
            try:
                version("llama_cpp_python"), version("gguf")
            except PackageNotFoundError:
                print("llama-cpp-python is not installed: left out", file=sys.stderr)
                continue
        own = ["--model", str(MODEL)] if MODEL else []
        sides[name] = Side([sys.executable, __file__, "--peer", name, "--kind", kind, *own], args.threads)
    shapes = [(batch, PROMPT, new) for batch in BATCHES for new in (1, NEW + 1)] + [(1, LONG, 1)]
    sizes = shape()
    width = sizes["hidden_size"]
    values = 2 * width // sizes["num_attention_heads"] * sizes["num_key_value_heads"]
    inner = sizes["num_hidden_layers"] * width * (2 * width + values + 3 * sizes["intermediate_size"])
    head = sizes["vocab_size"] * width

    def shortest(limits):
        """Lower bounds of the seconds of a step and of a prefill at these limits."""
        bytes = (inner + head) * (4 if kind == "f32" else 2)
        return (bytes / max(limit["bytes_per_second"] for limit in limits),
                2 * (inner * LONG + head) / max(limit["flops"] for limit in limits))

    best, limits = {}, []
    shares = {what: [] for what in (*BATCHES, LONG)}
    for repetition in range(args.repetitions + 1):
        for name, side in sides.items():
            before = [side.measure("{}")] if name == "r1" else []
            times = {}
            for size in shapes:
                request = json.dumps(dict(zip(("batch", "prompt", "new"), size, strict=True)))
                times[size] = side.measure(request)["seconds"]
                best[name, size] = min(times[size], best.get((name, size), float("inf")))
            # The first repetition is a warm-up.
            if name != "r1" or repetition == 0:
                continue
            around = [*before, side.measure("{}")]
            limits += around
            step, prefill = shortest(around)
            for batch in BATCHES:
                shares[batch].append((times[batch, PROMPT, NEW + 1] - times[batch, PROMPT, 1]) / NEW / step)
            shares[LONG].append(times[1, LONG, 1] / prefill)
    for side in sides.values():
        side.close()
    steps = {name: {batch: (best[name, (batch, PROMPT, NEW + 1)] - best[name, (batch, PROMPT, 1)]) / NEW
                    for batch in BATCHES} for name in sides}
    prefill = {name: best[name, (1, LONG, 1)] for name in sides}
    step, all = shortest(limits)
    return {
        "limits": limits, "steps": steps, "prefill": prefill, "step_limit": step, "prefill_limit": all,
        "to_limit": {str(what): {"median": median(list), "each": list} for what, list in shares.items()},
    }


def table(results):
    lines = ["| measured | r1 | limit | r1 to limit | transformers | ratio | llama.cpp | ratio |",
             "|---|---|---|---|---|---|---|---|"]

    def row(what, times, limit, share):
        def against(name):
            return f"{times[name] * 1e3:.1f} ms | **{times[name] / times['r1']:.2f}x**" if name in times else " | "
        lines.append(f"| {what} | {times['r1'] * 1e3:.1f} ms | {limit * 1e3:.1f} ms | {share['median']:.2f} "
                     f"| {against('transformers')} | {against('llama.cpp')} |")

    for kind, result in results.items():
        for batch in BATCHES:
            times = {name: steps[batch] for name, steps in result["steps"].items()}
            row(f"{kind}, decode, batch {batch}, a step", times, result["step_limit"], result["to_limit"][str(batch)])
        row(f"{kind}, prefill, {LONG} tokens", result["prefill"], result["prefill_limit"],
            result["to_limit"][str(LONG)])
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", help="the binary of benches/decode.rs")
    parser.add_argument("--binary", help="the r1 binary (not used here)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--model", type=Path, help="a model in place of the random one")
    parser.add_argument("--kind", choices=("f32", "bf16"), help="measure one type only, and write no results")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    args = parser.parse_args()
    global MODEL
    MODEL = args.model and args.model.resolve()
    if args.peer:
        return peer(args.peer, args.kind)
    results = {kind: measure(args, kind) for kind in ([args.kind] if args.kind else ("f32", "bf16"))}
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True).stdout
    peers = {name: version(name) for name in ("torch", "transformers")}
    try:
        peers["llama-cpp-python"] = version("llama_cpp_python")
    except PackageNotFoundError:
        pass
    about = {"date": datetime.date.today().isoformat(), "machine": machine(), "threads": args.threads,
             "repetitions": args.repetitions, "r1": commit.strip(), "peers": peers, "load": os.getloadavg()[0]}

    def span(result, name, digits):
        all = [limit[name] / 1e9 for limit in result["limits"]]
        return f"{min(all):.{digits}f} to {max(all):.{digits}f}"

    limits = ", ".join(f"{kind}: reading memory {span(result, 'bytes_per_second', 1)} GB/s, libtorch's matrix product "
                       f"{span(result, 'flops', 0)} GFLOP/s" for kind, result in results.items())
    what = MODEL.name if MODEL else "Qwen2.5-0.5B's shape, random weights"
    text = (f"{about['date']}, {about['machine']}, {args.threads} threads, r1 {about['r1']}, "
            + ", ".join(f"{name} {number}" for name, number in peers.items())
            + f". {what}, {PROMPT} + {NEW} tokens, smallest of {args.repetitions + 1}. {limits}. "
            + "The limit of a step is reading the weights once; that of prefill, the products at libtorch's rate. The column "
            + "`limit` has the best of the whole run; `r1 to limit` is the median over repetitions, each against the limits "
            + "measured just before and after it.\n\n"
            + table(results) + "\n")
    print(text)
    if not args.kind:
        name = f"{about['date']}-{re.sub('[^a-z0-9]+', '-', about['machine'].lower()).strip('-')}-decode{'-' + MODEL.name if MODEL else ''}"
        (RESULTS / f"{name}.md").write_text(f"# Decode and prefill of a real shape\n\n{text}")
        flat = {kind: {**result, "steps": {name: {str(b): t for b, t in steps.items()}
                                           for name, steps in result["steps"].items()}} for kind, result in results.items()}
        (RESULTS / f"{name}.json").write_text(json.dumps({"about": about, "results": flat}, indent=1) + "\n")
        print(f"written to benches/results/{name}.md and .json")


if __name__ == "__main__":
    main()
