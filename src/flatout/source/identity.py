"""64-bit identities of texts; kept apart from the manifest code so that workers need no Arrow."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest


def hash_key(key: str) -> int:
    """XXH3 with 64 bits of the key's UTF-8."""
    return xxh3_64_intdigest(key.encode())


def hash_texts(texts: Iterable[str]) -> NDArray[np.uint64]:
    """The same of many texts: 0.07 us each. BLAKE3 took 0.46, and a row of a prepare has five such hashes."""
    return np.fromiter(map(xxh3_64_intdigest, map(str.encode, texts)), np.uint64)
