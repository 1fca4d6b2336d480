"""Our side of the race: the fast loader, and the limit: the same gather with no loader around it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import numpy as np

from flatout.bench.load_cases import LoadCase
from flatout.bench.load_runner import RUN_UP_S, Batches, Counted
from flatout.bench.machine import count_cores
from flatout.loader import FastDataLoader
from flatout.loader.fetch import ReadRule
from flatout.loader.fixed import open_fixed
from flatout.loader.places import Places
from flatout.loader.rows import FixedRows
from flatout.store import StoreReader
from flatout.types import Array, FieldSpec

NUM_BUFFERS = 3
"""Buffers that a thread rotates over: one would stay in the CPU's cache and flatter nobody."""


def flatout(
    case: LoadCase, store: Path, scratch: Path, *, crc: str = "first", restored: bool = True
) -> Callable[[], Batches]:
    """The loader as anybody would use it. The epoch in which every sample is checked is run before."""
    loader = FastDataLoader(
        store, case.batch_size, shuffle=True, seed=1, read=ReadRule(crc=crc), restore=restored
    )
    for _ in loader:
        pass

    def batches() -> Batches:
        while True:
            yield from loader

    return batches


flatout_crc_always = partial(flatout, crc="always")
flatout_as_stored = partial(flatout, restored=False)


def limit(case: LoadCase, store: Path, scratch: Path) -> BareThreads:
    """One thread a core, each copying shuffled batches out of the mapped store."""
    reader = StoreReader(store)
    if case.is_ragged:
        return BareThreads(case, partial(_copy_sequences, case, reader))
    spec = reader.fields["x"]
    everything = np.arange(case.num_samples)
    rows = open_fixed(reader, spec, Places.of(reader, everything), batch_size=case.batch_size)
    places = rows.look_up(everything)
    return BareThreads(case, partial(_gather_rows, rows, places, spec))


class BareThreads:
    """Threads that copy batch after batch and hand nothing over."""

    def __init__(self, case: LoadCase, start: Callable[[int], Callable[[Array], int]]) -> None:
        self._case = case
        self._start = cache(lambda number: (start(case.batch_size), shuffled(case, number)))
        """Of a thread: its buffers are allocated once, as a loader's are."""

    def run(self, seconds: float) -> list[Counted]:
        """One thread, and one a core: short copies leave the interpreter little room for two."""
        self._run(count_cores(), min(RUN_UP_S, seconds))
        return [self._run(count, seconds) for count in sorted({1, count_cores()})]

    def _run(self, num_threads: int, seconds: float) -> Counted:
        totals: list[Counted] = []
        threads = [threading.Thread(target=self._copy, args=(at, seconds, totals)) for at in range(num_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        count, num_bytes = sum(each for each, _, _ in totals), sum(each for _, each, _ in totals)
        # Each thread's rate in its own time: who ends first does not wait for the other's last batch.
        return count, num_bytes, count / sum(each / elapsed for each, _, elapsed in totals)

    def check(self) -> dict[str, int]:
        return {}

    def _copy(self, number: int, seconds: float, totals: list[Counted]) -> None:
        copy, batches = self._start(number)
        count = num_bytes = 0
        started = time.perf_counter()
        while (elapsed := time.perf_counter() - started) < seconds:
            picked = next(batches)
            num_bytes += copy(picked)
            count += len(picked)
        totals.append((count, num_bytes, elapsed))


def shuffled(case: LoadCase, seed: int) -> Iterator[Array]:
    """Numbers of samples, a batch at a time, for ever."""
    generator = np.random.default_rng(seed)
    whole = case.num_samples // case.batch_size * case.batch_size
    while True:
        yield from generator.permutation(case.num_samples)[:whole].reshape(-1, case.batch_size)


def _gather_rows(rows: FixedRows, places: Array, spec: FieldSpec, batch_size: int) -> Callable[[Array], int]:
    shape = (batch_size, *(n or 0 for n in spec.shape))
    buffers = [np.empty(shape, spec.stored_dtype) for _ in range(NUM_BUFFERS)]
    turn = 0

    def copy(picked: Array) -> int:
        nonlocal turn
        turn = (turn + 1) % NUM_BUFFERS
        rows.gather(places[picked], buffers[turn])
        return buffers[turn].nbytes

    return copy


def _copy_sequences(case: LoadCase, reader: StoreReader, batch_size: int) -> Callable[[Array], int]:
    """One copy a sequence into a buffer padded to the batch's longest; zeros behind it."""
    numbers = reader.numbers
    places = zip(numbers["shard"].tolist(), numbers["row"].tolist(), strict=True)
    parts = [reader.shard(shard).stored("x", row).reshape(-1) for shard, row in places]
    sizes = np.array([part.size for part in parts])
    buffers = [np.empty(batch_size * math.prod(case.shape), case.dtype) for _ in range(NUM_BUFFERS)]
    turn = 0

    def copy(picked: Array) -> int:
        nonlocal turn
        turn = (turn + 1) % NUM_BUFFERS
        buffer, width, at = buffers[turn], int(sizes[picked].max()), 0
        for number, size in zip(picked.tolist(), sizes[picked].tolist(), strict=True):
            buffer[at : at + size] = parts[number]
            buffer[at + size : at + width] = 0
            at += width
        return at * buffer.itemsize

    return copy
