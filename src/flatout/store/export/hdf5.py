"""One plain HDF5 file: a dataset a field, restored; ragged fields as values, offsets and shapes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from flatout.store.export.export import Samples
from flatout.store.index import length_column
from flatout.store.view import free_name
from flatout.types import FieldSpec


def write(samples: Samples, path: Path) -> None:
    """Write the samples to one file that any HDF5 tool reads without flatout."""
    with _PatientFile(path, "w+b") as disk:
        with disk.told_first(), h5py.File(disk, "w") as file:
            targets = {name: _create(file, samples, spec) for name, spec in samples.store.fields.items()}
            text = h5py.string_dtype()
            keys, splits = (
                file.create_dataset(free_name(name, samples.store.meta.fields), (len(samples),), text)
                for name in ("key", "split")
            )
            for position, sample in enumerate(samples):
                keys[position], splits[position] = sample.key, sample.split
                for name, array in sample.arrays.items():
                    targets[name](position, array)
                disk.check()
        disk.check()  # of what closing wrote


class _PatientFile(io.FileIO):
    """Keeps its first error for `check`: libhdf5 cannot close a file whose writes fail, and crashes."""

    error: OSError | None = None

    def check(self) -> None:
        """Raises the first error since the file was opened, if there was one."""
        if self.error is not None:
            raise self.error

    @contextmanager
    def told_first(self) -> Iterator[None]:
        """What failed first instead of what libhdf5 made of it: "bad heap index" tells nobody of a disk."""
        try:
            yield
        except Exception:
            self.check()
            raise

    def readinto(self, buffer: Any) -> int:
        """Zeros where a write was lost: h5py takes a short read for a whole one, and memory for values."""
        rest = memoryview(buffer).cast("B")
        num_bytes = len(rest)
        while len(rest) and (num_read := super().readinto(rest)):
            rest = rest[num_read:]
        rest[:] = bytes(len(rest))
        return num_bytes

    def write(self, data: Any) -> int:
        """All of it, or nothing more once a write has failed."""
        rest = memoryview(data).cast("B")
        num_bytes = len(rest)
        try:
            while len(rest) and self.error is None:
                rest = rest[super().write(rest) :]
        except OSError as error:
            self.error = error
        return num_bytes

    def truncate(self, size: int | None = None) -> int:
        """The length libhdf5 asks for; a disk that refuses it has failed."""
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = self.error or error
            return size or 0


def _create(file: Any, samples: Samples, spec: FieldSpec) -> Any:
    """A function that puts one sample into its place."""
    if not spec.is_ragged:
        dataset = file.create_dataset(spec.name, (len(samples), *spec.shape), spec.dtype)
        return dataset.__setitem__
    lengths = samples.store.numbers[length_column(spec.name)]
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    group = file.create_group(spec.name)
    group["offsets"] = offsets
    shapes = group.create_dataset("shapes", (len(samples), len(spec.shape)), "i8")
    values = group.create_dataset("values", (int(offsets[-1]),), spec.dtype)

    def put(position: int, array: Any) -> None:
        shapes[position] = array.shape
        values[offsets[position] : offsets[position + 1]] = array.reshape(-1)

    return put
