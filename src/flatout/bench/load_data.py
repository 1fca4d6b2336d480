"""The stores that are loaded, written straight from arrays: shards, index and root, as prepare leaves them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from flatout.bench.index import commit
from flatout.bench.load_cases import LoadCase
from flatout.source import hash_key
from flatout.store.metadata import SHARD_FOLDER, ShardMeta
from flatout.store.shard_writer import ShardWriter
from flatout.types import Array, FieldSpec


def write_store(
    folder: Path, fields: Sequence[FieldSpec], samples: Iterable[dict[str, Array]], rows_per_shard: int
) -> Path:
    """A store of these samples in order, each under its number as key."""
    (folder / SHARD_FOLDER).mkdir(parents=True)
    shards = list(_shards(folder / SHARD_FOLDER, fields, samples, rows_per_shard))
    commit(folder, shards, tuple(fields))
    return folder


def store_of(folder: Path, case: LoadCase, rows_per_shard: int, encoding: Any = "none") -> Path:
    """The store of a case."""
    samples = ({"x": x, "y": np.asarray(y)} for y, x in enumerate(case.samples()))
    return write_store(folder, case.fields(encoding), samples, rows_per_shard)


def _shards(
    folder: Path, fields: Sequence[FieldSpec], samples: Iterable[dict[str, Array]], rows_per_shard: int
) -> Iterator[ShardMeta]:
    writer, number = ShardWriter(fields), 0
    for at, sample in enumerate(samples):
        key = f"{at:09d}"
        writer.append(writer.encode(key, hash_key(key), -1, sample))
        if len(writer) == rows_per_shard:
            yield writer.write(folder, number)
            writer, number = ShardWriter(fields), number + 1
    if len(writer):
        yield writer.write(folder, number)
