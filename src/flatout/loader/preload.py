"""Preload: a split's rows read once, so that the page cache has them: one copy for all ranks of a machine.

Rows of uncompressed fields are never copied into memory of our own: they would then be held twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from flatout.loader.machine import Machine
from flatout.loader.memory import check_preload
from flatout.loader.places import Places
from flatout.loader.pread import unreadable
from flatout.loader.ranges import byte_ranges
from flatout.store import ShardReader, StoreReader
from flatout.store.announcing import announce_bytes
from flatout.types import Array, FieldSpec

GAP_BYTES = 128 << 10
"""Stretches this close are read as one: the system reads so far ahead anyway."""
READ_BYTES = 4 << 20


def preload(
    store: StoreReader, positions: Array, machine: Machine, what: str, fields: Sequence[str] | None = None
) -> int:
    """Read these samples' bytes into the page cache; how many there are.

    Args:
        what: the split and the setting that asks for it, for the message.
        fields: those that will be read; all by default.

    Raises:
        LoaderError: they do not fit into memory, or cannot be read.
        StoreCorruptError: a shard is shorter than it should be.
    """
    specs = [store.fields[name] for name in (store.fields if fields is None else fields)]
    stretches = dict(_stretches(store, Places.of(store, positions), specs))
    total = sum(int((runs[:, 1] - runs[:, 0]).sum()) for runs in stretches.values())
    check_preload(total, machine, what)
    for number, runs in stretches.items():
        _read(store.shard(number), runs.tolist())
    return total


def _stretches(store: StoreReader, places: Places, specs: Sequence[FieldSpec]) -> Iterator[tuple[int, Array]]:
    """Shard number and the (start, stop) of the stretches of its file that hold the rows, in file order."""
    for number in np.unique(places.shards).tolist():
        rows = places.rows[places.shards == number].astype(np.int64)
        shard = store.shard(number)
        found = [byte_ranges(shard, spec, rows) for spec in specs]
        yield number, _joined(np.concatenate(found or [np.empty((0, 2), np.int64)]))


def _joined(ranges: Array) -> Array:
    """Sorted ranges, neighbours joined."""
    if not len(ranges):
        return ranges
    ranges = ranges[np.argsort(ranges[:, 0], kind="stable")]
    ends = np.maximum.accumulate(ranges[:, 1])
    first = np.flatnonzero(np.concatenate([[True], ranges[1:, 0] > ends[:-1] + GAP_BYTES]))
    last = np.concatenate([first[1:] - 1, [len(ranges) - 1]])
    return np.stack([ranges[first, 0], ends[last]], axis=1)


def _read(shard: ShardReader, runs: Sequence[Sequence[int]]) -> None:
    scratch = memoryview(bytearray(READ_BYTES))
    start = 0
    try:
        with open(shard.path, "rb", buffering=0) as file:
            for start, stop in runs:
                announce_bytes(file.fileno(), start, stop)
            for start, stop in runs:
                file.seek(start)
                _read_run(shard, file, stop - start, scratch)
    except OSError as error:
        raise unreadable(shard.path, f"byte {start:,}", error) from error


def _read_run(shard: ShardReader, file: Any, left: int, scratch: memoryview) -> None:
    while left:
        count = file.readinto(scratch[: min(left, READ_BYTES)])
        if not count:
            raise shard.damaged(f"it ends {left:,} bytes too early")
        left -= count
