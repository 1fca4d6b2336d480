"""Peer: a loop over the files that puts each array into one HDF5 file, in one process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import h5py
import numpy as np

from flatout.bench.cases import Case
from flatout.types import Array

FILE = "arrays.h5"


def fill(case: Case, items: Sequence[tuple[str, str]], out: Path, num_workers: int) -> None:
    """Equal shapes: one dataset, made at its full size. Others: a dataset a sample."""
    with h5py.File(out / FILE, "w") as file:
        if case.is_ragged:
            for key, path in items:
                file.create_dataset(f"x/{key}", data=case.load(path))
            return
        shape = case.load(items[0][1]).shape
        dataset = file.create_dataset("x", (len(items), *shape), np.float32)
        for number, (_, path) in enumerate(items):
            dataset[number] = case.load(path)
        file["key"] = [key for key, _ in items]


def read(case: Case, items: Sequence[tuple[str, str]], out: Path, limit: int) -> Iterator[tuple[str, Array]]:
    """Some of what `fill` stored, by key."""
    with h5py.File(out / FILE, "r") as file:
        if case.is_ragged:
            yield from ((key, file["x"][key][()]) for key in islice(file["x"], limit))
        else:
            keys = file["key"].asstr()[:limit]
            yield from ((key, file["x"][number]) for number, key in enumerate(keys))
