"""Compares exported weights with the standard library alone: change of the weights by an update, on two devices."""

import array
import json
import math
from pathlib import Path


def tensors(folder):
    """Name and values of each tensor of the f32 and bf16 safetensors in a folder."""
    for path in sorted(Path(folder).glob("*.safetensors")):
        with open(path, "rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            start = file.tell()
            for name, tensor in header.items():
                if name == "__metadata__":
                    continue
                begin, end = tensor["data_offsets"]
                file.seek(start + begin)
                raw = file.read(end - begin)
                if tensor["dtype"] == "BF16":
                    # The upper half of an f32.
                    wide = bytearray(2 * len(raw))
                    wide[2::4], wide[3::4] = raw[0::2], raw[1::2]
                    raw = bytes(wide)
                values = array.array("f")
                values.frombytes(raw)
                yield name, values


def compare(before, expected, found):
    """Cosine and relative distance of the changes `expected - before` and `found - before`."""
    start, other = dict(tensors(before)), dict(tensors(found))
    dot = own = theirs = apart = 0.0
    for name, values in tensors(expected):
        for folder, known in ((before, start), (found, other)):
            if len(known.get(name, ())) != len(values):
                raise ValueError(f"{name} is missing or has another shape in {folder}")
        for a, b, c in zip(start[name], values, other[name]):
            x, y = b - a, c - a
            dot += x * y
            own += x * x
            theirs += y * y
            apart += (x - y) * (x - y)
    if not own > 0:
        raise ValueError(f"the updates did not change {expected}")
    return dot / math.sqrt(own * theirs) if theirs > 0 else 0.0, math.sqrt(apart / own)
