"""ViewMaker: a sample of a store in, its views out: what the workers of a prepare run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from flatout.bank.recipe import ViewRecipe
from flatout.errors import AugmentError, ConfigError, StoreError
from flatout.loader import FastDataset
from flatout.store.derive import POSITION
from flatout.types import Array, Row

BLOCK = 32
"""Samples augmented together. Blocks are the same whoever makes them: a batch of other samples may round a
last digit in another way."""

Views = dict[str, Array]


@dataclass
class ViewMaker:
    """Makes samples of views; pickled, it opens the store anew."""

    dataset: FastDataset
    """The split, with the fields that are read."""
    field: str
    recipe: ViewRecipe
    epoch: int
    keep: tuple[str, ...] = ()
    """Fields that are handed on as they are."""
    _block: tuple[int, list[Views]] = dataclasses.field(default=(-1, []), repr=False)

    def make(self, row: Row) -> Mapping[str, Array]:
        """The sample's views, and the fields that are kept."""
        at = int(np.searchsorted(self.dataset.positions, row.values[POSITION]))
        if not self.recipe.is_batched or self.dataset.store.fields[self.field].is_ragged:
            return self._made(at, at + 1)[0]
        number = at // BLOCK
        if self._block[0] != number:
            try:
                made = self._made(number * BLOCK, min(number * BLOCK + BLOCK, len(self.dataset)))
            except StoreError:  # one of them is damaged; the others are not to suffer
                return self._made(at, at + 1)[0]
            self._block = number, made
        return self._block[1][at % BLOCK]

    def path_of(self, row: Row) -> str:
        return f"{self.dataset.store.folder}: {row.key}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_block": (-1, [])}

    def _made(self, start: int, stop: int) -> list[Views]:
        samples = self.dataset.__getitems__(range(start, stop))
        x = torch.stack([sample[self.field] for sample in samples])
        try:
            made = self.recipe.make(x, torch.stack([sample["key"] for sample in samples]), self.epoch)
        except AugmentError as error:
            if self.recipe.is_batched:  # not this sample's fault: every one would fail
                raise ConfigError(f"field '{self.field}': {error}") from error
            raise
        rows = zip(*(view.numpy() for view in made.values()), strict=True)
        return [
            dict(zip(made, views, strict=True)) | {name: sample[name].numpy() for name in self.keep}
            for views, sample in zip(rows, samples, strict=True)
        ]
