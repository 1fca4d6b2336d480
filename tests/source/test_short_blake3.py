"""Hashes of many short texts at once are those of the library, one by one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from blake3 import blake3
from hypothesis import example, given
from hypothesis import strategies as st

from flatout.source import keys as keys_module
from flatout.source import short_blake3
from flatout.source.identity import hash_key
from flatout.source.keys import key_hashes
from flatout.source.short_blake3 import BLOCK_BYTES, hash_short


@given(st.lists(st.binary(max_size=BLOCK_BYTES), max_size=40), st.binary(max_size=9))
@example([b""], b"")
@example([b"\xff" * BLOCK_BYTES, b"", b"\0"], b"\xff")
def test_each_text_has_the_hash_that_the_library_gives(texts: list[bytes], before: bytes) -> None:
    data = np.frombuffer(before + b"".join(texts), np.uint8)
    lengths = np.array([len(text) for text in texts], np.int64)
    starts = len(before) + np.cumsum(lengths) - lengths
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(short_blake3, "_TOGETHER", 7)
        found = hash_short(data, starts, lengths)
    assert found.tolist() == [int.from_bytes(blake3(text).digest(8), "little") for text in texts]


@given(
    st.lists(st.text(max_size=80), max_size=60), st.integers(0, 9), st.sampled_from(["large", "small", "list"])
)
def test_keys_of_any_length_and_form_have_their_own_hash(texts: list[str], skipped: int, form: str) -> None:
    whole = pa.array(texts, pa.string() if form == "small" else pa.large_string())
    column = texts[skipped:] if form == "list" else whole[skipped:]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys_module, "_LEAST_TOGETHER", 1)
        patch.setattr(keys_module, "_BLOCK", 16)
        found = key_hashes(column)
    assert found.tolist() == [hash_key(text) for text in texts[skipped:]]


def test_a_column_in_pieces_large_enough_to_be_hashed_together() -> None:
    texts = [f"{number:05d}" + "é" * (number % 40) for number in range(10_000)]
    pieces = pa.chunked_array([pa.array(texts[:3000]), pa.array(texts[3000:]), pa.array([], pa.string())])
    assert key_hashes(pieces).tolist() == [hash_key(text) for text in texts]
