"""Unsynced writes and names that are lost (R17): what is left is a store, and the same command continues."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.store.crashing import (
    Nursery,
    TinyUpdate,
    can_trace,
    check_cut_off,
    check_finished,
    copied,
    fast_folder,
    shard_hashes,
    traced,
)
from tests.store.power import Disk, File, put, replay, states

pytestmark = pytest.mark.skipif(not can_trace(), reason="strace is absent or may not trace here")

EVERY = [61, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with Nursery(tmp_path_factory.mktemp("logs")) as nursery:
        yield nursery


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=fast_folder()) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def tiny(base: Path, nursery: Nursery) -> TinyUpdate:
    return TinyUpdate(nursery, base / "tiny")


@pytest.fixture(scope="module")
def update(base: Path, nursery: Nursery, tiny: TinyUpdate) -> tuple[Path, Path]:
    """(trace with data, the store it ended in) of an update of a store."""
    store = copied(tiny.before, base / "update" / "store")
    assert traced(nursery, tiny.settings(store), base / "update.trace", with_data=True).code == 0
    return base / "update.trace", store


@pytest.fixture(scope="module")
def first(base: Path, nursery: Nursery, tiny: TinyUpdate) -> tuple[Path, Path]:
    """The same of a first prepare, in a folder that is there already."""
    store = base / "first" / "store"
    store.mkdir(parents=True)
    assert traced(nursery, tiny.settings(store), base / "first.trace", with_data=True).code == 0
    return base / "first.trace", store


def disk_before(store: Path, before: Path | None, base: Path) -> Disk:
    """The disk as it was before the run that the trace shows."""
    aside = base / "aside"
    store.rename(aside)
    try:
        store.mkdir() if before is None else copied(before, store)
        return Disk(store)
    finally:
        shutil.rmtree(store)
        aside.rename(store)


def test_the_replay_ends_in_what_is_on_the_disk(
    base: Path, tiny: TinyUpdate, update: tuple[Path, Path], first: tuple[Path, Path]
) -> None:
    for (trace, store), before in ((update, tiny.before), (first, None)):
        disk = disk_before(store, before, base)
        calls = list(replay(trace, disk))
        assert {"write", "fsync", "rename", "unlink"} <= set(calls)
        wanted = {path: path.read_bytes() if path.is_file() else b"" for path in store.rglob("*")}
        assert {path: bytes(file.data) for path, file in disk.names.items()} == wanted


def test_a_disk_keeps_what_is_synced_and_nothing_else_for_sure(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    file, name = File(), tmp_path / "a"
    disk.change({name: file})
    file.write(0, b"one")
    lost = disk.after_cut(lambda: False, lambda: False, lambda size: size)
    only_name = disk.after_cut(lambda: True, lambda: False, lambda size: size)
    torn = disk.after_cut(lambda: True, lambda: True, lambda size: 2)
    assert (lost, only_name, torn) == ({}, {Path("a"): b""}, {Path("a"): b"on"})
    file.sync()
    disk.change({name: None, tmp_path / "b": file})
    assert disk.after_cut(lambda: False, lambda: False, lambda size: size) == {}
    disk.sync_folder(tmp_path)
    assert disk.after_cut(lambda: False, lambda: False, lambda size: size) == {Path("b"): b"one"}


@pytest.mark.parametrize("every", EVERY)
def test_an_update(
    base: Path, nursery: Nursery, tiny: TinyUpdate, update: tuple[Path, Path], tmp_path: Path, every: int
) -> None:
    trace, store = update
    num_states = 0
    for number, state in enumerate(states(trace, disk_before(store, tiny.before, base), seed=every)):
        if number % every:
            continue
        num_states += 1
        place = tmp_path / "store"
        put(state, place)
        assert (place / "data_metadata.json").exists(), "the version before is lost"
        tiny.check_cut_off(place)
        nursery.finish(tiny.settings(place))
        tiny.check_finished(place)
        shutil.rmtree(place)
    assert num_states >= 200 // every


@pytest.mark.parametrize("every", EVERY)
def test_a_first_prepare(
    base: Path, nursery: Nursery, tiny: TinyUpdate, first: tuple[Path, Path], tmp_path: Path, every: int
) -> None:
    trace, reference = first
    num_states = 0
    for number, state in enumerate(states(trace, disk_before(reference, None, base), seed=every)):
        if number % every:
            continue
        num_states += 1
        place = tmp_path / "store"
        put(state, place)
        check_cut_off(place, tiny.source.model)
        nursery.finish(tiny.settings(place))
        check_finished(place, tiny.source.model, tiny.source.bad)
        assert shard_hashes(place) == shard_hashes(reference)
        shutil.rmtree(place)
    assert num_states >= 200 // every
