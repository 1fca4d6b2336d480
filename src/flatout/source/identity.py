"""64-bit identities of texts; kept apart from the manifest code so that workers need no Arrow."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest


def hash_key(key: str) -> int:
    """First 8 bytes, little endian, of blake3 of the key's UTF-8."""
    return int.from_bytes(blake3(key.encode()).digest(length=8), "little")


def hash_keys(keys: Iterable[str]) -> NDArray[np.uint64]:
    """The same of many keys: 0.45 us each, one by one 0.7."""
    return np.frombuffer(b"".join([blake3(key.encode()).digest(8) for key in keys]), "<u8").astype(np.uint64)


def hash_text(text: str) -> int:
    """XXH3 with 64 bits of the text's UTF-8: of what is compared, and never drawn from, as a key's hash is."""
    return xxh3_64_intdigest(text.encode())


def hash_texts(texts: Iterable[str]) -> NDArray[np.uint64]:
    """The same of many texts: 0.07 us each, and a row has three of them."""
    return np.fromiter(map(xxh3_64_intdigest, map(str.encode, texts)), np.uint64)
