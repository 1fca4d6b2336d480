"""The 64-bit identity of a key, one by one and in columns."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64

from flatout.source import hash_key, key_hashes


@given(key=st.text(max_size=30))
def test_xxh3_with_64_bits(key: str) -> None:
    assert hash_key(key) == int(xxh3_64(key.encode()).hexdigest(), 16)


@given(keys=st.lists(st.text(max_size=10), max_size=10))
def test_one_by_one_as_in_columns(keys: list[str]) -> None:
    assert key_hashes(pa.array(keys, pa.large_string())).tolist() == [hash_key(key) for key in keys]


def test_never_changes() -> None:
    assert hash_key("") == 0x2D06800538D394C2  # as XXH3's specification has it
    assert hash_key("sample-1") == 0x532D284E2A7CD430
