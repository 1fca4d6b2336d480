"""Checksums against plain models of themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64

from flatout.store import checks
from flatout.store.checks import (
    BLOCK_BYTES,
    block_crcs,
    content_hash,
    crc32c,
    crc32c_at,
    sample_digest,
    tables_crc,
    uses_blocks,
)


def plain_crc32c(data: bytes) -> int:
    """Castagnoli, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


@given(data=st.binary(max_size=200))
def test_crc32c_is_castagnolis(data: bytes) -> None:
    assert crc32c(np.frombuffer(data, np.uint8)) == plain_crc32c(data)


@pytest.mark.parametrize("dtype", ["?", "i1", "u2", "f2", "f4", "f8", "c8"])
def test_crc32c_is_of_the_bytes_in_c_order(dtype: str) -> None:
    array = np.arange(12).reshape(3, 4).astype(dtype)
    assert crc32c(array.T) == plain_crc32c(array.T.tobytes())
    assert crc32c(array[0, 1]) == plain_crc32c(array[0, 1].tobytes())


@given(positions=st.lists(st.integers(0, 30), max_size=70))
def test_crc32c_of_some_is_that_of_a_copy_of_them(positions: list[int]) -> None:
    array = np.arange(31, dtype=np.uint64) ** 9
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "BLOCK_ROWS", 16)  # several blocks, the last one a part
        assert crc32c_at(array, np.array(positions, np.int64)) == crc32c(array[positions])


@pytest.mark.parametrize(
    ("rows", "num_bytes", "expected"), [(10, 40959, True), (10, 40960, False), (1, 0, True)]
)
def test_samples_under_4_kib_on_average_share_crcs(rows: int, num_bytes: int, expected: bool) -> None:
    assert uses_blocks(rows, num_bytes) is expected


@given(sizes=st.lists(st.integers(0, 3 * 16), max_size=8))
def test_block_crcs_do_not_depend_on_how_the_bytes_are_cut(sizes: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checks, "BLOCK_BYTES", 16)
        generator = np.random.default_rng(len(sizes))
        parts = [generator.integers(0, 256, size, np.uint8) for size in sizes]
        data = b"".join(part.tobytes() for part in parts)
        expected = [plain_crc32c(data[at : at + 16]) for at in range(0, len(data), 16)]
        assert block_crcs(parts).tolist() == expected


def test_a_block_has_64_kib() -> None:
    assert BLOCK_BYTES == 65536
    flat = np.zeros(BLOCK_BYTES + 1, np.uint8)
    assert block_crcs([flat]).tolist() == [crc32c(flat[:-1]), crc32c(flat[-1:])]
    assert block_crcs([]).dtype == np.uint32


def test_tables_crc_is_of_all_tables_on_end() -> None:
    tables = [np.arange(5), np.empty((0, 2)), np.ones((2, 2), np.float32)]
    data = b"".join(table.tobytes() for table in tables)
    assert tables_crc(tables) == plain_crc32c(data)


def test_sample_digest_is_what_the_format_says() -> None:
    parts = {"x": "<f4,(2, 3),7", "label": "<i8,(),9"}
    text = "label,<i8,(),9;x,<f4,(2, 3),7"
    expected = int(xxh3_64(text.encode()).hexdigest(), 16)
    turned = dict(reversed(parts.items()))
    assert sample_digest(parts) == sample_digest(turned) == expected


Samples = st.dictionaries(st.text(max_size=5), st.integers(0, 2**64 - 1), max_size=6)


@given(samples=Samples, data=st.data())
def test_content_hash_does_not_depend_on_order(samples: dict[str, int], data: Any) -> None:
    keys = list(samples)
    mixed = data.draw(st.permutations(keys))

    def of(order: list[str]) -> str:
        return content_hash(order, np.array([samples[key] for key in order], np.uint64))

    assert of(keys) == of(mixed)
    hasher = blake3()
    for key in sorted(samples):
        hasher.update(f"{key}\0{samples[key]}\n".encode())
    assert of(keys) == hasher.hexdigest()


def test_content_hash_sees_every_key_and_digest() -> None:
    digests = np.array([1, 2], np.uint64)
    hashes = {
        content_hash(["a", "b"], digests),
        content_hash(["a", "c"], digests),
        content_hash(["b", "a"], digests),
        content_hash(["a", "b"], digests + 1),
        content_hash([], digests[:0]),
    }
    assert len(hashes) == 5
