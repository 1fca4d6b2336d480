"""The 64-bit identity of a key; kept apart from the manifest code so that workers need no Arrow."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray


def hash_key(key: str) -> int:
    """First 8 bytes, little endian, of blake3 of the key's UTF-8."""
    return int.from_bytes(blake3(key.encode()).digest(length=8), "little")


def hash_texts(texts: Iterable[str]) -> NDArray[np.uint64]:
    """The same of many texts: 0.45 us each, one by one 0.7."""
    return np.frombuffer(b"".join([blake3(text.encode()).digest(8) for text in texts]), "<u8").astype(np.uint64)
