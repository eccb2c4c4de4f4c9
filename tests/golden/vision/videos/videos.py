"""Writes videos.json: sizes of frames by transformers' Qwen2VLVideoProcessor and Qwen3VLVideoProcessor, the times of Qwen3VLProcessor,
and the frames of clip.gif, clip.png and clip.webp (which it writes) at several rates, as Pillow reads them.

    pip install transformers==5.24 torch torchvision "pillow<13" numpy; python3 videos.py
"""

import json
import random
from pathlib import Path

import numpy as np
from PIL import Image, ImageSequence
from transformers.models.qwen2_vl.video_processing_qwen2_vl import smart_resize as frame_size
from transformers.models.qwen3_vl.processing_qwen3_vl import Qwen3VLProcessor
from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize as video_size

HERE = Path(__file__).parent
DURATIONS = [100, 300, 250, 50, 500, 800]


def sizes():
    numbers, cases = random.Random(3), []
    while len(cases) < 200:
        count, height, width = numbers.randint(1, 40), numbers.randint(2, 300), numbers.randint(2, 300)
        patch = numbers.choice([14, 16])
        low, high = numbers.choice([4096, 56 * 56]), numbers.choice([100_352, 400_000, 32 * 32 * 768])
        factor = 2 * patch
        if max(height, width) / min(height, width) > 60:
            continue
        one = frame_size(height, width, factor, low, high)
        # One frame is two equal ones.
        all_frames = video_size(max(count, 2), height, width, 2, factor, low, high)
        fps = numbers.choice([0.5, 1, 2, 3, 4, 24, 29.97])
        times = Qwen3VLProcessor._calculate_timestamps(None, list(range(count)), fps, 2)
        text = "".join(f"<{time:.1f} seconds>" for time in times)
        cases.append([count, height, width, patch, low, high, *one, *all_frames, fps, text])
    return cases


def clips():
    rows, columns = np.indices((10, 14))
    shades = [np.stack([rows * 20, columns * 18, np.full_like(rows, 40 * k)], -1).astype(np.uint8) for k in range(len(DURATIONS))]
    frames = [Image.fromarray(shade) for shade in shades]
    for name, more in ("clip.gif", {}), ("clip.png", {}), ("clip.webp", {"lossless": True}):
        frames[0].save(HERE / name, save_all=True, append_images=frames[1:], duration=DURATIONS, **more)
    clips = {}
    for name in "clip.gif", "clip.png", "clip.webp":
        read = [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(Image.open(HERE / name))]
        assert len(read) == len(DURATIONS)
        ends = np.cumsum(DURATIONS) / 1000
        for fps in 1, 2, 10:
            shown = [int(np.searchsorted(ends, k / fps, side="right")) for k in range(100) if k / fps < ends[-1]]
            clips[f"{name} {fps}"] = [[round(float(value), 3) for value in read[k].reshape(-1, 3).mean(0)] for k in shown]
    return clips


if __name__ == "__main__":
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in sizes())
    text = json.dumps(clips(), separators=(",", ":"))
    (HERE / "videos.json").write_text(f'{{"sizes":[\n{lines}\n],\n"clips":{text}}}\n')
