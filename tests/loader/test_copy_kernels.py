"""Rows gathered past the caches are those that NumPy takes, wherever they stand; nothing else is written."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.loader.breaking import make_store

from flatout.loader import fixed
from flatout.loader.copy_kernels import LINE_BYTES, SHORT_BYTES, gather
from flatout.loader.loader import FastDataLoader

EDGE = 3 * LINE_BYTES
UNTOUCHED = 0xA5


@given(
    row_bytes=st.one_of(
        st.integers(1, 3 * LINE_BYTES),
        st.integers(1, 4).map(lambda n: n * 1000),
        st.integers(SHORT_BYTES - 1, SHORT_BYTES + LINE_BYTES + 1),
    ),
    shifts=st.tuples(st.integers(0, LINE_BYTES), st.integers(0, LINE_BYTES)),
    places=st.lists(st.integers(0, 8), max_size=20),
    seed=st.integers(0, 99),
)
def test_equals_take(row_bytes: int, shifts: tuple[int, int], places: list[int], seed: int) -> None:
    source = np.random.default_rng(seed).integers(0, 256, EDGE + 9 * row_bytes, np.uint8)
    table = source[shifts[0] :][: 9 * row_bytes].reshape(9, row_bytes)
    wanted = np.array(places, np.int64)
    whole = np.full(2 * EDGE + len(places) * row_bytes, UNTOUCHED, np.uint8)
    start, stop = EDGE + shifts[1] - LINE_BYTES, EDGE + shifts[1] - LINE_BYTES + len(places) * row_bytes
    gather(table.ctypes.data, row_bytes, wanted, whole[start:].ctypes.data)
    assert (whole[start:stop].reshape(-1, row_bytes) == table[wanted]).all()
    assert (whole[:start] == UNTOUCHED).all()
    assert (whole[stop:] == UNTOUCHED).all()


def test_large_batches_of_a_loader_go_this_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    store = make_store(tmp_path / "store", ("image", "label"))
    plain = [batch["image"].clone() for batch in FastDataLoader(store, 4, shuffle=True, seed=2)]
    calls: list[int] = []

    def counted(table: int, row_bytes: int, places: Any, to: int) -> None:
        calls.append(len(places))
        gather(table, row_bytes, places, to)

    monkeypatch.setattr(fixed, "stream_rows", lambda: counted)
    row_bytes = plain[0][0].nbytes
    monkeypatch.setattr(fixed, "STREAM_BYTES", 4 * row_bytes)
    streamed = [batch["image"].clone() for batch in FastDataLoader(store, 4, shuffle=True, seed=2)]
    assert len(streamed) == len(plain)
    assert all((a == b).all() for a, b in zip(streamed, plain, strict=True))
    assert calls
    assert min(calls) >= 4


def test_without_numba_numpy_takes_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "flatout.loader.copy_kernels", None)
    fixed.stream_rows.cache_clear()
    assert fixed.stream_rows() is None
    fixed.stream_rows.cache_clear()
