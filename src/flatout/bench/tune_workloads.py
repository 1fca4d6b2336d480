"""Three data sets to tune: many small samples and a few volumes in a store, raw files slow to decode."""

from __future__ import annotations

import wave
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from flatout.store import DataPreprocessor
from flatout.types import Array

ONE_SPLIT = {"ratios": {"train": 1.0}}
RATE = 16_000
"""Samples a second of the generated recordings."""
SECONDS = 6


@dataclass(frozen=True)
class Workload:
    """A data set and what may be tried on it."""

    make: Callable[[Path, float], dict[str, Any]]
    """Folder and share of the samples in, the config out."""
    allow: frozenset[str]


class Numbers:
    """Samples of one shape, each another stretch of one pool of random numbers."""

    def __init__(self, num_samples: int, shape: tuple[int, ...]) -> None:
        self._num_samples = num_samples
        self._shape = shape
        self._pool = np.random.default_rng(0).random(int(np.prod(shape)) + num_samples, np.float32)

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, number: int) -> dict[str, Array | int]:
        size = int(np.prod(self._shape))
        return {"x": self._pool[number : number + size].reshape(self._shape), "y": number % 7}


def small(folder: Path, share: float) -> dict[str, Any]:
    """8,000 samples of 8 KB in batches of 64."""
    return _stored(folder, Numbers(max(256, round(8000 * share)), (2000,)), batch_size=64)


def volumes(folder: Path, share: float) -> dict[str, Any]:
    """150 volumes of 2 MB in batches of 4."""
    return _stored(folder, Numbers(max(16, round(150 * share)), (1, 80, 80, 80)), batch_size=4)


def slow_files(folder: Path, share: float) -> dict[str, Any]:
    """400 recordings of 6 s, resampled and band-passed whenever they are read."""
    generator, lines = np.random.default_rng(0), ["key,x"]
    folder.mkdir(parents=True)
    for number in range(max(24, round(400 * share))):
        _write_wav(folder / f"{number:04d}.wav", generator)
        lines.append(f"{number:04d},{number:04d}.wav")
    (folder / "rows.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    signal = {"kind": "signal", "rate": 11_025, "band": [25.0, 400.0], "length": 11_025 * SECONDS}
    return {
        "manifest": str(folder / "rows.csv"),
        "fields": {"x": signal},
        "splits": ONE_SPLIT,
        "key_column": "key",
        "batch_size": 8,
        "epochs": 30,
    }


def _stored(folder: Path, numbers: Numbers, batch_size: int) -> dict[str, Any]:
    store = folder / "store"
    DataPreprocessor.from_dataset(numbers, store, num_workers=0, splits=ONE_SPLIT).run()
    return {"preprocessed_data_dir": str(store), "use_fast_loader": True, "batch_size": batch_size}


def _write_wav(path: Path, generator: np.random.Generator) -> None:
    sound = (generator.standard_normal(RATE * SECONDS) * 3000).astype("<i2")
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(sound.tobytes())


WORKLOADS = {
    "small_samples": Workload(small, frozenset({"encoding"})),
    "volumes": Workload(volumes, frozenset({"encoding"})),
    "slow_decode": Workload(slow_files, frozenset({"batch_size"})),
}
