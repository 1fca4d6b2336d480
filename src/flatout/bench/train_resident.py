"""Resident: batches of the run's own order, in memory before the clock starts: what no loader can beat."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from flatout.errors import LoaderError
from flatout.loader.sampler import EpochSetter
from flatout.train.ahead import Passes
from flatout.train.task import Batch


class Resident:
    """A loader that hands over what `fill` has taken from another one, in its order and epochs."""

    def __init__(self, loader: Passes) -> None:
        self.sampler = EpochSetter(self)
        self._loader = loader
        self._stream: Iterator[Batch] = iter(())
        self._ready: deque[Batch] = deque()
        self._num_given = 0

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        """An epoch.

        Raises:
            LoaderError: `fill` has not taken enough.
        """
        for _ in range(len(self) - self._num_given % len(self)):
            if not self._ready:
                raise LoaderError(f"batch {self._num_given} is not in memory; fill with more at once")
            self._num_given += 1
            yield self._ready.popleft()

    def fill(self, num_batches: int) -> None:
        """Take batches until so many are in memory: copies, for the loader uses its buffers again."""
        while len(self._ready) < num_batches:
            batch = next(self._stream, None)
            if batch is None:
                self._stream = iter(self._loader)
                batch = next(self._stream)
            self._ready.append({name: value.clone() for name, value in batch.items()})

    def set_epoch(self, epoch: int) -> None:
        """Nothing to do: one epoch follows the other."""

    def state_dict(self) -> dict[str, Any]:
        """Which epoch the batch belongs to that was handed over last."""
        return {"epoch": max(0, self._num_given - 1) // len(self)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing is resumed here."""

    def close(self) -> None:
        """End the threads of the other loader."""
        self._loader.close()
