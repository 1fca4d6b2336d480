"""A forced prepare says which samples it divides otherwise than before."""

from __future__ import annotations

from typing import Any

import pytest

from flatout.store import DataPreprocessor, StoreReader
from flatout.store.progress import Silent


class Told(Silent):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def say(self, text: str) -> None:
        self.texts.append(text)


def split_of(store: Any) -> dict[str, str]:
    reader = StoreReader(store)
    names = [reader.meta.splits[number] for number in reader.numbers["split"]]
    return dict(zip(reader.keys(), names, strict=True))


def forced(source: Any, **settings: Any) -> list[str]:
    told = Told()
    DataPreprocessor(source.config(**settings)).run(force=True, progress=told)
    return [text for text in told.texts if "another split" in text]


@pytest.mark.parametrize("num_gone", [0, 2])
def test_samples_that_move_are_counted(source: Any, num_gone: int) -> None:
    assert forced(source) == []  # there was nothing
    before = split_of(source.store)
    assert forced(source) == []
    del source.rows[:num_gone]
    source.add(40)
    source.save()
    (told,) = forced(source, splits={"seed": 7, "ratios": {"train": 0.4, "val": 0.3, "test": 0.3}})
    now = split_of(source.store)
    moved = [key for key in before.keys() & now.keys() if before[key] != now[key]]
    assert told.startswith(f"{len(moved)} of {12 - num_gone} samples stand in another split than before")
    first = moved[0]
    assert f"from {before[first]} to {now[first]}" in told


def test_a_store_whose_index_is_damaged_is_made_anew_all_the_same(source: Any) -> None:
    source.prepare()
    (source.store / StoreReader(source.store).meta.index).write_bytes(b"damaged")
    assert forced(source, splits={"seed": 7}) == []
    assert len(StoreReader(source.store)) == 12
