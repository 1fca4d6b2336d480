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
    """A loader whose rounds come in twos over the same batches: `take` once, then `start` for each."""

    def __init__(self, loader: Passes) -> None:
        self.sampler = EpochSetter(self)
        self._loader = loader
        self._stream: Iterator[Batch] = iter(())
        self._place = self._after = loader.state_dict()
        """The loader's states before and after what was taken."""
        self._kept: list[tuple[Batch, int]] = []
        self._ready: deque[tuple[Batch, int]] = deque()
        self._is_resident = False
        self._epoch = 0

    def __len__(self) -> int:
        return ENDLESS

    def __iter__(self) -> Iterator[Batch]:
        """Whatever the round that was started gives.

        Raises:
            LoaderError: more were asked for than `take` was told.
        """
        while True:
            if self._ready:
                batch, self._epoch = self._ready.popleft()
            elif self._is_resident:
                raise LoaderError(f"only {len(self._kept)} batches are in memory; take more at once")
            else:
                batch, self._epoch = self._next()
            yield batch

    def take(self, num_batches: int) -> None:
        """Copies of the next batches, for the loader uses its buffers again."""
        self._place = self._after
        self._rewind()
        self._kept = []
        for _ in range(num_batches):
            batch, epoch = self._next()
            self._kept.append(({name: value.clone() for name, value in batch.items()}, epoch))
        self._after = self._loader.state_dict()

    def start(self, is_resident: bool) -> None:
        """A round over what was taken begins: from memory, or by the loader itself once more."""
        self._is_resident = is_resident
        if is_resident:
            self._stream = iter(())  # what is still made ahead for the round before would run into this one
            self._loader.close()
            self._ready = deque(self._kept)
        else:  # with nothing ready but the first: what is made ahead beforehand would flatter a slow loader
            self._rewind()
            self._ready = deque([self._next()])

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

    def _rewind(self) -> None:
        self._loader.load_state_dict(self._place)
        self._stream = iter(self._loader)

    def _next(self) -> tuple[Batch, int]:
        batch = next(self._stream, None)
        if batch is None:
            self._stream = iter(self._loader)
            batch = next(self._stream)
        return batch, int(self._loader.state_dict()["epoch"])
