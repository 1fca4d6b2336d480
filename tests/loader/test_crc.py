"""Checksums: compared once a loader, not once an iterator, and the index is not believed either."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.loader.epochs import keys_of, loader_of

from flatout.errors import StoreCorruptError
from flatout.loader import crc
from flatout.loader.crc import CrcCheck
from flatout.loader.fetch import ReadRule
from flatout.loader.places import Places
from flatout.store import StoreReader


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of everything that is compared with a checksum."""
    found: list[int] = []
    real = crc.crc32c

    def counted(array: Any) -> int:
        found.append(array.nbytes)
        return real(array)

    monkeypatch.setattr(crc, "crc32c", counted)
    return found


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_was_compared_is_not_compared_again_after_a_break(
    store: StoreReader, compared: list[int], num_workers: int
) -> None:
    loader = loader_of(store, num_workers=num_workers)
    keys_of(loader)
    loader.close()
    num_first = len(compared)
    assert num_first > len(store)
    for _ in range(3):
        next(iter(loader))
        loader.set_epoch(7)
    assert len(keys_of(loader)) == len(store)
    loader.close()
    assert len(compared) == num_first


def test_always_is_always(store: StoreReader, compared: list[int]) -> None:
    loader = loader_of(store, read=ReadRule(crc="always"))
    keys_of(loader)
    num_first = len(compared)
    keys_of(loader)
    assert len(compared) == 2 * num_first > 0


def test_a_field_of_which_all_was_seen_is_done(store: StoreReader) -> None:
    everything = np.arange(len(store))
    check = CrcCheck(store, store.fields["image"], Places.of(store, everything))
    images = np.stack([store.read(at)["image"] for at in everything])
    assert check.bad_rows(everything[:50], images[:50]) == []
    images[70] += 1
    assert check.bad_rows(everything, images) == [70]
    assert check.bad_rows(everything[60:80], images[60:80]) == [10]
    images[70] -= 1
    assert check.bad_rows(everything, np.stack([store.read(at)["image"] for at in everything])) == []
    assert check.bad_rows(everything, images[::-1]) == []  # seen, and not looked at again


def test_a_row_of_another_sample_is_refused(store: StoreReader) -> None:
    """Its bytes have the right checksum: only the key tells that the index is wrong."""
    other = StoreReader(store.folder)
    rows = store.numbers["row"].copy()
    first = np.flatnonzero(store.numbers["shard"] == store.numbers["shard"][0])[:2]
    assert len(first) == 2
    rows[first] = rows[first[::-1]]
    other.numbers = {**store.numbers, "row": rows}
    with pytest.raises(StoreCorruptError, match=r"the index has another sample at row .*--repair"):
        keys_of(loader_of(other))


def test_a_bad_sample_is_never_taken_for_seen(store: StoreReader) -> None:
    """Not for a moment either: another thread may just ask whether everything was compared."""
    looks: list[bool] = []

    class Watched(np.ndarray):
        def __setitem__(self, *given: Any) -> None:
            super().__setitem__(*given)
            looks.append(bool(self.all()))

    everything = np.arange(len(store))
    check = CrcCheck(store, store.fields["image"], Places.of(store, everything))
    check._seen = np.zeros(len(store), bool).view(Watched)
    images = np.stack([store.read(at)["image"] for at in everything])
    images[3] += 1
    assert check.bad_rows(everything, images) == [3]
    assert not check.is_done
    assert looks
    assert not any(looks)
    assert check.bad_rows(everything, np.stack([store.read(at)["image"] for at in everything])) == []
    assert check.is_done
