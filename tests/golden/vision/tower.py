"""Writes tower.safetensors: a tiny vision tower of Qwen2.5-VL with random weights, patches of an image, a video and another
image, their embeddings, and the gradients of sum(embeddings * sin(0.7 * their numbers)), by transformers in f64.

    pip install transformers==5.24 torch; python3 tower.py
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VisionTransformerPretrainedModel

CONFIG = {
    "depth": 3, "hidden_size": 32, "intermediate_size": 40, "num_heads": 2, "out_hidden_size": 24, "in_channels": 3,
    "patch_size": 4, "temporal_patch_size": 2, "spatial_merge_size": 2, "window_size": 16, "fullatt_block_indexes": [1],
    "hidden_act": "silu",
}
# The second is a video. Sides that are not multiples of a window have smaller windows at the end.
GRIDS = [[1, 6, 10], [2, 4, 4], [1, 2, 8]]


def main():
    torch.manual_seed(5)
    config = Qwen2_5_VLVisionConfig(**CONFIG)
    config._attn_implementation = "eager"
    tower = Qwen2_5_VisionTransformerPretrainedModel(config).eval()
    with torch.no_grad():
        for name, parameter in tower.named_parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.2 + (1.0 if "norm" in name or "ln_q" in name else 0.0))
    weights = {f"weight.{name}": parameter.detach().float().contiguous() for name, parameter in tower.named_parameters()}
    count = sum(t * h * w for t, h, w in GRIDS)
    patches = torch.randn(count, 3 * 2 * 4 * 4)
    tower = tower.double()
    embeddings = tower(patches.double(), grid_thw=torch.tensor(GRIDS)).pooler_output
    factors = torch.sin(0.7 * torch.arange(embeddings.numel(), dtype=torch.float64)).view_as(embeddings)
    (embeddings * factors).sum().backward()
    gradients = {f"gradient.{name}": parameter.grad.float().contiguous() for name, parameter in tower.named_parameters()}
    tensors = {**weights, **gradients, "patches": patches, "embeddings": embeddings.detach()}
    save_file(tensors, Path(__file__).with_name("tower.safetensors"), {"config": json.dumps(CONFIG), "grids": json.dumps(GRIDS)})


if __name__ == "__main__":
    main()
