"""SIGKILL at any moment: finished shards stay, the old version stays whole, the next run gives the same bytes."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.store.crashing import (
    Nursery,
    Source,
    check_cut_off,
    check_finished,
    copied,
    shard_hashes,
    wait_until,
)

NUM_ROWS = 200


@pytest.fixture(scope="module")
def nursery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nursery]:
    with Nursery(tmp_path_factory.mktemp("logs")) as nursery:
        yield nursery


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    source = Source(tmp_path_factory.mktemp("source"))
    source.add(range(NUM_ROWS))
    source.spoil(range(3))
    return source


class TestFirstPrepare:
    @pytest.mark.parametrize("seed", range(50))
    def test_killed_in_the_caller(self, nursery: Nursery, source: Source, tmp_path: Path, seed: int) -> None:
        _kill_and_resume(nursery, source, tmp_path, random.Random(seed), num_workers=0)


def _kill_and_resume(
    nursery: Nursery, source: Source, tmp_path: Path, draw: random.Random, num_workers: int
) -> None:
    settings = source.settings(tmp_path / "whole", num_workers=num_workers)
    began = time.monotonic()
    nursery.finish(settings)
    duration = time.monotonic() - began
    check_finished(tmp_path / "whole", source.model, source.bad)
    store = tmp_path / "store"
    settings = source.settings(store, num_workers=num_workers)
    for _ in range(draw.randint(1, 3)):
        run = nursery.start(settings)
        time.sleep(draw.uniform(0.0, 1.1 * duration))
        run.kill(everything=draw.random() < 0.5)
        check_cut_off(store, source.model)
        assert wait_until(lambda run=run: not any(process.is_running() for process in run.processes))
    nursery.finish(settings)
    check_finished(store, source.model, source.bad)
    assert shard_hashes(store) == shard_hashes(tmp_path / "whole")
