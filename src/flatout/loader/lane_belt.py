"""LaneBelt: units of batches that are laid down, copied without an interpreter, and handed out as tensors.

Whoever copies claims units by a shared counter: producers, and the consumer when it would have to wait. What
Python has to do for a unit is done by one thread at a time. Before the copy: look its rows up and give it
buffers; behind it: make its tensors. A consumer that asks for batches as fast as they come does it itself: who
is put to sleep and woken for each unit leaves a third of the speed. While it is elsewhere, in a training step,
producers do it for all units ahead, so that nothing is left for the consumer but to take them: beside an
accelerator of 1 ms a step a batch of 1 MB cost 70 us of its time before, of which 45 were this.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from flatout.errors import LoaderError
from flatout.loader.fetch import Fetcher
from flatout.loader.fixed import STREAM_BYTES, OneRange, stream_rows
from flatout.loader.maker import BatchMaker, Planned
from flatout.loader.parts import GatheredPart
from flatout.loader.permutation import compile_shuffle
from flatout.loader.prefetch import GONE, Belt
from flatout.loader.transfer import Sent
from flatout.types import Array

NAP_S = 2e-5
"""Between two looks at a unit that a producer is at."""
FIRST_AHEAD = 4
LATE_A_STEP = 2
"""Units ahead at first, and how often the consumer has to find none ready for one more: a fresh buffer of 20 MB
takes 20 to 100 ms of page faults, and a dozen of them at once held it up for 300."""

_log = logging.getLogger(__name__)


class LaneLeft(Exception):  # noqa: N818  never leaves the loader
    """The next unit cannot be made here: whoever makes batches one by one finds out which of them fails."""


class _Unit(NamedTuple):
    """Batches that are made together, and the buffer of each field that is copied."""

    planned: Planned
    buffers: dict[str, Array]


class LaneBelt(Belt):
    """Holds the maps and buffers that are copied, and nothing of the Lane: dropping that ends its producers."""

    def __init__(self, maker: BatchMaker, fetcher: Fetcher, first: int, size: int) -> None:
        super().__init__(maker, first, maker.unit, size)
        self._maker = maker
        self._parts = fetcher.parts
        self._copied = {name: part for name, part in fetcher.parts.items() if isinstance(part, GatheredPart)}
        self._num_ahead = self._most_ahead = 1
        self._num_late = 0
        """How often the consumer found no unit ready."""
        self._units: list[_Unit | None] = [None] * self.num_slots
        self._num_laid = 0
        self._num_out = 0
        self._out: deque[list[Sent]] = deque()
        """Units that are handed out, in order, until they are taken."""
        self._is_stuck = False
        """No more can be laid down. The error is not kept: with its frames it would hold the Lane for good."""
        self._turn = threading.Lock()
        """Of whoever lays down or hands out."""
        self._is_asked = False
        """The consumer wants the turn."""
        self._asleep: list[None] = []
        """One for each producer that found nothing to do: any of them may be the one that is woken."""
        self._kernels = lane_kernels()
        self._words, self._table = self._new_words()
        self._lane = self._words.ctypes.data

    def employ(self, num_producers: int) -> list[int]:
        missing = super().employ(num_producers)
        for _ in missing:  # each begins with a look
            self.room.put(0)
        return missing

    def close(self) -> None:
        super().close()
        self._kernels.publish(self._lane, self._kernels.IS_CLOSED, 1)

    def clear(self) -> None:
        """Buffers of units that nobody picked up go back: up to 192 MB, to be allocated anew otherwise."""
        self._out.clear()
        left, self._units = self._units, [None] * self.num_slots
        for unit in left:
            if unit is not None:
                for name, buffer in unit.buffers.items():
                    self._copied[name].pool.give_back(buffer)

    # ---- the consumer

    def lay_all(self, num_ahead: int) -> None:
        """Lay units down up to so many ahead from here on; fewer where that is enough."""
        with self._turn:
            self._most_ahead = num_ahead
            self._widen()
            while self._lay_next():
                pass

    def next_unit(self, is_alive: Callable[[], bool]) -> list[Sent]:
        """The batches of the next unit, the last one first.

        Raises:
            LoaderError: it is never made: the producers are gone.
            LaneLeft: it cannot be laid down or handed out.
        """
        try:
            batches = self._out.popleft()
        except IndexError:
            return self._make_next(is_alive)
        if self._num_missing() >= self._many:
            self._wake_one()
        return batches

    def _make_next(self, is_alive: Callable[[], bool]) -> list[Sent]:
        self._is_asked = True
        try:
            with self._turn:
                if not self._out:  # nobody has meanwhile
                    self._num_late += 1
                    self._widen()
                    self._lay_next()
                    self._copy_next(is_alive)
                    try:
                        self._hand_out_next()
                    except Exception as error:
                        raise LaneLeft from error
                batches = self._out.popleft()
                while self._lay_next():
                    pass
                return batches
        finally:
            self._is_asked = False

    def _copy_next(self, is_alive: Callable[[], bool]) -> None:
        """Copy units until the next one to be handed out is made, by whomever."""
        number = self._num_out
        if number == self._num_laid or self._units[number % self.num_slots] is None:
            raise LaneLeft
        while True:
            has_producers = is_alive()  # before the look: it may come last
            if self._kernels.make_until(self._lane, number):
                return
            if self.is_closed or not has_producers:
                raise LoaderError(GONE)
            time.sleep(NAP_S)

    # ---- producers

    def make(self, number: int) -> None:
        """All there is to do. Asleep is said before the last look, so that whoever opens more in between wakes
        this one."""
        words, kernels = self._words, self._kernels
        while not self.is_closed:
            kernels.make_all(self._lane)
            self._tend()
            self._asleep.append(None)
            if words[kernels.NEXT] >= words[kernels.LIMIT]:
                return
            with suppress(IndexError):  # woken already: one look too many follows
                self._asleep.pop()

    def _tend(self) -> None:
        """Lay down and hand out while nobody else does."""
        while not (self.is_closed or self._is_asked) and self._turn.acquire(blocking=False):
            try:
                if not (self._lay_next() or self._hand_out_made()):
                    return
            except Exception:
                _log.debug("a unit cannot be handed out", exc_info=True)
                return
            finally:
                self._turn.release()

    # ---- whoever has the turn

    def _lay_next(self) -> bool:
        """Say of one more unit what is to be copied where; false: there are enough."""
        if self._num_missing() <= 0 or self._is_stuck:
            return False
        number = self._num_laid
        try:
            planned = self._maker.plan(*self.items_of(number))
            num_rows = len(planned.wanted.positions)
            buffers = {name: part.pool.take(num_rows) for name, part in self._copied.items()}
        except Exception:
            _log.debug("a unit cannot be planned", exc_info=True)
            self._is_stuck = True
            return False
        numbers = [num_rows]
        for name, buffer in buffers.items():
            numbers += [planned.wanted.found[name].ctypes.data, buffer.ctypes.data]
        self._units[number % self.num_slots] = _Unit(planned, buffers)
        self._table[number % self.num_slots, 1:] = numbers
        self._num_laid += 1
        self.open_up_to(self._num_laid, self._many)
        return True

    def _hand_out_made(self) -> bool:
        """Hand the next unit out if it is made."""
        is_there = self._units[self._num_out % self.num_slots] is not None
        is_made = is_there and self._kernels.is_made(self._lane, self._num_out)
        if is_made:
            self._hand_out_next()
        return is_made

    def _hand_out_next(self) -> None:
        """Make the tensors of a unit that was copied. If that fails it is gone: its buffers may be back."""
        at = self._num_out % self.num_slots
        unit, self._units[at] = self._units[at], None
        assert unit is not None
        with torch.inference_mode(False):  # of whoever asked first: a later epoch may train on these batches
            batches = self._tensors_of(unit)
        self._out.append(batches)
        self._num_out += 1

    def _tensors_of(self, unit: _Unit) -> list[Sent]:
        (wanted, sizes, num_valid), buffers = unit
        for name, buffer in buffers.items():
            check = self._copied[name].check  # of samples that this rank has not met; later a look at a flag
            if check is not None:
                check.require(wanted.positions, buffer)
        fields = [
            self._copied[name].pool.hand_out(buffers[name], sizes)
            if name in buffers
            else part.gather(wanted.positions, wanted.found[name], sizes)
            for name, part in self._parts.items()
        ]
        names = list(self._parts)
        run = [dict(zip(names, rows, strict=True)) for rows in zip(*fields, strict=True)]
        batches = self._maker.finished(run, sizes, num_valid)
        batches.reverse()  # the consumer pops from the end
        return batches

    @property
    def _many(self) -> int:
        """Units that are worth waking somebody for: that takes 14 us."""
        return max(1, self._num_ahead // 2)

    def _num_missing(self) -> int:
        """Units that may be laid down beside those that are, and that nobody has taken."""
        return self._num_ahead - (self._num_laid - self._num_out) - len(self._out)

    def _widen(self) -> None:
        self._num_ahead = min(self._most_ahead, FIRST_AHEAD + self._num_late // LATE_A_STEP)

    def open_up_to(self, stop: int, num_wanted: int) -> None:
        """Units below may be copied; whoever sleeps is woken once so many are to be."""
        self._kernels.publish(self._lane, self._kernels.LIMIT, stop)
        while stop - self._words[self._kernels.NEXT] >= num_wanted and self._wake_one():
            pass

    def _wake_one(self) -> bool:
        """Wake a producer; false: nobody sleeps."""
        try:
            self._asleep.pop()
        except IndexError:
            return False
        self.room.put(0)
        return True

    def _new_words(self) -> tuple[Array, Array]:
        """The lane's numbers as `copy_kernels` wants them, and the part with a row for each slot."""
        kernels, parts = self._kernels, list(self._copied.values())
        edge = kernels.HEAD + kernels.FIELD * len(parts)
        words = np.zeros(edge + self.num_slots * (kernels.SLOT + 2 * len(parts)), np.int64)
        words[kernels.NUM_FIELDS] = len(parts)
        words[kernels.NUM_SLOTS] = self.num_slots
        words[kernels.STREAM_BYTES] = STREAM_BYTES
        for row, part in zip(words[kernels.HEAD : edge].reshape(-1, kernels.FIELD), parts, strict=True):
            assert isinstance(part.rows, OneRange)
            row[:] = part.rows.mapped.rows.ctypes.data, part.row_bytes
        table = words[edge:].reshape(self.num_slots, -1)
        table[:, 0] = -1  # no unit was finished in it
        return words, table


@cache
def lane_kernels() -> Any:
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
    copy_kernels.is_made(words.ctypes.data, 0)
    compile_shuffle()
    return copy_kernels
