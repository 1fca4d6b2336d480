"""Files that stand for real ones where there are none: of their form and size, with nothing to be learned."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from flatout.bench.sources import write_nifti, write_wav
from flatout.types import Array

NUM_FILES = 24
PICTURE = 256
CYCLE_RATE = 5000
CYCLE_LENGTH = 4000
WORDS = ("zero", "one", "two", "three", "four")

Rows = list[dict[str, Any]]


def pictures(folder: Path) -> Rows:
    """Slices with a bright disc, and its mask."""
    rows: Rows = []
    for number, generator in _generators():
        place = generator.uniform(0.3, 0.7, 2) * PICTURE
        away = np.hypot(*(np.indices((PICTURE, PICTURE)) - place[:, None, None]))
        mask = (away < generator.uniform(10, 30)).astype(np.uint8) * 255
        noise = generator.integers(0, 90, mask.shape, np.uint8)
        (folder / f"image{number:02d}.png").write_bytes(png(noise + mask // 2))
        (folder / f"mask{number:02d}.png").write_bytes(png(mask))
        rows.append({"image": f"image{number:02d}.png", "mask": f"mask{number:02d}.png"})
    return rows


def volumes(folder: Path) -> Rows:
    """Scans, with a number that says nothing about them."""
    rows: Rows = []
    for number, generator in _generators():
        write_nifti(folder, number, generator)
        labelled = int(generator.integers(2000, 5000))
        rows.append({"volume": f"{number:03d}.nii.gz", "labelled": labelled, "large": number % 2})
    return rows


def cycles(folder: Path) -> Rows:
    """Heart cycles as arrays: two bursts in noise."""
    rows: Rows = []
    times = np.arange(CYCLE_LENGTH) / CYCLE_RATE
    for number, generator in _generators():
        bursts = [np.exp(-(((times - at) / 0.02) ** 2)) for at in (0.1, 0.4)]
        sound = sum(bursts) * np.sin(2 * np.pi * 60 * times) + 0.05 * generator.standard_normal(CYCLE_LENGTH)
        np.save(folder / f"{number:03d}.npy", np.asarray(sound, np.float32))
        rows.append({"cycle": f"{number:03d}.npy", "label": f"class{number % 3}"})
    return rows


def recordings(folder: Path) -> Rows:
    """Sounds of different lengths, with a word each."""
    rows: Rows = []
    for number, generator in _generators():
        write_wav(folder, number, generator)
        rows.append({"audio_filepath": f"{number:03d}.wav", "text": WORDS[number % len(WORDS)]})
    return rows


def sequences(folder: Path) -> Rows:
    """Strokes of different lengths."""
    rows: Rows = []
    for _, generator in _generators():
        length = int(generator.integers(5, 120))
        steps = generator.integers(-20, 20, (2, length))
        pen_up = (generator.random(length) < 0.1).astype(int)
        rows.append({"dx": steps[0].tolist(), "dy": steps[1].tolist(), "pen_up": pen_up.tolist()})
    return rows


def long_sequences(folder: Path) -> Rows:
    """Waves of different lengths, up to 2,000 steps."""
    rows: Rows = []
    for _, generator in _generators():
        times = np.arange(int(generator.integers(100, 2000)))
        wave = np.sin(times * generator.uniform(0.05, 0.3)) + 0.1 * generator.standard_normal(len(times))
        rows.append({"value": wave.tolist()})
    return rows


def png(grey: Array) -> bytes:
    """(H, W) of uint8 in, the file out."""
    lines = b"".join(b"\0" + line.tobytes() for line in np.ascontiguousarray(grey, np.uint8))
    header = struct.pack(">IIBBBBB", grey.shape[1], grey.shape[0], 8, 0, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 6)), (b"IEND", b""))
    chunks = (struct.pack(">I", len(data)) + tag + data + _crc(tag + data) for tag, data in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _crc(data: bytes) -> bytes:
    return struct.pack(">I", zlib.crc32(data))


def _generators() -> Iterator[tuple[int, np.random.Generator]]:
    return ((number, np.random.default_rng(number)) for number in range(NUM_FILES))
