"""A small copy of a store in each encoding that is tried: the samples stay, their form on disk changes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from flatout.doctor.tune.setting import AS_IT_IS, ENCODINGS
from flatout.store import DataPreprocessor, StoreReader
from flatout.store.metadata import SHARD_FOLDER
from flatout.types import Array, FieldSpec

LEAST_BYTES = 1 << 10
"""Fields of smaller samples are not worth another encoding."""
COPY_BYTES = 64 << 20
LEAST_SAMPLES, MOST_SAMPLES = 32, 2048
"""Of a copy: each takes 0.1 to 20 ms to write."""


def encodable_fields(store: StoreReader, mean_bytes: Any) -> tuple[str, ...]:
    """Fields of floats that are large enough.

    Args:
        mean_bytes: name of a field in, bytes of a sample of it out.
    """
    return tuple(
        name
        for name, spec in store.fields.items()
        if np.dtype(spec.dtype).name in ("float32", "float64") and mean_bytes(name) >= LEAST_BYTES
    )


class SampleStores:
    """Copies of the first samples of a split, made when they are asked for.

    Args:
        sample_bytes: of one, decoded.
        batch_size: a copy has several batches.
    """

    def __init__(
        self,
        store: StoreReader,
        positions: Array,
        fields: tuple[str, ...],
        folder: Path,
        *,
        sample_bytes: int,
        batch_size: int,
    ) -> None:
        by_bytes = min(COPY_BYTES // max(1, sample_bytes), MOST_SAMPLES)
        wanted = max(LEAST_SAMPLES, 8 * batch_size, by_bytes)
        most = max(2 * batch_size, 4 * COPY_BYTES // max(1, sample_bytes))
        self._positions = positions[: min(wanted, most)]
        self._store = store
        self._fields = fields
        self._folder = folder
        self._made: dict[str, StoreReader] = {}

    def of(self, encoding: str) -> StoreReader:
        """The copy in this encoding, or as the store itself has it."""
        if encoding not in self._made:
            folder = self._folder / f"copy{len(self._made)}"
            fields = {name: self._section(spec, encoding) for name, spec in self._store.fields.items()}
            DataPreprocessor.from_dataset(
                _Samples(self._store, self._positions),
                folder,
                num_workers=0,
                fields=fields,
                transform_version="tune",
                splits={"ratios": {"train": 1.0}},
            ).run()
            self._made[encoding] = StoreReader(folder)
        return self._made[encoding]

    def _section(self, spec: FieldSpec, encoding: str) -> dict[str, Any]:
        own = {"encoding": spec.encoding, "compression": spec.compression}
        form = own if encoding == AS_IT_IS or spec.name not in self._fields else ENCODINGS[encoding]
        fixed = {"range": spec.range} if form["encoding"] in ("uint8", "int16") and spec.range else {}
        return {"kind": "transform", "ragged": spec.is_ragged, "allow_nonfinite": True, **form, **fixed}


class _Samples:
    """Samples of a store by number, as a dataset."""

    def __init__(self, store: StoreReader, positions: Array) -> None:
        self._store = store
        self._positions = positions

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, number: int) -> dict[str, Array]:
        return self._store.read(int(self._positions[number]))


def forget_pages(store: StoreReader) -> None:
    """Drop a store from the page cache, so that the next read comes from the disk."""
    for meta in store.meta.shards:
        if hasattr(os, "posix_fadvise"):
            descriptor = os.open(store.folder / SHARD_FOLDER / meta.file, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
