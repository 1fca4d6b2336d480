"""The 64-bit identities of keys and texts, one by one and in columns."""

from __future__ import annotations

import pyarrow as pa
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64

from flatout.source import hash_key, hash_text, hash_texts, key_hashes


@given(key=st.text(max_size=30))
def test_first_eight_bytes_of_blake3_little_endian(key: str) -> None:
    assert hash_key(key).to_bytes(8, "little") == blake3(key.encode()).digest(8)


@given(texts=st.lists(st.text(max_size=30)))
def test_texts_by_xxh3_with_64_bits(texts: list[str]) -> None:
    wanted = [int(xxh3_64(text.encode()).hexdigest(), 16) for text in texts]
    assert hash_texts(texts).tolist() == [hash_text(text) for text in texts] == wanted


@given(keys=st.lists(st.text(max_size=10), max_size=10))
def test_one_by_one_as_in_columns(keys: list[str]) -> None:
    assert key_hashes(pa.array(keys, pa.large_string())).tolist() == [hash_key(key) for key in keys]


def test_never_changes() -> None:
    assert hash_key("") == 0xA6A1F9F5B94913AF  # BLAKE3's published hash of nothing begins af1349b9f5f9a1a6
    assert hash_key("sample-1") == 0xB462D2FE52FB8D14
    assert hash_text("") == 0x2D06800538D394C2  # as XXH3's specification has it
    assert hash_text("sample-1") == 0x532D284E2A7CD430
