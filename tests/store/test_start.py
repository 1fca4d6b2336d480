"""Where a prepare begins: whoever watches is told of the first rows before they are decoded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flatout.errors import TooManyBadError
from flatout.store import DataPreprocessor, StoreReader
from flatout.store.journal import Journal
from flatout.store.progress import Silent
from flatout.store.specify import NUM_PROBED


class Watched(Silent):
    """Notes what it is told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    def begin(self, what: str, total: int) -> None:
        self.told.append((what, total))

    def advance(self, rows: int) -> None:
        self.told.append(("advance", rows))


def test_the_first_look_is_told_before_the_shards(source: Any) -> None:
    watched = Watched()
    DataPreprocessor(source.config(num_workers=0)).run(progress=watched)
    assert watched.told[:2] == [("first look", NUM_PROBED), ("prepare", 12)]
    assert sum(rows for what, rows in watched.told if what == "advance") == 12
    again = Watched()
    DataPreprocessor(source.config(num_workers=0)).run(progress=again)
    assert [what for what, _ in again.told if what != "advance"] == ["prepare"]  # nothing to look at


def test_no_more_rows_are_looked_at_than_it_takes_to_refuse(source: Any) -> None:
    for number in range(12):
        (source.folder / f"s{number:02d}.npy").write_bytes(b"broken")
    with pytest.raises(TooManyBadError, match="8 of 12 rows failed, more than max_bad"):
        source.prepare()


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
def test_a_limit_settles_what_the_whole_run_would(source: Any, limit: int) -> None:
    """Though the rows that it allows are alike, the first eight are not."""
    np.save(source.folder / "s05.npy", np.zeros((6, 5), np.float32))
    labels = {"kind": "label", "classes": ["cat", "dog", "eel"]}
    fields = {**source.config()["fields"], "label": labels}
    assert source.prepare(fields=fields, limit=limit).num_samples == limit
    assert source.prepare(fields=fields).failed == 0
    whole = source.folder / "whole"
    source.prepare(preprocessed_data_dir=str(whole), fields=fields)
    found, expected = StoreReader(source.store).meta, StoreReader(whole).meta
    assert (found.content_hash, found.fields) == (expected.content_hash, expected.fields)


def test_bad_rows_beyond_the_limit_do_not_count(source: Any) -> None:
    for number in range(2, 12):
        (source.folder / f"s{number:02d}.npy").write_bytes(b"broken")
    stats = source.prepare(limit=2)
    assert (stats.num_samples, stats.failed) == (2, 0)


def test_all_rows_within_the_limit_are_bad(source: Any) -> None:
    for number in range(2):
        (source.folder / f"s{number:02d}.npy").write_bytes(b"broken")
    with pytest.raises(TooManyBadError, match="all 2 rows failed, so there is nothing to store"):
        source.prepare(limit=2, max_bad_fraction=1.0)


def test_it_is_told_once_however_many_rows_fail(source: Any) -> None:
    for number in range(12):
        (source.folder / f"s{number:02d}.npy").write_bytes(b"broken")
    watched = Watched()
    with pytest.raises(TooManyBadError):
        DataPreprocessor(source.config(num_workers=0, max_bad_fraction=1.0)).run(progress=watched)
    assert watched.told == [("first look", NUM_PROBED)]


PLAIN = {"image": {"kind": "array"}, "label": {"kind": "label"}}


def cut_off_while_accepting(source: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Twelve samples, then twelve rows more and another encoding, cut off behind the first shard."""
    source.prepare(fields=PLAIN)
    for number in range(12, 24):
        source.add(number)
    source.save()
    fields = {"image": {"kind": "array", "encoding": "float16"}, "label": {"kind": "label"}}
    append = Journal.append

    def cut_off(self: Journal, *arguments: Any) -> None:
        append(self, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", cut_off)
        with pytest.raises(KeyboardInterrupt):
            DataPreprocessor(source.config(fields=fields)).run(accept_fingerprint=True)
    return fields


def test_what_was_made_beside_kept_samples_is_not_used_without_them(
    source: Any, few_shards: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They gave it their form: a run that keeps none of them wants another."""
    halved = cut_off_while_accepting(source, monkeypatch)
    source.prepare(fields=halved)
    reader, fresh = StoreReader(source.store), str(source.folder / "fresh")
    assert reader.fields["image"].encoding == "float16"
    source.prepare(fields=halved, preprocessed_data_dir=fresh)
    assert reader.meta.content_hash == StoreReader(fresh).meta.content_hash


def test_what_was_made_beside_kept_samples_is_used_beside_them(
    source: Any, few_shards: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    halved = cut_off_while_accepting(source, monkeypatch)
    stats = DataPreprocessor(source.config(fields=halved)).run(accept_fingerprint=True)
    assert (stats.num_samples, stats.unchanged) == (24, 12)
    assert stats.continued > 0
