"""Alternating: the batches of a run's own order, from the store or, in other rounds, from memory.

One training in one process sees both: model, threads and the layout of memory are the same, which between two
processes of the same code differ by 3 to 5 %.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from flatout.errors import LoaderError
from flatout.loader.sampler import EpochSetter
from flatout.train.ahead import Passes
from flatout.train.task import Batch

ENDLESS = 1 << 20
"""Batches of an epoch: more than any race has, so that every round is the same in the Trainer's eyes."""


class Alternating:
    """A loader whose rounds come in twos: the store's next batches, then the same ones again from memory.

    The store's stream goes on where it stood. Begun anew for each round, it made half an epoch ahead each time
    that nobody took, beside the steps that were timed.
    """

    def __init__(self, loader: Passes) -> None:
        self.sampler = EpochSetter(self)
        self._loader = loader
        self._stream: Iterator[Batch] = iter(())
        self._kept: list[tuple[Batch, int]] = []
        """Of the store's last round: the loader's own buffers, which it leaves alone while they are held."""
        self._left: deque[tuple[Batch, int]] = deque()
        self._is_resident = False
        self._epoch = 0

    def __len__(self) -> int:
        return ENDLESS

    def __iter__(self) -> Iterator[Batch]:
        """Whatever the round that was started gives.

        Raises:
            LoaderError: a round from memory wants more batches than the one before it had.
        """
        while True:
            if not self._is_resident:
                self._kept.append(self._next())
                batch, self._epoch = self._kept[-1]
            elif self._left:
                batch, self._epoch = self._left.popleft()
            else:
                raise LoaderError(f"only {len(self._kept)} batches are in memory: those of the round before")
            yield batch

    def start(self, is_resident: bool) -> None:
        """A round begins: from memory, or by the loader itself."""
        self._is_resident = is_resident
        if is_resident:
            self._left = deque(self._kept)
        else:
            self._kept = []

    def set_epoch(self, epoch: int) -> None:
        """Nothing to do: one epoch follows the other."""

    def state_dict(self) -> dict[str, Any]:
        """Which epoch the batch belongs to that was handed over last."""
        return {"epoch": self._epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing is resumed here."""

    def close(self) -> None:
        """End the threads of the loader."""
        self._loader.close()

    def _next(self) -> tuple[Batch, int]:
        batch = next(self._stream, None)
        if batch is None:
            self._stream = iter(self._loader)
            batch = next(self._stream)
        return batch, int(self._loader.state_dict()["epoch"])
