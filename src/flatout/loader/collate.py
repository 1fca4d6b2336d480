"""Collate: single samples in, one batch out, ragged fields padded as the fast path pads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.utils.data import default_collate

from flatout.loader.fetch import LENGTH
from flatout.loader.ragged import RaggedRule
from flatout.types import FieldSpec


class Collate:
    """A `collate_fn` for datasets whose samples are dicts of tensors.

    Fixed-shape fields are stacked. Ragged ones are cut and padded with zeros by the rule, and their lengths
    stand beside them as `NAME_length`.
    """

    def __init__(self, fields: Mapping[str, FieldSpec], rule: RaggedRule | None = None) -> None:
        self._axes = {name: spec.shape.index(None) for name, spec in fields.items() if spec.is_ragged}
        self._rule = rule or RaggedRule()

    def __call__(self, samples: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        batch: dict[str, torch.Tensor] = {}
        for name in samples[0]:
            values = [sample[name] for sample in samples]
            if name not in self._axes:
                batch[name] = default_collate(values)
                continue
            values = [self._cut(value, self._axes[name]) for value in values]
            batch[name] = self._padded(values, self._axes[name])
            batch[f"{name}{LENGTH}"] = torch.tensor([value.shape[self._axes[name]] for value in values])
        return batch

    def _cut(self, value: torch.Tensor, axis: int) -> torch.Tensor:
        length, most = value.shape[axis], self._rule.max_length
        if most is None or length <= most:
            return value
        return value.narrow(axis, length - most if self._rule.crop == "tail" else 0, most)

    def _padded(self, values: Sequence[torch.Tensor], axis: int) -> torch.Tensor:
        shape = [max(sizes) for sizes in zip(*(value.shape for value in values), strict=True)]
        if self._rule.to_max and self._rule.max_length is not None:
            shape[axis] = self._rule.max_length
        shape[axis] = -(-shape[axis] // self._rule.multiple) * self._rule.multiple
        padded = values[0].new_zeros((len(values), *shape))
        for row, value in zip(padded, values, strict=True):
            row[tuple(slice(0, n) for n in value.shape)] = value
        return padded
