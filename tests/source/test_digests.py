"""Row hashes: equal for equal rows in any order and company, different for anything else."""

from __future__ import annotations

import datetime
from decimal import Decimal
from itertools import combinations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from flatout.errors import ManifestError
from flatout.source import digests
from flatout.source.digests import digest_rows


def one(value: object, kind: pa.DataType | None = None) -> int:
    return int(digest_rows(pa.table({"a": pa.array([value], kind)}), ["a"])[0])


def test_different_values_have_different_hashes() -> None:
    values = [
        None,
        "",
        "a",
        "1",
        1,
        2,
        -1,
        1.5,
        float("nan"),
        float("inf"),
        True,
        "true",
        datetime.date(2020, 1, 1),
        datetime.datetime(2020, 1, 1, 1),
        Decimal("1.50"),
        "s1",
        "#1",
        2**60,
        datetime.timedelta(1),
    ]
    hashes = [one(value) for value in values]
    for (i, a), (j, b) in combinations(enumerate(hashes), 2):
        assert a != b, (values[i], values[j])


def test_a_number_has_one_hash_in_any_numeric_column() -> None:
    assert one(5, pa.int64()) == one(5, pa.uint8()) == one(5.0, pa.float64()) == one(5.0, pa.float32())
    assert one(-0.0) == one(0)
    assert one("5") != one(5)


def test_text_types_make_no_difference() -> None:
    assert one("a", pa.string()) == one("a", pa.large_string())


def test_cells_do_not_run_into_one_another() -> None:
    table = pa.table({"a": ["x", "xy", "", None, "x:1"], "b": ["yz", "z", "xyz", "xyz", ""]})
    assert len(set(digest_rows(table, ["a", "b"]).tolist())) == 5


def test_column_names_count() -> None:
    assert digest_rows(pa.table({"a": ["x"]}), ["a"]) != digest_rows(pa.table({"b": ["x"]}), ["b"])


def test_unknown_columns_are_named() -> None:
    with pytest.raises(ManifestError, match=r"no column 'z'; there are: a"):
        digest_rows(pa.table({"a": [1]}), ["a", "z"])


def test_the_hash_never_changes() -> None:
    table = pa.table({"file": ["a.wav", "b.wav"], "label": [1, None]})
    seed = xxh3_64_intdigest(b'["file", "label"]')
    wanted = [xxh3_64_intdigest(text, seed) for text in (b"6:sa.wav:2:#1", b"6:sb.wav:-:")]
    assert digest_rows(table, ["label", "file"]).tolist() == wanted


ROW = st.tuples(st.none() | st.text(max_size=3), st.none() | st.integers(-9, 9), st.none() | st.floats())


@given(rows=st.lists(ROW, min_size=1, max_size=12), seed=st.integers(0, 99), block=st.integers(1, 5))
def test_order_company_and_blocks_make_no_difference(
    rows: list[tuple[object, ...]], seed: int, block: int
) -> None:
    kinds = {"s": pa.large_string(), "i": pa.int64(), "f": pa.float64()}
    columns = dict(zip(kinds, zip(*rows, strict=True), strict=True))
    table = pa.table({name: pa.array(columns[name], kind) for name, kind in kinds.items()})
    whole = digest_rows(table, ["s", "i", "f"])
    order = np.random.default_rng(seed).permutation(len(rows))
    other = table.take(pa.array(order)).select(["f", "s", "i"]).append_column("extra", pa.array(order))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digests, "BLOCK_ROWS", block)
        np.testing.assert_array_equal(digest_rows(other, ["i", "f", "s"]), whole[order])


def test_chunks_and_no_columns() -> None:
    chunked = pa.table({"a": pa.chunked_array([["x"], [], ["y", "z"]])})
    assert digest_rows(chunked, ["a"]).tolist() == digest_rows(chunked.combine_chunks(), ["a"]).tolist()
    assert len(set(digest_rows(chunked, []).tolist())) == 1
    assert len(digest_rows(chunked.slice(0, 0), ["a"])) == 0
