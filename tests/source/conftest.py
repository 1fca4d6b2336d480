"""What the decoders' tests share: ways to damage a file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from flatout.source.files import SourceFile

Damage = Callable[..., Iterator[SourceFile]]


def broken_copies(data: bytes, num_flips: int, num_cuts: int, seed: int, span: int | None) -> Iterator[bytes]:
    generator = np.random.default_rng(seed)
    yield b""
    for size in np.linspace(1, len(data) - 1, num_cuts).astype(int):
        yield data[:size]
    for _ in range(num_flips):
        changed = bytearray(data)
        for at in generator.integers(0, min(span or len(data), len(data)), generator.integers(1, 5)):
            changed[at] = generator.integers(0, 256)
        yield bytes(changed)


@pytest.fixture
def damage(tmp_path: Path) -> Damage:
    """`damage(data, name)`: an empty file, the file cut all over, copies with one to four bytes changed.

    With `span` only that many bytes at its start are changed. All copies stand in one archive, because
    writing a file takes longer than decoding it.
    """

    def damaged(
        data: bytes,
        name: str,
        num_flips: int = 200,
        num_cuts: int = 40,
        seed: int = 0,
        span: int | None = None,
    ) -> Iterator[SourceFile]:
        copies = list(broken_copies(data, num_flips, num_cuts, seed, span))
        archive = tmp_path / f"damaged-{seed}.tar"
        archive.write_bytes(b"".join(copies))
        offset = 0
        for copy in copies:
            yield SourceFile(archive, name, offset=offset, size=len(copy))
            offset += len(copy)

    return damaged
