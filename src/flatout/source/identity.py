"""The 64-bit identity of a key; kept apart from the manifest code so that workers need no Arrow."""

from __future__ import annotations

from blake3 import blake3


def hash_key(key: str) -> int:
    """First 8 bytes, little endian, of blake3 of the key's UTF-8."""
    return int.from_bytes(blake3(key.encode()).digest(length=8), "little")
