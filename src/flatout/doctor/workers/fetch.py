"""Where batches are made, in a worker or in the training thread: each sample, the collate, the whole batch."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from torch.utils.data import _utils

from flatout.doctor.child.exit import without_own_frames
from flatout.doctor.workers.meter import Meter, forget_process


def patch_fetchers(folder: Path) -> None:
    """Torch's two fetchers: every loader uses one of them, in every kind of process."""
    fetch = _utils.fetch
    for kind in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
        setattr(kind, "__init__", _watched_init(kind.__init__, folder))  # noqa: B010  a method, to mypy
        setattr(kind, "fetch", _watched_fetch(kind.fetch))  # noqa: B010
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=forget_process)


def _watched_init(original: Any, folder: Path) -> Any:
    @functools.wraps(original)
    def __init__(self: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        original(self, dataset, *args, **kwargs)
        meter = self._flatout_meter = Meter(folder, dataset)
        if hasattr(self, "dataset_iter"):
            self.dataset_iter = TimedStream(self.dataset_iter, meter)
        else:
            self.dataset = TimedItems(dataset, meter)
        self.collate_fn = _timed_collate(self.collate_fn, meter)

    return __init__


def _watched_fetch(original: Any) -> Any:
    @functools.wraps(original)
    def fetch(self: Any, possibly_batched_index: Any) -> Any:
        meter: Meter = self._flatout_meter
        meter.begin()
        try:
            return original(self, possibly_batched_index)
        except Exception as error:  # torch sends its traceback as text, in which nobody could remove our frames
            error.__traceback__ = without_own_frames(error.__traceback__)
            raise
        finally:
            meter.end()

    return fetch


class TimedItems:
    """A dataset for torch's fetcher, which asks for items and nothing else."""

    def __init__(self, dataset: Any, meter: Meter) -> None:
        self._dataset = dataset
        self._meter = meter

    def __getitem__(self, index: Any) -> Any:
        meter = self._meter
        start = perf_counter()
        item = meter.ask(lambda: self._dataset[index]) if meter.looks else self._dataset[index]
        meter.items_s.append(perf_counter() - start)
        return item

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._dataset, name)
        return functools.partial(self._timed_many, value) if name == "__getitems__" and value else value

    def _timed_many(self, ask: Callable[[Any], Any], indices: Any) -> Any:
        start = perf_counter()
        items = self._meter.ask(lambda: ask(indices))
        self._meter.several_s.append(perf_counter() - start)
        return items


class TimedStream:
    """The iterator of an iterable dataset."""

    def __init__(self, stream: Iterator[Any], meter: Meter) -> None:
        self._stream = stream
        self._meter = meter

    def __iter__(self) -> TimedStream:
        return self

    def __next__(self) -> Any:
        meter = self._meter
        start = perf_counter()
        item = meter.ask(lambda: next(self._stream)) if meter.looks else next(self._stream)
        meter.items_s.append(perf_counter() - start)
        return item


def _timed_collate(original: Any, meter: Meter) -> Any:
    def collate(items: Any) -> Any:
        start = perf_counter()
        batch = original(items)
        meter.collate_s = perf_counter() - start
        meter.note_batch(items, batch)
        return batch

    return collate
