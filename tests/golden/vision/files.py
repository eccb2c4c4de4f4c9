"""Writes image files of several kinds, and files.json: their sizes and the means of their channels as Pillow reads them.

    pip install "pillow<13" numpy; python3 files.py
"""

import json
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

HERE = Path(__file__).parent


def main():
    rows, columns = np.indices((24, 40))
    base = np.stack([rows * 10, columns * 6, 255 - rows * 5], -1).astype(np.uint8)
    image = Image.fromarray(base)
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(HERE / "orientation.jpg", exif=exif, quality=90)
    image.convert("CMYK").save(HERE / "cmyk.jpg", quality=90)
    image.convert("L").save(HERE / "grey.jpg", quality=90)
    image.save(HERE / "lossless.webp", lossless=True)
    alpha = np.concatenate([base, (columns * 6).astype(np.uint8)[..., None]], -1)
    Image.fromarray(alpha).save(HERE / "alpha.png")
    image.quantize(16).save(HERE / "palette.png")
    frames = [image.quantize(16), ImageOps.invert(image).quantize(16)]
    frames[0].save(HERE / "animated.gif", save_all=True, append_images=frames[1:], duration=100)
    image.save(HERE / "animated.webp", save_all=True, append_images=[ImageOps.invert(image)], lossless=True)
    deep = (np.indices((24, 40))[0] * 2600).astype(np.uint16)
    Image.fromarray(deep).save(HERE / "deep.png")
    files = {}
    for path in sorted(HERE.glob("*.*")):
        if path.suffix in (".py", ".json"):
            continue
        opened = ImageOps.exif_transpose(Image.open(path))
        # Pillow clips 16 bits to 8; r1 uses the upper ones.
        rgb = np.asarray(opened.convert("RGB")) if opened.mode != "I;16" else np.repeat((np.asarray(opened) >> 8)[..., None], 3, -1)
        files[path.name] = [rgb.shape[1], rgb.shape[0], *(round(float(value), 3) for value in rgb.reshape(-1, 3).mean(0))]
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(value)}" for name, value in files.items())
    (HERE / "files.json").write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    main()
