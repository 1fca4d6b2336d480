"""Tables of samples: from shards, in manifest order, up to date or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout.errors import ManifestError, StoreCorruptError
from flatout.source import hash_key
from flatout.store import layout, samples
from flatout.store.metadata import ShardMeta
from flatout.store.samples import (
    RowFinder,
    empty_samples,
    in_manifest_order,
    refuse_twins,
    renumbered,
    row_hashes,
    samples_of_shards,
    up_to_date,
)
from flatout.types import FieldSpec

FIELDS = (FieldSpec("x", "array", "float32", (2,)), FieldSpec("text", "text", "uint8", (None,)))


def test_shards_say_what_they_hold(tmp_path: Path, write_shard: Callable[..., Any]) -> None:
    (tmp_path / "shards").mkdir()
    metas = []
    for number, keys in enumerate((["a", "b"], ["c"])):
        samples = [
            {"x": np.ones(2, np.float32), "text": np.ones(len(keys) + n, np.uint8)} for n in range(len(keys))
        ]
        shard = write_shard(FIELDS, samples, keys, number, folder=tmp_path / "shards")
        metas.append(shard.meta)
    table = samples_of_shards(tmp_path, metas, FIELDS, first_shard=4)
    assert table["key"].to_pylist() == ["a", "b", "c"]
    assert table["key_hash"].to_pylist() == [hash_key(key) for key in "abc"]
    assert table["shard"].to_pylist() == [4, 4, 5]
    assert table["row"].to_pylist() == [0, 1, 0]
    assert table["part"].to_pylist() == [-1, -1, -1]
    assert table["length_text"].to_pylist() == [2, 3, 1]
    assert len(set(table["digest"].to_pylist())) == 3
    assert samples_of_shards(tmp_path, [], FIELDS).schema == table.schema == empty_samples(FIELDS).schema


@pytest.mark.parametrize(("data", "offsets"), [(b"a\xff", [0, 1, 2]), (b"ab", [0, 1, 9])])
def test_keys_that_cannot_be_read(data: bytes, offsets: list[int]) -> None:
    """Bytes that are no text, and places outside of them: the one message is true of both."""

    class Forged:
        tables: ClassVar = {
            layout.KEY_BYTES: np.frombuffer(data, np.uint8),
            layout.KEY_OFFSETS: np.array(offsets, np.int64),
        }

        def __len__(self) -> int:
            return len(offsets) - 1

        def damaged(self, reason: str) -> StoreCorruptError:
            return StoreCorruptError(reason, reason)

    with pytest.raises(StoreCorruptError, match="its keys cannot be read: "):
        samples._keys(Forged())  # type: ignore[arg-type]


def test_pieces_belong_to_their_row() -> None:
    keys = ["a", "b#0000", "b#0001", "c#d#0012", "e#f"]
    parts = [-1, 0, 1, 12, -1]
    table = pa.table({"key_hash": np.array([hash_key(k) for k in keys], np.uint64), "part": parts, "key": keys})
    assert row_hashes(table).tolist() == [hash_key(key) for key in ("a", "b", "b", "c#d", "e#f")]


ROW_KEYS = st.lists(st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from("#\n/"), max_size=6))


@given(keys=ROW_KEYS, numbers=st.lists(st.integers(0, 12), max_size=4), data=st.data())
def test_rows_of_pieces_are_those_that_their_keys_say(keys: list[str], numbers: list[int], data: Any) -> None:
    pieces = [(f"{key}#{number:04d}", number) for key in keys for number in numbers]
    # Also what no prepare writes: a damaged shard may have a piece whose key has no number.
    found = data.draw(st.permutations([*((key, -1) for key in keys), *((key, 3) for key in keys), *pieces]))
    texts, parts = [key for key, _ in found], [part for _, part in found]
    own = np.arange(len(found), dtype=np.uint64)
    table = pa.table(
        {"key_hash": own, "part": pa.array(parts, pa.int32()), "key": pa.array(texts, pa.string())}
    )
    half = len(found) // 2
    chunked = pa.concat_tables([table.slice(0, half), table.slice(half)])
    plain = [hash_key(key.rpartition("#")[0]) if part >= 0 else at for at, (key, part) in enumerate(found)]
    assert row_hashes(table).tolist() == row_hashes(chunked).tolist() == plain


def test_a_row_is_hashed_once_for_all_its_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    hash_all = samples.key_hashes

    def noted(keys: Any) -> Any:
        hashed.extend(keys.to_pylist())
        return hash_all(keys)

    monkeypatch.setattr(samples, "key_hashes", noted)
    keys = [f"{row}#{part:04d}" for row in "ab" for part in range(5)]
    row_hashes(pa.table({"key_hash": np.zeros(10, np.uint64), "part": [*range(5)] * 2, "key": keys}))
    assert hashed == ["a", "b"]


@given(
    known=st.lists(st.integers(0, 2**64 - 1), unique=True, max_size=20),
    asked=st.lists(st.integers(0, 2**64 - 1), max_size=20),
    data=st.data(),
)
def test_rows_are_found_by_hash(known: list[int], asked: list[int], data: Any) -> None:
    asked = asked + (data.draw(st.lists(st.sampled_from(known), max_size=5)) if known else [])
    finder = RowFinder(np.array(known, np.uint64), known)
    found = finder.positions(np.array(asked, np.uint64)).tolist()
    assert found == [known.index(value) if value in known else -1 for value in asked]


@given(
    known=st.lists(st.integers(0, 2**64 - 1), unique=True, min_size=1, max_size=9),
    asked_at=st.lists(st.integers(0, 8), max_size=9),
    likely=st.none() | st.lists(st.integers(0, 8), max_size=9),
)
def test_a_guess_never_changes_what_is_found(
    known: list[int], asked_at: list[int], likely: list[int] | None
) -> None:
    finder = RowFinder(np.array(known, np.uint64), known)
    positions = np.array(asked_at, np.int64) % len(known)
    guess = positions if likely is None else np.array(likely, np.int64) % len(known)
    assert finder.positions(np.array(known, np.uint64)[positions], guess).tolist() == positions.tolist()


def test_two_keys_of_one_hash_are_refused_by_name() -> None:
    with pytest.raises(ManifestError, match="'b' and 'd' have the same 64-bit hash"):
        RowFinder(np.array([5, 7, 6, 7], np.uint64), pa.array(["a", "b", "c", "d"]))


def test_up_to_date_is_a_known_row_with_the_recorded_fingerprint() -> None:
    samples = pa.table({"fingerprint": pa.array([10, 11, 0, 13, 14], pa.uint64())})
    positions = np.array([0, 1, 2, -1, 3])
    fingerprints = np.array([10, 99, 0, 14], np.uint64)
    assert up_to_date(samples, positions, fingerprints).tolist() == [True, False, False, False, True]


def test_manifest_order_then_piece() -> None:
    samples = pa.table({"part": [1, -1, 0, 2], "key": ["b1", "a", "b0", "b2"]})
    ordered, positions = in_manifest_order(samples, np.array([5, 3, 5, 5]))
    assert ordered["key"].to_pylist() == ["a", "b0", "b1", "b2"]
    assert positions.tolist() == [3, 5, 5, 5]


def test_shards_without_a_sample_are_dropped() -> None:
    shards = [ShardMeta(f"{n}", "", 0, 1, 0, ()) for n in range(4)]
    samples = pa.table({"key": ["a", "b", "c"], "shard": pa.array([3, 1, 3], pa.int32())})
    table, used = renumbered(samples, shards)
    assert table["shard"].to_pylist() == [1, 0, 1]
    assert table["shard"].type == pa.int32()
    assert [shard.file for shard in used] == ["1", "3"]


def test_two_samples_of_one_key_are_refused() -> None:
    table = pa.table({"key_hash": pa.array([3, 9, 3], pa.uint64()), "key": ["a#0000", "b", "a#0000"]})
    with pytest.raises(ManifestError, match="'a#0000'"):
        refuse_twins(table)
    refuse_twins(table.slice(0, 2))
