"""SIGKILL at any moment: finished shards stay, the old version stays whole, the next run gives the same bytes."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.store.crashing import (
    Nursery,
    Source,
    check_cut_off,
    check_finished,
    copied,
    fast_folder,
    shard_hashes,
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
def later(base: Path, whole: Path, source: Source) -> Source:
    """The same source after some work: rows added, changed and deleted."""
    later = Source(base / "later", dict(source.model), list(source.bad))
    shutil.copytree(source.folder, later.folder)
    later.add(range(20), seed=1)
    later.add(range(NUM_ROWS, NUM_ROWS + 60))
    later.remove(range(100, 130))
    return later


@pytest.fixture(scope="module")
def updated(base: Path, nursery: Nursery, whole: Path, later: Source) -> Path:
    """The first store, brought up to date without any disturbance."""
    store = copied(whole, base / "updated")
    nursery.finish(later.settings(store))
    check_finished(store, later.model, later.bad)
    return store


def kill_and_resume(
    nursery: Nursery, source: Source, store: Path, draw: random.Random, num_workers: int, models: list[dict]
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


class TestRandomMoments:
    @pytest.mark.parametrize("seed", range(50))
    def test_first_prepare(self, nursery: Nursery, source: Source, whole: Path, place: Path, seed: int) -> None:
        store = place / "store"

        kill_and_resume(nursery, source, store, random.Random(seed), 0, [source.model])

        assert shard_hashes(store) == shard_hashes(whole)

    @pytest.mark.parametrize(
        "seed", [*range(5), *(pytest.param(n, marks=pytest.mark.slow) for n in range(5, 60))]
    )
    def test_with_workers(self, nursery: Nursery, source: Source, whole: Path, place: Path, seed: int) -> None:
        store = place / "store"

        kill_and_resume(nursery, source, store, random.Random(seed), 2, [source.model])

        assert shard_hashes(store) == shard_hashes(whole)

    @pytest.mark.parametrize(
        "seed", [*range(15), *(pytest.param(n, marks=pytest.mark.slow) for n in range(15, 60))]
    )
    def test_update(
        self,
        nursery: Nursery,
        source: Source,
        later: Source,
        whole: Path,
        updated: Path,
        place: Path,
        seed: int,
    ) -> None:
        """Readers see the old version or the new one, never anything else."""
        store = copied(whole, place / "store")

        kill_and_resume(nursery, later, store, random.Random(seed), 0, [source.model, later.model])

        assert shard_hashes(store) == shard_hashes(updated)
