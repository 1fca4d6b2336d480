"""The files that are prepared: real public samples where they are at hand, else generated ones like them."""

from __future__ import annotations

import csv
import gzip
import struct
import wave
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flatout.bench.cases import Files
from flatout.errors import FlatoutError
from flatout.types import Array

PLACES: dict[Files, tuple[str, ...]] = {
    "nifti": ("mr_hippocampus/images/*.nii.gz",),
    "wav": ("heart_yaseen/*/*.wav", "speech_fsdd/wav/*.wav"),
}
NUM_GENERATED = 60


@dataclass(frozen=True)
class SourceFiles:
    """Files of one kind, by their path below `base`."""

    base: Path
    paths: tuple[str, ...]
    is_real: bool

    def rows(self, count: int) -> Iterator[tuple[str, str]]:
        """(key, path) of `count` rows: the files again and again, each time under another key."""
        for number in range(count):
            yield f"{number:08d}", self.paths[number % len(self.paths)]

    def write_manifest(self, path: Path, count: int) -> Path:
        """A CSV with columns key and x."""
        with open(path, "w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["key", "x"])
            writer.writerows(self.rows(count))
        return path


def find_files(files: Files, data: Path | None, scratch: Path) -> SourceFiles:
    """The real files below `data`, or generated ones in `scratch` where there are none.

    Raises:
        FlatoutError: `data` is named, but has no such files.
    """
    base = data or Path("..", "shared", "data").resolve()
    found = sorted(str(path.relative_to(base)) for place in PLACES[files] for path in base.glob(place))
    if found:
        return SourceFiles(base, tuple(found), is_real=True)
    if data is not None:
        raise FlatoutError(f"{data} has no {' or '.join(PLACES[files])}; leave --data out to generate files")
    folder = scratch / f"generated_{files}"
    folder.mkdir()
    write = write_nifti if files == "nifti" else write_wav
    for number in range(NUM_GENERATED):
        write(folder, number, np.random.default_rng(number))
    return SourceFiles(folder, tuple(sorted(path.name for path in folder.iterdir())), is_real=False)


def write_nifti(folder: Path, number: int, generator: np.random.Generator) -> None:
    """A volume of 1 mm that deflates to a third, like the scans of a head."""
    shape = tuple(int(generator.integers(low, high)) for low, high in ((32, 44), (40, 60), (24, 45)))
    volume = generator.integers(0, 700, shape).astype(np.float32)
    header = bytearray(352)
    struct.pack_into("<i", header, 0, 348)
    struct.pack_into("<8h", header, 40, 3, *shape, 1, 1, 1, 1)
    struct.pack_into("<2h", header, 70, 16, 32)
    struct.pack_into("<8f", header, 76, *([1.0] * 8))
    struct.pack_into("<3f", header, 108, 352, 1, 0)
    struct.pack_into("<2h", header, 252, 0, 1)
    struct.pack_into("<12f", header, 280, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0)
    header[344:348] = b"n+1\0"
    data = bytes(header) + volume.tobytes(order="F")
    (folder / f"{number:03d}.nii.gz").write_bytes(gzip.compress(data, 6, mtime=0))


def write_wav(folder: Path, number: int, generator: np.random.Generator) -> None:
    """0.3 to 3 s of noise at 8 kHz."""
    sound: Array = (generator.standard_normal(int(generator.integers(2400, 24000))) * 3000).astype("<i2")
    with wave.open(str(folder / f"{number:03d}.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(sound.tobytes())
