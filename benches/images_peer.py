"""The peers of `images.py`: transformers' image processors, its models, and TRL.

    images_peer.py preprocess DIR slow|fast     questions and answers as of benches/images.rs
    images_peer.py prefill DIR                  the same
    images_peer.py grpo DIR DATA STEPS OUTPUT   a line of JSON for each step in OUTPUT
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import transformers
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

GROUP, NEW = 8, 32  # as in benches/images.lua


def answers(measure):
    """Answers the questions on stdin. Output of libraries goes to stderr."""
    output = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    print(json.dumps({"ready": True}), file=output)
    for line in sys.stdin:
        print(json.dumps(measure(**json.loads(line))), file=output)


def preprocess(dir, kind):
    """The slow processor reads files with Pillow, the fast one with torchvision."""
    import numpy as np
    from PIL import Image
    from torchvision.io import ImageReadMode, decode_image

    torch.set_num_threads(1)
    family = {"slow": Qwen2VLImageProcessorPil, "fast": Qwen2VLImageProcessor}[kind]
    read, processors = {}, {}

    def decoded(file):
        if kind == "fast":
            return decode_image(str(file), ImageReadMode.RGB)
        return Image.open(file).convert("RGB")

    def measure(processor, format, decode):
        if processor not in processors:
            options = json.loads((dir / f"{processor}.json").read_text())
            processors[processor] = family(**{key: value for key, value in options.items() if key != "image_processor_type"})
        make = processors[processor]
        files = sorted((dir / "files").glob(f"*.{format}"))
        if not decode and format not in read:
            read[format] = [decoded(file) for file in files]
        seconds, total = 0.0, 0.0
        for number, file in enumerate(files):
            begin = time.perf_counter()
            values = make(images=decoded(file) if decode else read[format][number], return_tensors="pt")["pixel_values"]
            seconds += time.perf_counter() - begin
            total += float(np.asarray(values).sum(dtype=np.float64))
        return {"seconds": seconds, "sum": total}

    answers(measure)


def prefill(dir):
    """The default processor of transformers (the fast one), then a forward pass with a cache."""
    from PIL import Image

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    quiet()
    model = transformers.AutoModelForImageTextToText.from_pretrained(dir, dtype=torch.float32, attn_implementation="sdpa").eval()
    options = json.loads((dir / "preprocessor_config.json").read_text())
    options.pop("image_processor_type")
    fast, slow = Qwen2VLImageProcessor(**options), Qwen2VLImageProcessorPil(**options)
    merged = options["merge_size"] ** 2
    token = model.config.image_token_id

    def measure(image, before, after, check):
        begin = time.perf_counter()
        made = (slow if check else fast)(images=Image.open(image).convert("RGB"), return_tensors="pt")
        patches = time.perf_counter() - begin
        places = int(made["image_grid_thw"].prod()) // merged
        ids = torch.tensor([before + [token] * places + after])
        with torch.inference_mode():
            logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), mm_token_type_ids=(ids == token).int(),
                           use_cache=True, logits_to_keep=1, **made).logits[0, -1]
        if check:
            return {"logits": logits.tolist(), "tokens": ids.shape[1]}
        first = int(logits.argmax())
        return {"seconds": time.perf_counter() - begin, "patches": patches, "token": [first]}

    answers(measure)


def grpo(dir, data, steps, output):
    """TRL on the rows of a Parquet file with the columns `image` and `prompt`."""
    import datasets
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    quiet()
    model = transformers.AutoModelForImageTextToText.from_pretrained(dir, dtype=torch.float32, attn_implementation="sdpa")
    rows = datasets.Dataset.from_parquet(str(data)).cast_column("image", datasets.Image())
    rows = rows.map(lambda row: {"prompt": [{"role": "user", "content": row["prompt"]}]})
    lines = open(output, "w", buffering=1)

    class Steps(transformers.TrainerCallback):
        begin, sampling, tokens = time.perf_counter(), 0.0, 0

        def on_train_begin(self, *_, **__):
            self.begin = time.perf_counter()

        def on_step_end(self, *_, **__):
            seconds = time.perf_counter() - self.begin
            parts = {"sampling": self.sampling, "training": seconds - self.sampling}
            print(json.dumps({"seconds": seconds, **parts, "tokens": self.tokens}), file=lines)
            self.begin = time.perf_counter()

    clock = Steps()

    class Trainer(GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            begin = time.perf_counter()
            made = super()._generate_and_score_completions(inputs)
            clock.sampling = time.perf_counter() - begin
            clock.tokens = int(made["prompt_mask"].sum()) / len(made["prompt_mask"]), int(made["completion_mask"].sum())
            return made

    def reward(completions, **_):
        return [float(len(completion[0]["content"].encode()) % 7) for completion in completions]

    config = GRPOConfig(
        output_dir="trl", use_cpu=True, bf16=False, gradient_checkpointing=False, report_to=[], save_strategy="no",
        logging_strategy="no", disable_tqdm=True, dataloader_pin_memory=False, lr_scheduler_type="constant", max_steps=steps,
        shuffle_dataset=False, weight_decay=0.0, max_grad_norm=1.0, seed=0, per_device_train_batch_size=len(rows) // steps * GROUP,
        num_generations=GROUP, max_completion_length=NEW, temperature=1.0, top_p=1.0, top_k=0, beta=0.0, learning_rate=1e-5,
        loss_type="grpo", epsilon=0.2)
    Trainer(model=model, reward_funcs=reward, args=config, processing_class=transformers.AutoProcessor.from_pretrained(dir),
            callbacks=[clock], train_dataset=rows).train()


def quiet():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


if __name__ == "__main__":
    part, *rest = sys.argv[1:]
    if part == "preprocess":
        preprocess(Path(rest[0]), rest[1])
    elif part == "prefill":
        prefill(Path(rest[0]))
    elif part == "grpo":
        grpo(Path(rest[0]), Path(rest[1]), int(rest[2]), rest[3])
