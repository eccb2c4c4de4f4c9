"""Helps programs of visual_questions.lua to look at chart.ppm."""

import struct
import zlib

BAR, SCALE = 4, 4


def crop(bar):
    """Writes crop.png: the columns of bar number `bar`, each pixel four times as wide and high."""
    numbers = [int(word) for word in open("chart.ppm").read().split()[1:]]
    width, height, pixels = numbers[0], numbers[1], numbers[3:]
    if not 1 <= bar <= width // BAR:
        raise ValueError(f"there is no bar {bar}")
    rows = b""
    for y in range(height):
        first = (y * width + (bar - 1) * BAR) * 3
        row = pixels[first:first + 3 * BAR]
        wide = [value for x in range(BAR) for value in row[3 * x:3 * x + 3] * SCALE]
        rows += (b"\0" + bytes(wide)) * SCALE

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", BAR * SCALE, height * SCALE, 8, 2, 0, 0, 0)
    with open("crop.png", "wb") as file:
        parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
        file.write(b"\x89PNG\r\n\x1a\n" + parts)
