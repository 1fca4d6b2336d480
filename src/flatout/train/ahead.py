"""AheadLoader: what a batch goes through once it is read happens one batch ahead, in a thread of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Protocol

import torch

from flatout.errors import LoaderError
from flatout.loader.sampler import EpochSetter
from flatout.loader.transfer import Augment, Batch, Sent, Transfer


class Passes(Protocol):
    """A loader as a run uses it: passes over epochs, and a state."""

    sampler: Any

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Batch]: ...

    def set_epoch(self, epoch: int) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    def close(self) -> None: ...


class AheadLoader:
    """The batches of a loader, moved to the device and finished while the step before them runs.

    One thread makes them in their order, so that nothing is drawn otherwise and an augmentation never runs
    twice at once. The state is that of the batches handed over; the one under way does not count.

    Args:
        finish: what each batch goes through on the device; a batch and its epoch in, a new batch out.
    """

    def __init__(self, loader: Passes, finish: Augment, transfer: Transfer) -> None:
        self.sampler = EpochSetter(self)
        self._loader = loader
        self._finish = finish
        self._transfer = transfer
        self._thread = _single_thread()
        self._newest: _Pass | None = None
        self._state: dict[str, Any] | None = None
        """Where the batch stands that was handed over last; None: ask the loader."""

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Batch]:
        """A pass; it does nothing before its first `next`, which ends the pass before it."""
        return _Pass(self)

    def set_epoch(self, epoch: int) -> None:
        """The next pass runs this epoch, as the loader itself understands it."""
        self._end_newest()
        before = self._loader.state_dict()
        self._loader.set_epoch(epoch)
        if self._loader.state_dict() != before:
            self._state = None

    def state_dict(self) -> dict[str, Any]:
        """Where the newest pass stands."""
        return dict(self._state) if self._state is not None else self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue there.

        Raises:
            LoaderStateError: the state is of other data.
        """
        self._end_newest()
        self._loader.load_state_dict(state)
        self._state = None

    def wait(self) -> None:
        """Until the batch under way, if there is one, is made."""
        self._thread.submit(lambda: None).result()

    def close(self) -> None:
        """End the thread and the loader's own."""
        self._end_newest()
        self._thread.shutdown()
        self._loader.close()

    def _end_newest(self) -> None:
        if self._newest is not None:
            self._newest.end()
            self._newest = None

    def _begin(self, started: _Pass) -> Iterator[Batch]:
        """The loader's own pass, for a new one of ours; after a break that is the next epoch."""
        self._end_newest()
        self._newest, self._state = started, None
        return iter(self._loader)

    def _make(self, stream: Iterator[Batch]) -> tuple[Sent, dict[str, Any]] | None:
        """The next batch and where it stands; runs in the thread."""
        # A split that is on the device is picked there: on a stream beside it, `finish` could come first.
        with self._transfer.own_stream():
            batch = next(stream, None)
            if batch is None:
                return None
            state = self._loader.state_dict()
            return self._transfer.send(batch, partial(self._finish_at, state["epoch"])), state

    def _finish_at(self, epoch: int, batch: Batch) -> Batch:
        return self._finish(batch, epoch)


def _single_thread() -> ThreadPoolExecutor:
    """A thread in which torch starts no team of others.

    A team spins while it waits; beside a busy machine that took 38 ms of the processor instead of 5 for the
    views of 64 signals.
    """
    num_threads = torch.get_num_threads()
    thread = ThreadPoolExecutor(1, thread_name_prefix="flatout-ahead")
    thread.submit(torch.get_num_threads).result()  # a thread's first question sets its number: not after this
    thread.submit(torch.set_num_threads, 1).result()
    torch.set_num_threads(num_threads)  # what threads begin with that come later is one number for all
    return thread


class _Pass:
    """One pass, with at most one batch under way."""

    def __init__(self, loader: AheadLoader) -> None:
        self._loader = loader
        self._stream: Iterator[Batch] | None = None
        self._coming: Future[tuple[Sent, dict[str, Any]] | None] | None = None
        self._is_ended = False

    def __iter__(self) -> _Pass:
        return self

    def __next__(self) -> Batch:
        if self._is_ended:
            raise LoaderError("a newer pass of this loader has begun: only the newest one can go on")
        if self._coming is None:
            self._stream = self._loader._begin(self)
            self._order()
        assert self._coming is not None
        # Whatever failed is raised here, at its own batch, and again if asked again.
        made = self._coming.result()
        if made is None:
            raise StopIteration
        sent, self._loader._state = made
        self._order()
        return self._loader._transfer.receive(sent)

    def end(self) -> None:
        """Wait for the batch under way; nothing more is made."""
        self._is_ended = True
        if self._coming is not None:
            self._coming.exception()
        self._coming = self._stream = None

    def _order(self) -> None:
        loader, stream = self._loader, self._stream
        assert stream is not None
        self._coming = loader._thread.submit(loader._make, stream)
