"""The peers' side of the measurements in compare.py: transformers `generate` and TRL's `GRPOTrainer`.

A name on a line of stdin, a JSON object on a line of stdout. Both peers are set up the way that is fastest here:
f32, no gradient checkpointing, the whole batch at once, and for sampling the fastest of three attention paths,
tried in the warm-up. Nothing is compiled.
"""

import json
import os
import sys
import time
from pathlib import Path

answers = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)  # output of libraries goes to stderr
os.environ |= {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "TOKENIZERS_PARALLELISM": "false"}

import datasets
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen2ForCausalLM, StoppingCriteria
from trl import GRPOConfig, GRPOTrainer

DIR = Path(sys.argv[1])
VOCAB = json.loads((DIR / "model/config.json").read_text())["vocab_size"]
EOS = VOCAB  # an id that the model can't sample: lengths are fixed
PAD = 0
GROUP = 8  # trajectories per task

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
torch.manual_seed(0)
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
datasets.disable_progress_bars()


def rows(name):
    return [json.loads(line) for line in (DIR / f"{name}.jsonl").open()]


def answer(**values):
    print(json.dumps(values), file=answers)


def next_command():
    return sys.stdin.readline().strip()


class Lengths(StoppingCriteria):
    """Ends every sequence at its own length, as an end-of-turn token would."""

    def __init__(self, start, lengths):
        self.ends = start + torch.tensor(lengths)

    def __call__(self, input_ids, scores, **kwargs):
        return input_ids.shape[1] >= self.ends


class Model(Qwen2ForCausalLM):
    """`lengths`, if set, applies to the next `generate`."""

    lengths = None

    def generate(self, input_ids, **kwargs):
        if self.lengths is not None:
            kwargs["stopping_criteria"] = [Lengths(input_ids.shape[1], self.lengths)]
        return super().generate(input_ids=input_ids, **kwargs)


def load(attention):
    model = Model.from_pretrained(DIR / "model", dtype=torch.float32, attn_implementation=attention)
    model.config.eos_token_id = model.generation_config.eos_token_id = EOS
    return model


# Sampling

def generate(model, prompts, lengths):
    config = GenerationConfig(do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=max(lengths),
                              eos_token_id=EOS, pad_token_id=PAD)
    ids = torch.tensor(prompts)
    model.lengths = lengths
    out = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    return [row[ids.shape[1]:][:n] for row, n in zip(out, lengths, strict=True)]


def generate_batch(model, prompts, lengths):
    """Continuous batching has one length per call, so requests are added one by one."""
    from transformers import ContinuousBatchingConfig
    config = GenerationConfig(do_sample=True, temperature=1.0, top_k=0, top_p=1.0, eos_token_id=EOS, pad_token_id=PAD,
                              max_new_tokens=max(lengths))
    manager = model.init_continuous_batching(config, ContinuousBatchingConfig())
    manager.start()
    for i, (prompt, n) in enumerate(zip(prompts, lengths, strict=True)):
        manager.add_request(prompt, request_id=str(i), max_new_tokens=n)
    out = {}
    while len(out) < len(prompts):
        result = manager.get_result(timeout=1)
        if result is not None and result.is_finished():
            out[int(result.request_id)] = result.generated_tokens
        elif not manager.is_running():
            raise RuntimeError("the continuous batching manager stopped")
    manager.stop(block=True)
    return [out[i] for i in range(len(prompts))]


def sample(name):
    prompts, lengths = zip(*((row["prompt"], row["turns"][0]["reply"]) for row in rows(name)))
    ways = {"sdpa": (load("sdpa"), generate), "eager": (load("eager"), generate),
            "generate_batch": (load("sdpa"), generate_batch)}
    seconds = {}

    def measure(way):
        model, run = ways[way]
        begin = time.perf_counter()
        with torch.inference_mode():
            out = run(model.eval(), prompts, lengths)
        seconds[way] = time.perf_counter() - begin
        assert [len(ids) for ids in out] == list(lengths)
        return seconds[way]

    for way in ways:
        try:
            measure(way)
            measure(way)
        except Exception as error:
            print(f"{way} does not work here: {error!r}", file=sys.stderr)
    best = min(seconds, key=seconds.get)
    note = ", ".join(f"{way} {s:.2f} s" for way, s in seconds.items())
    while True:
        answer(seconds=measure(best), tokens=sum(lengths), way=best, tried=note)
        if (command := next_command()) != name:
            return command


# GRPO

def tokenizer():
    """Token i is the word `ti`: TRL encodes and decodes exactly the workload's ids."""
    words = {f"t{i}": i for i in range(VOCAB)} | {"<eos>": EOS}
    core = Tokenizer(models.WordLevel(words, unk_token="t1"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<eos>", pad_token=f"t{PAD}")


def multi_turn(plans):
    """TRL's tool loop with fixed lengths instead of parsed tool calls: while trajectories continue, generate
    from the whole conversation (padded, without a cache), append, mask."""
    by_prompt = {}
    for row in plans:
        by_prompt.setdefault(tuple(row["prompt"]), []).append(row["turns"])

    def rollout(prompts, trainer):
        conversations = [[int(word[1:]) for word in prompt.split()] for prompt in prompts]
        starts = [len(ids) for ids in conversations]
        masks = [[] for _ in prompts]
        members = {prompt: iter(turns) for prompt, turns in by_prompt.items()}
        plans = [next(members[tuple(ids)]) for ids in conversations]
        for step in range(max(len(plan) for plan in plans)):
            active = [i for i, plan in enumerate(plans) if step < len(plan)]
            lengths = [plans[i][step]["reply"] for i in active]
            trainer.model.lengths = lengths
            trainer.generation_config.max_new_tokens = max(lengths)
            replies, _ = trainer._generate_single_turn([conversations[i] for i in active], None, {}, 1)
            for i, n, reply in zip(active, lengths, replies, strict=True):
                observation = plans[i][step]["observation"]
                conversations[i] += reply[:n] + observation
                masks[i] += [1] * n + [0] * len(observation)
        split = [(ids[:start], ids[start:]) for ids, start in zip(conversations, starts, strict=True)]
        return {"prompt_ids": [prompt for prompt, _ in split], "completion_ids": [rest for _, rest in split],
                "logprobs": None, "env_mask": masks}

    return rollout


class Pace(transformers.TrainerCallback):
    """Times each step from the end of the previous one, reports it, and waits for the next request."""

    def __init__(self, name, tokens):
        self.name, self.tokens, self.begin, self.command = name, tokens, time.perf_counter(), None
        self.sampling = 0.0

    def on_step_end(self, args, state, control, **_):
        seconds = time.perf_counter() - self.begin
        parts = {"sampling": self.sampling, "update": seconds - self.sampling}
        answer(seconds=seconds, tokens=self.tokens, way="sdpa", parts=parts)
        self.command = next_command()
        control.should_training_stop = self.command != self.name
        self.begin = time.perf_counter()


class Trainer(GRPOTrainer):
    """Measures sampling, rewards and advantages of a step; the rest is the update."""

    pace = None

    def _generate_and_score_completions(self, inputs):
        begin = time.perf_counter()
        try:
            return super()._generate_and_score_completions(inputs)
        finally:
            self.pace.sampling = time.perf_counter() - begin


def grpo(name):
    plans = rows(name)
    longest = max(sum(turn["reply"] + len(turn["observation"]) for turn in row["turns"]) for row in plans)
    several = any(len(row["turns"]) > 1 for row in plans)
    total = sum(turn["reply"] + len(turn["observation"]) for row in plans for turn in row["turns"])

    def reward(completion_ids, **_):
        assert sum(map(len, completion_ids)) == total
        return [float(sum(ids) % 7) for ids in completion_ids]

    config = GRPOConfig(
        output_dir=str(DIR / "trl"), use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[],
        save_strategy="no", logging_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
        per_device_train_batch_size=len(plans), num_generations=GROUP, max_steps=10_000, max_completion_length=longest,
        temperature=1.0, top_p=1.0, top_k=0, beta=0.0, learning_rate=1e-6, lr_scheduler_type="constant")
    prompts = [" ".join(f"t{i}" for i in row["prompt"]) for row in plans[::GROUP]]
    pace = Pace(name, sum(turn["reply"] for row in plans for turn in row["turns"]))
    trainer = Trainer(
        model=load("sdpa"), reward_funcs=reward, args=config, processing_class=tokenizer(), callbacks=[pace],
        train_dataset=datasets.Dataset.from_dict({"prompt": prompts}), rollout_func=multi_turn(plans) if several else None)
    trainer.pace = pace
    trainer.train()
    return pace.command


command = (answer(ready=True), next_command())[1]
while command:
    command = (sample if command.startswith("sample") else grpo)(command)
