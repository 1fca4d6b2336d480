"""BatchMaker: numbers of batches in the endless stream of epochs in, the batches out: what producers call."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, chain, pairwise
from typing import NamedTuple, Protocol

import numpy as np
import torch

from flatout.loader.announce import FaultWatch
from flatout.loader.batches import Batches, Found
from flatout.loader.crop import crop_seed
from flatout.loader.fetch import VALID
from flatout.loader.parts import Wanted
from flatout.loader.sweep import Sweep
from flatout.loader.transfer import Batch, Sent, Transfer
from flatout.types import Array

AHEAD_BYTES = 32 << 20
"""Rows are announced to the system this far ahead of their use."""
SWEPT_AHEAD_BYTES = 16 << 20
"""The same beside a sweep, which brings many of them sooner. Rows of 16 KB, of a sequential read: 4 MB 0.79 to
0.86, 8 to 32 MB 0.89 to 0.95. All through the sweep: what is announced faults no page, so that the split seemed
warm after 32 batches, and the next one, page by page behind all that the sweep had asked for, took 500 ms."""
MOST_AHEAD = 64
"""Batches, however small they are."""
STRETCH_SAMPLES = 4096
"""Samples looked up together. A lookup in a thread whose caches are full of batches takes five times as long as
in a quiet one, so that doing it for each unit of 256 samples cost a tenth of the speed."""
SHORT_STRETCH_SAMPLES = 448
"""The same for large batches, of which few lie ready: NumPy lets go of the interpreter's lock for more than 500
numbers, step by step, and beside a busy main thread a lookup of 4096 took longer than those lasted."""
KEPT_STRETCHES = 4
UNITS_PER_EPOCH = 8
"""At least: few batches are not made many epochs ahead."""


class Fetches(Protocol):
    """Positions within a split in, batches out. Several threads may call at once."""

    @property
    def bytes_per_row(self) -> int:
        """Bytes of a sample of mean size."""

    @property
    def unit(self) -> int:
        """Batches that are best fetched at once."""

    @property
    def announces(self) -> bool:
        """Whether there is anything to announce: small samples are in memory."""

    @property
    def is_blind(self) -> bool:
        """Whether nothing shows if a read had to wait, so that all are announced."""

    def look_up(self, positions: Array) -> Wanted:
        """What can be known of these samples ahead."""

    def fetch_run(self, wanted: Wanted, sizes: Sequence[int], crop_seeds: Sequence[int]) -> list[Batch]:
        """These samples in batches of these sizes."""

    def announce(self, wanted: Wanted) -> None:
        """These samples are wanted soon."""


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Batches that follow each other, looked up together."""

    first: int
    epochs: list[int]
    num_valid: list[int]
    edges: list[int]
    """Where each batch begins among the samples, and the end of the last."""
    wanted: Wanted


class Planned(NamedTuple):
    """Batches that are to be made: their samples, how many each has, and how many of these are not repeats."""

    wanted: Wanted
    sizes: list[int]
    num_valid: list[int]


class BatchMaker:
    """Makes batches, several threads at once. Batch b of epoch e has number e x (batches of an epoch) + b.

    Args:
        first: from this batch on they are asked for in units, and many of these are looked up together.
        seed: what random crops are drawn from.
        unit: batches that are best made at once; None: as many as the fetcher finds best.
        sweep: what announces all samples meanwhile, if anything does.
    """

    def __init__(
        self,
        fetcher: Fetches,
        batches: Batches,
        transfer: Transfer,
        first: int = 0,
        seed: int = 0,
        unit: int | None = None,
        sweep: Sweep | None = None,
    ) -> None:
        unit = fetcher.unit if unit is None else unit
        self.unit = max(1, min(unit, batches.num_batches // UNITS_PER_EPOCH))
        """Batches that are best made at once."""
        self.num_batches = batches.num_batches
        """Of an epoch, on this rank."""
        self._fetcher = fetcher
        self._batches = batches
        self._lookup = batches.lookup()
        self._lock = threading.Lock()
        self._transfer = transfer
        self._first = first
        self._crop_seed = lru_cache(8)(partial(crop_seed, seed))
        self._faults = FaultWatch()
        rows = self._rows_per_batch
        self._ahead, self._swept_ahead = (
            max(2, min(MOST_AHEAD, num_bytes // max(fetcher.bytes_per_row * rows, 1)))
            for num_bytes in (AHEAD_BYTES, SWEPT_AHEAD_BYTES)
        )
        self._sweep = sweep
        num_samples = STRETCH_SAMPLES if self.unit > 1 else SHORT_STRETCH_SAMPLES
        num_units = min(num_samples // max(rows, 1), batches.num_batches) // self.unit
        self._length = self.unit * max(1, num_units)
        self._num_kept = max(KEPT_STRETCHES, -(-self._ahead // self._length) + 2)
        """Stretches: those that are announced ahead are wanted again when they are made."""
        self._stretches: dict[int, _Stretch] = {}
        self._announced = 0
        """Number of the first batch that is not announced yet."""

    def __call__(self, first: int, count: int) -> list[Sent]:
        is_swept = self._sweep is not None and self._sweep.is_under_way
        if self._fetcher.announces and (is_swept or self._faults.is_cold or self._fetcher.is_blind):
            ahead = self._swept_ahead if is_swept else self._ahead
            ahead = ahead if first >= self._first else 0  # the very first is wanted soon: it alone
            self._announce(first, first + count + ahead)
        stretch, wanted, sizes = self._find(first, count)
        at = first - stretch.first
        seeds = [self._crop_seed(epoch) for epoch in stretch.epochs[at : at + count]]
        with torch.inference_mode(False):  # of whoever asked first: a later epoch may train on these batches
            run = self._fetcher.fetch_run(wanted, sizes, seeds)
            batches = self.finished(run, sizes, stretch.num_valid[at : at + count])
        self._faults.note_batches(count)
        if at == 0 and first >= self._first:  # the next is looked up long before anybody has to wait for it
            with suppress(Exception):  # raised again for those who ask for it
                self._stretch(self._turn(first) + 1)
        return batches

    def plan(self, first: int, count: int) -> Planned:
        """Batches that follow each other, for whoever makes them elsewhere."""
        stretch, wanted, sizes = self._find(first, count)
        at = first - stretch.first
        return Planned(wanted, sizes, stretch.num_valid[at : at + count])

    def finished(self, run: list[Batch], sizes: list[int], num_valid: list[int]) -> list[Sent]:
        """Batches that were made, on their way to the device; masked where there may be repeats."""
        if self._batches.is_masked:
            for batch, size, valid in zip(run, sizes, num_valid, strict=True):
                counts = torch.arange(size) < valid
                batch[VALID] = batch[VALID] & counts if VALID in batch else counts
        return [self._transfer.send(batch) for batch in run]

    def _announce(self, first: int, stop: int) -> None:
        """The batches up to `stop` that are not announced yet; if threads come between, some are twice."""
        start, self._announced = max(first, self._announced), max(stop, self._announced)
        with suppress(Exception):  # of a batch that nobody has asked for yet: raised again for who does
            for number in range(start, stop):
                self._fetcher.announce(self._find(number, 1)[1])

    @property
    def _rows_per_batch(self) -> int:
        """Samples of a batch of mean size."""
        return -(-self._batches.num_samples // max(1, self._batches.num_batches * self._batches.world))

    def _find(self, first: int, count: int) -> tuple[_Stretch, Wanted, list[int]]:
        """The stretch that these batches lie in, their samples, and how many each has."""
        stretch = None
        if first >= self._first:
            with suppress(Exception):  # of any batch among many: raised again below if it is of these
                stretch = self._stretch(self._turn(first))
        if stretch is None:
            with self._lock:
                stretch = self._look_up(first, count)
        at = first - stretch.first
        edges = stretch.edges[at : at + count + 1]
        return stretch, stretch.wanted.cut(edges[0], edges[-1]), [b - a for a, b in pairwise(edges)]

    def _turn(self, number: int) -> int:
        """Which stretch a batch lies in."""
        return (number - self._first) // self._length

    def _stretch(self, turn: int) -> _Stretch:
        if (known := self._stretches.get(turn)) is not None:
            return known
        with self._lock:
            if (known := self._stretches.get(turn)) is None:  # nobody else has looked it up meanwhile
                known = self._look_up(self._first + turn * self._length, self._length)
                while len(self._stretches) >= self._num_kept:
                    del self._stretches[next(iter(self._stretches))]
                self._stretches[turn] = known
        return known

    def _look_up(self, first: int, count: int) -> _Stretch:
        epochs: list[int] = []
        found: list[Found] = []
        number, stop = first, first + count
        while number < stop:
            epoch, batch = divmod(number, self._batches.num_batches)
            length = min(stop - number, self._batches.num_batches - batch)
            found.append(self._lookup.find_run(epoch, batch, length))
            epochs += [epoch] * length
            number += length
        positions = np.concatenate([each.positions for each in found])
        edges = list(accumulate(chain.from_iterable(each.sizes for each in found), initial=0))
        num_valid = [count for each in found for count in each.num_valid]
        return _Stretch(first, epochs, num_valid, edges, self._fetcher.look_up(positions))
