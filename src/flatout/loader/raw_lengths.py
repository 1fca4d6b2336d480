"""Lengths of raw files' samples: a store of the same settings knows them, otherwise each is decoded once."""

from __future__ import annotations

import numpy as np

from flatout.loader.dataset import split_positions
from flatout.loader.lengths import RaggedRule, join_lengths, length_axis, padded_lengths, refuse_longer
from flatout.loader.standard import StandardDataset
from flatout.source import hash_key
from flatout.store import StoreReader
from flatout.types import Array


def raw_lengths(
    dataset: StandardDataset, store: StoreReader | None, rule: RaggedRule, max_tokens: int | None = None
) -> Array:
    """What each sample would be padded to alone, as `planned_lengths` has it for a store.

    Args:
        store: one of the same settings, if there is one.

    Raises:
        ConfigError: no field is ragged, or a sample exceeds `max_tokens`; it is named.
    """
    positions = None if store is None else _positions(dataset, store)
    if store is not None and positions is not None:
        lengths = padded_lengths(store, positions, rule)
    else:
        lengths = join_lengths(_decoded(dataset), rule)
    if max_tokens is not None:
        refuse_longer(lengths, max_tokens, lambda at: dataset.keys()[at])
    return lengths


def _positions(dataset: StandardDataset, store: StoreReader) -> Array | None:
    """Where the samples stand in the store; None if they are not the same."""
    if dataset.split is not None and dataset.split not in store.meta.splits:
        return None
    positions = split_positions(store, dataset.split)
    keys = dataset.keys()
    hashes = np.array([hash_key(key) for key in keys], np.uint64)
    return positions if np.array_equal(store.numbers["key_hash"][positions], hashes) else None


def _decoded(dataset: StandardDataset) -> dict[str, Array]:
    axes = {name: length_axis(spec) for name, spec in dataset.fields.items() if spec.is_ragged}
    found = {name: np.empty(len(dataset), np.int64) for name in axes}
    for at in range(len(dataset) if axes else 0):
        sample = dataset[at]
        for name, axis in axes.items():
            found[name][at] = sample[name].shape[axis]
    return found
