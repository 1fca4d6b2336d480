"""Lane: a stream of batches whose producers need no interpreter, for fields that only have to be copied.

Once checksums have been compared and everything lies in memory, a batch is rows of mapped memory and
nothing else. What Python has to do for it, and who does that, is told in `lane_belt`.
"""

from __future__ import annotations

import logging
from typing import Any

from flatout.loader.announce import all_major_faults
from flatout.loader.fetch import Fetcher
from flatout.loader.lane_belt import LaneBelt, LaneLeft, lane_kernels
from flatout.loader.machine import describe_machine
from flatout.loader.maker import BatchMaker, Fetches
from flatout.loader.prefetch import Belt, Prefetcher
from flatout.loader.transfer import Sent

LANE_BYTES = 64 << 20
"""Splits below this are not worth the half second that Numba takes to be imported."""
UNIT_BYTES = 40 << 20
"""Batches are copied and handed over together up to this size, and `MAX_UNIT` of them. Who keeps one of them
keeps the memory of all. Four images of 10 MB a batch instead of two: 14 us for `next` instead of 19, beside an
accelerator of 1 ms a step."""
AHEAD_BYTES = 192 << 20
"""So much is ready or under way, whatever `prefetch_factor` says, up to half of an epoch and `FREE_SHARE`. As a
share of the limit that `bench load` prints: batches of 1 MB 0.69 in units of 3 MB with 12 ahead, 0.98 in units
of 16 with 192."""
FREE_SHARE = 1 / 32
"""Of the memory that is free when a stream begins."""
WINDOW, LOOK_EVERY = 8, 4
"""Units over which the pages are counted that this process had to wait for, and between two looks at them: one
takes 10 to 20 us."""
MOST_FAULTS = 32
"""Such pages in a window, or in an epoch before: with more, rows are announced."""

_log = logging.getLogger(__name__)


class Gate:
    """Decides, at the start of each stream of a loader, whether its batches come by a lane."""

    def __init__(self) -> None:
        self._faults: int | None = None
        """When the stream before began; None: there was none."""
        self._had_epoch = False

    def close(self) -> None:
        """Not by a lane the next time."""
        self._faults = None

    def note_epoch(self) -> None:
        """An epoch was handed over to its end."""
        self._had_epoch = True

    def is_open(self, fetcher: Fetches, num_samples: int) -> bool:
        """Whether there is nothing to do for batches but to copy them, enough of it, and nothing had to be
        fetched from the disk since the stream before began.

        Behind a whole epoch a rank among several, or one that draws by weights, has met only some samples:
        whatever is new to it is compared when its unit is handed out. Compiled functions are loaded already
        when the epoch alone is missing, so that no later one begins late.
        """
        if not isinstance(fetcher, Fetcher) or not fetcher.is_plain:
            return False
        if fetcher.bytes_per_row * num_samples < LANE_BYTES or lane_kernels() is None:
            return False
        return self.is_warm() and (fetcher.is_checked or self._had_epoch)

    def is_warm(self) -> bool:
        """Whether nothing had to be fetched from the disk since the stream before began; one begins now."""
        before, self._faults = self._faults, all_major_faults()
        return before is not None and self._faults - before <= MOST_FAULTS


class Lane(Prefetcher[Sent]):
    """As a Prefetcher, of batches that a maker has planned."""

    _belt: LaneBelt

    def __init__(self, maker: BatchMaker, fetcher: Fetcher, first: int, num_threads: int, depth: int) -> None:
        self._maker = maker
        self._fetcher = fetcher
        self._is_left = False
        """For whatever reason: another stream goes on from here."""
        self._faults = all_major_faults()
        self._num_units = 0
        super().__init__(maker, first, num_threads, depth, maker.unit)

    @staticmethod
    def unit_of(fetcher: Fetcher, num_threads: int) -> int:
        """Batches that are best copied at once; few where nobody copies ahead."""
        return fetcher.unit_of(UNIT_BYTES) if num_threads else fetcher.unit

    @property
    def is_usable(self) -> bool:
        return super().is_usable and not self._is_left

    def _new_belt(self, make: Any, first: int, unit: int, size: int) -> Belt:
        return LaneBelt(self._maker, self._fetcher, first, size)

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
        try:
            batches = self._belt.next_unit(self._is_alive)
        except LaneLeft:
            self._is_left = True
            raise
        self._num_units += 1
        if self._num_units % LOOK_EVERY == 0:
            self._look_at_faults()
        return batches

    def _allow(self) -> None:
        self._belt.lay_all(self._num_ahead)

    def _look_at_faults(self) -> None:
        faults = all_major_faults()
        if faults - self._faults > MOST_FAULTS:
            self._is_left = True
            _log.info("pages had to be fetched from the disk again: rows are announced for an epoch")
        elif self._num_units % WINDOW == 0:
            self._faults = faults
