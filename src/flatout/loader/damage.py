"""Damage: samples that cannot be read are skipped and told once; a readable one stands in for each.

A batch keeps its size, its order and its place in the epoch: what stands in is marked in `valid`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from itertools import chain

import numpy as np
import torch

from flatout.errors import LoaderError, StoreCorruptError
from flatout.types import Array

DAMAGE = (StoreCorruptError, LoaderError)
"""What reading a damaged sample raises: bytes that are not what was written, or none at all."""
MAX_ROUNDS = 64
"""Samples tried one after the other in place of a batch of damaged ones, before giving up."""

Batch = dict[str, torch.Tensor]
Gather = Callable[[Array], Batch]

_log = logging.getLogger(__name__)


class DamageLog:
    """The damaged samples that a loader came upon. Threads may share it."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[str]] = {}

    @property
    def keys(self) -> list[str]:
        """Keys of the samples, in the order of the split."""
        return [key for _, (key,) in sorted(self._found.copy().items())]  # others may be adding

    def among(self, positions: Array) -> list[int]:
        """Those of the positions that were found damaged before."""
        return sorted({position for position in positions.tolist() if position in self._found})

    def add(self, position: int, key: str, error: Exception) -> None:
        """Note a sample, and warn of it the first time."""
        entry = (key,)
        if self._found.setdefault(position, entry) is entry:  # one step, so that one thread alone warns
            _log.warning("sample '%s' is skipped: %s", key, error)


class Skipper:
    """Makes batches without their damaged samples.

    Args:
        gather: positions in, batch out; raises one of DAMAGE.
        num_samples: of the split.
        report: told the position of each damaged sample, and the error.
        known: positions in, those found damaged before out. They are tried first: looking at every sample of
            the batch again, in each epoch, would cost a gather a sample.
    """

    def __init__(
        self,
        gather: Gather,
        num_samples: int,
        report: Callable[[int, Exception], None],
        known: Callable[[Array], Collection[int]] = lambda positions: (),
    ) -> None:
        self._gather = gather
        self._num_samples = num_samples
        self._report = report
        self._known = known

    def fetch(self, positions: Array) -> tuple[Batch, Array]:
        """The batch, and which of its samples are their own and not stand-ins.

        Raises:
            LoaderError: nothing that can be read was found to stand in.
        """
        try:
            return self._gather(positions), np.ones(len(positions), bool)
        except DAMAGE:
            known = {position for position in self._known(positions) if self._is_bad(position)}
        if known:
            with suppress(*DAMAGE):  # there is more of it
                return self._gather(stand_in(positions, known, self._num_samples)), ~is_in(positions, known)
        wanted, bad = self._readable(positions)
        return self._gather(wanted), ~is_in(positions, bad)

    def _readable(self, positions: Array) -> tuple[Array, set[int]]:
        """The positions with stand-ins in place, and those of the batch that are damaged."""
        bad: set[int] = set()
        tried: set[int] = set()
        wanted = positions
        for _ in range(MAX_ROUNDS):
            fresh = set(wanted.tolist()) - tried
            tried |= fresh
            found = {position for position in sorted(fresh) if self._is_bad(position)}
            if not found:
                return wanted, bad
            bad |= found
            wanted = stand_in(positions, bad, self._num_samples)
        raise LoaderError(
            f"a whole batch cannot be read; {len(bad):,} samples were tried. The log names each, and the "
            "command that mends the store"
        )

    def _is_bad(self, position: int) -> bool:
        try:
            self._gather(np.array([position]))
        except DAMAGE as error:
            self._report(position, error)
            return True
        return False


def stand_in(positions: Array, bad: Collection[int], num_samples: int) -> Array:
    """The positions, damaged ones replaced by the batch's first good one, else by another one of the split.

    A function of the batch and of what is damaged alone, so that every way of reading gives the same batch.

    Raises:
        LoaderError: nothing in the split is good.
    """
    is_bad = is_in(positions, bad)
    if not is_bad.any():
        return positions
    others = chain(positions[~is_bad].tolist(), _far_from(int(positions[0]), num_samples))
    found = next((at for at in others if at not in bad), None)
    if found is None:
        raise LoaderError(f"none of the split's {num_samples:,} samples can be read; the log names them")
    return np.where(is_bad, found, positions)


def is_in(positions: Array, some: Collection[int]) -> Array:
    """Which of the positions are among some."""
    return np.isin(positions, np.fromiter(some, np.int64, len(some)))


def _far_from(first: int, num_samples: int) -> Iterator[int]:
    """Every other position once, in wide steps: neighbours share a shard, which may be damaged as a whole."""
    step = next((n for n in range(num_samples * 3 // 5, 1, -1) if math.gcd(n, num_samples) == 1), 1)
    return ((first + step * turn) % num_samples for turn in range(1, num_samples))
