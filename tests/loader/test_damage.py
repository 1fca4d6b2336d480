"""Damaged samples: named where they stop the training, left out and told once where they are skipped."""

from __future__ import annotations

import logging
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.loader.breaking import NUM_ITEMS, ONE_SHAPE, flip, key_hashes, make_store

from flatout.errors import ConfigError, LoaderError, StoreCorruptError
from flatout.loader.damage import stand_in
from flatout.loader.fetch import Fetcher, ReadRule
from flatout.loader.loader import FastDataLoader
from flatout.loader.parts import Wanted
from flatout.store import StoreReader, layout

ALL_FIELDS = ("image", "coded", "packed", "wave", "rolled")
"""Mapped, quantised, compressed, ragged, and ragged and compressed."""


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> StoreReader:
    return make_store(tmp_path_factory.mktemp("whole") / "store")


@pytest.fixture
def broken(whole: StoreReader, tmp_path: Path) -> StoreReader:
    """A copy to break."""
    shutil.copytree(whole.folder, tmp_path / "store")
    return StoreReader(tmp_path / "store")


def loader_of(store: StoreReader, batch_size: int = 5, **settings: Any) -> FastDataLoader:
    rule = {name: settings.pop(name) for name in ("io", "crc", "on_damage", "on_device") if name in settings}
    read = ReadRule(**{"on_damage": "skip", **rule})
    return FastDataLoader(store, batch_size, shuffle=True, seed=3, read=read, **{"num_workers": 0, **settings})


def rows_of(batch: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    """The samples of a batch without their padding."""
    rows = []
    for at in range(len(batch["key"])):
        row = {name: value[at] for name, value in batch.items()}
        for name in ("wave", "rolled"):
            if name in row:
                row[name] = row[name][: int(row[f"{name}_length"])]
        rows.append(row)
    return rows


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one if name != "valid")


def check_epoch(found: Any, wanted: Any, bad: set[int]) -> None:
    """Every good sample is where it would be; the first good one of the batch stands in for the others."""
    for batch, whole_batch in zip(found, wanted, strict=True):
        rows, whole_rows = rows_of(batch), rows_of(whole_batch)
        is_good = [int(row["key"]) not in bad for row in whole_rows]
        assert batch["valid"].tolist() == is_good
        first = whole_rows[is_good.index(True)]
        for row, whole_row, good in zip(rows, whole_rows, is_good, strict=True):
            assert same(row, whole_row if good else first)


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("name", ALL_FIELDS)
def test_a_damaged_sample_is_left_out_and_told_once(
    whole: StoreReader, broken: StoreReader, name: str, io: str, caplog: pytest.LogCaptureFixture
) -> None:
    flip(broken, 7, name)
    loader, plain = loader_of(broken, io=io, num_workers=2), loader_of(whole)
    for _ in range(3):
        check_epoch(loader, plain, {key_hashes(whole)[7]})
    key = whole.keys()[7]
    assert loader.damaged == [key]
    assert plain.damaged == []
    (told,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    shard = broken.meta.shards[int(broken.numbers["shard"][7])].file
    for part in (f"sample '{key}' is skipped", f"field '{name}'", shard, f"verify {broken.folder} --repair"):
        assert part in told


@pytest.mark.parametrize("name", ALL_FIELDS)
def test_otherwise_it_stops_the_training_with_its_name(broken: StoreReader, name: str) -> None:
    flip(broken, 7, name)
    key, shard = broken.keys()[7], broken.meta.shards[int(broken.numbers["shard"][7])].file
    with pytest.raises(StoreCorruptError) as raised:
        list(FastDataLoader(broken, 5, num_workers=1))
    for part in (shard, f"field '{name}' of sample '{key}'", f"'flatout verify {broken.folder} --repair'"):
        assert part in str(raised.value)


def test_small_samples_that_share_a_checksum_go_together(whole: StoreReader, broken: StoreReader) -> None:
    flip(broken, 7, "label")
    shard = int(broken.numbers["shard"][7])
    mates = np.flatnonzero(broken.numbers["shard"] == shard)
    bad = {key_hashes(whole)[at] for at in mates.tolist()}
    loader = loader_of(broken, NUM_ITEMS)
    check_epoch(loader, loader_of(whole, NUM_ITEMS), bad)
    assert loader.damaged == [whole.keys()[at] for at in mates.tolist()]


@pytest.mark.parametrize("batch_size", [1, 2])
def test_a_batch_of_nothing_but_damage_gets_another_sample(
    whole: StoreReader, broken: StoreReader, batch_size: int
) -> None:
    positions = [0, 1, 2, 3]
    for position in positions:
        flip(broken, position, "image")
    bad = {key_hashes(whole)[at] for at in positions}
    loader = FastDataLoader(broken, batch_size, num_workers=0, read=ReadRule(on_damage="skip"))
    by_key = {int(row["key"]): row for batch in loader_of(whole) for row in rows_of(batch)}
    batches = list(loader)
    assert [len(batch["key"]) for batch in batches] == [batch_size] * (NUM_ITEMS // batch_size)
    rows = [row for batch in batches for row in rows_of(batch)]
    assert [bool(row["valid"]) for row in rows] == [False] * 4 + [True] * (NUM_ITEMS - 4)
    assert all(int(row["key"]) not in bad and same(row, by_key[int(row["key"])]) for row in rows)


def test_a_store_without_a_good_sample_is_an_error(broken: StoreReader) -> None:
    for position in range(NUM_ITEMS):
        flip(broken, position, "image")
    with pytest.raises(LoaderError, match="none of the split's 24 samples can be read"):
        next(iter(loader_of(broken)))


def test_a_resume_gives_the_rest_with_the_same_stand_ins(broken: StoreReader) -> None:
    for position in (2, 11, 19):
        flip(broken, position, "wave")
    straight = list(loader_of(broken))
    for stop in range(1, len(straight)):
        loader = loader_of(broken, num_workers=1)
        stream = iter(loader)
        for _ in range(stop):
            next(stream)
        resumed = loader_of(broken)
        resumed.load_state_dict(pickle.loads(pickle.dumps(loader.state_dict())))
        for batch, wanted in zip(resumed, straight[stop:], strict=True):
            assert batch.keys() == wanted.keys()
            assert all(torch.equal(batch[name], wanted[name]) for name in batch)


def test_repeats_of_a_short_last_batch_stay_marked(broken: StoreReader) -> None:
    flip(broken, 7, "image")
    keys: list[int] = []
    for rank in range(5):
        for batch in loader_of(broken, 3, rank=rank, world_size=5):
            keys += batch["key"][batch["valid"]].tolist()
    assert sorted(keys) == sorted(set(key_hashes(broken)) - {key_hashes(broken)[7]})


@pytest.mark.parametrize("num_bad", [1, 3, 6])
def test_a_split_on_the_device_has_the_same_stand_ins(tmp_path: Path, num_bad: int) -> None:
    store = make_store(tmp_path / "store", ONE_SHAPE)
    for position in range(num_bad):
        flip(store, position, "packed")
    plain, resident = loader_of(store, 2), loader_of(store, 2, on_device=True)
    for _ in range(2):
        for batch, wanted in zip(resident, plain, strict=True):
            assert batch.keys() == wanted.keys()
            assert all(torch.equal(batch[name], wanted[name]) for name in batch)
    assert resident.damaged == plain.damaged == store.keys()[:num_bad]


def test_crc_off_serves_what_is_there(broken: StoreReader) -> None:
    flip(broken, 7, "image")
    loader = loader_of(broken, crc="off")
    assert all(batch["valid"].all() for batch in loader)
    assert loader.damaged == []


def test_what_was_found_travels_by_pickle(broken: StoreReader) -> None:
    flip(broken, 7, "image")
    loader = loader_of(broken)
    list(loader)
    assert pickle.loads(pickle.dumps(loader)).damaged == loader.damaged == [broken.keys()[7]]


@pytest.mark.parametrize(("name", "value"), [("on_damage", "ignore"), ("crc", "never"), ("io", "net")])
def test_an_unknown_choice_is_refused(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{name} '{value}': wanted one of")):
        ReadRule(**{name: value})


@given(st.integers(1, 30).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n - 1), min_size=1))))
def test_stand_ins_are_good_and_others_stay(case: tuple[int, list[int]]) -> None:
    num_samples, positions = case
    for bad in (
        set(positions[::2]),
        set(positions),
        set(range(num_samples)) - {positions[0] * 7 % num_samples},
    ):
        if len(bad) == num_samples:
            with pytest.raises(LoaderError, match="can be read"):
                stand_in(np.array(positions), bad, num_samples)
            continue
        found = stand_in(np.array(positions), bad, num_samples).tolist()
        assert not set(found) & bad
        assert all(one == other for one, other in zip(found, positions, strict=True) if other not in bad)
        good = [position for position in positions if position not in bad]
        assert set(found) <= {*good, *found[:1]} if not good else set(found) == set(good)


def damage_tables(store: StoreReader, number: int) -> None:
    """Change a key in a shard's table of them."""
    path = store.shard(number).path
    at = store.meta.shards[number].at[list(layout.FIXED_TABLES).index(layout.KEY_BYTES)]
    assert at is not None
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.chmod(0o600)
    with open(path, "rb+") as file:
        file.write(data)


def test_a_shard_with_damaged_tables_is_left_out_as_a_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = make_store(tmp_path / "store", ("image", "label")).folder
    plain = {int(row["key"]): row for batch in loader_of(StoreReader(folder)) for row in rows_of(batch)}
    damage_tables(StoreReader(folder), 0)
    store = StoreReader(folder)
    bad = np.flatnonzero(store.numbers["shard"] == 0).tolist()
    loader = loader_of(store, 1)
    rows = [row for batch in loader for row in rows_of(batch)]
    assert sum(not row["valid"] for row in rows) == len(bad)
    assert all(same(row, plain[int(row["key"])]) for row in rows)
    assert loader.damaged == [store.keys()[at] for at in bad]
    assert all(
        "its tables do not match their checksum" in text for text in caplog.messages if "skipped" in text
    )
    with pytest.raises(StoreCorruptError, match=r"its tables do not match.*--repair"):
        list(FastDataLoader(store, 4))


def test_what_is_known_to_be_damaged_does_not_slow_later_epochs(
    broken: StoreReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch is gathered as it is, the damaged sample alone, and the batch with its stand-in: 3 and not 7."""
    sizes: list[int] = []
    gather = Fetcher._gather

    def counted(fetcher: Fetcher, wanted: Wanted, *others: Any) -> Any:
        sizes.append(len(wanted.positions))
        return gather(fetcher, wanted, *others)

    monkeypatch.setattr(Fetcher, "_gather", counted)
    flip(broken, 7, "image")
    loader = loader_of(broken)
    first = [batch["valid"].tolist() for batch in loader]
    assert sizes.count(1) == next(len(valid) for valid in first if False in valid)
    for _ in range(2):
        sizes.clear()
        assert sum(valid for batch in loader for valid in batch["valid"].tolist()) == NUM_ITEMS - 1
        assert (sizes.count(1), len(sizes)) == (1, len(loader) + 2)


def test_more_damage_beside_what_is_known_is_found(whole: StoreReader, broken: StoreReader) -> None:
    loader, plain = loader_of(broken, crc="always"), loader_of(whole)
    bad: set[int] = set()
    for position in (7, 8, 3):
        flip(broken, position, "image")
        bad.add(key_hashes(whole)[position])
        check_epoch(loader, plain, bad)
