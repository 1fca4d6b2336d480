"""Generation: one finished set of views, opened: sample keys in, their views out."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import Tensor

from flatout.errors import LoaderError
from flatout.loader.fetch import KEY, Fetcher, ReadRule, restore
from flatout.store import StoreReader
from flatout.types import Array

BATCH_SIZE = 64
"""What a fetcher is planned for; it gives other numbers of samples, too."""


class Generation:
    """Views that were drawn for one epoch. All files are mapped now: it may be deleted while it is used."""

    def __init__(self, folder: Path, epoch: int, *, io: str = "auto") -> None:
        self.folder = folder
        self.epoch = epoch
        self._store = StoreReader(folder)
        hashes = self._store.numbers["key_hash"]
        self._order = np.argsort(hashes)
        self._sorted = hashes[self._order]
        self._fetcher = Fetcher(self._store, np.arange(len(self)), BATCH_SIZE, ReadRule(io=io))

    def __len__(self) -> int:
        return len(self._store)

    def fetch(self, keys: Tensor) -> dict[str, Tensor]:
        """(B,) sample keys in, their views out, in this order and on the same device.

        Raises:
            LoaderError: a sample has no views here. StoreCorruptError: its bytes are damaged.
        """
        positions = self._positions(keys.cpu().numpy().view(np.uint64))
        found = restore(self._fetcher.fetch(positions), self._store.fields)
        del found[KEY]
        return {name: value.to(keys.device, non_blocking=True) for name, value in found.items()}

    def _positions(self, hashes: Array) -> Array:
        if not len(self._sorted):
            raise LoaderError(f"{self.folder} holds no views")
        at = np.minimum(np.searchsorted(self._sorted, hashes), len(self._sorted) - 1)
        missing = self._sorted[at] != hashes
        if missing.any():
            raise LoaderError(
                f"{self.folder}: {int(missing.sum())} of {len(hashes)} samples have no views here. Were they "
                "made for another split or an earlier version of the store?"
            )
        found: Array = self._order[at]
        return found
