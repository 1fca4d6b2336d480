"""SIGKILL at any moment: finished shards stay, the old version stays whole, a later run gives equal bytes."""

from __future__ import annotations

import random
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.store.crashing import (
    Model,
    Nursery,
    Source,
    TinyUpdate,
    can_trace,
    check_cut_off,
    check_finished,
    copied,
    fast_folder,
    points,
    shard_hashes,
    traced,
    wait_until,
)

NUM_ROWS = 200


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with Nursery(tmp_path_factory.mktemp("logs")) as nursery:
        yield nursery


@pytest.fixture
def place() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=fast_folder()) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    """Folder of what all tests here start from."""
    with tempfile.TemporaryDirectory(dir=fast_folder()) as name:
        yield Path(name)


@pytest.fixture(scope="module")
def source(base: Path) -> Source:
    """What is prepared first; three of its rows can never be decoded."""
    source = Source(base / "source")
    source.add(range(NUM_ROWS))
    source.spoil(range(3))
    return source


@pytest.fixture(scope="module")
def whole(base: Path, nursery: Nursery, source: Source) -> Path:
    """A store that was prepared without any disturbance."""
    nursery.finish(source.settings(base / "whole"))
    check_finished(base / "whole", source.model, source.bad)
    return base / "whole"


@pytest.fixture(scope="module")
def stages(base: Path, source: Source) -> tuple[Source, Source]:
    """The source, and the same after some work: rows added, changed and deleted."""
    later = Source(base / "later", dict(source.model), list(source.bad))
    shutil.copytree(source.folder, later.folder)
    later.add(range(20), seed=1)
    later.add(range(NUM_ROWS, NUM_ROWS + 60))
    later.remove(range(100, 130))
    return source, later


@pytest.fixture(scope="module")
def stores(base: Path, nursery: Nursery, whole: Path, stages: tuple[Source, Source]) -> tuple[Path, Path]:
    """The first store, and the same brought up to date without any disturbance."""
    later = stages[1]
    store = copied(whole, base / "updated")
    nursery.finish(later.settings(store))
    check_finished(store, later.model, later.bad)
    return whole, store


@pytest.fixture(scope="module")
def tiny(base: Path, nursery: Nursery) -> TinyUpdate:
    return TinyUpdate(nursery, base / "tiny")


def kill_and_resume(
    nursery: Nursery, source: Source, store: Path, draw: random.Random, num_workers: int, models: list[Model]
) -> None:
    """Start, kill at a random moment, up to three times; then finish. After each kill all must be whole."""
    settings = source.settings(store, num_workers=num_workers)
    longest = 0.4 if num_workers == 0 else 1.2
    for _ in range(draw.randint(1, 3)):
        run = nursery.start(settings)
        time.sleep(draw.uniform(0.0, longest))
        run.kill(everything=draw.random() < 0.5)
        check_cut_off(store, *models)
        assert wait_until(lambda run=run: not any(process.is_running() for process in run.processes))
    nursery.finish(settings)
    check_finished(store, source.model, source.bad)


def some(default: int, in_all: int) -> list[object]:
    """Seeds: the first ones always, the others with the slow tests."""
    return [*range(default), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(default, in_all))]


class TestRandomMoments:
    """By default 50 runs with one to three kills each."""

    @pytest.mark.parametrize("seed", some(30, 200))
    def test_first_prepare(self, nursery: Nursery, source: Source, whole: Path, place: Path, seed: int) -> None:
        store = place / "store"

        kill_and_resume(nursery, source, store, random.Random(seed), 0, [source.model])

        assert shard_hashes(store) == shard_hashes(whole)

    @pytest.mark.parametrize("seed", some(5, 60))
    def test_with_workers(self, nursery: Nursery, source: Source, whole: Path, place: Path, seed: int) -> None:
        store = place / "store"

        kill_and_resume(nursery, source, store, random.Random(seed), 2, [source.model])

        assert shard_hashes(store) == shard_hashes(whole)

    @pytest.mark.parametrize("seed", some(15, 100))
    def test_update(
        self, nursery: Nursery, stages: tuple[Source, Source], stores: tuple[Path, Path], place: Path, seed: int
    ) -> None:
        """Readers see the old version or the new one, never anything else."""
        (source, later), (whole, updated) = stages, stores
        store = copied(whole, place / "store")

        kill_and_resume(nursery, later, store, random.Random(seed), 0, [source.model, later.model])

        assert shard_hashes(store) == shard_hashes(updated)


@pytest.mark.skipif(not can_trace(), reason="strace is absent or may not trace here")
class TestEveryCall:
    """SIGKILL before each system call by which an update changes the store; by default before a few of them."""

    @pytest.mark.parametrize(
        "every", [13, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(1200)])]
    )
    def test_update(self, nursery: Nursery, tiny: TinyUpdate, place: Path, every: int) -> None:
        for call, count in tiny.points[every // 2 :: every]:
            store = copied(tiny.before, place / "store")
            run = traced(nursery, tiny.settings(store), place / "trace", f"{call}:signal=SIGKILL:when={count}")
            assert run.code == -signal.SIGKILL
            tiny.check_cut_off(store)
            nursery.finish(tiny.settings(store))
            tiny.check_finished(store)
            shutil.rmtree(store)

    @pytest.mark.slow
    @pytest.mark.timeout(1200)
    def test_first_prepare(self, nursery: Nursery, tiny: TinyUpdate, place: Path) -> None:
        reference, trace = place / "reference", place / "trace"
        assert traced(nursery, tiny.settings(reference), trace).code == 0
        for call, count in points(trace, reference):
            store = place / "store"
            run = traced(nursery, tiny.settings(store), trace, f"{call}:signal=SIGKILL:when={count}")
            assert run.code == -signal.SIGKILL
            check_cut_off(store, tiny.source.model)
            nursery.finish(tiny.settings(store))
            check_finished(store, tiny.source.model, tiny.source.bad)
            assert shard_hashes(store) == shard_hashes(reference)
            shutil.rmtree(store)


@pytest.mark.skipif(not can_trace(), reason="strace is absent or may not trace here")
class TestPowerCut:
    """No power is cut here; but the order of the calls tells what would survive it."""

    @pytest.fixture
    def calls(self, tiny: TinyUpdate) -> list[tuple[str, list[str]]]:
        """Each call of an update, with the paths it names."""
        found = []
        for line in tiny.trace.read_text().splitlines():
            name, _, arguments = line.split(maxsplit=1)[1].partition("(")
            if " = -1 " not in arguments:
                found.append((name, re.findall(r'[<"](/[^">]+)', arguments)))
        return found

    def test_a_file_is_on_the_disk_before_it_has_its_name(self, calls: list[tuple[str, list[str]]]) -> None:
        renames = [(at, paths) for at, (name, paths) in enumerate(calls) if name == "rename"]
        for at, (temporary, _) in renames:
            before = [name for name, paths in calls[:at] if paths[:1] == [temporary]]
            assert before[-1] == "fsync", f"{temporary} is renamed after {before[-3:]}"
        assert len(renames) > 5

    @pytest.mark.parametrize("last", ["data_metadata.json", "journal.jsonl"])
    def test_names_are_on_the_disk_before_others_rely_on_them(
        self, calls: list[tuple[str, list[str]]], last: str
    ) -> None:
        """The root relies on all that it names, a line of the journal on its shard."""
        reliant = [
            at
            for at, (name, paths) in enumerate(calls)
            if name in ("rename", "write") and paths[-1].endswith(last)
        ]
        renames = [
            (at, Path(paths[-1])) for at, (name, paths) in enumerate(calls[: reliant[-1]]) if name == "rename"
        ]
        for at, path in renames:
            synced = [paths for name, paths in calls[at : reliant[-1]] if name == "fsync"]
            assert [str(path.parent)] in synced, f"{path} is relied on before its folder is synced"
        assert len(renames) > 2
