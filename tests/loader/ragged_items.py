"""Items with every form of ragged field, and what a batch of them should be."""

from __future__ import annotations

from typing import Any

import numpy as np

from flatout.loader.lengths import RaggedRule
from flatout.types import Array

NUM_RAGGED = 150
MASK = (1 << 64) - 1


class RaggedItems:
    """Each a function of its number alone. Column 0 of `steps` counts, so that a crop shows where it began."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def __len__(self) -> int:
        return NUM_RAGGED

    def __getitem__(self, at: int) -> dict[str, Any]:
        random = np.random.default_rng(at)
        num_steps, other = random.integers(1, 40, 2).tolist()
        steps = random.random((num_steps, 3), np.float32)
        steps[:, 0] = np.arange(num_steps)
        item = {
            "steps": steps,
            "wave": random.random((2, other), np.float32),
            "mono": random.random((1, other), np.float32),
            "map": random.random((1, num_steps % 5 + 1, other % 4 + 1), np.float32),
            "coded": random.random((num_steps, 2), np.float32),
            "half": random.random((other,), np.float32),
            "packed": random.integers(0, 9, (other, 2)).astype(np.int32),
            "words": "x" * (at % 7 + 1),
            "label": at % 5,
        }
        return {name: item[name] for name in self.names or item}


RAGGED_FIELDS = {
    "steps": {"kind": "sequence"},
    "wave": {"kind": "signal", "ragged": True},
    "mono": {"kind": "signal", "ragged": True},
    "map": {"kind": "image", "ragged": True},
    "coded": {"kind": "sequence", "encoding": "uint8"},
    "half": {"kind": "sequence", "encoding": "float16"},
    "packed": {"kind": "sequence", "compression": "zstd"},
}


def mixed(value: int) -> int:
    """splitmix64's finaliser, in Python's own numbers."""
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def start_of(rule: RaggedRule, key: int, length: int, seed: int) -> int:
    """The first step that is kept."""
    spare = 0 if rule.max_length is None else max(length - rule.max_length, 0)
    if rule.crop == "random":
        return (mixed((key ^ seed) & MASK) >> 32) * (spare + 1) >> 32
    return spare if rule.crop == "tail" else 0


def padded(samples: list[Array], keys: list[int], axis: int, rule: RaggedRule, seed: int) -> Array:
    """The batch of these samples, by hand."""
    pieces = []
    for sample, key in zip(samples, keys, strict=True):
        start = start_of(rule, key, sample.shape[axis], seed)
        stop = None if rule.max_length is None else start + rule.max_length
        index = [slice(None)] * sample.ndim
        index[axis] = slice(start, stop)
        pieces.append(sample[tuple(index)])
    shape = np.max([piece.shape for piece in pieces], axis=0)
    if rule.to_max and rule.max_length is not None:
        shape[axis] = rule.max_length
    while shape[axis] % rule.multiple:
        shape[axis] += 1
    batch = np.zeros((len(pieces), *shape), pieces[0].dtype)
    for row, piece in zip(batch, pieces, strict=True):
        row[tuple(slice(0, n) for n in piece.shape)] = piece
    return batch
