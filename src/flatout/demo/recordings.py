"""A folder of recordings as they come: five classes, and some files that are broken on purpose."""

from __future__ import annotations

import wave
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flatout.demo.heart import CLASSES, RATE_HZ, heart_sound
from flatout.types import Array

FILES_A_CLASS = 100

BROKEN = {
    "AS/AS_017.wav": "cut off",
    "MR/MR_042.wav": "cut off",
    "MS/MS_005.wav": "silent",
    "N/N_088.wav": "silent",
    "MVP/MVP_031.wav": "a text file",
    "MR/MR_071.wav": "a text file",
    "AS/AS_093.wav": "empty",
    "N/N_003.wav": "empty",
}
"""What is wrong with which file; each is met in real collections."""


@dataclass(frozen=True)
class Recordings:
    """What was made."""

    folder: str
    num_files: int
    num_bytes: int
    classes: tuple[str, ...]
    broken: tuple[str, ...]
    """Files that no decoder can use, relative to the folder."""


def make_recordings(folder: Path, files_a_class: int = FILES_A_CLASS) -> Recordings:
    """Write the recordings below `folder`, a folder a class, and say what they are."""
    for kind in CLASSES:
        (folder / kind).mkdir(parents=True)
        for number in range(files_a_class):
            write_wav(recording_path(folder, kind, number), heart_sound(kind, number))
    broken = tuple(name for name in BROKEN if (folder / name).exists())
    for name in broken:
        break_file(folder / name, BROKEN[name])
    files = list(folder.rglob("*.wav"))
    return Recordings(
        folder=str(folder),
        num_files=len(files),
        num_bytes=sum(file.stat().st_size for file in files),
        classes=CLASSES,
        broken=broken,
    )


def recording_path(folder: Path, kind: str, number: int) -> Path:
    """Where recording `number` of a class stands."""
    return folder / kind / f"{kind}_{number:03d}.wav"


def write_wav(path: Path, sound: Array) -> None:
    """One channel of int16 as a WAV of 8 kHz."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE_HZ)
        file.writeframes(sound.astype("<i2").tobytes())


def break_file(path: Path, how: str) -> None:
    """Spoil a recording in one of the ways that `BROKEN` names."""
    if how == "silent":
        write_wav(path, np.zeros(3 * RATE_HZ, np.int16))
    elif how == "cut off":
        data = path.read_bytes()
        path.write_bytes(data[: len(data) * 3 // 5])
    else:
        path.write_text("404: recording not found\n" if how == "a text file" else "")
