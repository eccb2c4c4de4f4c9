"""Writes qwen2_5_vl/, qwen3_vl/, qwen3_5/, qwen3_5_moe/ and smolvlm/: tiny vision-language models with random weights, as transformers saves them, and
golden.safetensors: images, a video, rows of token ids with their places, logits, the gradients of the loss, and greedy tokens, by
transformers in f64.

    pip install transformers==5.24 torch 'pillow<13'; python3 models.py
"""

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file
from transformers import (
    Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration, Qwen3_5Config, Qwen3_5ForConditionalGeneration, Qwen3_5MoeConfig,
    Qwen3_5MoeForConditionalGeneration, Qwen3VLConfig, Qwen3VLForConditionalGeneration, SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

HERE = Path(__file__).parent
IMAGE, VIDEO, START, END = 60, 61, 62, 63
PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor", "patch_size": 4, "temporal_patch_size": 2, "merge_size": 2,
    "size": {"shortest_edge": 256, "longest_edge": 1536},
    "image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711],
}
TILES = {
    "image_processor_type": "SmolVLMImageProcessor", "size": {"longest_edge": 36}, "max_image_size": {"longest_edge": 18},
    "do_image_splitting": True, "resample": 1, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
}
SIZES = [(40, 24), (9, 31), (24, 24)]
# Numbers below 0 are images: -1 is the first one. Between them text.
ROWS = [
    [1, 2, START, -1, END, 3, 4, 5, 6],
    [7, START, -2, END, 8, START, -3, END, 9, 10, 11],
    [12, 13, 14, 15, 16, 17],
    [7, START, -2, END, 8, 20, 21, START, -1, END, 22, START, -1, END, 23, 24],
]
# Width and height of the frames of a video, which are not resized, their number, and frames for
# each second. After this video the positions of 5.24 are the ones of earlier versions; after longer
# ones they are smaller than the positions of its last frames.
FRAMES = (24, 16, 5, 6.0)
# Of Qwen2.5-VL: the video is -4. In other models it is -4 for each pair of frames, with text
# between them.
VIDEO_ROW = [25, START, -4, END, 26, START, -1, END, 27, 28]
PAIRS_ROW = [25, START, -4, END, 29, START, -4, END, 30, START, -4, END, 26, START, -1, END, 27, 28]


def tiles(number, count):
    """An image in tiles, with text before each."""
    return [token for tile in range(count) for token in (50 + tile, number)]


TILE_ROWS = [
    [1, 2, *tiles(-1, 5), 50, 3, 4, 5, 6],
    [7, *tiles(-2, 3), 50, 8, *tiles(-3, 5), 50, 9, 10, 11],
    [12, 13, 14, 15, 16, 17],
    [7, *tiles(-2, 3), 50, 8, 20, 21, *tiles(-1, 5), 50, *tiles(-1, 5), 50, 23, 24],
]
TEXT = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "use_cache": True,
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None,
}
TOKENS = {"image_token_id": IMAGE, "video_token_id": VIDEO, "vision_start_token_id": START, "vision_end_token_id": END}


def qwen2_5_vl():
    vision = {
        "depth": 2, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "out_hidden_size": 32, "in_channels": 3,
        "patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2, "window_size": 16, "fullatt_block_indexes": [1],
    }
    rope = {"rope_type": "default", "rope_theta": 5000.0, "mrope_section": [1, 1, 2]}
    text = {**TEXT, "rope_parameters": rope, "tie_word_embeddings": False}
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=False, **TOKENS)
    return Qwen2_5_VLForConditionalGeneration, config


def qwen3_vl():
    vision = {
        "depth": 3, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "out_hidden_size": 32, "in_channels": 3,
        "patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2, "num_position_embeddings": 36,
        "deepstack_visual_indexes": [0, 2],
    }
    rope = {"rope_type": "default", "rope_theta": 5000.0, "mrope_section": [2, 1, 1], "mrope_interleaved": True}
    text = {**TEXT, "head_dim": 8, "rope_parameters": rope, "tie_word_embeddings": True}
    config = Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True, **TOKENS)
    return Qwen3VLForConditionalGeneration, config


def qwen3_5(experts=False):
    vision = {
        "depth": 2, "hidden_size": 16, "intermediate_size": 24, "num_heads": 2, "out_hidden_size": 32, "in_channels": 3,
        "patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2, "num_position_embeddings": 36,
    }
    rope = {
        "rope_type": "default", "rope_theta": 5000.0, "mrope_section": [1, 2, 1], "mrope_interleaved": True, "partial_rotary_factor": 0.5,
    }
    text = {
        **TEXT, "num_hidden_layers": 4, "head_dim": 16, "rope_parameters": rope, "tie_word_embeddings": False,
        "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"],
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 3,
    }
    more = {"text_config": text, "vision_config": vision, "tie_word_embeddings": False, **TOKENS}
    if not experts:
        return Qwen3_5ForConditionalGeneration, Qwen3_5Config(**more)
    del text["intermediate_size"]
    text |= {"moe_intermediate_size": 12, "num_experts": 4, "num_experts_per_tok": 2, "shared_expert_intermediate_size": 20}
    return Qwen3_5MoeForConditionalGeneration, Qwen3_5MoeConfig(**more)


def smolvlm():
    vision = {
        "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 18, "patch_size": 4,
    }
    rope = {"rope_type": "default", "rope_theta": 5000.0}
    text = {**TEXT, "model_type": "llama", "head_dim": 8, "rope_parameters": rope, "tie_word_embeddings": False}
    config = SmolVLMConfig(text_config=text, vision_config=vision, scale_factor=2, image_token_id=IMAGE, tie_word_embeddings=False)
    return SmolVLMForConditionalGeneration, config


def tile_inputs(row, images):
    """The same for tiles; a number below 0 is a tile of the image."""
    ids = torch.tensor([[token for number in row for token in ([number] if number >= 0 else [IMAGE] * 4)]])
    own = []
    for tile, number in enumerate(row):
        if number < 0 and row[tile - 1] == 50:
            own.append(images[-1 - number])
    more = {"pixel_values": torch.cat(own, 1)} if own else {}
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), **more}


def inputs(row, images):
    """Ids with a placeholder for each token of an image, and the arguments that transformers' model takes."""
    ids, videos = [], row.count(-4)
    for number in row:
        if number >= 0:
            ids.append(number)
        else:
            t, h, w = images[-1 - number][1].tolist()
            ids += [VIDEO] * (t * h * w // 4 // videos) if number == -4 else [IMAGE] * (t * h * w // 4)
    ids = torch.tensor([ids])
    own = [images[-1 - number] for number in row if -4 < number < 0]
    more = {}
    if own:
        more = {"pixel_values": torch.cat([patches for patches, _ in own]), "image_grid_thw": torch.stack([grid for _, grid in own])}
    if videos:
        more |= {"pixel_values_videos": images[3][0], "video_grid_thw": images[3][1][None]}
    if videos == 1:
        more["second_per_grid_ts"] = [2 / FRAMES[3]]
    kinds = (ids == IMAGE).int() + 2 * (ids == VIDEO).int()
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "mm_token_type_ids": kinds, **more}


def video(frames, processor):
    """Patches and grid of frames. The patches of an image are pairs of equal frames; the last frame is repeated."""
    made = [processor(images=frame, return_tensors="pt") for frame in frames + frames[-1:] * (len(frames) % 2)]
    parts = [one["pixel_values"].double().view(-1, 3, 2, 16) for one in made]
    pairs = [torch.stack([first[:, :, 0], second[:, :, 1]], 2).flatten(1) for first, second in zip(parts[::2], parts[1::2])]
    grid = made[0]["image_grid_thw"][0].clone()
    grid[0] = len(pairs)
    return torch.cat(pairs), grid


def widen(module):
    """Lets a module compute in f64 what it computes in f32 for every type of the model: the states of Gated DeltaNets, norms."""
    module.torch = SimpleNamespace(**{**vars(torch), "float32": torch.float64})
    torch.Tensor.float = torch.Tensor.double


def write(name, family, config, rows=ROWS, settings=PROCESSOR, inputs=inputs):
    torch.manual_seed(7)
    config._attn_implementation = config._experts_implementation = "eager"
    model = family(config).eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            # Most norms of Qwen3.5 multiply by 1 + weight.
            centred = name.startswith("qwen3_5") and "language_model" in key and "linear_attn.norm" not in key
            is_scale = key.endswith("weight") and parameter.dim() == 1 and not centred
            parameter.copy_(torch.randn_like(parameter) * 0.15 + (1.0 if is_scale else 0.0))
    folder = HERE / name
    folder.mkdir(exist_ok=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "preprocessor_config.json").write_text(json.dumps(settings, indent=1) + "\n")
    model = model.double()
    to_single = torch.Tensor.float
    if name.startswith("qwen3_5"):
        widen(sys.modules[family.__module__])
    own = {key: value for key, value in settings.items() if key != "image_processor_type"}
    processor = Qwen2VLImageProcessorPil(**own) if settings is PROCESSOR else SmolVLMImageProcessorPil(**own)
    random = np.random.default_rng(3)
    tensors, images = {}, []
    for number, (width, height) in enumerate(SIZES):
        image = Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8))
        file = io.BytesIO()
        image.save(file, "PNG")
        tensors[f"image.{number}"] = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
        made = processor(images=image, return_tensors="pt")
        pixels = made["pixel_values"].double()
        images.append((pixels, made["image_grid_thw"][0]) if settings is PROCESSOR else pixels)
    if settings is PROCESSOR:
        width, height, count, _ = FRAMES
        frames = [Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8)) for _ in range(count)]
        for number, frame in enumerate(frames):
            file = io.BytesIO()
            frame.save(file, "PNG")
            tensors[f"frame.{number}"] = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
        images.append(video(frames, processor))
    total, count = 0.0, 0
    for number, row in enumerate(rows):
        given = inputs(row, images)
        logits = model(**given).logits[0]
        targets = given["input_ids"][0, 1:]
        counted = (targets != IMAGE) & (targets != VIDEO)
        total = total + torch.nn.functional.cross_entropy(logits[:-1][counted], targets[counted], reduction="sum")
        count += int(counted.sum())
        tensors[f"logits.{number}"] = logits.detach().float().contiguous()
    (total / count).backward()
    for key, parameter in model.named_parameters():
        short = key.replace("model.visual.", "visual.").replace("model.language_model.", "model.").replace("model.text_model.", "model.")
        short = short.replace("model.vision_model.", "visual.vision_model.").replace("model.connector.", "visual.connector.")
        parts = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}.get(short.split(".mlp.experts.")[-1])
        if parts is None:
            tensors[f"gradient.{short}"] = parameter.grad.float().contiguous()
            continue
        for expert, gradient in enumerate(parameter.grad):
            for part, own in zip(parts, gradient.chunk(len(parts))):
                tensors[f"gradient.{short.rsplit('.', 1)[0]}.{expert}.{part}.weight"] = own.float().contiguous()
    greedy = []
    for row in rows[1], rows[3], *rows[4:]:
        given = inputs(row, images)
        made = model.generate(**given, max_new_tokens=8, do_sample=False, eos_token_id=None)
        greedy.append(made[0, given["input_ids"].shape[1]:].tolist())
    torch.Tensor.float = to_single
    tensors = {key: tensor.float() if tensor.is_floating_point() else tensor for key, tensor in tensors.items()}
    metadata = {
        "rows": json.dumps(rows), "greedy": json.dumps(greedy), "loss": json.dumps((total / count).item()),
        "image_token_id": str(IMAGE),
    }
    if settings is PROCESSOR:
        metadata["fps"] = str(FRAMES[3])
    save_file(tensors, folder / "golden.safetensors", metadata)


def main():
    write("qwen2_5_vl", *qwen2_5_vl(), [*ROWS, VIDEO_ROW])
    pairs = [*ROWS, PAIRS_ROW]
    write("qwen3_vl", *qwen3_vl(), pairs)
    write("qwen3_5", *qwen3_5(), pairs)
    write("qwen3_5_moe", *qwen3_5(experts=True), pairs)
    write("smolvlm", *smolvlm(), TILE_ROWS, TILES, tile_inputs)


if __name__ == "__main__":
    main()
