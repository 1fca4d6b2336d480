"""The longest samples of ragged data as a batch, so that what fits them fits every batch of an epoch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from flatout.config import LoaderSettings
from flatout.loader import FastDataLoader
from flatout.loader.batching import ragged_rule
from flatout.loader.collate import Collate
from flatout.loader.lengths import padded_lengths
from flatout.train.ahead import Passes
from flatout.train.loaders import RunLoaders
from flatout.train.task import Batch
from flatout.train.waits import RunLoader


class ThenLongest:
    """A pass of two batches: the first of a loader, whose producers work on meanwhile, and then a given one."""

    def __init__(self, loader: Passes, longest: Batch) -> None:
        self._loader, self._longest = loader, longest
        self.sampler = loader.sampler

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Iterator[Batch]:
        stream = iter(self._loader)
        yield next(stream)
        yield self._longest

    def set_epoch(self, epoch: int) -> None:
        """Passed on."""
        self._loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The loader's own."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Passed on."""
        self._loader.load_state_dict(state)

    def close(self) -> None:
        """Passed on."""
        self._loader.close()


def end_with_longest(loaders: RunLoaders, settings: LoaderSettings) -> None:
    """Let the second train batch be that of the longest samples: by then the optimiser has its memory, too.

    Raw files do not tell their lengths before they are decoded: their batches stay as they are, and so do those
    of fields that are all of one shape.
    """
    found = loaders.splits["train"].loader
    if isinstance(found, FastDataLoader) and any(spec.is_ragged for spec in loaders.data.fields.values()):
        loaders.splits["train"] = RunLoader(ThenLongest(found, longest_batch(found, settings)))


def longest_batch(loader: FastDataLoader, settings: LoaderSettings) -> Batch:
    """As many of a split's longest samples as a batch has, padded as the loader does it."""
    rule = replace(ragged_rule(settings), crop="head")  # which steps are kept costs the same
    lengths = padded_lengths(loader.store, loader.store.positions(str(loader.split)), rule)
    longest = np.argsort(-lengths, kind="stable")[: settings.batch_size]
    return Collate(loader.store.fields, rule)([loader.dataset[at] for at in longest.tolist()])
