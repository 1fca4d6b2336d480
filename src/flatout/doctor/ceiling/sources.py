"""Where the training loop's batches come from during a block of steps: a loader, or memory."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from time import perf_counter, sleep
from typing import Any, Protocol

from flatout.doctor.ceiling.batches import bytes_of, copy_of
from flatout.doctor.child.watch import WATCH, Own

SETTLE_S = 20.0
"""The longest wait for one more batch, until workers have filled their queues and somebody else is measured. It
was 10 s for all of them: four batches of 8 s were not made by then, and took cores from what is the ceiling."""
MAX_KEPT = 8
MAX_KEPT_BYTES = 256 << 20
KEEP_S = 5.0
"""Batches that are kept in memory for replay: so many, so large, and no longer waited for than this."""


class Source(Protocol):
    """Gives a block of steps its batches; it never ends."""

    name: str

    def next(self) -> Any:
        """The next batch."""

    @property
    def num_ahead(self) -> int:
        """Batches that wait ready when a block starts, and would make it look faster than it is."""

    def settle(self) -> None:
        """Wait until nothing works in the background."""

    def begin(self) -> None:
        """A block of its begins."""

    def end(self) -> None:
        """The block is over."""


class LoaderSource:
    """Batches of a DataLoader, epoch after epoch. Workers that start anew for each epoch are part of it.

    Args:
        make: gives a fresh iterator: `iter(loader)`, unwatched.
        advance: torch's own `__next__`.
    """

    def __init__(
        self, name: str, make: Callable[[], Any], advance: Callable[[Any], Any], iterator: Any = None
    ) -> None:
        self.name = name
        self._make = make
        self._advance = advance
        self.iterator = iterator
        self.num_starts = 0

    def next(self) -> Any:
        """The next batch; the next epoch's first one at the end of an epoch."""
        if self.iterator is None:
            self._start()
        start = perf_counter()
        try:
            return self._advance(self.iterator)
        except StopIteration:
            # Its last workers ended inside the call that said so; they end before the next ones start.
            return self.begin_anew(start)

    def begin_anew(self, since: float) -> Any:
        """The first batch of another epoch; what that took is written down."""
        self.iterator = None
        self._start()
        batch = self._advance(self.iterator)
        WATCH.add(("restart", self.name, since, perf_counter()))
        return batch

    def like(self, name: str, make: Callable[[], Any]) -> LoaderSource:
        """Another loader's batches, taken in the same way."""
        return LoaderSource(name, make, self._advance)

    def _start(self) -> None:
        self.iterator = self._make()
        self.num_starts += 1

    @property
    def num_ahead(self) -> int:
        """Prefetched batches."""
        workers = getattr(self.iterator, "_num_workers", 0)
        return int(workers * (getattr(self.iterator, "_prefetch_factor", 0) or 0))

    def settle(self) -> None:
        """Wait until the workers have made all that they were asked for."""
        made, since = self._num_made(), perf_counter()
        while not self._is_idle() and perf_counter() < since + SETTLE_S:
            sleep(0.002)
            if (now := self._num_made()) != made:
                made, since = now, perf_counter()

    def close(self) -> None:
        """End its workers; it cannot be used any more."""
        self.iterator = None
        self._make = _closed

    def begin(self) -> None:
        """Nothing has to be done."""

    def end(self) -> None:
        """Nothing has to be undone."""

    def _is_idle(self) -> bool:
        if not self.num_ahead:
            return True
        made = self._num_made()
        if made is None:
            sleep(0.5)
        return made is None or made >= self.iterator._tasks_outstanding

    def _num_made(self) -> int | None:
        """Batches that wait to be taken; None: it cannot be told."""
        try:
            return int(self.iterator._data_queue.qsize())
        except (NotImplementedError, AttributeError):  # macOS has no qsize
            return None


def _closed() -> Any:
    raise RuntimeError("this source is closed")


class ResidentSource:
    """Batches that are in memory already, again and again: a loader that costs nothing."""

    name = "resident"
    num_ahead = 0

    def __init__(self, kept: list[Any]) -> None:
        self._kept = cycle(kept)

    def next(self) -> Any:
        """A copy, because the loop may write into it; the time that it takes is the doctor's own."""
        with Own(WATCH):
            return copy_of(next(self._kept))

    def settle(self) -> None:
        """Nothing works in the background."""

    def begin(self) -> None:
        """Nothing has to be done."""

    def end(self) -> None:
        """Nothing has to be undone."""


def keep_batches(source: Source) -> list[Any]:
    """The next batches of a source, for replay."""
    kept = [source.next()]
    size, end = max(1, bytes_of(kept[0])), perf_counter() + KEEP_S
    while len(kept) < MAX_KEPT and size * (len(kept) + 1) <= MAX_KEPT_BYTES and perf_counter() < end:
        kept.append(source.next())
    return kept
