"""Collate: single samples in, one batch out, ragged fields cut and padded as the fast path does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch.utils.data import default_collate

from flatout.loader.crop import crop_starts
from flatout.loader.fetch import KEY, LENGTH
from flatout.loader.lengths import RaggedRule, length_axis
from flatout.types import Array, FieldSpec

Samples = Sequence[Mapping[str, torch.Tensor]]


class Collate:
    """A `collate_fn` for datasets whose samples are dicts of tensors.

    Fixed-shape fields are stacked. Ragged ones are cut and padded with zeros by the rule, and their lengths
    stand beside them as `NAME_length`.
    """

    def __init__(self, fields: Mapping[str, FieldSpec], rule: RaggedRule | None = None) -> None:
        self._axes = {name: length_axis(spec) for name, spec in fields.items() if spec.is_ragged}
        self._rule = rule or RaggedRule()

    def __call__(self, samples: Samples, crop_seed: int = 0) -> dict[str, torch.Tensor]:
        """One batch.

        Args:
            crop_seed: what random crops of this epoch are drawn from; by the samples' `key`.
        """
        batch: dict[str, torch.Tensor] = {}
        for name in samples[0]:
            values = [sample[name] for sample in samples]
            if name not in self._axes:
                batch[name] = default_collate(values)
                continue
            axis = self._axes[name]
            values = self._cut(values, axis, samples, crop_seed)
            batch[name] = self._padded(values, axis)
            batch[f"{name}{LENGTH}"] = torch.tensor([value.shape[axis] for value in values])
        return batch

    def drawn(self, drawn: tuple[Samples, int]) -> dict[str, torch.Tensor]:
        """One batch from its samples and the crops' seed."""
        return self(*drawn)

    def _cut(
        self, values: Sequence[torch.Tensor], axis: int, samples: Samples, crop_seed: int
    ) -> list[torch.Tensor]:
        lengths = np.array([value.shape[axis] for value in values], np.int64)
        kept = self._rule.kept(lengths)
        keys = _keys(samples) if self._rule.crop == "random" else np.empty(0, np.uint64)
        starts = crop_starts(self._rule.crop, keys, lengths - kept, crop_seed)
        every = zip(values, starts.tolist(), kept.tolist(), strict=True)
        return [value.narrow(axis, start, size) for value, start, size in every]

    def _padded(self, values: Sequence[torch.Tensor], axis: int) -> torch.Tensor:
        shape = [max(sizes) for sizes in zip(*(value.shape for value in values), strict=True)]
        shape[axis] = int(self._rule.padded(np.int64(shape[axis])))
        padded = values[0].new_zeros((len(values), *shape))
        for row, value in zip(padded, values, strict=True):
            row[tuple(slice(0, n) for n in value.shape)] = value
        return padded


def _keys(samples: Samples) -> Array:
    return np.array([int(sample[KEY]) for sample in samples], np.int64).view(np.uint64)
