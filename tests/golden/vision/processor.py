"""Writes processor.json and tiles.json: grids and checksums of pixel values of transformers' Qwen2VLImageProcessorPil and
Idefics3ImageProcessorPil for random images of odd sizes. The test has the same generator of pixels.

    pip install transformers==5.24 "pillow<13" numpy crc32c; python3 processor.py
"""

import json
from pathlib import Path

import numpy as np
from crc32c import crc32c
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

MASK = (1 << 64) - 1


def numbers(seed):
    """SplitMix64."""
    while True:
        seed = (seed + 0x9E3779B97F4A7C15) & MASK
        mixed = ((seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
        yield mixed ^ (mixed >> 31)


def pixels(kind, height, width, random):
    rows, columns = np.indices((height, width))
    if kind == 0:
        count = height * width * 3
        words = np.array([next(random) for _ in range(-(-count // 8))], dtype="<u8")
        return words.view(np.uint8)[:count].reshape(height, width, 3)
    if kind == 1:
        return np.stack([(rows * 3 + columns) % 256, (columns * 7) % 256, (rows + columns * 2) % 256], -1).astype(np.uint8)
    return np.repeat((((rows // 3 + columns // 5) % 2) * 255)[..., None], 3, -1).astype(np.uint8)


def qwen():
    random, cases = numbers(7), []
    for index in range(300):
        height, width = 1 + next(random) % 160, 1 + next(random) % 160
        low = [56 * 56, 4 * 28 * 28, 28 * 28][next(random) % 3]
        high = [100352, 50176, 28 * 28 * 16][next(random) % 3]
        patch = [14, 16][next(random) % 2]
        image = pixels(index % 3, height, width, random)
        if max(height, width) / min(height, width) > 200:
            continue
        processor = Qwen2VLImageProcessorPil(min_pixels=low, max_pixels=high, patch_size=patch)
        done = processor(images=[image.copy()], return_tensors="np", input_data_format="channels_last")
        grid = [int(size) for size in done["image_grid_thw"][0]]
        values = done["pixel_values"].astype("<f4").tobytes()
        cases.append([height, width, low, high, patch, *grid[1:], crc32c(values)])
    write("processor.json", cases)


def patches(tiles, patch, merge):
    """Patches of tiles in the order in which they are merged."""
    count, channels, side, _ = tiles.shape
    rows = side // patch // merge
    whole = tiles[:, :, : rows * merge * patch, : rows * merge * patch]
    parts = whole.reshape(count, channels, rows, merge, patch, rows, merge, patch)
    return np.ascontiguousarray(parts.transpose(0, 2, 5, 3, 6, 1, 4, 7)).astype("<f4")


def idefics():
    random, cases = numbers(11), []
    for index in range(300):
        height, width = 1 + next(random) % 160, 1 + next(random) % 160
        patch, merge, side = [(4, 2, 6), (8, 2, 4), (5, 3, 6)][next(random) % 3]
        tile = patch * side + next(random) % patch
        longest = [tile, 2 * tile, 3 * tile + 5][next(random) % 3]
        divided = next(random) % 4 > 0
        processor = Idefics3ImageProcessorPil(
            size={"longest_edge": longest}, max_image_size={"longest_edge": tile}, do_image_splitting=divided
        )
        image = pixels(index % 3, height, width, random)
        done = processor(
            images=[image.copy()], return_tensors="np", input_data_format="channels_last", return_row_col_info=True
        )
        grid = [int(done["rows"][0][0]), int(done["cols"][0][0])]
        values = patches(done["pixel_values"][0], patch, merge)
        cases.append([height, width, patch, merge, tile, longest, int(divided), *grid, crc32c(values.tobytes())])
    write("tiles.json", cases)


def write(name, cases):
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    Path(__file__).with_name(name).write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    qwen()
    idefics()
