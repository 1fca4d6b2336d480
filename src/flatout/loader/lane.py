"""Lane: a stream of batches whose producers need no interpreter, for fields that only have to be copied.

Once every checksum has been compared and everything lies in memory, a batch is rows of mapped memory and
nothing else. Then the consumer alone does what Python has to do, for a whole unit of batches at a time: before
the copy it looks the rows up and gives them a buffer, behind it it makes the tensors. Whoever copies claims
units by a shared counter: producers, and the consumer when it would have to wait.
"""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from flatout.errors import LoaderError
from flatout.loader.announce import all_major_faults
from flatout.loader.fetch import Fetcher
from flatout.loader.fixed import STREAM_BYTES, OneRange, stream_rows
from flatout.loader.machine import describe_machine
from flatout.loader.maker import BatchMaker, Fetches, Planned
from flatout.loader.parts import GatheredPart
from flatout.loader.prefetch import GONE, Belt, Prefetcher
from flatout.loader.transfer import Sent
from flatout.types import Array

LANE_BYTES = 64 << 20
"""Splits below this are not worth the half second that Numba takes to be imported."""
UNIT_BYTES = 20 << 20
"""Batches are copied and handed over together up to this size, and `MAX_UNIT` of them. Who keeps one of them
keeps the memory of all."""
AHEAD_BYTES = 192 << 20
"""So much is ready or under way, whatever `prefetch_factor` says, up to half of an epoch and `FREE_SHARE`. As a
share of the limit that `bench load` prints: batches of 1 MB 0.69 in units of 3 MB with 12 ahead, 0.98 in units
of 16 with 192."""
FREE_SHARE = 1 / 32
"""Of the memory that is free when a stream begins."""
NAP_S = 2e-5
"""Between two looks at a unit that a producer is at."""
WINDOW = 8
"""Units over which the pages are counted that this process had to wait for."""
MOST_FAULTS = 32
"""Such pages in a window, or in an epoch before: with more, rows are announced."""

_log = logging.getLogger(__name__)


class _Unit(NamedTuple):
    """Batches that are made together, and the buffer of each field that is copied."""

    planned: Planned
    buffers: dict[str, Array]


class Gate:
    """Decides, at the start of each stream of a loader, whether its batches come by a lane."""

    def __init__(self) -> None:
        self._faults: int | None = None
        """When the stream before began; None: there was none."""

    def is_open(self, fetcher: Fetches, num_samples: int) -> bool:
        """Whether there is nothing to do for batches but to copy them, enough of it, and nothing had to be
        fetched from the disk since the stream before began.

        Compiled functions are loaded already when that alone is missing, so that no later epoch begins late.
        """
        if not isinstance(fetcher, Fetcher) or not fetcher.is_plain:
            return False
        if fetcher.bytes_per_row * num_samples < LANE_BYTES or _kernels() is None:
            return False
        before, self._faults = self._faults, all_major_faults()
        is_warm = before is not None and self._faults - before <= MOST_FAULTS
        return is_warm and fetcher.is_checked


class Lane(Prefetcher[Sent]):
    """As a Prefetcher, of batches that a maker has planned."""

    _belt: _LaneBelt

    def __init__(self, maker: BatchMaker, fetcher: Fetcher, first: int, num_threads: int, depth: int) -> None:
        self._maker = maker
        self._fetcher = fetcher
        self._copied = {name: part for name, part in fetcher.parts.items() if isinstance(part, GatheredPart)}
        self._failure: Exception | None = None
        self._is_cold = False
        self._faults = all_major_faults()
        super().__init__(maker, first, num_threads, depth, maker.unit)

    @staticmethod
    def unit_of(fetcher: Fetcher, num_threads: int) -> int:
        """Batches that are best copied at once; few where nobody copies ahead."""
        return fetcher.unit_of(UNIT_BYTES) if num_threads else fetcher.unit

    @property
    def is_usable(self) -> bool:
        return super().is_usable and not self._is_cold

    def _new_belt(self, make: Any, first: int, unit: int, size: int) -> Belt:
        return _LaneBelt(first, unit, size, list(self._copied.values()))

    def _ahead_of(self, num_threads: int, depth: int) -> int:
        """`depth` counts units of the size that producers have, of which several may be one here."""
        if not num_threads:
            return 1
        unit = self._maker.unit
        asked = num_threads * depth * min(unit, self._fetcher.unit)
        free = describe_machine(look_for_gpu=False).free_bytes
        most = int(min(AHEAD_BYTES, free * FREE_SHARE)) // max(1, self._fetcher.batch_bytes)
        return max(-(-asked // unit), min(most, self._maker.num_batches // 2) // unit)

    def _next_unit(self) -> list[Sent]:
        belt, number = self._belt, self._at
        if number == self._limit:
            raise self._failure or LoaderError(GONE)
        while True:
            is_alive = self._is_alive()  # before the look: it may come last
            if belt.make_until(number):
                break
            if belt.is_closed or not is_alive:
                raise LoaderError(GONE)
            time.sleep(NAP_S)
        batches = self._hand_out(belt.pick_up(number))
        self._at += 1
        self._allow()
        self._look_at_faults()
        batches.reverse()  # the consumer pops from the end
        return batches

    def _hand_out(self, unit: _Unit) -> list[Sent]:
        (wanted, sizes, num_valid), buffers = unit
        fields = [
            self._copied[name].pool.hand_out(buffers[name], sizes)
            if name in buffers
            else part.gather(wanted.positions, wanted.found[name], sizes)
            for name, part in self._fetcher.parts.items()
        ]
        names = list(self._fetcher.parts)
        batches = [dict(zip(names, rows, strict=True)) for rows in zip(*fields, strict=True)]
        return self._maker.finished(batches, sizes, num_valid)

    def _allow(self) -> None:
        """Lay down units up to so many ahead."""
        if self._failure is not None:
            return
        try:
            while self._limit < self._at + self._num_ahead:
                planned = self._maker.plan(*self._belt.items_of(self._limit))
                num_rows = len(planned.wanted.positions)
                buffers = {name: part.pool.take(num_rows) for name, part in self._copied.items()}
                self._belt.lay(self._limit, _Unit(planned, buffers))
                self._limit += 1
        except Exception as error:  # raised for whoever asks for that unit
            self._failure = error
        self._belt.open_up_to(self._limit, max(1, self._num_ahead // 2))

    def _look_at_faults(self) -> None:
        faults = all_major_faults()
        if faults - self._faults > MOST_FAULTS:
            self._is_cold = True
            _log.info("pages had to be fetched from the disk again: rows are announced for an epoch")
        elif self._at % WINDOW == 0:
            self._faults = faults


class _LaneBelt(Belt):
    """Where units are laid down, copied and picked up. Holds the maps and buffers that are copied."""

    def __init__(self, first: int, unit: int, size: int, parts: list[GatheredPart]) -> None:
        super().__init__(_never, first, unit, size)
        self._parts = parts
        self._units: list[_Unit | None] = [None] * self.num_slots
        self._asleep: list[None] = []
        """One for each producer that found nothing to do: any of them may be the one that is woken."""
        kernels = self._kernels = _kernels()
        edge = kernels.HEAD + kernels.FIELD * len(parts)
        self._words = np.zeros(edge + self.num_slots * (kernels.SLOT + 2 * len(parts)), np.int64)
        self._words[kernels.NUM_FIELDS] = len(parts)
        self._words[kernels.NUM_SLOTS] = self.num_slots
        self._words[kernels.STREAM_BYTES] = STREAM_BYTES
        for row, part in zip(self._words[kernels.HEAD : edge].reshape(-1, kernels.FIELD), parts, strict=True):
            assert isinstance(part.rows, OneRange)
            row[:] = part.rows.mapped.rows.ctypes.data, part.row_bytes
        self._table = self._words[edge:].reshape(self.num_slots, -1)
        self._table[:, 0] = -1  # no unit was finished in it
        self._lane = self._words.ctypes.data

    def employ(self, num_producers: int) -> list[int]:
        missing = super().employ(num_producers)
        for _ in missing:  # each begins with a look
            self.room.put(0)
        return missing

    def close(self) -> None:
        super().close()
        self._kernels.publish(self._lane, self._kernels.IS_CLOSED, 1)

    def lay(self, number: int, unit: _Unit) -> None:
        """Say what is to be copied where; it may be once it is opened."""
        numbers = [len(unit.planned.wanted.positions)]
        for name, buffer in unit.buffers.items():
            numbers += [unit.planned.wanted.found[name].ctypes.data, buffer.ctypes.data]
        self._units[number % self.num_slots] = unit
        self._table[number % self.num_slots, 1:] = numbers

    def open_up_to(self, stop: int, num_wanted: int) -> None:
        """Units below may be made; whoever sleeps is woken once so many are to be: that takes 14 us."""
        self._kernels.publish(self._lane, self._kernels.LIMIT, stop)
        with suppress(IndexError):  # nobody sleeps, or not any more
            while stop - self._words[self._kernels.NEXT] >= num_wanted:
                self._asleep.pop()
                self.room.put(0)

    def make_until(self, number: int) -> bool:
        """Make units until this one is finished; false: a producer is still at it."""
        return bool(self._kernels.make_until(self._lane, number))

    def pick_up(self, number: int) -> _Unit:
        """A unit that is finished."""
        at = number % self.num_slots
        unit, self._units[at] = self._units[at], None
        assert unit is not None
        return unit

    def clear(self) -> None:
        """Buffers of units that nobody picked up go back: up to 192 MB, to be allocated anew otherwise."""
        left, self._units = self._units, [None] * self.num_slots
        for unit in left:
            if unit is not None:
                for part, buffer in zip(self._parts, unit.buffers.values(), strict=True):
                    part.pool.give_back(buffer)

    def make(self, number: int) -> None:
        """For producers: all units that may be made. Asleep is said before the last look, so that whoever opens
        more in between wakes this one."""
        words, kernels = self._words, self._kernels
        while not self.is_closed:
            kernels.make_all(self._lane)
            self._asleep.append(None)
            if words[kernels.NEXT] >= words[kernels.LIMIT]:
                return
            with suppress(IndexError):  # woken already: one look too many follows
                self._asleep.pop()


def _never(first: int, count: int) -> list[Any]:
    raise AssertionError("the units of a lane are planned")


@cache
def _kernels() -> Any:
    """The compiled functions, or None where there are none."""
    if stream_rows() is None:
        return None
    from flatout.loader import copy_kernels

    # Compiled here, before there are threads that a fork could cut off: a lane that is closed, unit 0 finished.
    words = np.zeros(copy_kernels.HEAD + copy_kernels.SLOT, np.int64)
    words[copy_kernels.NUM_SLOTS] = 1
    copy_kernels.publish(words.ctypes.data, copy_kernels.IS_CLOSED, 1)
    copy_kernels.make_all(words.ctypes.data)
    copy_kernels.make_until(words.ctypes.data, 0)
    return copy_kernels
