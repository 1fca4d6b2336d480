"""Export: every sample of a store, restored, into another format; written beside and renamed when whole."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flatout.errors import ConfigError, FlatoutError, StoreError
from flatout.source import load_object
from flatout.store.checks import hash_shard
from flatout.store.files import sync_file, temporary_beside
from flatout.store.limits import free_bytes
from flatout.store.progress import Progress, Silent
from flatout.store.reader import StoreReader
from flatout.types import Array
from flatout.units import bytes_text

FORMATS = {
    name: f"flatout.store.export.{name}:write" for name in ("hdf5", "tar", "parquet", "tfrecord", "lmdb")
}
"""Format -> function that writes `Samples` to a path."""
KEEP_COMPLEX = ("hdf5", "tar", "lmdb")
"""Formats that have complex numbers."""
LITTLE_BYTES = 1 << 20
"""Less than this left on a disk is worth a word when a write fails."""


@dataclass(frozen=True)
class Sample:
    """One sample on its way out."""

    key: str
    split: str
    arrays: dict[str, Array]


@dataclass(frozen=True)
class Samples:
    """A store's samples in index order, each read once."""

    store: StoreReader
    progress: Progress

    def __len__(self) -> int:
        return len(self.store)

    def __iter__(self) -> Iterator[Sample]:
        numbers = self.store.numbers
        splits = [self.store.meta.splits[number] for number in numbers["split"].tolist()]
        whole: set[int] = set()
        for position, (key, split, shard) in enumerate(
            zip(self.store.keys(), splits, numbers["shard"].tolist(), strict=True)
        ):
            if shard not in whole:
                self._check(shard)
                whole.add(shard)
            yield Sample(key, split, self.store.read(position))
            self.progress.advance(1)

    def _check(self, number: int) -> None:
        """Damage must not travel: what leaves the store has no crc any more that could tell.

        Raises:
            StoreCorruptError: the shard is not what was written.
        """
        shard = self.store.shard(number)
        try:
            is_whole = hash_shard(shard.path) == shard.meta.xxh3
        except OSError as error:
            raise shard.damaged(error.strerror or str(error)) from error
        if not is_whole:
            raise shard.damaged("its hash differs from the recorded one")


def export_store(folder: Path, to: str, output: Path, progress: Progress = Silent()) -> int:  # noqa: B008  stateless
    """Write the store at `folder` to `output` in the format `to`; the number of samples out.

    Raises:
        ConfigError: no such format, or it cannot hold a field. StoreCorruptError: a shard is damaged.
        StoreError: `output` is there already, or cannot be written.
    """
    if to not in FORMATS:
        raise ConfigError(f"no format '{to}'; known: {', '.join(FORMATS)}")
    if output.exists():
        raise StoreError(f"{output} is there already; name another place, or delete it first")
    write: Callable[[Samples, Path], None] = load_object(FORMATS[to])
    samples = Samples(StoreReader(folder), progress)
    _refuse_complex(samples.store, to)
    temporary = temporary_beside(output)
    progress.begin(f"export to {to}", len(samples))
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        write(samples, temporary)
        _sync(temporary)
        temporary.replace(output)
    except OSError as error:
        if isinstance(error, FlatoutError):
            raise
        raise StoreError(f"{output} cannot be written: {_reason(error, output.parent)}") from error
    finally:
        _remove(temporary)
    return len(samples)


def _refuse_complex(store: StoreReader, to: str) -> None:
    """Parquet and TFRecord have real numbers only: half of each complex one would be lost."""
    for spec in store.meta.fields:
        if np.dtype(spec.dtype).kind == "c" and to not in KEEP_COMPLEX:
            raise ConfigError(
                f"field '{spec.name}' is {spec.dtype}, and {to} has no complex numbers; "
                f"export to one of: {', '.join(KEEP_COMPLEX)}"
            )


def _sync(path: Path) -> None:
    """Have the disk take all of it before it gets its name: some notice only now that they are full."""
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        with open(file, "rb+") as opened:
            sync_file(opened.fileno())


def _reason(error: OSError, folder: Path) -> str:
    """What the system says, and what is left on a full disk: not every library says that it is full."""
    told = os.strerror(error.errno) if error.errno else error.strerror or str(error)
    with suppress(OSError):
        free = free_bytes(folder)
        if free < LITTLE_BYTES:
            told += f" ({bytes_text(free)} are free there)"
    return told


def _remove(path: Path) -> None:
    """Delete what was not finished, if it can be: an error on the way here says more than one of this."""
    with suppress(OSError):
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
