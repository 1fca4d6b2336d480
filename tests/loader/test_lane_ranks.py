"""Lanes where a rank, or an order, meets only some of the samples: whatever is new is compared first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.loader.breaking import flip, key_hashes, make_store
from tests.loader.epochs import has_lane, keys_of, loader_of
from tests.loader.test_lane import assert_same, clones

from flatout.errors import StoreCorruptError
from flatout.loader.fetch import ReadRule
from flatout.loader.lane import Lane
from flatout.loader.order import Weighted
from flatout.store import StoreReader


@pytest.mark.parametrize(
    "settings_",
    [
        {"rank": 1, "world_size": 2},
        {"rank": 0, "world_size": 3},
        {"order": Weighted.of([0.0] + [1.0] * 102, seed=4)},  # the first is never met
    ],
)
def test_whoever_meets_only_some_samples_comes_by_a_lane_too(
    plain_store: StoreReader, settings_: dict[str, Any]
) -> None:
    mine = loader_of(plain_store, 2, num_workers=1, **settings_)
    other = loader_of(plain_store, 2, read=ReadRule(crc="always"), **settings_)
    have_lanes = []
    for _ in range(4):
        assert_same(clones(mine), clones(other))
        have_lanes.append(has_lane(mine))
    assert have_lanes == [False, True, True, True]
    mine.close()


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_damage_that_a_rank_meets_later_is_found_in_its_lane(tmp_path: Path, num_workers: int) -> None:
    """A sample that no batch had so far is compared before it is handed over; the error is its batch's own."""
    store = make_store(tmp_path / "store", ("image", "label"))
    ranks = {"rank": 0, "world_size": 2}
    loader = loader_of(store, 2, num_workers=num_workers, prefetch_factor=1, **ranks)
    keys_of(loader)
    loader.close()  # producers are in the next epoch already
    blind = loader_of(store, 2, read=ReadRule(crc="off"), **ranks)
    blind.set_epoch(1)
    coming, everything = keys_of(blind), key_hashes(store)
    seen = loader._kept._fetcher.parts["image"].check._seen  # type: ignore[union-attr, attr-defined]
    bad = next(key for key in coming[4:] if not seen[everything.index(key)])
    flip(store, everything.index(bad), "image")
    cursor: Any = iter(loader)
    keys = keys_of([next(cursor)])
    assert isinstance(cursor._stream, Lane)
    keys += keys_of(next(cursor) for _ in range(coming.index(bad) // 2 - 1))
    assert keys == coming[: coming.index(bad) // 2 * 2]
    for _ in range(2):  # asked again, it is said again
        with pytest.raises(StoreCorruptError, match=r"'image'.* do not match their checksum"):
            next(cursor)
    loader.close()


def test_an_epoch_that_was_left_is_not_followed_by_a_lane(plain_store: StoreReader) -> None:
    """What nobody has met may still lie on the disk, and lanes announce nothing."""
    loader = loader_of(plain_store, 2, num_workers=1)
    for _ in loader:
        break
    keys_of(loader)
    assert not has_lane(loader)
    keys_of(loader)
    assert has_lane(loader)
    loader.close()
