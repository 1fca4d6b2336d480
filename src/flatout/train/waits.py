"""Waits: how long training stood still for data; a loader wrapped so that each `next` is counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from time import perf_counter_ns
from typing import Any

import torch

from flatout.loader.transfer import Augment, Transfer
from flatout.train.ahead import AheadLoader, Passes
from flatout.train.task import Batch


class Waits:
    """Nanoseconds and batches, added up by one loader and read by whoever wants to know."""

    __slots__ = ("num_batches", "total_ns")

    def __init__(self) -> None:
        self.total_ns = 0
        self.num_batches = 0


class RunLoader:
    """A loader as Lightning wants it, with its waits counted.

    A plain iterable with a length, a state and a `sampler` that is told the epoch; Lightning wraps nothing
    around it and changes nothing in it, with one device or several.
    """

    def __init__(self, loader: Passes) -> None:
        self.loader = loader
        self.waits = Waits()
        self.batch_sampler = None

    @property
    def sampler(self) -> Any:
        """What is told the epoch."""
        return self.loader.sampler

    @property
    def is_ahead(self) -> bool:
        """Whether batches come finished."""
        return isinstance(self.loader, AheadLoader)

    def finish_ahead(self, finish: Augment, device: torch.device) -> None:
        """From the next pass on, batches are moved to the device and finished one ahead of their use."""
        if not self.is_ahead:
            self.loader = AheadLoader(self.loader, finish, Transfer(device))

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Batch]:
        return _Counted(iter(self.loader), self.waits)

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue there.

        Raises:
            LoaderStateError: the state is of other data.
        """
        self.loader.load_state_dict(state)

    def close(self) -> None:
        """End threads or worker processes."""
        self.loader.close()


class _Counted:
    """One pass."""

    __slots__ = ("_stream", "_waits")

    def __init__(self, stream: Iterator[Batch], waits: Waits) -> None:
        self._stream = stream
        self._waits = waits

    def __iter__(self) -> _Counted:
        return self

    def __next__(self) -> Batch:
        started = perf_counter_ns()
        batch = next(self._stream)
        self._waits.total_ns += perf_counter_ns() - started
        self._waits.num_batches += 1
        return batch
