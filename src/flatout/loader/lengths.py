"""Lengths of ragged samples from the index alone, and the rule by which they are cut and padded."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from flatout.errors import ConfigError
from flatout.loader.crop import Crop
from flatout.store import StoreReader, layout
from flatout.store.extent import shapes_in_store
from flatout.store.index import length_column
from flatout.types import Array, FieldSpec


@dataclass(frozen=True)
class RaggedRule:
    """How ragged samples become rectangular."""

    max_length: int | None = None
    """Longest kept; the rest is cut."""
    crop: Crop = "head"
    """Which part is kept: head, tail, or one drawn by seed, epoch and key."""
    multiple: int = 1
    """Padded lengths are multiples of this."""
    to_max: bool = False
    """Pad every batch to `max_length` instead of to its longest sample."""

    def __post_init__(self) -> None:
        if self.max_length is not None and self.max_length < 1:
            raise ConfigError(f"max_length {self.max_length}: at least 1 is needed, or None for whole samples")
        if self.crop not in get_args(Crop):
            raise ConfigError(f"crop '{self.crop}': wanted one of {', '.join(get_args(Crop))}")
        if self.multiple < 1:
            raise ConfigError(f"multiple {self.multiple}: at least 1 is needed")

    def kept(self, lengths: Any) -> Any:
        """Steps that stay of samples of these lengths."""
        return lengths if self.max_length is None else np.minimum(lengths, self.max_length)

    def padded(self, longest: Any) -> Any:
        """What a batch is padded to, by the longest of its samples that were cut."""
        if self.to_max and self.max_length is not None:
            longest = np.full_like(longest, self.max_length)
        return -(-longest // self.multiple) * self.multiple


def length_axis(spec: FieldSpec) -> int:
    """The axis of a ragged field that is cut: the first that varies."""
    return spec.shape.index(None)


def ragged_shapes(store: StoreReader, spec: FieldSpec, positions: Array) -> dict[int, Array]:
    """Sizes of each sample along every axis that varies."""
    free = [axis for axis, size in enumerate(spec.shape) if size is None]
    if layout.has_shapes(spec):
        shapes = shapes_in_store(store, spec)[positions]
        return {axis: shapes[:, axis] for axis in free}
    others = math.prod(n for n in spec.shape if n is not None)
    return {free[0]: store.numbers[length_column(spec.name)][positions] // others}


def padded_lengths(
    store: StoreReader, positions: Array, rule: RaggedRule, fields: Sequence[str] | None = None
) -> Array:
    """What each sample would be padded to alone: its longest ragged field, cut and rounded up.

    Args:
        fields: those that are read; all by default.

    Raises:
        ConfigError: no field is ragged.
    """
    specs = [store.fields[name] for name in (store.fields if fields is None else fields)]
    lengths = {
        spec.name: ragged_shapes(store, spec, positions)[length_axis(spec)] for spec in specs if spec.is_ragged
    }
    return join_lengths(lengths, rule)


def join_lengths(lengths: Mapping[str, Array], rule: RaggedRule) -> Array:
    """The longest of several fields of each sample, cut and rounded up by the rule.

    Raises:
        ConfigError: there is no field.
    """
    if not lengths:
        raise ConfigError("length_buckets and max_tokens are for ragged fields, and there is none")
    longest: Array = rule.padded(rule.kept(np.maximum.reduce(list(lengths.values())).astype(np.int64)))
    return longest


def planned_lengths(
    store: StoreReader,
    positions: Array,
    rule: RaggedRule,
    max_tokens: int | None = None,
    fields: Sequence[str] | None = None,
) -> Array:
    """As `padded_lengths`, and none of them above `max_tokens`.

    Raises:
        ConfigError: no field is ragged, or a sample does not fit; it is named.
    """
    lengths = padded_lengths(store, positions, rule, fields)
    if max_tokens is not None:
        refuse_longer(lengths, max_tokens, lambda at: store.keys()[positions[at]])
    return lengths


def refuse_longer(lengths: Array, max_tokens: int, key_of: Callable[[int], str]) -> None:
    """Refuse samples that fill more than a batch on their own.

    Args:
        key_of: position of a sample in, its key out.

    Raises:
        ConfigError: naming the longest sample and what to change.
    """
    at = int(np.argmax(lengths)) if len(lengths) else 0
    if len(lengths) and lengths[at] > max_tokens:
        num_more = int((lengths > max_tokens).sum()) - 1
        others = f" (and {num_more:,} others)" if num_more else ""
        raise ConfigError(
            f"sample '{key_of(at)}'{others} takes {int(lengths[at]):,} steps, more than max_tokens "
            f"{max_tokens:,} alone. Raise max_tokens, or cut samples with max_sequence_length"
        )
