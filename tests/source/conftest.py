"""What the decoders' tests share: ways to damage a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

Damage = Callable[..., Iterator[bytes]]


def damage(
    data: bytes, num_flips: int = 200, num_cuts: int = 40, seed: int = 0, span: int | None = None
) -> Iterator[bytes]:
    """An empty file, the file cut at places all over, and copies with one to four bytes changed.

    With `span` only that many bytes at its start are changed.
    """
    generator = np.random.default_rng(seed)
    yield b""
    for size in np.linspace(1, len(data) - 1, num_cuts).astype(int):
        yield data[:size]
    for _ in range(num_flips):
        changed = bytearray(data)
        for at in generator.integers(0, min(span or len(data), len(data)), generator.integers(1, 5)):
            changed[at] = generator.integers(0, 256)
        yield bytes(changed)


@pytest.fixture(name="damage", scope="session")
def damage_fixture() -> Damage:
    return damage
