"""WebDataset: a folder of tar files, a sample's fields as neighbouring members `KEY.FIELD.npy`."""

from __future__ import annotations

import io
import tarfile
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np

from flatout.store.export.export import Sample, Samples

TAR_BYTES = 256 << 20
"""A new tar is begun past this size."""


def write(samples: Samples, path: Path) -> None:
    """Write `SPLIT-000000.tar` files; members have no times or owners, so equal samples give equal bytes."""
    path.mkdir()
    writers: dict[str, _SplitWriter] = {}
    with ExitStack() as opened:  # closes every one, though closing one fails on a full disk
        for position, sample in enumerate(samples):
            if sample.split not in writers:
                writers[sample.split] = opened.enter_context(closing(_SplitWriter(path, sample.split)))
            writers[sample.split].add(position, sample)


class _SplitWriter:
    """The tars of one split, one open at a time."""

    def __init__(self, folder: Path, split: str) -> None:
        self._folder, self._split = folder, split
        self._number, self._size = 0, 0
        self._tar = self._open()

    def add(self, position: int, sample: Sample) -> None:
        if self._size > TAR_BYTES:
            self._tar.close()
            self._number, self._size = self._number + 1, 0
            self._tar = self._open()
        # WebDataset cuts a name at its first dot: the position is the name, the key a member of its own.
        stem = f"{position:09d}"
        self._member(f"{stem}.key.txt", sample.key.encode())
        for name, array in sample.arrays.items():
            buffer = io.BytesIO()
            np.save(buffer, array, allow_pickle=False)
            self._member(f"{stem}.{name}.npy", buffer.getvalue())

    def close(self) -> None:
        self._tar.close()

    def _open(self) -> Any:
        return tarfile.open(
            self._folder / f"{self._split}-{self._number:06d}.tar", "w", format=tarfile.USTAR_FORMAT
        )

    def _member(self, name: str, data: bytes) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        self._tar.addfile(info, io.BytesIO(data))
        self._size += len(data)
