"""A prepare says which samples it divides otherwise than before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from flatout.config import load_config
from flatout.store import DataPreprocessor, StoreReader
from flatout.store.job import job_from_config
from flatout.store.moved import told_moved
from flatout.store.progress import Silent
from flatout.store.samples import RowFinder
from flatout.store.versions import committed


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
    counts = f"{len(moved)} of {12 - num_gone}"
    assert told.startswith(f"WARNING: {counts} samples stand in another split than before")
    first = moved[0]
    assert f"from {before[first]} to {now[first]}" in told


def test_a_store_whose_index_is_damaged_is_made_anew_all_the_same(source: Any) -> None:
    source.prepare()
    (source.store / StoreReader(source.store).meta.index).write_bytes(b"damaged")
    assert forced(source, splits={"seed": 7}) == []
    assert len(StoreReader(source.store)) == 12


def test_a_run_that_is_not_forced_tells_it_as_well(source: Any) -> None:
    source.prepare()
    told = Told()
    DataPreprocessor(source.config(splits={"seed": 7})).run(progress=told)
    assert [text.startswith("WARNING: ") for text in told.texts if "another split" in text] == [True]
    assert [text for text in told.texts if "another split" in text] != []
    told = Told()
    DataPreprocessor(source.config(splits={"seed": 7})).run(progress=told)
    assert [text for text in told.texts if "another split" in text] == []


def test_an_index_that_names_no_split_of_the_root_tells_nothing(source: Any) -> None:
    source.prepare()
    job = job_from_config(load_config(source.config(), environ={}))
    version = committed(source.store)
    samples = version.samples
    at = samples.column_names.index("split")
    odd = samples.set_column(at, samples.schema.field("split"), pa.array([9] * 12, samples["split"].type))
    finder = RowFinder(job.key_hashes, job.manifest.keys)
    assert told_moved(replace(version, samples=odd), job, finder) is None
