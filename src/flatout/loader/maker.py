"""BatchMaker: number of a batch in the endless stream of epochs in, the batch out: what the producers call."""

from __future__ import annotations

import threading
from typing import Protocol

import torch

from flatout.loader.announce import FaultWatch
from flatout.loader.batches import Batches
from flatout.loader.crop import crop_seed
from flatout.loader.fetch import VALID
from flatout.loader.transfer import Arrive, Batch, Transfer
from flatout.types import Array

AHEAD_BYTES = 32 << 20
"""Rows are announced to the system this far ahead of their use."""


class Fetches(Protocol):
    """Positions within a split in, one batch out."""

    @property
    def bytes_per_row(self) -> int:
        """Bytes of a sample of mean size."""

    def fetch(self, positions: Array, crop_seed: int) -> Batch:
        """One batch; several threads may call at once."""

    def announce(self, positions: Array) -> None:
        """These samples are wanted soon."""


class BatchMaker:
    """Makes batches, several threads at once. Batch b of epoch e has number e x (batches of an epoch) + b.

    Args:
        seed: what random crops are drawn from.
    """

    def __init__(self, fetcher: Fetches, batches: Batches, transfer: Transfer, seed: int) -> None:
        self._fetcher = fetcher
        self._batches = batches
        self._lookup = batches.lookup()
        self._lock = threading.Lock()
        self._transfer = transfer
        self._seed = seed
        self._faults = FaultWatch()
        self._ahead = max(2, min(64, AHEAD_BYTES // max(self.bytes_per_batch, 1)))

    def __call__(self, number: int) -> Arrive:
        if self._faults.is_cold:
            self._fetcher.announce(self._find(number + self._ahead)[1])
        epoch, positions, num_valid = self._find(number)
        made = self._fetcher.fetch(positions, crop_seed(self._seed, epoch))
        self._faults.note_batch()
        if self._batches.is_masked:
            counts = torch.arange(len(positions)) < num_valid
            made[VALID] = made[VALID] & counts if VALID in made else counts
        return self._transfer.send(made)

    @property
    def bytes_per_batch(self) -> int:
        """Bytes of a batch of mean size."""
        shares = max(1, self._batches.num_batches * self._batches.world)
        return self._fetcher.bytes_per_row * -(-self._batches.num_samples // shares)

    def _find(self, number: int) -> tuple[int, Array, int]:
        """Epoch, samples of an item, and how many of them are not repeats."""
        epoch, batch = divmod(number, self._batches.num_batches)
        with self._lock:
            return epoch, *self._lookup.find(epoch, batch)
