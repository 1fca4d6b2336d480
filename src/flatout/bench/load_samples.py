"""What the other loaders read: ordinary datasets and collate functions over the samples of a case."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from flatout.bench.load_cases import LoadCase
from flatout.types import Array


class RamSamples(Dataset[Any]):
    """Arrays in memory."""

    def __init__(self, case: LoadCase) -> None:
        self._samples = [sample.copy() for sample in case.samples()]

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, number: int) -> tuple[Array, int]:
        return self._samples[number], number


class Hdf5Samples(Dataset[Any]):
    """Rows, or stretches, of one dataset of an HDF5 file; each process opens it for itself."""

    def __init__(self, path: Path, num_samples: int) -> None:
        self._path = path
        self._num_samples = num_samples
        self._file: Any = None

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, number: int) -> tuple[Array, int]:
        if self._file is None:
            self._file = h5py.File(self._path, "r")
            self._rows = self._file["x"]
            self._offsets = self._file["offsets"][()] if "offsets" in self._file else None
        if self._offsets is None:
            return self._rows[number], number
        return self._rows[self._offsets[number] : self._offsets[number + 1]], number


class NpySamples(Dataset[Any]):
    """One .npy file a sample."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> tuple[Array, int]:
        return np.load(self._paths[number]), number


class LoadNpy:
    """A transform that reads the file an item names."""

    def __call__(self, item: dict[str, Any]) -> dict[str, Any]:
        return {"x": torch.from_numpy(np.load(item["x"])), "y": item["y"]}


class Rows:
    """A generator of rows that can be pickled."""

    def __init__(self, case: LoadCase) -> None:
        self._case = case

    def __call__(self) -> Iterator[dict[str, Any]]:
        for number, sample in enumerate(self._case.samples()):
            yield {"x": sample, "y": number}


class Item:
    """Sample number in, what litdata stores out."""

    def __init__(self, case: LoadCase) -> None:
        self._case = case

    def __call__(self, number: int) -> dict[str, Any]:
        return {"x": self._case.sample(number), "y": number}


def tensors(case: LoadCase) -> TensorDataset:
    """All samples as one tensor in memory, with their numbers."""
    return TensorDataset(torch.from_numpy(case.array()), torch.arange(case.num_samples))


def rows_of(case: LoadCase, folder: Path) -> Sequence[Array]:
    """All samples by number: rows of one mapped .npy file, or arrays in memory if their lengths differ."""
    if case.is_ragged:
        return [sample.copy() for sample in case.samples()]
    np.save(folder / "samples.npy", case.array())
    return np.load(folder / "samples.npy", mmap_mode="r")  # type: ignore[no-any-return]


def write_npy(case: LoadCase, folder: Path) -> list[str]:
    """One file a sample; their paths out."""
    paths = [str(folder / f"{number:06d}.npy") for number in range(case.num_samples)]
    for path, sample in zip(paths, case.samples(), strict=True):
        np.save(path, sample)
    return paths


def loader_of(dataset: Any, case: LoadCase, num_workers: int) -> DataLoader[Any]:
    """torch's DataLoader with the settings that are good for it."""
    return DataLoader(
        dataset,
        batch_size=case.batch_size,
        shuffle=True,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        prefetch_factor=4 if num_workers else None,
        collate_fn=padded if case.is_ragged else None,
    )


def padded(samples: Sequence[Any]) -> dict[str, torch.Tensor]:
    """The ordinary way: pad_sequence, and the lengths."""
    pairs = [(sample["x"], sample["y"]) if isinstance(sample, dict) else sample for sample in samples]
    rows = [torch.as_tensor(x) for x, _ in pairs]
    return {
        "x": torch.nn.utils.rnn.pad_sequence(rows, batch_first=True),
        "x_length": torch.tensor([len(row) for row in rows]),
        "y": torch.tensor([int(y) for _, y in pairs]),
    }


def stacked(samples: Sequence[tuple[Array, int]], *, is_ragged: bool) -> dict[str, torch.Tensor]:
    """One batch of samples and their numbers."""
    if is_ragged:
        return padded(samples)
    return {
        "x": torch.from_numpy(np.stack([x for x, _ in samples])),
        "y": torch.tensor([int(y) for _, y in samples]),
    }


def numbers(case: LoadCase) -> Iterator[list[int]]:
    """Shuffled sample numbers in batches, epoch after epoch."""
    generator = np.random.default_rng(1)
    while True:
        order = generator.permutation(case.num_samples).tolist()
        for start in range(0, case.num_samples, case.batch_size):
            yield order[start : start + case.batch_size]


def forever(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def named(batches: Iterator[Any]) -> Iterator[dict[str, Any]]:
    """Pairs as dicts."""
    for batch in batches:
        yield batch if isinstance(batch, dict) else {"x": batch[0], "y": batch[1]}


def as_it_is(batch: Any) -> Any:
    return batch
