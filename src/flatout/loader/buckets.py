"""Bucketed: batches of samples that are about equally long, over any order.

Windows of 64 batches of the order are sorted by length and cut into batches, and the batches of a window are
shuffled. So a batch's samples come from one window, as random as the order makes it, and any place of an epoch
is found by looking at its window alone. The last, short batch stays as the order has it, at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flatout.loader.order import Order, Positions
from flatout.loader.permutation import permute
from flatout.seeding import child_seed
from flatout.types import Array

VERSION = 1
"""Raised when the same seed would give other batches."""
WINDOW_BATCHES = 64
"""With lengths spread evenly, a batch's shortest and longest then differ by a 64th of the spread."""


@dataclass(frozen=True, eq=False)
class Bucketed:
    """An order whose batches of `global_batch` samples are alike in length; each comes as often as before."""

    inner: Order
    lengths: Array
    """Padded length of each sample of the split."""
    global_batch: int
    seed: int | None
    """None leaves the batches of a window from short to long."""
    name: str

    @property
    def num_samples(self) -> int:
        return self.inner.num_samples

    @property
    def window(self) -> int:
        """Samples that are sorted together."""
        return WINDOW_BATCHES * self.global_batch

    def stretch(self, epoch: int, start: int, stop: int) -> Positions:
        first = start // self.window
        windows = [self._window(epoch, number) for number in range(first, -(-stop // self.window))]
        if not windows:
            return np.empty(0, np.int64)
        skipped = first * self.window
        return np.concatenate(windows)[start - skipped : stop - skipped]

    def _window(self, epoch: int, number: int) -> Positions:
        start = number * self.window
        places = self.inner.stretch(epoch, start, min(start + self.window, self.num_samples))
        num_full = len(places) // self.global_batch
        full, rest = np.split(places, [num_full * self.global_batch])
        # Stable: samples of equal length keep the random company that the order gave them.
        batches = full[np.argsort(self.lengths[full], kind="stable")].reshape(num_full, self.global_batch)
        if self.seed is not None:
            seed = child_seed(self.seed, "buckets", epoch=epoch, worker=number)
            batches = batches[permute(np.arange(num_full), num_full, seed)]
        return np.concatenate([batches.reshape(-1), rest])
