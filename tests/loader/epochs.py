"""What several tests of the fast loader ask of it: keys of batches, whole epochs, threads that live."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from flatout.loader.lane import Lane
from flatout.loader.loader import FastDataLoader
from flatout.loader.order import Shuffled
from flatout.store import StoreReader

SEED = 5
WAIT_S = 60
"""Longest that a test waits for something that should come at once; no test depends on it being shorter."""


def loader_of(store: StoreReader | str, batch_size: int = 8, **settings: Any) -> FastDataLoader:
    """A shuffled loader; without threads unless asked for."""
    return FastDataLoader(store, batch_size, **{"shuffle": True, "seed": SEED, "num_workers": 0, **settings})


def keys_of(batches: Iterable[dict[str, torch.Tensor]]) -> list[int]:
    return [key for batch in batches for key in batch["key"].tolist()]


def epoch_keys(store: StoreReader, epoch: int) -> list[int]:
    """The keys of one epoch of `loader_of`, from the order alone."""
    keys = store.numbers["key_hash"].view(np.int64)
    found: list[int] = keys[Shuffled(len(store), SEED).stretch(epoch, 0, len(store))].tolist()
    return found


def producers() -> set[threading.Thread]:
    """The loaders' threads that live."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("flatout-producer")}


def begun(store: StoreReader, batch_size: int = 8, **settings: Any) -> FastDataLoader:
    """As `loader_of`; what can come by a lane does, because there was a whole epoch before this first one."""
    loader = loader_of(store, batch_size, **settings)
    if store.fields.keys() == {"image", "label"}:
        keys_of(loader)
        loader.set_epoch(0)
    return loader


def has_lane(loader: FastDataLoader) -> bool:
    """Whether the last whole epoch came by a lane."""
    return isinstance(loader._spare._stream, Lane)
