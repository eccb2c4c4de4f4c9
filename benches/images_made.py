"""What both sides of `images.py` read: pictures, processors, and models with random weights."""

import json
import random
import string

import numpy as np
from PIL import Image

# Width and height; a tenth of a megapixel to two.
SIZES = [(640, 480), (480, 640), (1024, 768), (800, 600), (1280, 720), (500, 375), (1920, 1080), (341, 256)]
CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
KIND = {"image_processor_type": "Qwen2VLImageProcessor", "temporal_patch_size": 2, "merge_size": 2}
# As published with Qwen2-VL (at most 1,280 tokens an image) and Qwen3-VL.
PROCESSORS = {
    "Qwen2-VL": {**KIND, **CLIP, "patch_size": 14, "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280}},
    "Qwen3-VL": {**KIND, **HALF, "patch_size": 16, "size": {"shortest_edge": 1 << 16, "longest_edge": 1 << 24}},
}
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
VOCABULARY = 4096
# As the template of Qwen3-VL prints messages without tools.
TEMPLATE = (
    "{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' }}"
    "{%- if message.content is string %}{{- message.content }}{%- else %}{%- for part in message.content %}"
    "{%- if part.type == 'image' %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}"
    "{%- elif 'text' in part %}{{- part.text }}{%- endif %}{%- endfor %}{%- endif %}{{- '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)
TEXT = {
    "vocab_size": VOCABULARY, "hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 8,
    "num_key_value_heads": 4, "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "pad_token_id": None,
}
TOWER = {
    "depth": 8, "hidden_size": 384, "intermediate_size": 1536, "num_heads": 6, "out_hidden_size": 512, "in_channels": 3,
    "temporal_patch_size": 2, "spatial_merge_size": 2,
}


def photograph(width, height, seed):
    """Smooth shapes of several sizes, edges, and grain."""
    rng = np.random.default_rng(seed)
    picture = np.zeros((height, width, 3), np.float32)
    for power in range(1, 8):
        small = Image.fromarray(rng.integers(0, 256, (2**power, 2**power, 3), dtype=np.uint8))
        picture += (np.asarray(small.resize((width, height), Image.Resampling.BICUBIC), np.float32) - 128) * 0.6**power
    for _ in range(12):
        left, top = rng.integers(0, width), rng.integers(0, height)
        picture[top : top + rng.integers(8, height // 2), left : left + rng.integers(8, width // 2)] += rng.normal(0, 40, 3)
    picture += rng.normal(0, 3, picture.shape)
    return Image.fromarray(np.clip(picture + 128, 0, 255).astype(np.uint8))


def pictures(dir, count):
    """`count` pictures in dir/files, each as PNG and as JPEG, and the processors."""
    (dir / "files").mkdir(parents=True)
    for number in range(count):
        picture = photograph(*SIZES[number % len(SIZES)], number)
        picture.save(dir / f"files/{number:03}.png")
        picture.save(dir / f"files/{number:03}.jpg", quality=90)
    for name, options in PROCESSORS.items():
        (dir / f"{name}.json").write_text(json.dumps(options))


def tokenizer():
    """Bytes, words that no merge makes, and the special tokens of Qwen."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters, rng = sorted(pre_tokenizers.ByteLevel.alphabet()), random.Random(0)
    words = set()
    while len(words) < VOCABULARY - len(letters) - len(SPECIAL):
        words.add("".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 6))))
    core = Tokenizer(models.BPE({word: id for id, word in enumerate(letters + sorted(words))}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def model(dir, name):
    """A model of the family `name` (Qwen2.5-VL, Qwen3-VL) with random weights, as transformers saves it."""
    import torch
    import transformers

    words = tokenizer()
    id = words.convert_tokens_to_ids
    tokens = {
        "image_token_id": id("<|image_pad|>"), "video_token_id": id("<|video_pad|>"),
        "vision_start_token_id": id("<|vision_start|>"), "vision_end_token_id": id("<|vision_end|>"),
    }
    text = {**TEXT, "bos_token_id": id("<|endoftext|>"), "eos_token_id": id("<|im_end|>"), "tie_word_embeddings": False}
    if name == "Qwen3-VL":
        rope = {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [12, 10, 10], "mrope_interleaved": True}
        tower = {**TOWER, "patch_size": 16, "num_position_embeddings": 2304, "deepstack_visual_indexes": [2, 4, 6]}
        config = transformers.Qwen3VLConfig(text_config={**text, "head_dim": 64, "rope_parameters": rope}, vision_config=tower,
                                            tie_word_embeddings=False, **tokens)
        family, options = transformers.Qwen3VLForConditionalGeneration, PROCESSORS[name]
    else:
        rope = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]}
        tower = {**TOWER, "patch_size": 14, "window_size": 112, "fullatt_block_indexes": [3, 7]}
        config = transformers.Qwen2_5_VLConfig(text_config={**text, "rope_parameters": rope}, vision_config=tower,
                                               tie_word_embeddings=False, **tokens)
        family, options = transformers.Qwen2_5_VLForConditionalGeneration, PROCESSORS["Qwen2-VL"]
    torch.manual_seed(0)
    family(config).float().save_pretrained(dir)
    made = {key: value for key, value in options.items() if key != "image_processor_type"}
    processor = transformers.Qwen3VLProcessor if name == "Qwen3-VL" else transformers.Qwen2_5_VLProcessor
    video = transformers.Qwen3VLVideoProcessor() if name == "Qwen3-VL" else transformers.Qwen2VLVideoProcessor()
    processor(image_processor=transformers.Qwen2VLImageProcessor(**made), tokenizer=words, video_processor=video,
              chat_template=TEMPLATE).save_pretrained(dir)
    # Published checkpoints have this file, which transformers no longer writes.
    (dir / "preprocessor_config.json").write_text(json.dumps(options))


def tasks(path, count, question):
    """Rows of a picture of 192 patches (of Qwen3-VL) and a question, as `datasets` writes them."""
    import datasets

    rows = {"image": [photograph(256, 192, number) for number in range(count)], "prompt": [question] * count}
    features = datasets.Features({"image": datasets.Image(), "prompt": datasets.Value("string")})
    datasets.Dataset.from_dict(rows, features=features).to_parquet(str(path))
