"""Cursor: one pass over an epoch of a loader: streams of batches in, one batch a call out."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from flatout.loader.batches import Batches
from flatout.loader.fetch import restore
from flatout.loader.lane import Lane
from flatout.loader.lane_belt import LaneLeft
from flatout.loader.prefetch import Prefetcher
from flatout.loader.transfer import Batch, Sent

if TYPE_CHECKING:
    from flatout.loader.loader import FastDataLoader


class Cursor:
    """One pass over an epoch."""

    __slots__ = ("_batch", "_batches", "_epoch", "_is_whole", "_loader", "_num_batches", "_ready", "_stream")

    def __init__(self, loader: FastDataLoader) -> None:
        self._loader = loader
        self._stream: Prefetcher[Sent] | None = None
        self._batches: Batches | None = None
        self._batch = 0
        self._epoch = 0
        self._ready: list[Any] = []
        """Batches of a lane that lie ready, the next one last."""
        self._num_batches = 0
        self._is_whole = not loader._encoded and loader._augment is None

    def __iter__(self) -> Cursor:
        return self

    def __next__(self) -> Batch:
        """The next batch; whatever else there is to do is done once for each unit of batches of a lane.

        All of it for each batch took 25 us beside an accelerator, where other threads use the caches.
        """
        try:
            batch: Batch = self._ready.pop() if self._ready else self._next_of_unit()
            if not self._is_whole:
                batch = self._finished(batch)
            if self._batch + 1 == self._num_batches:
                self._finish()  # already now: Lightning never asks for the batch after the last
        except StopIteration:
            raise
        except BaseException:  # of the batch, or Ctrl-C: whoever goes on after it gets it from a new stream
            self._stream, self._ready = None, []
            raise
        self._batch += 1  # last: what was not handed over is not counted
        self._loader._at = (self._epoch, self._batch)
        return batch

    def _next_of_unit(self) -> Batch:
        loader = self._loader
        if self._batches is None:
            self._begin()
        assert self._batches is not None
        if self._batch >= self._num_batches:
            raise StopIteration
        stream, sent = self._usable_stream(self._batches), None
        with suppress(LaneLeft):
            sent = stream.take()
        if sent is None:  # the lane is left: an error that belongs to a batch comes from another kind of stream
            loader._gate.close()
            sent = self._usable_stream(self._batches).take()
        if isinstance(self._stream, Lane):
            self._ready = self._stream.ready
        return loader._kept.pick(loader._transfer.receive(sent))

    def _usable_stream(self, batches: Batches) -> Prefetcher[Sent]:
        """The stream that stands at the next batch, as wide as the loader has it now."""
        loader, stream = self._loader, self._stream
        if stream is None or not stream.is_usable:
            stream = self._stream = loader._stream(batches, self._epoch, self._batch)
        if stream.shape != loader.prefetching:
            stream.resize(*loader.prefetching)
        return stream

    def _finished(self, batch: Batch) -> Batch:
        """What the training's own thread does to a batch that has arrived."""
        loader = self._loader
        if loader._encoded:
            batch = restore(batch, loader._encoded)
        return batch if loader._augment is None else loader._augment(batch, self._epoch)

    def _begin(self) -> None:
        loader = self._loader
        loader._settle_loaded()
        batches = loader._batches()
        self._num_batches = batches.num_batches
        self._epoch, self._batch = loader._at = loader._next
        if self._batch < self._num_batches:
            self._stream = loader._stream(batches, self._epoch, self._batch)
        loader._next = (self._epoch + 1, 0)  # also after a break
        self._batches = batches  # last: interrupted before, it begins again

    def _finish(self) -> None:
        """The stream has run on into the next epoch: it is for whoever asks for that."""
        self._loader._gate.note_epoch()
        stream, self._stream, self._ready = self._stream, None, []
        if stream is not None:
            self._loader._spare.put((self._batches, os.getpid()), stream)
